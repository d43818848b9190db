"""`tfa explain`: why does the map answer this?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tfa.cli import options
from tfa.cli.console import note, print_json, say
from tfa.types import EncoderOptions


@options.with_encoder
def explain_command(
    map: options.MapPath,
    photo: Annotated[Path, typer.Argument(metavar="PHOTO", help="The query.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE.png",
            dir_okay=False,
            callback=options.picture,
            help="Draw the patches found in both photos, joined by lines, and what each patch adds to the score.",
        ),
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Which hit to explain; 1 is the best.")] = 1,
    calibration: options.Calibration = None,
    json: options.AsJson = False,
    quiet: options.Quiet = False,
    *,
    encoding: EncoderOptions,
) -> None:
    """Show which patches of a photo match those of the map's answer, and whether they are arranged alike.

    The map must hold compact tokens: [bold]tfa build --rerank[/bold].
    """
    from tfa.explain.why import explain_match as explained

    options.check_folder(map, "explain")
    place_map, _ = options.open_map(map, encoding, quiet=quiet, json=json)
    explanation = explained(place_map, photo, rank=rank, calibration=calibration)
    if json:
        print_json(explanation.to_dict())
    else:
        _show(explanation)
    if out is not None:
        draw(place_map, explanation, calibration, out)


def _show(explanation: Any) -> None:
    from tfa.explain.why import describe_view

    hit = explanation.hit
    say(explanation.query, style="bold")
    where = "" if hit.position is None else f" at {hit.position}"
    say(f"  answer {explanation.rank}: {hit.image}, id {hit.id}{where}")
    say(f"  score {hit.score:.4f}, confidence {hit.confidence:.2f}{', sure' if hit.sure else ''}")
    say(f"  {explanation.consistent} of {explanation.mutual} mutual matches move alike")
    say(f"  {describe_view(explanation.displacement)}")
    say(f"  verification is {explanation.reason}")


def draw(place_map: Any, explanation: Any, calibration: str | None, out: Path) -> None:
    """The matches, and what each patch of the query and of the answer contributes unless the answer's photo is lost."""
    import numpy as np

    from tfa.errors import BadMap
    from tfa.explain.draw_matches import draw_matches
    from tfa.explain.why import explain_score

    heats, linearised = None, False
    try:
        contributions = explain_score(place_map, explanation.tokens, explanation.hit.id, calibration)
        linearised = contributions["linearised"]
        heats = [np.array(contributions[heat]) for heat in ("query_heat", "image_heat")]
    except BadMap as error:
        note(f"drawn without contributions: {error}")
    answer, grid = Path(explanation.hit.image), explanation.grid
    draw_matches(Path(explanation.query), answer, explanation.matches, grid, grid, out, heats, linearised)
    note(f"picture: {out}" + ("" if answer.is_file() else f" (without {answer.name}, whose file is gone)"))
