"""Studies: measurements behind decisions and reports, as scripts that anyone can rerun.

Input: datasets or synthetic data. Output: tables, and JSON with `--out`. Run from a checkout with tfa-bench installed:
`python benchmarks/studies/confidence.py --help`.
"""
