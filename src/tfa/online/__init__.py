"""Camera streams: adaptation to one camera, and a filter over its drive.

In: photos as a head describes them, one after the other. Out: adapted scores, probabilities of map images. Data used:
earlier photos of the stream.
"""
