"""A map behind HTTP, queried without any extra.

In: photos. Out: hits, as `PlaceMap` gives them. May see: what the service answers.
"""

from tfa.client.client import Client
from tfa.client.connection import ServiceError

__all__ = ["Client", "ServiceError"]
