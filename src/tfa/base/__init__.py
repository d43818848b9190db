"""What every room needs and nothing of places: configuration, files, arrays, threads, tokens, progress.

In: plain values. Out: plain values, whole files or none. May see: nothing; it imports only `errors`.
"""
