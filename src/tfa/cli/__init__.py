"""The command line, grouped by file: build, query, map, info, calibrate, evaluate, export, serve, tools.

Results go to standard output, notes and errors to standard error. Only this package imports typer. It holds no numeric
code.
"""
