"""Data and program of `tfa demo`: map a small town and recognize it on a second drive.

In: sample photos of two drives. Out: a map, its recall, drawings and a page.
"""
