"""Build the documentation site: `make docs`.

Pages are read on the web and in a checkout, so their links are those of the checkout. Here all pages go into one
folder, with README.md as the first page. Linked files are copied; links to folders become plain text. Reference pages
are generated (`make_reference.py`), Zensical builds the site, and every link is checked. Pages above their word limit
are errors (`count_words.py`).
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

from count_words import FROM_TOP, print_counts
from make_reference import DOCS, PAGES, ROOT

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
# Pages outside docs/ → their place in the site. Full tables are linked, not in the navigation.
ELSEWHERE = {
    **{name: "index.md" if name == "README.md" else name for name in FROM_TOP},
    "results/README.md": "results/tables.md",
    "results/performance/README.md": "results/performance-tables.md",
}


def main(out: Path) -> int:
    """Write the pages into `out/pages` and the site into `out/site`; return the exit code."""
    pages, site = out / "pages", out / "site"
    for folder in (pages, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    sources = {ROOT / name: place for name, place in ELSEWHERE.items()}
    sources |= {page: page.relative_to(DOCS).as_posix() for page in sorted(DOCS.rglob("*.md"))}
    texts = {page: page.read_text("utf-8") for page in sources}
    for name, write in PAGES.items():
        sources[DOCS / name], texts[DOCS / name] = name, write()
    for source, name in sources.items():
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        (pages / name).write_text(move_links(texts[source], source, sources, pages), "utf-8")
    settings = (DOCS / "site" / "zensical.toml").read_text("utf-8")
    (out / "zensical.toml").write_text(settings.replace("../src", str(ROOT / "src")), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=out, check=False, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    broken = find_broken_links(site)
    print(*broken, sep="\n", end="\n" if broken else "")
    print(f"{len(list(site.rglob('*.html')))} pages in {site}, {len(broken)} broken links")
    too_long = print_counts()
    return done.returncode or bool(broken or too_long)


def move_links(text: str, source: Path, sources: dict[Path, str], pages: Path) -> str:
    """Rewrite the links of a page for the folder that holds all pages, and copy the files they lead to."""

    def move(match: re.Match[str]) -> str:
        picture, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if not target or urlsplit(target).scheme:
            return match[0]
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

    return LINK.sub(move, text)


def _from(folder: Path, file: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()


class Links(HTMLParser):
    """Link targets and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets, self.names = list[str](), {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.names.add(named.get("id") or "")
        target = named.get("href") if tag in ("a", "link") else named.get("src")
        if target:
            self.targets.append(target)


def find_broken_links(site: Path) -> list[str]:
    """Return links to pages, files and headings that do not exist. External addresses are not requested."""
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
