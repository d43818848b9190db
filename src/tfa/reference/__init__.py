"""The same formulas written plainly in float64, to hold the fast stages against. Imports nothing of the package."""
