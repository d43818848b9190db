"""Explain an answer: patch matches of a query with a hit, and the attribution of their score as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
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

# --- matches --------------------------------------------------------------------------------------

NOT_DECIDED = "not used: it was not decided for this head"


@dataclass(frozen=True)
class Explanation:
    """A hit, and how its patches lie against those of the query."""

    query: str
    rank: int  # of the hit, from 1
    hit: Hit
    matches: Matches
    grid: tuple[int, int]  # of the patches of both photos
    admitted: bool  # whether verification orders the answers of this map
    reason: str
    tokens: Tokens | None = field(default=None, repr=False, compare=False)  # of the query: they are computed once

    @property
    def mutual(self) -> int:
        return len(self.matches.ours)

    @property
    def consistent(self) -> int:
        return self.matches.count

    @property
    def displacement(self) -> tuple[int, int] | None:
        """Cells by which the query looks further down and right: the median of the matches that move alike."""
        if not self.consistent:
            return None
        alike = self.matches.consistent
        down, right = compute_displacements(self.matches.ours[alike], self.matches.theirs[alike], self.grid, self.grid)
        return round(float(np.median(down))), round(float(np.median(right)))

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation in JSON, as `tfa.types.ExplainResult` has it."""
        return self.result().to_dict()

    def result(self) -> ExplainResult:
        """Return the explanation without arrays."""
        moved, matches, columns = self.displacement, self.matches, self.grid[1]
        places = (*np.divmod(matches.ours, columns), *np.divmod(matches.theirs, columns), matches.consistent)
        return ExplainResult(
            query=self.query,
            rank=self.rank,
            answer=self.hit,
            consistent=self.consistent,
            mutual=self.mutual,
            displacement=None if moved is None else Displacement(down=moved[0], right=moved[1]),
            view=describe_view(moved),
            verification=Admission(admitted=self.admitted, reason=self.reason),
            grid=self.grid,
            matches=list(zip(*(place.tolist() for place in places), strict=True)),
        )


def describe_view(displacement: tuple[int, int] | None) -> str:
    """How the query was aimed against the map's photo.

    What stands further right in the map's photo than in the query (a displacement to the right) moved left between
    them: the query looks further right. Likewise down.
    """
    if displacement is None:
        return "no patches move alike"
    down, right = displacement
    aside, height = "right" if right > 0 else "left", "down" if down > 0 else "up"
    if right:
        more = f" and {abs(down)} {height}" if down else ""
        return f"the query looks {_cells(right)} further {aside}{more}"
    return f"the query looks {_cells(down)} further {height}" if down else "the query looks the same way"


def _cells(number: int) -> str:
    return f"{abs(number)} cell{'' if abs(number) == 1 else 's'}"


def explain_match(place_map: PlaceMap, photo: Photo, rank: int = 1, calibration: str | None = None) -> Explanation:
    """Query the map with a photo, and match its patches with those of the hit of that rank."""
    compact, head = place_map.state.compact, place_map.state.chosen(calibration)
    if compact is None:
        raise BadMap(
            "this map holds no compact tokens to compare patches with; build it again with: tfa build --rerank"
        )
    if not 1 <= rank <= len(place_map):
        raise BadSpec(f"rank={rank} is out of range: the map has {len(place_map)} photos, 1 is the best hit")
    tokens = Tokens(*place_map.encoder.encode([as_rgb(photo)]), grid=place_map.encoder.grid)
    hit = place_map.query_tokens(tokens, k=rank, calibration=calibration)[0][rank - 1]
    row = next(row for row, record in enumerate(place_map.state.images) if record.id == hit.id)
    matches = compact.matches(compact.query(tokens)[0], compact.grid, np.array([row]))[0]
    reason = NOT_DECIDED if head.verification is None else head.verification["reason"]
    return Explanation(name_photo(photo), rank, hit, matches, compact.grid, head.verifies, reason, tokens)


# --- why ------------------------------------------------------------------------------------------

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
