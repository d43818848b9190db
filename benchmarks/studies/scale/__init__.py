"""Scale: maps past one machine. Stores by size, versions, killed servers, replicas, Ray, joined galleries.

In: made-up places or datasets. Out: rows of `results/studies/scale.json` and its tables.
"""
