"""Photos on disk → pixels, positions, and tokens kept on disk.

In: files and folders. Out: upright RGB images, positions, cached tokens. May see: the files it is given.
"""
