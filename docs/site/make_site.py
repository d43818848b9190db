"""The documentation as a site: `make docs`.

Pages are read on the web and in a checkout alike, so their links are those of the checkout. Here they are laid out in
one folder, README.md as its first page; files that a page points to come along, links to other folders become plain
text. The Python reference is made from docstrings. Zensical builds the site; then every link of it is followed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import tfa

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FROM_TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def main(out: Path) -> int:
    pages, site = out / "pages", out / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    sources = {ROOT / name: ("index.md" if name == "README.md" else name) for name in FROM_TOP}
    sources |= {page: page.relative_to(ROOT / "docs").as_posix() for page in sorted((ROOT / "docs").rglob("*.md"))}
    for source, name in sources.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(moved(source, sources, pages), "utf-8")
    (pages / "api.md").write_text(reference(), "utf-8")
    settings = (ROOT / "docs" / "site" / "zensical.toml").read_text("utf-8")
    (out / "zensical.toml").write_text(settings.replace("../src", str(ROOT / "src")), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=out, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    broken = broken_links(site)
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{len(list(site.rglob('*.html')))} pages in {site}, {len(broken)} broken links")
    return done.returncode or bool(broken)


def moved(source: Path, sources: dict[Path, str], pages: Path) -> str:
    """The text of a page, its links as they are where all pages lie in one folder."""

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found[1], found[2], found[3], found[4] or ""
        if not target or urlsplit(target).scheme:
            return found[0]
        path, here = (source.parent / unquote(target)).resolve(), (pages / sources[source]).parent
        if path in sources:
            return f"{picture}[{words}]({_from(here, pages / sources[path])}{anchor})"
        if not path.is_file():
            return words
        name = path.relative_to(ROOT).as_posix().removeprefix("docs/")
        copy = pages / (name if path.suffix in {".svg", ".png", ".jpg", ".json"} else f"files/{name}.txt")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        return f"{picture}[{words}]({_from(here, copy)}{anchor})"

    return LINK.sub(link, source.read_text("utf-8"))


def _from(folder: Path, file: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()


def reference() -> str:
    """Every public name and its docstring."""
    homes = {name: home for home, names in tfa._HOMES.items() for name in names}
    entries = [f"::: {homes[name]}.{name}" for name in sorted(homes, key=lambda name: (name[0].islower(), name))]
    opening = ["# Python", "Every public name of `import tfa`. Words: [glossary](glossary.md)."]
    return "\n\n".join([*opening, *entries]) + "\n"


class Links(HTMLParser):
    """What a page points to, and the places in it that can be pointed to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets, self.names = list[str](), {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names.add(given.get("id") or "")
        target = given.get("href") if tag in ("a", "link") else given.get("src")
        if target:
            self.targets.append(target)


def broken_links(site: Path) -> list[str]:
    """Those to pages, files and headings that are not there. Addresses elsewhere are not asked."""
    read = {page: Links(page.read_text("utf-8")) for page in sorted(site.rglob("*.html"))}
    broken = []
    for page, links in read.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            path = path / "index.html" if path.is_dir() else path
            if not path.is_file() or (path in read and unquote(parts.fragment) not in read[path].names):
                broken.append(f"{page.relative_to(site)}: {target}")
    return broken


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"))
