"""Records → tables in Markdown, CSV or LaTeX, and the page of results."""
