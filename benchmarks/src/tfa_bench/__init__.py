"""The benchmark: run heads on datasets, record their rankings, and score, tabulate and draw the records.

Input: image folders with a protocol. Output: records that anyone can rescore. Labels are read only after the rankings
are written.
"""
