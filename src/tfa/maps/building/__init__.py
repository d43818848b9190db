"""Build a map of any number of photos in shards, on one or many machines, and publish it in a store.

In: a list of photos. Out: a version of a map in a store (`maps.store`). Each shard's result is a file in a work
folder, so a rerun resumes an interrupted build. `sharded.py` lists the passes.
"""

from tfa.maps.building.photo_list import PhotoList, list_photos
from tfa.maps.building.sharded import BuildReport, Sharding, build_sharded

__all__ = ["BuildReport", "PhotoList", "Sharding", "build_sharded", "list_photos"]
