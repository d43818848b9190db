"""Maps in LanceDB: `lance:///FOLDER/NAME` in a folder, `lance+s3://BUCKET/PREFIX/NAME` in a bucket."""

from tfa_lance.store import LanceStore

__all__ = ["LanceStore"]
