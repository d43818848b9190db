"""Ours, beyond the paper: what changes with the queries, adaptation to one camera and a filter over its drive.

In: photos as a head describes them, one after the other. Out: adapted scores, probabilities of places. May see: the
queries before.
"""
