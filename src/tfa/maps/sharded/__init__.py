"""A map of any number of photos, built in shards on one machine or on many, and published in a store.

In: a list of photos. Out: a version of a map in a store (`maps.store`). Each shard's result is a file in a work
folder: a build that was killed goes on where it was. `build.py` has the passes in their order.
"""

from tfa.maps.sharded.build import build_sharded
from tfa.maps.sharded.photo_list import PhotoList, list_photos
from tfa.maps.sharded.settings import BuildReport, Sharding

__all__ = ["BuildReport", "PhotoList", "Sharding", "build_sharded", "list_photos"]
