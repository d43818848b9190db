"""The plan that pages share, in JavaScript: moved, scaled and picked from alike wherever positions are drawn."""

from __future__ import annotations

import re
from pathlib import Path

PLAN_VIEW = Path(__file__).parent / "templates" / "plan_view.js"  # an ES module, as a server gives it to a page


def plan_view_script() -> str:
    """The same for a page of one file, whose scripts share one scope and export nothing."""
    return re.sub(r"^export ", "", PLAN_VIEW.read_text("utf-8"), flags=re.MULTILINE)
