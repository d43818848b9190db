"""Ours, beyond the paper: what changes with the queries, a filter over a drive and a calibration kept fresh.

In: rows of scores, one query after the other. Out: probabilities of places, a bias per image. May see: the queries.
"""
