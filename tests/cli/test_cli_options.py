"""Options are derived from dataclasses; rarely used ones are set with --set or in tfa.toml; help texts are short."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from tfa.cli.options import Part, list_set_keys, read_value, takes
from tfa.core.plain import Options, hints, opt
from tfa.types import BuildOptions, EncoderOptions, HeadSpec, QueryOptions, RerankSpec

MOST_WORDS = 15


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all commands with their names."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))
    if not hasattr(command, "commands"):
        yield " ".join(words), command


def all_commands() -> dict[str, Any]:
    from tfa.cli.app import app

    return dict(commands(typer.main.get_command(app)))


def spelled(name: str) -> list[str]:
    parameters = all_commands()[name].params
    return [one.opts[0] for one in parameters if one.param_type_name == "option" and one.opts[0] != "--help"]


# --- derived options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "most"), [("build", 20), ("query", 16)])
def test_a_command_has_few_options(command, most):
    assert len(spelled(command)) <= most, spelled(command)


def test_query_has_an_option_for_each_field_and_its_bounds():
    parameters = {one.name: one for one in all_commands()["query"].params}
    for field in dataclasses.fields(QueryOptions):
        if field.name in ("camera", "sequence", "candidates", "loops"):
            continue  # --sequence names the frames of one camera, --set sets candidates, and tfa loops closes loops
        shown = parameters[field.name].help.replace("\\[", "[")
        assert shown == field.metadata["description"]
        assert parameters[field.name].default in (field.default, None)
    assert parameters["sessions"].opts == ["--session"]
    assert parameters["rerank"].secondary_opts == ["--no-rerank"]


class Made(Options):
    """One field of each kind."""

    count: int = opt(3, "How many.", ge=1, le=9)
    share: float | None = opt(None, "A share.", ge=0, le=1)
    kind: Literal["plain", "fancy"] = opt("plain", "A kind.")
    often: int | Literal["auto"] | None = opt(None, "How often. [default: the map's]", ge=1)
    tags: tuple[str, ...] = opt((), "Tags.")
    box: tuple[float, float] | None = opt(None, "A box.", cli={"metavar": "A,B"})
    loud: bool = opt(False, "Loud.")
    warm: bool | None = opt(None, "Warm.")
    file: Path | None = opt(None, "A file.")
    rare: int = opt(1, "Rarely used.", ge=1)
    flag: bool = opt(True, "A flag.")


SPLIT = Part(Made, tuple(name for name in hints(Made) if name not in ("rare", "flag")), "made")


@pytest.fixture
def tool():
    """A program with one command; returns the exit code, what it got and which keys were set, or its errors."""
    app, got = typer.Typer(pretty_exceptions_enable=False), []

    @app.command()
    @takes(made=SPLIT)
    def use(context: typer.Context, word: str, *, made: Made) -> None:
        got.append((word, made, list_set_keys(context)))

    def run(*words: str) -> Any:
        got.clear()
        result = CliRunner().invoke(app, ["x", *words], env={"COLUMNS": "300", "NO_COLOR": "1"})
        return (
            got[0] if result.exit_code == 0 else (result.exit_code, " ".join(result.stderr.replace("│", " ").split()))
        )

    return run


def test_every_kind_of_field_is_read(tool):
    assert tool() == ("x", Made(), frozenset())
    words = "--count 4 --share 0.5 --kind fancy --often auto --tag a --tag b --box 1,-2 --loud --no-warm --file f"
    expected = Made(
        count=4, share=0.5, kind="fancy", often="auto", tags=("a", "b"), box=(1.0, -2.0), loud=True, warm=False,
        file=Path("f"), rare=5, flag=False,
    )  # fmt: skip
    assert tool(*words.split(), "--set", "made.rare=5", "--set", "made.flag=no") == (
        "x", expected, frozenset({"made.rare", "made.flag"}),
    )  # fmt: skip
    assert tool("--often", "7")[1].often == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--count", "10"], "10 is out of range: must be between 1 and 9"),
        (["--share", "nan"], "nan is not a finite number"),
        (["--kind", "odd"], "'plain', 'fancy'"),
        (["--often", "many"], "--often: 'many' is unknown; use auto or a number"),
        (["--often", "0"], "--often: 0 is out of range: must be at least 1"),
        (["--box", "1;2"], "'1;2' is not A,B"),
        (["--set", "made.rare=0"], "--set made.rare: 0 is out of range: must be at least 1"),
        (["--set", "made.rare=many"], "--set made.rare: 'many' is str, must be int"),
        (["--set", "made.flag=maybe"], "--set made.flag: 'maybe' is str, must be bool"),
        (["--set", "made.rear=2"], "did you mean made.rare? Allowed: made.flag, made.rare"),
        (["--set", "quite.else=2"], "Allowed: made.flag, made.rare"),
        (["--set", "made.rare"], "has no value; write made.rare=VALUE"),
    ],
)
def test_a_bad_value_is_a_usage_error_in_the_words_of_its_field(tool, words, said):
    code, shown = tool(*words)
    assert code == 2
    assert said in shown


def test_text_becomes_a_value_of_the_field():
    assert read_value("auto", int | Literal["auto"]) == "auto"
    assert read_value("3", float | None) == 3.0
    assert read_value("On", bool) is True
    assert read_value("x/y", str | Path | None) == Path("x/y")
    assert read_value("many", int) == "many"


# --- settings ------------------------------------------------------------------------------------------------------


def test_build_sets_every_field_that_is_not_an_option(run, spy, folder):
    words = [
        "head.words=8", "map.storage=float32", "map.ensemble=true", "rerank.patches=small", "rerank.candidates=20",
        "encoder.threads=2", "encoder.batch_size=4",
    ]  # fmt: skip
    sets = [part for word in words for part in ("--set", word)]
    assert run("build", "photos", "--out", "new.tfa", *sets).exit_code == 0
    call = spy.given("build")
    assert call["spec"] == HeadSpec(words=8)
    assert call["map_spec"] == BuildOptions(
        storage="float32", ensemble=True, rerank=RerankSpec(patches="small", candidates=20)
    )
    assert call["options"] == EncoderOptions(threads=2, batch_size=4)


def test_the_command_line_counts_before_the_environment_and_that_before_the_file(run, spy, folder, monkeypatch):
    def used(*words: str) -> EncoderOptions:
        spy.calls.clear()
        assert run("query", "plain.tfa", "near.jpg", *words).exit_code == 0
        return spy.given("use_encoder")["options"]

    (folder / "tfa.toml").write_text('device = "cpu"\nthreads = 3\n[query]\n"encoder.batch_size" = 2\n')
    assert used() == EncoderOptions(threads=3, batch_size=2)
    monkeypatch.setenv("TFA_THREADS", "5")
    assert used() == EncoderOptions(threads=5, batch_size=2)
    assert used("--set", "encoder.threads=7") == EncoderOptions(threads=7, batch_size=2)
    (folder / "tfa.toml").write_text("[query.encoder]\nbatch_size = 6\n[query]\n")
    assert used() == EncoderOptions(threads=5, batch_size=6)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('[build]\n"head.wrods" = 4\n', "head.wrods of [build] is not an option of tfa build; allowed:"),
        ('[build]\n"head.words" = 0\n', "head.words = 0: 0 is out of range: must be at least 1"),
        ('[build]\n"head.words" = [1]\n', "must be a text, a number, true or false"),
        ('[build]\nset = ["head.wrods=3"]\n', "did you mean head.words?"),
    ],
)
def test_a_bad_setting_of_the_file_is_refused(run, folder, written, said):
    (folder / "tfa.toml").write_text(written)
    result = run("config")
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


# --- help texts ----------------------------------------------------------------------------------------------------


def count_words(text: str) -> int:
    """Count the words of a help text without its default."""
    return len(re.sub(r"\\?\[(default|env var)[^\]]*\]", "", text).split())


def test_help_texts_are_short():
    long = [
        f"{name} {parameter.opts[0]}: {parameter.help}"
        for name, command in all_commands().items()
        for parameter in command.params
        if count_words(getattr(parameter, "help", None) or "") > MOST_WORDS
    ]
    assert long == []


def test_every_option_and_argument_has_a_help_text():
    bare = [
        f"{name} {parameter.opts[0]}"
        for name, command in all_commands().items()
        for parameter in command.params
        if not getattr(parameter, "help", None)
    ]
    assert bare == []


def test_help_names_values_instead_of_python_types():
    from tfa.cli.app import app

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*words, name))

    typed = re.compile(r"<(?:str|int|float|bool|path|file|dir)\b|\[\d*<?=?x[<>]")
    for words in walk(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
        assert "--help" in shown, words
        assert typed.findall(shown) == [], words


def test_a_command_is_summarized_in_one_line():
    for name, command in all_commands().items():
        summary = command.help.split("\n\n")[0]
        assert "\n" not in summary, name
        assert len(summary.split()) <= MOST_WORDS, name
        assert summary.endswith("."), name


@pytest.mark.parametrize(
    ("command", "panel", "names"),
    [
        ("build", "Positions", {"--positions", "--gpx", "--utm"}),
        ("build", "Recordings", {"--topic", "--every"}),
        ("build", "Encoder", {"--encoder", "--weights", "--device", "--precision"}),
        ("build", "Output", {"--out", "--force", "--json", "--quiet"}),
        ("serve", "Access", {"--read-api-key", "--edit-api-key", "--api-keys", "--no-auth", "--cors", "--proxy"}),
        (
            "serve",
            "Limits",
            {"--rate-limit", "--max-upload", "--max-pixels", "--max-batch", "--cameras", "--patch-cache"},
        ),
    ],
)  # fmt: skip
def test_options_are_grouped(command, panel, names):
    parameters = all_commands()[command].params
    assert {one.opts[0] for one in parameters if getattr(one, "rich_help_panel", None) == panel} == names


def test_the_list_of_commands_fits_on_a_screen(run, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert len(run("--help").stdout.splitlines()) <= 60


def test_settings_have_short_descriptions():
    for name, command in all_commands().items():
        for key, (part, field) in getattr(command.callback, "settable", {}).items():
            described = {one.name: one.metadata["description"] for one in dataclasses.fields(part.cls)}
            assert count_words(described[field]) <= MOST_WORDS, f"{name} {key}"
