"""A small town, mapped and recognized: the data and the program of `tfa demo`.

In: sample photos of two drives. Out: a map, its recall, pictures and a page.
"""
