"""Maps in a store (`tfa.search.store`), for more images, readers or writers than a folder supports.

In: photos, or a small map in memory. Out: `StoreStorage`. Data used: database; target photos to calibrate.

    NAME/header                 current version; replaced atomically                    header.py
    NAME/claim                  process that builds or calibrates the map               header.py
    NAME__vN                    collection: reduced vector and full row of each image   rows.py
    NAME/vN/reduction           reduction of the active head                            header.py
    NAME/vN/moments-…           Σ 1, Σ y, Σ y yᵀ of the collection
    NAME/vN/skeleton/FILE       map of a sample of the images: heads, spaces            versions.py
    NAME/vN/patches/…           compact tokens: the compaction, and a piece per image   rows.py
"""

from tfa.maps.store.storage import StoreStorage

__all__ = ["StoreStorage"]
