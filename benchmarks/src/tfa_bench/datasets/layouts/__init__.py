"""One file per layout of a dataset: a folder → images and positives."""
