"""Speed: each stage against the least time that its unavoidable work takes on the same machine.

In: made-up data of a size. Out: lines with a ratio, and the page `results/performance/README.md`.
"""
