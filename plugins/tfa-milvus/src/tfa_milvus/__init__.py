"""Maps in Milvus: `milvus://HOST:19530/NAME`."""

from tfa_milvus.store import MilvusStore

__all__ = ["MilvusStore"]
