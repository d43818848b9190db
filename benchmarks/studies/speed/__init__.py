"""Speed: each stage compared with the least time of its unavoidable work on the same machine.

Input: synthetic data of a given size. Output: lines with a ratio, and the page `results/performance/README.md`.
"""
