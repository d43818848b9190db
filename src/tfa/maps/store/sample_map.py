"""The sample of a map in a store, as a map of its own: decisions are judged and reports are made on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfa.encoders import Encoder
from tfa.maps.query import AskableMap
from tfa.maps.store.versions import View


class SampleMap(AskableMap):
    """The sampled images that still answer, with their patches; what is said of the map is said of all images."""

    def __init__(self, view: View, facts: Mapping[str, Any] | None = None, encoder: Encoder | None = None) -> None:
        there = set(view.active.collection.fetch(view.sample_ids).ids.tolist()) - view.header.removing
        gone = frozenset(view.sample_ids) - there
        compact = None if view.patches is None else view.patches.of(view.sample_ids)
        super().__init__(replace(view.state, compact=compact, removed=gone), encoder=encoder)
        self._facts = dict(facts or {})

    def info(self) -> dict[str, Any]:
        """That of the whole map."""
        count, every = len(self), self._facts.get("images", len(self))
        note = [f"near duplicates, hubs and lonely images are those of a sample of {count:,}"] if count < every else []
        return {**self._facts, "notes": [*self._facts.get("notes", []), *note]}
