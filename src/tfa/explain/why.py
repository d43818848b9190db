"""Explain an answer: patch matches of a query with a hit, and the attribution of their score as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfa.core.tokens import Tokens
from tfa.errors import BadMap, BadSpec, BadTokens, UnknownImage
from tfa.explain.shares import Attribution, attribute
from tfa.maps import PlaceMap
from tfa.maps.upkeep import load_tokens
from tfa.method.carriers import MEAN, Gamma
from tfa.method.scorer import GLOBAL, Scorer, ScoreTerm, SecondOrderSide
from tfa.photos.images import Photo, as_rgb, name_photo
from tfa.types import Admission, Displacement, ExplainResult, Hit
from tfa.verification.matching import Matches, compute_displacements

NOT_DECIDED = "off: not decided for this head"


@dataclass(frozen=True)
class Explanation:
    """A hit and its patch matches with the query."""

    result: ExplainResult
    matches: Matches
    tokens: Tokens  # of the query


def describe_matches(
    query: str, rank: int, hit: Hit, matches: Matches, grid: tuple[int, int], verification: Admission
) -> ExplainResult:
    """Describe the patch matches of a query with a hit; `grid` is the patch grid of both photos."""
    moved, alike = None, matches.consistent
    if matches.count:  # median displacement of the inliers: cells by which the query looks further down and right
        shifts = compute_displacements(matches.ours[alike], matches.theirs[alike], grid, grid)
        down, right = (round(float(np.median(shift))) for shift in shifts)
        moved = Displacement(down=down, right=right)
    places = (*np.divmod(matches.ours, grid[1]), *np.divmod(matches.theirs, grid[1]), alike)
    return ExplainResult(
        query=query,
        rank=rank,
        answer=hit,
        consistent=matches.count,
        mutual=len(matches.ours),
        displacement=moved,
        view=describe_view(moved),
        verification=verification,
        grid=grid,
        matches=list(zip(*(place.tolist() for place in places), strict=True)),
    )


def describe_view(displacement: Displacement | None) -> str:
    """Describe the query's viewing direction relative to the map image.

    An object further right in the map image than in the query (a displacement to the right) means that the query looks
    further right; likewise for down.
    """
    if displacement is None:
        return "no inliers"
    down, right = displacement.down, displacement.right
    aside, height = "right" if right > 0 else "left", "down" if down > 0 else "up"
    if right:
        more = f" and {abs(down)} {height}" if down else ""
        return f"the query looks {_patches(right)} further {aside}{more}"
    return f"the query looks {_patches(down)} further {height}" if down else "the query looks the same way"


def _patches(number: int) -> str:
    return f"{abs(number)} patch{'' if abs(number) == 1 else 'es'}"


def explain_match(place_map: PlaceMap, photo: Photo, rank: int = 1, calibration: str | None = None) -> Explanation:
    """Query a map that stores patches with a photo, and match its patches with the hit at `rank`, from 1."""
    compact, head = place_map.state.compact, place_map.state.chosen(calibration)
    if compact is None:
        raise BadMap("this map has no patch descriptors to compare; rebuild it with: tfa build --rerank")
    if not 1 <= rank <= len(place_map):
        raise BadSpec(f"rank={rank} is out of range: must be between 1 and {len(place_map)}, 1 is the best hit")
    tokens = Tokens(*place_map.encoder.encode([as_rgb(photo)]), grid=place_map.encoder.grid)
    hit = place_map.query_tokens(tokens, k=rank, calibration=calibration)[0][rank - 1]
    row = next(row for row, record in enumerate(place_map.state.images) if record.id == hit.id)
    matches = compact.matches(compact.query(tokens)[0], compact.grid, np.array([row]))[0]
    reason = NOT_DECIDED if head.verification is None else head.verification["reason"]
    verification = Admission(admitted=head.verifies, reason=reason)
    result = describe_matches(name_photo(photo), rank, hit, matches, compact.grid, verification)
    return Explanation(result, matches, tokens)


_WORDS = 12  # words listed
RESIDUAL_TERMS: dict[Gamma | str, str] = {
    None: "original residuals",
    0.0: "centered residuals",
    "shaped": "shaped residuals (γ = {:.2f})",
}
SECOND_ORDER_TERMS: dict[Gamma | str, str] = {
    None: "original",
    MEAN: "shared by all images",
    0.0: "centered",
    "shaped": "whitened (γ = {:.2f})",
}


def explain_score(
    place_map: PlaceMap,
    query_tokens: Tokens,
    image_id: int,
    calibration: str | None = None,
    image: Tokens | None = None,
) -> dict[str, Any]:
    """Explain the score of one query with one map image.

    The heat maps are signed contributions of patches, (rows, columns); each sums to the local terms of the score.
    Contributions of second-order heads are linearized, and there are no words. Without `image`, the tokens of the map
    image come from the token cache or its unchanged file.
    """
    if len(query_tokens) != 1:
        raise BadTokens(f"got tokens of {len(query_tokens)} photos; explain one photo at a time")
    rows = [row for row, record in enumerate(place_map.state.images) if record.id == image_id]
    if not rows or image_id in place_map.state.removed:
        raise UnknownImage(f"image {image_id} is not in the map; list the ids with: tfa info --json")
    if image is None:
        image = load_tokens(place_map, [place_map.state.images[rows[0]]], otherwise="explain another image")
    scorer = place_map.state.checked(calibration).stored.scorer
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
        "linearised": found.linearized,
        "words": _words(found),
        "terms": _terms(scorer, found),
        "matches": _matches(place_map, query_tokens, rows[0], grids[0]),
    }


def find_grid(place_map: PlaceMap, tokens: Tokens) -> tuple[int, int]:
    """Return the patch grid: from the tokens, from the encoder, or one row if neither fits."""
    if tokens.grid is not None:
        return tokens.grid
    rows, columns = place_map.state.encoder["grid"]
    count = int(tokens.counts[0])
    return (rows, columns) if rows * columns == count else (1, count)


def _words(attribution: Attribution) -> list[dict[str, Any]]:
    """List the words with the largest contributions, and their nearest patches; none for second-order heads."""
    ours, theirs = attribution.words("query"), attribution.words("image")
    sides = {one.term.member: one.term.side for one in reversed(attribution.terms) if one.term.side != GLOBAL}
    flat = [(member, word, float(value)) for member, values in ours.items() for word, value in enumerate(values)]
    flat.sort(key=lambda entry: (-abs(entry[2]), entry[0], entry[1]))
    return [
        {
            "word": word,
            "vocabulary": member,
            "contribution": value,
            "image_contribution": float(theirs[member][word]),
            "query_patches": np.flatnonzero(in_query == word).tolist(),
            "image_patches": np.flatnonzero(in_image == word).tolist(),
        }
        for member, word, value in flat[:_WORDS]
        for in_query, in_image in [attribution.nearest[sides[member]]]
    ]


def _terms(scorer: Scorer, attribution: Attribution) -> list[dict[str, Any]]:
    """List all terms of the score, which sum to it."""
    several = len({term.member for term in scorer.terms}) > 1
    terms = [
        {"name": term_name(scorer, one.term, several), "contribution": one.contribution, "weight": one.term.weight}
        for one in attribution.terms
    ]
    if attribution.bias:
        terms.append({"name": "mean score of the image", "contribution": attribution.bias, "weight": 1.0})
    return terms


def term_name(scorer: Scorer, term: ScoreTerm, several: bool = False) -> str:
    """Name a term; if there are `several` vocabularies or constructions, include its number."""
    second = term.side != GLOBAL and isinstance(scorer.sides[term.side], SecondOrderSide)
    which = f", {'construction' if second else 'vocabulary'} {term.member + 1}" if several else ""
    if term.side == GLOBAL:
        return f"global token{which}"
    names = SECOND_ORDER_TERMS if second else RESIDUAL_TERMS
    shape = names.get(term.gamma) or names["shaped"].format(term.gamma)
    return f"{'second-order' if second else f'{scorer.sides[term.side].assignment} words'}, {shape}{which}"


def _matches(place_map: PlaceMap, query: Tokens, row: int, grid: tuple[int, int]) -> list[list[int]]:
    """List inliers as [row, column, row, column] of query and image; none without compact tokens."""
    compact = place_map.state.compact
    if compact is None or compact.resolve_grid(query) is None:
        return []
    found = compact.matches(compact.query(query)[0], grid, np.array([row]))[0]
    ours = np.divmod(found.ours[found.consistent], grid[1])
    theirs = np.divmod(found.theirs[found.consistent], compact.grid[1])
    return np.stack([*ours, *theirs], axis=-1).tolist()
