"""A map → a report on it: decisions with their evidence, images that repeat or attract others, and advice.

`html` holds what every report of the package shares: one skeleton, one stylesheet, pictures embedded in the page.
"""
