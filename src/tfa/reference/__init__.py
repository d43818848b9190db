"""The formulas of `method` written plainly in float64: what the fast code is tested against, and the place to read.

In: arrays. Out: arrays. May see: nothing of the package.
"""
