"""tfa.toml and environment variables: precedence and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tfa.cli.app import app
from tfa.cli.options import GUARDED, Settings


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder without settings of anybody, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TFA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TFA_CACHE_LIMIT", "none")  # so that what a file sets is taken back
    monkeypatch.delenv("TFA_CACHE_LIMIT")
    return tmp_path


def settings(run) -> dict[str, tuple]:
    told = json.loads(run("config", "--json").stdout)
    return {row["setting"]: (row["value"], row["source"]) for row in told["settings"]}


def test_the_environment_counts_before_the_file(run, here, monkeypatch):
    monkeypatch.setenv("TFA_THREADS", "5")
    (here / "tfa.toml").write_text('threads = 2\nprecision = "float32"\n')
    told = settings(run)
    assert told["threads"] == ("5", "environment")
    assert told["precision"] == ("float32", "tfa.toml")
    assert told["encoder"] == (None, None)


def test_a_file_of_this_folder_counts_before_that_of_the_user_and_a_named_one_before_both(run, here, monkeypatch):
    (here / "home" / "tfa").mkdir(parents=True)
    (here / "home" / "tfa" / "tfa.toml").write_text("threads = 1\n")
    assert settings(run)["threads"][0] == 1
    (here / "tfa.toml").write_text("threads = 2\n")
    assert settings(run)["threads"] == (2, "tfa.toml")
    (here / "named.toml").write_text("threads = 3\n")
    monkeypatch.setenv("TFA_CONFIG", "named.toml")
    assert settings(run)["threads"] == (3, "named.toml")


def test_options_of_a_verb_have_new_defaults_which_the_command_line_overrides(run, here, monkeypatch):
    monkeypatch.setenv("TFA_CONFIG", "mine.toml")
    (here / "mine.toml").write_text("cache-limit = 3\n[cache]\nprune = true\nmax-size = 0\n")
    assert json.loads(run("cache", "--json").stdout)["deleted"] == {"files": 0, "bytes": 0}
    assert json.loads(run("cache", "--json", "--max-size", "1").stdout)["limit"] == 3_000_000_000
    refused = run("cache", "--clear")
    assert refused.exit_code == 2
    assert "--prune or --clear" in refused.output


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("thread = 2\n", "thread is not a setting for all commands; allowed: encoder, weights"),
        ("threads = 'many'\n", "threads = 'many':"),
        ("weights = 'gone.pth'\n", "weights = 'gone.pth': path 'gone.pth' does not exist"),
        ("threads = [{a = 1}]\n", "must be a text, a number"),
        ("[qury]\n", "[qury] is not a command; allowed: add, bench, build"),
        ("[query]\nfoo = 1\n", "foo of [query] is not an option of tfa query; allowed: calibration"),
        ("[bench.run]\nfoo = 1\n", "foo of [bench.run] is not an option of tfa bench run"),
        ("[bench]\nrun = 1\n", "bench.run is a command; set its options in the table [bench.run]"),
        ("[build]\nset = 1\n", "'1' is not a setting of tfa build"),
        ("[build]\nset = 1.5\n", "'1.5' is not a setting of tfa build"),
        ("[build]\nset = true\n", "'True' is not a setting of tfa build"),
        ("[build]\nset = [1]\n", "'1' is not a setting of tfa build"),
        ("# " + "a" * 1_000_000, "it is larger than 1,000,000 bytes"),
        ("a b", "is not TOML"),
        ("a = " + "[" * 3000, "is not TOML"),
    ],
)
def test_a_mistake_names_the_file_the_setting_and_what_is_allowed(run, here, written, said):
    (here / "tfa.toml").write_text(written)
    told = run("config")
    assert told.exit_code == 2
    assert "tfa.toml" in told.stderr
    assert said in told.stderr


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("cache = '/'\n", "cache may delete"),
        ("cache-limit = 0\n", "cache-limit may delete"),
        ("[cache]\nclear = true\n", "clear of [cache] may delete"),
        ("[build]\nforce = true\n", "force of [build] may delete"),
        ("[build.build]\nwork = '/'\n", "build.work of [build] may delete"),
        ("[build]\nset = ['build.work=/']\n", "build.work of [build] may delete"),
        ("[query]\no = ['/etc/x.csv']\n", "out of [query] may delete"),
        ("[serve]\nhost = '0.0.0.0'\n", "host of [serve] may delete"),
        ("[serve]\napi-key = 'k'\n", "read-api-key of [serve] may delete"),
        ("[serve]\nmax-upload = '8MB'\n", "max-upload of [serve] may delete"),
        ("[serve]\nquiet = true\n", "quiet of [serve] may delete"),
        ("[cache]\nmax-size = 0\n", "max-size of [cache] may delete"),
        ("[prune]\nunconfirmed = 1\n", "unconfirmed of [prune] may delete"),
        ("[calibrate]\nname = 'night'\n", "name of [calibrate] may delete"),
    ],
)
def test_the_working_folder_may_not_destroy_expose_or_write(run, here, written, said, monkeypatch):
    (here / "tfa.toml").write_text(written)
    refused = run("config")
    assert (refused.exit_code, f"tfa.toml: {said}, expose or write data" in refused.stderr) == (2, True), refused.stderr
    monkeypatch.setenv("TFA_CONFIG", "tfa.toml")
    assert run("config").exit_code == 0
    monkeypatch.delenv("TFA_CONFIG")
    (here / "home" / "tfa").mkdir(parents=True)
    (here / "tfa.toml").rename(here / "home" / "tfa" / "tfa.toml")
    assert run("config").exit_code == 0


def test_every_option_that_names_a_file_to_write_is_guarded():
    commands = [("tfa", typer.main.get_group(app))]
    for where, command in commands:
        if hasattr(command, "commands"):
            commands += [(f"{where} {name}", one) for name, one in command.commands.items()]
        for param in () if hasattr(command, "commands") else command.params:
            about = getattr(param, "type_descriptor", None)
            if (
                param.param_type_name == "option"
                and "Path" in str(about.annotation)
                and not about.parameter_info.exists
            ):
                names = {spelt.lstrip("-") for spelt in param.opts}
                assert names & GUARDED or names <= {"ground-truth", "positives", "records", "photos"}, (where, names)


# Options that a settings file of the working folder may set: they choose inputs, settings of one run, or the format of
# what is printed. All others are guarded. A new option belongs in one of the two.
MACHINE = "weights device precision"
ENCODER = f"{MACHINE} threads"
ALLOWED = {
    "add": f"positions gpx gpx-offset gpx-gap utm session json quiet q skip-bad {ENCODER}",
    "bench check": "positives deep json quiet q",
    "bench datasets": "json",
    "bench explore": "records head photos split quiet q",
    "bench figures": "photos dataset encoder reference rows",
    "bench heads": "json",
    "bench results": "records encoder command",
    "bench run": "dataset heads encoder positives depth split-depth vocabulary sam sam-model sam-points checkpoint "
    f"antialias json quiet q {ENCODER}",
    "bench score": "dataset head encoder ks skip-unanswerable against replica json",
    "bench table": "records encoder format no-paper both",
    "build": "encoder positions gpx utm topic every head rerank dims vocabulary skip-bad paper json quiet q set "
    "gpx.offset gpx.gap frames.position_topic map.carrier map.storage map.ensemble map.depths head.words "
    "head.temperature head.max_patches head.max_rank head.max_pca head.pca_sample head.max_pseudo rerank.candidates "
    "rerank.patches rerank.dimensions rerank.max_patches rerank.max_pseudo encoder.threads encoder.batch_size "
    f"build.workers build.shard_size build.index {MACHINE}",
    "cache": "json",
    "calibrate": f"budget score json quiet q skip-bad {ENCODER}",
    "config": "json",
    "demo": "references queries quiet q",
    "encoders try": f"photos json quiet q {ENCODER}",
    "evaluate": "ground-truth radius utm calibration sequence online lag k skip-unanswerable worst against json quiet "
    f"q {ENCODER}",
    "explain": f"rank calibration json quiet q {ENCODER}",
    "export": f"format queries root calibration dims quiet q {ENCODER}",
    "frames": "topic position-topic every gpx gpx-offset gpx-gap skip-bad json quiet q",
    "info": "evidence checksum json",
    "loops": "gap session-breaks false-loops fov encoder positions gpx topic every json quiet q set gpx.offset gpx.gap "
    f"frames.position_topic encoder.batch_size encoder.skip_bad {ENCODER}",
    "merge": f"json quiet q {ENCODER}",
    "pairs": f"format k root views calibration quiet q {ENCODER}",
    "prune": f"duplicates-only photos dry-run json quiet q {ENCODER}",
    "query": "k min-confidence sure calibration rerank session region sequence online lag precision json quiet q set "
    "candidates encoder.weights encoder.device encoder.threads encoder.batch_size encoder.skip_bad frames.topic "
    "frames.position_topic frames.every out.images out.utm",
    "refit": f"json quiet q {ENCODER}",
    "relocate": "json quiet q",
    "remove": "json",
    "report": f"photos aged json quiet q {ENCODER}",
    "rollback": "json",
    "serve": f"port {ENCODER}",
    "snapshot": "json quiet q",
    "speed": f"photos json quiet q {ENCODER}",
    "tiles": "size step json quiet q",
    "weights get": "quiet q",
}


def walk_options(command, words=()):
    """Yield the name of each command and the names of its options and settings."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk_options(inner, (*words, name))
    if not hasattr(command, "commands"):
        options = [one.opts for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
        names = [{spelt.lstrip("-") for spelt in opts} for opts in options]
        names += [{key} for key in getattr(command.callback, "settable", {})]
        yield " ".join(words), names


def test_every_option_is_allowed_or_guarded():
    found = dict(walk_options(typer.main.get_group(app)))
    allowed = {command: set(names.split()) for command, names in ALLOWED.items()}
    for command, options in found.items():
        for names in options:
            is_guarded = bool(names & GUARDED) or any(f"{command}.{name}" in GUARDED for name in names)
            is_allowed = names <= allowed.get(command, set())
            assert is_guarded != is_allowed, (
                f"tfa {command} {sorted(names)}: guard it in GUARDED, or allow it in ALLOWED"
            )
    names = {command: {name for one in options for name in one} for command, options in found.items()}
    assert {
        command: allowed[command] - names[command] for command in allowed if allowed[command] - names[command]
    } == {}


def test_quiet_of_the_working_folder_does_not_silence_the_log_of_a_service(here):
    (here / "tfa.toml").write_text("quiet = true\n")
    group = typer.main.get_group(app)
    defaults = Settings.find().defaults(group, typer.Context(group, info_name="tfa"))
    assert (defaults["build"]["quiet"], "quiet" in defaults["serve"]) == (True, False)


def test_the_file_of_the_user_is_not_guarded_in_its_folder(run, here, monkeypatch):
    (here / "home" / "tfa").mkdir(parents=True)
    (here / "home" / "tfa" / "tfa.toml").write_text("[build]\nforce = true\n")
    monkeypatch.chdir(here / "home" / "tfa")
    assert run("config").exit_code == 0


def test_a_file_in_effect_is_named(run, here):
    assert run("config").stderr == ""
    (here / "tfa.toml").write_text("quiet = true\n")
    assert run("config").stderr == "note: settings from tfa.toml\n"


def test_a_named_file_that_is_not_there_is_an_error(run, here, monkeypatch):
    monkeypatch.setenv("TFA_CONFIG", "gone.toml")
    told = run("config")
    assert told.exit_code == 2
    assert "TFA_CONFIG=gone.toml: the file does not exist" in told.stderr


def test_the_table_shows_defaults(run, here):
    rows = {line.split()[0]: line.split()[1:] for line in run("config").stdout.splitlines()[2:]}
    assert rows["encoder"] == ["dinov2-s14-focus", "default", "TFA_ENCODER"]
    assert rows["threads"] == ["all", "cores", "default", "TFA_THREADS"]
    assert rows["precision"] == ["auto", "default", "TFA_PRECISION"]
    assert rows["cache"] == [str(here / "cache"), "environment", "TFA_CACHE"]
    assert rows["cache-limit"] == ["20", "GB", "default", "TFA_CACHE_LIMIT"]
