"""Trained reference systems from their published checkpoints: a photo becomes one unit vector.

Input: photos and a checkpoint file of the user. Output: descriptors of the system's own encoder, and a head that ranks
them. Data used: labels, in training elsewhere; tables show these systems as references and do not rank them.
"""
