"""The command line, grouped by file: build, query, map, info, calibrate, evaluate, export, serve, tools.

In: arguments. Out: text or JSON on standard output, notes on standard error. The only package that imports typer; it
holds no arithmetic.
"""
