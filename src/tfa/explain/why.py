"""Why a photo matched an image of a map: the attribution of their score, as JSON.

`attribution` computes the arrays for a scorer; `explain_score` finds the image, its tokens and its grid in a map.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfa.base.tokens import Tokens
from tfa.errors import BadTokens, UnknownImage
from tfa.explain.attribution import Attribution, attribute
from tfa.maps import PlaceMap
from tfa.maps.lookup import load_tokens
from tfa.method.carriers import MEAN, Gamma
from tfa.method.query_sides import SecondOrderSide
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm

_WORDS = 12  # words listed
RESIDUAL_TERMS: dict[Gamma | str, str] = {
    None: "original residuals",
    0.0: "centred residuals",
    "shaped": "shaped residuals (γ = {:.2f})",
}
SECOND_ORDER_TERMS: dict[Gamma | str, str] = {
    None: "original",
    MEAN: "shared by all images",
    0.0: "centred",
    "shaped": "whitened (γ = {:.2f})",
}


def explain_score(
    place_map: PlaceMap, query_tokens: Tokens, image_id: int, calibration: str | None = None, words: int = _WORDS
) -> dict[str, Any]:
    """What carried the score of one query with the image of that id.

    The heat maps hold signed contributions of patches, `rows × columns` each; either adds up to the local terms of the
    score. Those of second-order heads are linearised, and there are no words. The image's own tokens come from the
    token cache, or from its file if that has not changed.
    """
    if len(query_tokens) != 1:
        raise BadTokens(f"one photo is explained at a time; {len(query_tokens)} were given")
    rows = [row for row, record in enumerate(place_map.state.images) if record.id == image_id]
    if not rows or image_id in place_map.state.removed:
        raise UnknownImage(f"there is no image {image_id} in the map; tfa info --json lists its ids")
    image = load_tokens(place_map, [place_map.state.images[rows[0]]], otherwise="explain another image")
    head = place_map.state.chosen(calibration)
    scorer = head.stored.scorer
    scorer.check(query_tokens)
    found = attribute(scorer, query_tokens, image, rows[0])
    grids = [find_grid(place_map, tokens) for tokens in (query_tokens, image)]
    heats = [found.patches(of).reshape(grid) for of, grid in zip(("query", "image"), grids, strict=True)]
    return {
        "id": image_id,
        "score": found.score,
        "grid": list(grids[0]),
        "image_grid": list(grids[1]),
        "query_heat": heats[0].tolist(),
        "image_heat": heats[1].tolist(),
        "linearised": found.linearised,
        "words": _words(found, words),
        "terms": _terms(scorer, found),
        "matches": _matches(place_map, query_tokens, rows[0], grids[0]),
    }


def find_grid(place_map: PlaceMap, tokens: Tokens) -> tuple[int, int]:
    """How the patches lie: as the tokens say, as the encoder's, or in one row where neither fits."""
    if tokens.grid is not None:
        return tokens.grid
    rows, columns = place_map.state.encoder["grid"]
    count = int(tokens.counts[0])
    return (rows, columns) if rows * columns == count else (1, count)


def _words(attribution: Attribution, most: int) -> list[dict[str, Any]]:
    """The words that contributed most, either way, with the patches nearest to them; none of second-order heads."""
    ours, theirs = attribution.words("query"), attribution.words("image")
    sides = {one.term.member: one.term.side for one in reversed(attribution.terms) if one.term.side != GLOBAL}
    flat = [(member, word, float(value)) for member, values in ours.items() for word, value in enumerate(values)]
    flat.sort(key=lambda entry: (-abs(entry[2]), entry[0], entry[1]))
    listed = []
    for member, word, value in flat[:most]:
        in_query, in_image = (np.flatnonzero(near == word).tolist() for near in attribution.nearest[sides[member]])
        listed.append(
            {
                "word": word,
                "vocabulary": member,
                "contribution": value,
                "image_contribution": float(theirs[member][word]),
                "query_patches": in_query,
                "image_patches": in_image,
            }
        )
    return listed


def _terms(scorer: Scorer, attribution: Attribution) -> list[dict[str, Any]]:
    """Every summand of the score; they add up to it."""
    several = len({term.member for term in scorer.terms}) > 1
    terms = [
        {"name": term_name(scorer, one.term, several), "contribution": one.contribution, "weight": one.term.weight}
        for one in attribution.terms
    ]
    if attribution.bias:
        terms.append({"name": "usual score of the image", "contribution": attribution.bias, "weight": 1.0})
    return terms


def term_name(scorer: Scorer, term: ScoreTerm, several: bool = False) -> str:
    """A term in words; of `several` vocabularies (constructions of a second-order head) also which."""
    second = term.side != GLOBAL and isinstance(scorer.sides[term.side], SecondOrderSide)
    which = f", {'construction' if second else 'vocabulary'} {term.member + 1}" if several else ""
    if term.side == GLOBAL:
        return f"global token{which}"
    names = SECOND_ORDER_TERMS if second else RESIDUAL_TERMS
    shape = names.get(term.gamma) or names["shaped"].format(term.gamma)
    return f"{'second-order' if second else f'{scorer.sides[term.side].assignment} words'}, {shape}{which}"


def _matches(place_map: PlaceMap, query: Tokens, row: int, grid: tuple[int, int]) -> list[list[int]]:
    """Consistent patch matches as [row, column, row, column] of query and image; none without compact tokens."""
    compact = place_map.state.compact
    if compact is None or compact.resolve_grid(query) is None:
        return []
    found = compact.matches(compact.query(query)[0], grid, np.array([row]))[0]
    ours = np.divmod(found.ours[found.consistent], grid[1])
    theirs = np.divmod(found.theirs[found.consistent], compact.grid[1])
    return np.stack([*ours, *theirs], axis=-1).tolist()
