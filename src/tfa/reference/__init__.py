"""Plain float64 versions of the formulas of `method`, to read and to test the fast code against.

In: arrays. Out: arrays. Imports nothing else of the package.
"""
