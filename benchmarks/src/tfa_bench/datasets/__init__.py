"""Folders of many layouts → database, queries and which images are right.

In: a dataset's folder and its card. Out: paths and positives. May see: labels.
"""
