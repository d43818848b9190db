"""Studies: what was measured once to decide or to report, kept as scripts that anyone can run again.

In: datasets, or made-up data. Out: tables, and JSON with `--out`. Run from a checkout with tfa-bench installed:
`python benchmarks/studies/confidence.py --help`.
"""
