"""Render a small town, photographed twice along one route.

In: a seed. Out: photos, positions and positives. `tfa demo` ships photos of it; tests render smaller ones.
"""
