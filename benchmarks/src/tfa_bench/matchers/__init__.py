"""Learned matchers of local features, yardsticks for verification: two photos → matches that agree.

They are not part of the method and nothing of a map needs them; they see weights that were trained with labels.
"""
