"""Rows of vectors → who finds the k best of them: galleries, engines, ties.

In: vectors and a bias per image. Out: row numbers and scores, ties broken by the smaller row. May see: vectors, not
what they mean.
"""
