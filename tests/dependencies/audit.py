"""Known vulnerabilities of the pinned versions: `python -m tests.dependencies.audit`, or `make audit`.

pip-audit asks PyPI. Exits with 1 if a pin has a known weakness, or if there are pins nobody answered for, which are
listed: pip-audit itself takes an audit that asked about nothing for one that found nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PINS = Path(__file__).parents[2] / "constraints.txt"
# --no-deps and --disable-pip: the pins are asked about as they are written, nothing is resolved or installed.
COMMAND = [
    *(sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps", "--disable-pip"),
    *("--progress-spinner", "off", "--format", "json"),
]


def pins() -> dict[str, str]:
    """Versions by name, as they are written."""
    lines = [line.strip() for line in PINS.read_text("utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True)
class Audit:
    """What pip-audit said of each pin."""

    weak: list[str]  # a sentence for each weakness
    asked: int
    not_asked: list[str]  # name==version

    @classmethod
    def of(cls, written: str, pinned: dict[str, str]) -> Audit:
        """From pip-audit's JSON; text that is none says that nothing was asked about."""
        try:
            told = json.loads(written)["dependencies"]
        except ValueError:
            told = []
        answered = {one["name"].lower().replace("_", "-"): one["vulns"] for one in told if "vulns" in one}
        weak, not_asked = list[str](), list[str]()
        for name, version in pinned.items():
            found = answered.get(name.lower().replace("_", "-"))
            if found is None:
                not_asked.append(f"{name}=={version}")
            for one in found or []:
                names = ", ".join([one["id"], *one["aliases"]])
                fixed = f"fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else "not fixed yet"
                weak.append(f"{name} {version}: {names}, {fixed}")
        return cls(weak, len(pinned) - len(not_asked), not_asked)

    def __str__(self) -> str:
        lines = [f"{self.asked + len(self.not_asked)} versions are pinned; {self.asked} were asked about, "
                 f"with {len(self.weak)} known weaknesses", *self.weak]  # fmt: skip
        if self.not_asked:
            lines += ["no audit of these: no list of known weaknesses can be reached, or it does not know them"]
            lines += [f"  {one}" for one in self.not_asked]
        return "\n".join(lines)

    @property
    def passed(self) -> bool:
        return not self.weak and not self.not_asked


def main() -> int:
    ran = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    audit = Audit.of(ran.stdout, pins())
    print(audit)
    if not ran.stdout.strip() and ran.stderr.strip():
        print(f"pip-audit said: {ran.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return 0 if audit.passed else 1


if __name__ == "__main__":
    sys.exit(main())
