"""A map and an answer → why: patches, words and matches, and the drawing of each."""
