"""Photo files: pixels, positions, recordings and the token cache.

Input: files and folders. Output: upright RGB images, positions, cached tokens.
"""
