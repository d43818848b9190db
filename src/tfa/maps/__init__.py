"""A head and its photos as one thing that is saved, edited, calibrated and queried.

In: photos. Out: `PlaceMap`, and hits with their confidence. May see: the database, and target photos to calibrate.
"""

from tfa.maps.fit_map import rerank_candidates
from tfa.maps.map import Map as PlaceMap
from tfa.verification.reranking import Reranked

__all__ = ["PlaceMap", "Reranked", "rerank_candidates"]
