"""Ours, beyond the paper: patches of two photos → evidence that they show one place, and a ranking by it.

In: patch tokens and the head's ranking. Out: the candidates in a new order, or the decision not to verify. May see:
the database, or unlabelled target photos.
"""
