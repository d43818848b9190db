"""A map as a folder of files: its header, its reader, its writer.

In: a map's state. Out: the same state from the disk, bit for bit. Every change is one atomic step.
"""
