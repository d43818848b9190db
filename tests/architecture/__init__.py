"""The layout of the package, its size, and how many modules a query enters."""
