"""Maps in a folder of Qdrant's core: `qdrant:///FOLDER/NAME`."""

from tfa_qdrant.store import QdrantEdgeStore

__all__ = ["QdrantEdgeStore"]
