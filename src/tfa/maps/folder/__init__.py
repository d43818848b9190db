"""Map folders: format, reader and writer. Every edit is one atomic step."""
