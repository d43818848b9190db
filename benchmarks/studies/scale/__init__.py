"""Scale: maps beyond one machine. Stores by size, versions, killed servers, replicas, Ray, joined galleries.

Input: synthetic places or datasets. Output: rows of `results/studies/scale.json` and its tables.
"""
