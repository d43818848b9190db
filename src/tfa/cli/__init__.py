"""The command line, one file per verb.

In: arguments. Out: text or JSON on standard output, notes on standard error. The only room that imports typer; it
holds no arithmetic.
"""
