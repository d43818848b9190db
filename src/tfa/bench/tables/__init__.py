"""Records → tables, in Markdown, HTML or LaTeX."""
