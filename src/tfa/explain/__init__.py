"""Explain answers: matching patches, the contribution of each patch and word to the score, and drawings of both.

In: a map, a photo, a hit. Out: numbers and image files. Data used: the map and that photo.
"""
