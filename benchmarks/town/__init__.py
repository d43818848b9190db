"""Render a small town, photographed twice along one route.

Input: a seed. Output: photos, positions and positives. `tfa demo` ships photos of it; tests render smaller ones.
"""
