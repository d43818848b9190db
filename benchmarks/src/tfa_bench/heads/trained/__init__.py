"""Trained reference systems, from their published checkpoints: image → one unit vector.

In: photos and a checkpoint file of the user's. Out: descriptors under an encoder of the system's own, and a head that
ranks them. May see: labels, in training elsewhere; so they stand beside the training-free heads and are not ranked.
"""
