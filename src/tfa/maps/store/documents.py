"""Documents of a map in a store: their names, and arrays as bytes and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tfa.errors import BadMap
from tfa.search.reduced import Moments, Reduction
from tfa.search.store import Store


def header_key(name: str) -> str:
    return f"{name}/header"


def claim_key(name: str) -> str:
    return f"{name}/claim"


def folder_of(name: str, version: int) -> str:
    """What all documents of a version begin with."""
    return f"{name}/v{version}/"


def collection_of(name: str, version: int) -> str:
    return f"{name}__v{version}"


def versions_there(store: Store, name: str) -> set[int]:
    """Numbers of all versions of which anything is there."""
    ends = [one.removeprefix(f"{name}__v") for one in store.names(f"{name}__v")]
    ends += [key.removeprefix(f"{name}/v").partition("/")[0] for key in store.keys(f"{name}/v")]
    return {int(end) for end in ends if end.isascii() and end.isdecimal()}


def to_bytes(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Arrays in safetensors."""
    return save({name: np.ascontiguousarray(array) for name, array in tensors.items()})


def arrays_of(store: Store, key: str) -> dict[str, np.ndarray]:
    """The arrays of a document that must be there."""
    try:
        return load(needed(store, key))
    except (SafetensorError, ValueError, KeyError) as error:
        raise BadMap(f"{key} is damaged in the store ({error}); build the map again") from None


def needed(store: Store, key: str) -> bytes:
    content = store.read(key)
    if content is None:
        raise BadMap(f"{key} is missing in the store: the map is not whole; build it again")
    return content


def reduction_bytes(reduction: Reduction) -> bytes:
    mean = np.array([reduction.mean_bias], np.float64)
    return to_bytes({"matrix": reduction.matrix, "bias_axis": reduction.bias_axis, "mean_bias": mean})


def read_reduction(store: Store, key: str) -> Reduction:
    arrays = arrays_of(store, key)
    return Reduction(arrays["matrix"], arrays["bias_axis"], float(arrays["mean_bias"][0]))


def moments_bytes(moments: Moments) -> bytes:
    count = np.array([moments.count], np.int64)
    return to_bytes({"count": count, "first": moments.first, "second": moments.second})


def read_moments(store: Store, key: str) -> Moments:
    arrays = arrays_of(store, key)
    return Moments(int(arrays["count"][0]), arrays["first"], arrays["second"])
