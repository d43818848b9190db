"""Answers and the truth → which are right, how many, how surely, and which mistakes to look at.

In: a map with photos whose places are known, or records of the benchmark. Out: a `Judgement`, and its numbers as JSON.
May see: labels, after the answers were given.
"""
