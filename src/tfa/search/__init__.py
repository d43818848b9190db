"""Rows of vectors → who finds the k best of them: galleries, engines, ties. Knows vectors, not what they mean."""
