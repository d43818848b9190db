"""Pages, help texts, docstrings, comments and messages use plain words, and pages stay short.

To check a package that is not swept yet, remove its name from `NOT_YET`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from count_words import HOW_TO_LIMIT, README_LIMIT, count_pages, count_words, find_excess, list_pages
from make_reference import COMMITTED, DOCS, ROOT, list_commands

SOURCES = {
    **{f"tfa.{folder.parent.name}": folder.parent for folder in (ROOT / "src" / "tfa").glob("*/__init__.py")},
    **{f"tfa.{file.stem}": file for file in (ROOT / "src" / "tfa").glob("*.py")},
    "tfa_bench": ROOT / "benchmarks" / "src" / "tfa_bench",
    "studies": ROOT / "benchmarks" / "studies",
    "tfa_milvus": ROOT / "plugins" / "tfa-milvus",
    "tfa_qdrant": ROOT / "plugins" / "tfa-qdrant",
    "tfa_ros": ROOT / "ros" / "tfa_ros",
    "site": DOCS / "site",
}
# Packages whose docstrings and messages are not swept yet.
NOT_YET: set[str] = set()

# Pattern → what to write instead.
STEMS = (
    "author|categor|critic|emphas|equal|final|general|initial|local|maxim|minim|normal|optim|organ|penal|quant|random|real"
    "|recogn|regular|serial|special|standard|summar|synchron|token|util|vector|visual"
)
NUMBERS = r"\d+|two|three|four|five|six|seven|eight|nine|ten|twelve"
AMERICAN = "American spelling"
DIALECT = {
    # "Of the six carriers, …" is plain.
    rf"(?:^|[.:;] )Of (?:an?|the|each|its|this|those|these|all|several|more|what)\b(?! (?:{NUMBERS})\b)": "the subject",
    r"\bso many\b": "a number or a parameter",
    r"\bas many as (?:pay|there are)\b": "a number",
    r"\bin the light of\b": "from, given",
    r"(?<!here )\b(?:is|are|was|were) no (?!longer|more|better|worse|different|less|fewer)\w+": "is not a …",
    r"(?<!here )\b(?:is|are) none\b": "does not exist",
    r"\bif not given\b": "[default: …]",
    r"\banew\b": "again",
    r"\bseldom\b": "rarely",
    r"\ball the same\b": "still, anyway",
    r"\bbeside\b": "next to, besides, in addition to",
    r"\bwhom?ever\b": "name the person or program",
    r"\bfor good\b": "permanently",
    r"\bas shipped\b|\bincumbent\b": "default",
    r"\bdefects?\b": "bug",
    r"\b(?:told|asked|asking|askable)\b": "say, query, request",
    r"\bmove alike\b": "inliers",
    r"\bgo(?:es)? on (?:where|from|with)\b": "resume",
    r"\bbears?\b": "has, shows",
    r"\b(?:house|litter|unborn|strangers?|hung up on|bad days)\b": "a plain term",
    r"\b(?:centr(?:e|es|ed|ing)|(?:kilo|milli|centi)?metres?|colours?|coloured|grey)\b": AMERICAN,
    rf"\b\w*(?:{STEMS})is(?:e|es|ed|er|ing|ations?)\b": AMERICAN,
    r"\b(?:un)?(?:label|model|cancel|travel|signal|level|channel)l(?:ed|ing|er|ers)\b": AMERICAN,
    r"\b(?:neighbour|behaviour|favour|flavour|honour)[a-z]*\b": AMERICAN,
    r"\b(?:licences?|artefacts?|judgements?|learnt|spelt|whilst|analys(?:e|ed|ing))\b": AMERICAN,
}
FOUND = {re.compile(pattern, re.MULTILINE): instead for pattern, instead in DIALECT.items()}
# Allowed in one table of the method page and in row labels of the benchmark.
OURS = re.compile(r"\(ours\)|\b[Oo]urs, |\bbeyond the paper\b")
MAY_SAY_OURS = {"tfa_bench", "studies"}
METHOD = DOCS / "explanation" / "method.md"
# Pages that a program writes, and those of other folders: they may name our heads, and have no limits.
OTHER_PAGES = [
    *(DOCS / name for name in COMMITTED),
    *(
        page
        for name in ("benchmarks", "examples", "plugins", "results", "ros", "src")
        for page in sorted((ROOT / name).rglob("*.md"))
    ),
]
# First words of a function's docstring that start neither an imperative nor a noun phrase.
BAD_START = re.compile(
    r"(?:Of|What|Who|Whom|Whose|Whoever|Which|Whichever|Those|That|As|Is|Are|Was|Were|Does|Do|Did|May|Has|Have)\b"
)
# Tables that a command prints into a page.
PRINTED = re.compile(r"<!-- [\w ]+: (?:tfa|python|written by) .*?<!-- end of [\w ]+ -->", re.DOTALL)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find_dialect(text: str, *, ours: bool = False) -> list[str]:
    """Return the words of a text that are not plain, each with a replacement."""
    words = [(match[0], instead) for pattern, instead in FOUND.items() for match in pattern.finditer(text)]
    words += [] if ours else [(match[0], "the method page says what is ours") for match in OURS.finditer(text)]
    return [f"{word.strip('.,:; ')!r} → {instead}" for word, instead in words]


def strip_code(text: str) -> str:
    """Remove code blocks, inline code, link targets and generated tables."""
    text = PRINTED.sub("", text)
    text = re.sub(r"^ *```.*?^ *```|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "`", re.sub(r"\]\([^)]*\)", "]", text))


# --- pages ---------------------------------------------------------------------------------------------------------


def test_pages_stay_within_their_limits():
    assert find_excess(count_pages()) == []


@pytest.mark.parametrize("page", [*list_pages(), *OTHER_PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_plain_words(page: Path):
    ours = page == METHOD or page in OTHER_PAGES
    assert find_dialect(strip_code(page.read_text("utf-8")), ours=ours) == []


# --- help texts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bench", [False, True], ids=["tfa", "bench"])
def test_help_texts_use_plain_words(bench: bool):
    if bench and "tfa_bench" in NOT_YET:
        pytest.skip("tfa_bench is not swept yet")
    bad = []
    for name, command in list_commands(bench=bench).items():
        texts = {"": command.help or ""} | {one.opts[0]: getattr(one, "help", "") or "" for one in command.params}
        bad += [
            f"tfa {name} {where}: {word}" for where, text in texts.items() for word in find_dialect(text, ours=bench)
        ]
    assert bad == []


# --- docstrings, comments and messages -----------------------------------------------------------------------------


def list_modules(source: Path) -> list[Path]:
    return [source] if source.is_file() else sorted(source.rglob("*.py"))


def list_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings and strings of several words, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 2:
            yield node.lineno, re.sub(r"`[^`\n]*`", "`", node.value)


def list_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`\n]*`", "`", token.string.lstrip("# "))


def list_bad_starts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the first lines of public functions' docstrings that are neither imperative nor a noun phrase."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
            text = ast.get_docstring(node) or ""
            if isinstance(node, FUNCTIONS) and BAD_START.match(text):
                yield node.lineno, text.splitlines()[0]
            if isinstance(node, ast.ClassDef):
                yield from list_bad_starts(node)


def find_problems(package: str) -> list[str]:
    """Return what is wrong with the words of a package."""
    problems, ours = [], package in MAY_SAY_OURS
    for file in list_modules(SOURCES[package]):
        source, name = file.read_text("utf-8"), file.relative_to(ROOT)
        tree = ast.parse(source)
        for line, text in [*list_texts(tree), *list_comments(source)]:
            problems += [f"{name}:{line}: {word}" for word in find_dialect(text, ours=ours)]
        problems += [f"{name}:{line}: begin with a verb or a noun: {text}" for line, text in list_bad_starts(tree)]
    return problems


@pytest.mark.parametrize("package", sorted(SOURCES.keys() - NOT_YET))
def test_docstrings_comments_and_messages_use_plain_words(package: str):
    assert find_problems(package) == []


def test_every_package_that_is_not_swept_exists_and_has_something_to_sweep():
    assert sorted(name for name in NOT_YET if not find_problems(name)) == [], "remove these from NOT_YET"


# --- the checks themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Of a bag: the topic.", "Photos to use at most; of more, so many are drawn.", "x is no URL of a map",
        "fit it anew", "It is told what to do.", "whoever asks", "a normalised vector", "within 25 metres",
        "the centred rows", "unlabelled photos", "the default, as shipped", "a defect of tfa", "0 if not given",
        "how it was localised", "neighbouring images", "the licence of the weights",
    ],
)  # fmt: skip
def test_dialect_is_found(text: str):
    assert find_dialect(text)


@pytest.mark.parametrize(
    "text",
    [
        "There is no map named town.", "It is no longer used.", "Ask the owners.", "Find the nearest map image.",
        "Meters above sea level.", "Normalize and center the rows.", "colors of a plot", "one of the images",
        "a parameter, parametrized", "Besides, it is fast.", "a promise", "exercise and precise",
        "Of the six carriers, it is the best.",
    ],
)  # fmt: skip
def test_plain_words_are_not_dialect(text: str):
    assert find_dialect(text) == []


def test_words_are_counted_outside_code_and_tables():
    page = (
        "# Two words\n\nSee [the page](x.md) — now.\n\n| a | b |\n| --- | --- |\n\n```sh\ntfa build\n```\n<!-- no -->\n"
    )
    assert count_words(page) == 6
    counts = {"README.md": README_LIMIT + 1, "docs/how-to/a.md": HOW_TO_LIMIT, "docs/how-to/b.md": HOW_TO_LIMIT + 1}
    assert [text.split(":")[0] for text in find_excess(counts)] == ["README.md", "docs/how-to/b.md"]
    assert find_excess({"README.md": 0, "docs/a.md": 10**6}) != []


def test_comments_are_read():
    assert list(list_comments("a = 1  # the `centre`, whoever asks\n")) == [(1, "the `, whoever asks")]


def test_questions_and_fronted_of_are_bad_starts():
    source = 'def a():\n    """What a map holds."""\n\nclass B:\n    def c(self):\n        """Of the map."""\n'
    assert [line for line, _ in list_bad_starts(ast.parse(source))] == [1, 5]
