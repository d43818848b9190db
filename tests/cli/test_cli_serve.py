"""`tfa serve` with stubs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfa.cli import serve as verb
from tfa.service import app
from tfa.service import server as running
from tfa.types import EncoderOptions


@pytest.fixture
def started(monkeypatch, folder):
    """What would be served: settings, and how uvicorn would be run."""
    seen = {}

    def create_app(maps, settings):
        seen.update(maps=maps, settings=settings)
        return "app"

    def run(made, listening, **options):
        seen.update(address=running.address_of(listening), app=made, **options)

    def opened(paths, encoder, progress, patch_cache):
        seen.update(paths=paths, encoder=encoder, patch_cache=patch_cache)
        return [type("Map", (list,), {"name": Path(path.text).stem})([1, 2]) for path in paths]

    monkeypatch.setattr(app, "create_app", create_app)
    monkeypatch.setattr(running, "run_server", run)
    monkeypatch.setattr(running, "hide_secrets", lambda *variables: seen.update(hidden=variables))
    monkeypatch.setattr(verb, "open_maps", opened)
    return seen


def test_a_map_is_served_on_this_machine_by_default(run, started):
    result = run("serve", "town.tfa", "--port", "0")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0] == f"serving town (2 images) at {started['address']}"
    assert result.stdout.splitlines()[1].startswith("photo decoders: hard limits")
    assert started["hidden"] == ("TFA_READ_API_KEY", "TFA_EDIT_API_KEY")
    assert started["address"].startswith("http://127.0.0.1:")
    settings = started["settings"]
    assert (settings.read_api_key, settings.edit_api_key, settings.cors) == (None, None, ())
    assert (settings.max_upload, settings.cameras) == (20_000_000, 64)
    assert started["log_requests"] is True


def test_a_file_of_api_keys_that_others_can_read_is_noted(run, started, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text(f"office edit {'e' * 16}\n")
    for mode, noted in ((0o644, True), (0o600, False)):
        keys.chmod(mode)
        result = run("serve", "town.tfa", "--port", "0", "--api-keys", str(keys))
        assert (f"other users of this machine can access {keys}; run: chmod 600" in result.stderr) is noted


def test_memory_for_patches_is_for_maps_in_stores(run, started):
    assert run("serve", "memory://x/town", "--port", 0, "--patch-cache", "1.5MB").exit_code == 0
    assert started["patch_cache"] == 1_500_000
    assert "--patch-cache is for maps in stores" in run("serve", "town.tfa", "--patch-cache", "1MB").stderr


def test_options_reach_the_service(run, started, monkeypatch):
    monkeypatch.setenv("TFA_EDIT_API_KEY", "from-the-environment")
    result = run(
        "serve", "town.tfa", "photos", "--port", 0, "--read-api-key", "r", "--cors", "https://a.example", "--cors",
        "http://b.example", "--max-upload", "1.5 MB", "--max-pixels", 1000, "--max-batch", 3, "--cameras", 8,
        "--threads", 2, "--precision", "int8", "--quiet",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    settings = started["settings"]
    assert (settings.read_api_key, settings.edit_api_key) == ("r", "from-the-environment")
    assert settings.cors == ("https://a.example", "http://b.example")
    assert (settings.max_upload, settings.max_pixels, settings.max_batch) == (1_500_000, 1000, 3)
    assert settings.cameras == 8
    assert [str(path) for path in started["paths"]] == ["town.tfa", "photos"]
    assert started["encoder"] == EncoderOptions(threads=2, precision="int8")
    assert started["log_requests"] is False


def test_other_machines_are_let_in_on_purpose_only(run, started):
    result = run("serve", "town.tfa", "--host", "0.0.0.0", "--port", 0)
    assert result.exit_code == 2
    assert "other machines can reach 0.0.0.0" in result.stderr
    assert "maps" not in started
    assert run("serve", "town.tfa", "--host", "0.0.0.0", "--port", 0, "--no-auth").exit_code == 0
    for option in ("--read-api-key", "--api-key"):
        closed = run("serve", "town.tfa", "--host", "0.0.0.0", "--port", 0, option, "r")
        assert "edits are off" in closed.stderr
        assert started["settings"].read_api_key == "r"


def test_a_taken_port_is_told_before_anything_is_loaded(run, started):
    with running.bind_socket(running.ServiceSettings(port=0)) as taken:
        taken.listen()
        result = run("serve", "town.tfa", "--port", taken.getsockname()[1])
    assert result.exit_code == 1
    assert "cannot listen on 127.0.0.1:" in result.stderr
    assert "maps" not in started


@pytest.mark.parametrize(("text", "number"), [("20MB", 20_000_000), ("500", 500), ("1.5k", 1500), ("2 GB", 2 * 10**9)])
def test_sizes(text, number):
    assert verb.parse_size(text) == number


@pytest.mark.parametrize("text", ["", "MB", "-3MB", "3TB", "much"])
def test_what_is_no_size_is_told(run, started, text):
    result = run("serve", "town.tfa", "--max-upload", text)
    assert result.exit_code == 2
    assert "is not a valid size" in result.stderr


def test_ctrl_c_is_the_usual_end(run, started, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_server", interrupted)
    result = run("serve", "town.tfa", "--port", 0)
    assert result.exit_code == 0
    assert "stopped; accepted edits are on disk" in result.stdout
