"""Experiments on real data that are not rows of the tables."""
