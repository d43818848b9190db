"""The demo's report, `templates/demo.html`: one HTML file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfa.core.files import write_text
from tfa.report.html import Decision, ReportTable, TableRow, render_template

_TEMPLATE = Path(__file__).parent / "templates" / "demo.html"


@dataclass(frozen=True)
class MatchPicture:
    """A picture of the matches between a query and an answer, and what to see in it."""

    picture: Path
    title: str
    text: str


def write_demo_report(
    path: Path,
    *,
    title: str,
    recalls: Sequence[TableRow],
    decisions: Sequence[Decision],
    montage: Path | None,
    intro: Sequence[str] = (),
    matches: Sequence[MatchPicture] = (),
) -> None:
    """Write the report; pictures are embedded, every text is escaped."""
    page = render_template(
        _TEMPLATE,
        title=title, intro=intro, recalls=ReportTable(recalls), decisions=decisions, montage=montage, matches=matches,
    )  # fmt: skip
    write_text(Path(path), page)
