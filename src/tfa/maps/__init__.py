"""Maps of places: a fitted head with its images, saved, edited, calibrated and queried.

In: photos. Out: `PlaceMap`, and answers with their confidence. Data used: database; target photos to calibrate.
"""

from tfa.maps.fit_map import rerank_candidates
from tfa.maps.map import Map as PlaceMap
from tfa.verification.reranking import Reranked

__all__ = ["PlaceMap", "Reranked", "rerank_candidates"]
