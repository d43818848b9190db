"""A map whose rows live in a store (`tfa.search.store`): for more images, or more readers and writers, than a folder.

In: photos, or a small map that was built in a folder. Out: `StoreStorage`, whose map answers, grows and is calibrated
as one in a folder does. May see: the database, and target photos to calibrate.

    NAME/header                 which version answers; replaced all at once             header.py
    NAME/claim                  who builds or calibrates now                            header.py
    NAME__vN                    collection: every image, reduced, with its own row      rows.py
    NAME/vN/reduction           of the head that answers there                          header.py
    NAME/vN/moments-…           Σ 1, Σ y, Σ y yᵀ of the collection
    NAME/vN/skeleton/FILE       a map of a sample of the images: heads, spaces          versions.py
    NAME/vN/patches/…           compact tokens: how they are made, and a piece an image patches.py
"""

from tfa.maps.store.storage import StoreStorage

__all__ = ["StoreStorage"]
