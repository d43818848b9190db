"""Photos on disk → pixels, positions, and tokens kept on disk. Sees: nothing but the files it is given."""
