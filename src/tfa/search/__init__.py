"""Nearest-neighbor search: galleries, exact and reduced search, ties, and stores for large maps.

Input: vectors and a bias per image. Output: row numbers and scores; ties go to the smaller row.
"""
