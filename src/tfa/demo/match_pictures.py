"""Two answers of the demo in detail: which patches of query and reference match."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tfa.demo.answer_picture import draw_answer
from tfa.demo.report import MatchPicture
from tfa.demo.town import Town
from tfa.explain.draw_matches import draw_matches, format_caption
from tfa.explain.why import describe_view, explain_match
from tfa.maps import PlaceMap
from tfa.types import Answer

_ANSWER = "answer.png"  # the right one with its place on the plan
_PICTURES = {True: "matches-right.png", False: "matches-wrong.png"}


def draw_match_pictures(out: Path, town: Town, place_map: PlaceMap, answers: Sequence[Answer]) -> list[MatchPicture]:
    """Draw the surest right answer and the surest wrong one, as far as there are such; none without compact tokens."""
    pictures = []
    for right, name in _PICTURES.items():
        (out / name).unlink(missing_ok=True)  # of an earlier run
        of_kind = [answer for answer in answers if answer.hits and is_right(answer, town) == right]
        if of_kind and place_map.state.compact is not None:
            surest = max(of_kind, key=lambda answer: answer.confidence)
            pictures.append(_draw_answer(surest, right, place_map, out / name))
            if right:
                draw_answer(out / _ANSWER, town, place_map, surest)
    return pictures


def is_right(answer: Answer, town: Town) -> bool:
    return Path(answer.hits[0].image).name in town.positives[Path(answer.query).name]


def _draw_answer(answer: Answer, right: bool, place_map: PlaceMap, picture: Path) -> MatchPicture:
    found = explain_match(place_map, Path(answer.query))
    draw_matches(Path(found.query), Path(found.hit.image), found.matches, found.grid, found.grid, picture)
    title = "The surest right answer" if right else "A wrong answer, the surest of them"
    verdict = "shows the same place as" if right else "does not show the place of"
    return MatchPicture(
        picture,
        title,
        f"{Path(found.query).name} {verdict} {Path(found.hit.image).name}. Confidence {found.hit.confidence:.2f}; "
        f"{format_caption(found.matches)}; {describe_view(found.displacement)}.",
    )
