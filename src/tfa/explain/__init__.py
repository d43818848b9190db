"""A map and an answer → why: matching patches, what each patch and word adds to the score, and drawings of both.

In: a map, a photo, a hit. Out: numbers and pictures. May see: the map and that photo.
"""
