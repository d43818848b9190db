"""The fingerprint of an encoder: a digest of all that shapes its tokens. The device does not: it changes rounding only.

Transformers' rule for positions was once the only one, and names had no `/hf`. Its fingerprints are what they were, so
what was made by it before is recognised by its fingerprint and goes by the name with `/hf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tfa.base.files import hash_json
from tfa.encoders.encoder_name import EncoderId, parse_encoder
from tfa.errors import UnknownEncoder

_TOKENS_VERSION = 1  # raised when the same weights and identity come to give other numbers
_FAST_VERSION = 1  # the same of the form in integers
_PUBLISHED = "bicubic by the factor (g + 0.1)/side"  # how positions are resampled


def fingerprint_encoder(identity: EncoderId, weights_sha256: str) -> str:
    """Fingerprint an encoder's float32 tokens."""
    card = identity.card
    rule = {"positions": _PUBLISHED} if identity.published_rule else {}
    return hash_json(
        {
            "version": _TOKENS_VERSION,
            "provider": "transformers",
            "family": card.family,
            "identity": str(replace(identity, hf=False)),
            "layer": identity.layer,
            "facet": identity.facet,
            "final_norm": identity.final_norm,
            "preprocessing": {
                "size": [identity.width, identity.height],
                "resample": card.resample,
                "mean": list(card.mean),
                "std": list(card.std),
            },
            "weights": weights_sha256,
            "dtype": "float16",
            **rule,
        }
    )


def fast_fingerprint(model: str) -> str:
    """Fingerprint a model's int8 tokens from the fingerprint of its float32 tokens."""
    return hash_json({"version": _FAST_VERSION, "arithmetic": "int8", "model": model})


def names_by_fingerprint(identity: EncoderId, weights_sha256: str) -> dict[str, EncoderId]:
    """The identity itself, then the one that differs from it only in how positions are resampled."""
    return {fingerprint_encoder(rule, weights_sha256): rule for rule in identity.rules}


def use_current_name(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """What a map or a record remembers of its encoder (`id`, `fingerprint_encoder` …), with the name it has today.

    Only the digest of a package's weights is known without them: what else was made before stays as it was named.
    """
    try:
        identity = parse_encoder(encoder["id"])
    except UnknownEncoder:  # brought by another distribution, or of a trained system
        return dict(encoder)
    package = identity.card.package
    known = {} if package is None else names_by_fingerprint(identity, package.weights)
    for model, name in known.items():
        if encoder["fingerprint"] in (model, fast_fingerprint(model)):
            return {**encoder, "id": str(name)}
    return dict(encoder)
