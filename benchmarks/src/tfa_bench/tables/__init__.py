"""Tables of records in Markdown, CSV or LaTeX, and the results page."""
