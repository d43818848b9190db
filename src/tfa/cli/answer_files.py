"""`tfa query --out`: files of answers for other programs, refused before the work where they cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tfa.cli.console import format_count, note
from tfa.cli.options import check_writable
from tfa.errors import BadSpec

if TYPE_CHECKING:
    from tfa.maps import PlaceMap


def answer_files(paths: list[Path] | None) -> list[Path] | None:
    """Files that can be written, whose endings say in which formats."""
    if paths:
        from tfa.exports.answers import format_of

        for path in paths:
            try:
                wanted = format_of(path)
            except BadSpec as error:
                raise typer.BadParameter(str(error)) from None
            wanted.check()
            check_writable(path)
    return paths


@dataclass(frozen=True)
class AnswerFiles:
    """What --out, --images and --utm ask for."""

    paths: Sequence[Path]
    images: bool
    utm: str | None

    def check_options(self) -> None:
        """Refuse options about files that are not written."""
        if self.utm is not None:
            from tfa.photos.positions import utm_code

            utm_code(self.utm)
            if not self.paths:
                raise typer.BadParameter("--utm is about files of answers; give one with --out FILE")
        if not self.images and not any(path.suffix.lower() == ".mcap" for path in self.paths):
            raise typer.BadParameter("--no-images is about a recording; give one with --out FILE.mcap")

    def check_positions(self, place_map: PlaceMap) -> None:
        """Refuse a file that cannot hold the map's positions."""
        if self.paths:
            from tfa.exports.answers import check_positions
            from tfa.photos.positions import to_degrees

            positions = [image.position for image in place_map.state.images]
            if self.utm is not None:
                positions = to_degrees(positions, self.utm)  # now, rather than after the work
            for path in self.paths:
                check_positions(path, positions, self.utm)

    def write(self, answers: Sequence[Any], place_map: PlaceMap, calibration: str | None, seconds: float) -> None:
        """All files, each whole or not at all."""
        if not self.paths:
            return
        from tfa.exports.answers import ExportContext, format_of, write_answers
        from tfa.exports.answers.record import times_of
        from tfa.maps.state import DATABASE

        used = place_map.state.chosen(calibration).name
        context = ExportContext(
            times=times_of(answers),
            images=self.images,
            utm=self.utm,
            map_name=place_map.called,
            calibration="" if used == DATABASE else used,
            milliseconds=1000 * seconds / max(len(answers), 1),
        )
        counts = [write_answers(path, answers, context) for path in self.paths]
        for path, count in zip(self.paths, counts, strict=True):  # all are there before anything is printed
            note(f"wrote {path} ({format_of(path).holds}: {count:,} of {format_count(len(answers), 'photo')})")
