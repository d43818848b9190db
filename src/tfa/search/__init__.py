"""Rows of vectors → the k best of them: galleries, exact and reduced search, ties, and stores for large maps.

In: vectors and a bias per image. Out: row numbers and scores, ties broken by the smaller row. May see: vectors, not
what they mean.
"""
