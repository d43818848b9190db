"""Records of other encoders: their names and which findings hold."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest

from tests.benchmarks.rigged import rigged
from tests.benchmarks.synthetic_records import named, ranking, synthetic_record, synthetic_truth, written
from tfa.encoders import CATALOGUE, parse_encoder
from tfa.encoders.catalogue import fingerprint_encoder
from tfa.errors import BadSpec
from tfa_bench.protocols import NO_CALIBRATION
from tfa_bench.records import Record
from tfa_bench.run import run_heads
from tfa_bench.scores import score, score_folder
from tfa_bench.tables.page import HOLDS, REVERSED, WITHIN_CHANCE, findings, other_encoders

DEFAULT, OLDER = "dinov2-s14-focus@322", "dinov2-s14-focus@322/hf"
PACKAGE = CATALOGUE["dinov2-s14-focus"].package
assert PACKAGE is not None
FINGERPRINTS = {name: fingerprint_encoder(parse_encoder(name), PACKAGE.weights) for name in (DEFAULT, OLDER)}
QUERIES = 40
TRUTH = synthetic_truth([[0]] * QUERIES)


def scored(encoder: str, **right: int):
    """Return heads that answer the first N queries correctly."""
    made = []
    for head, count in right.items():
        rows = [[[ranking([0] if query < count else [])]] for query in range(QUERIES)]
        about = {"id": encoder, "fingerprint": "", "grid": [2, 2]}
        made.append(score(synthetic_record(TRUTH, rows, head=named(head), encoder=about), TRUTH, ks=[1]))
    return made


def by_head(made):
    return {(one.dataset, one.head): one for one in made}


@pytest.mark.parametrize(
    ("there", "verdict"),
    [
        ({"tfa": 30, "anyloc": 10}, HOLDS),
        ({"tfa": 21, "anyloc": 20}, WITHIN_CHANCE),
        ({"tfa": 9, "anyloc": 20}, REVERSED),
    ],
)
def test_a_finding_holds_or_not(there: dict[str, int], verdict: str) -> None:
    here = scored("page@28", tfa=35, anyloc=20)
    other = scored("other@28", **there)
    [found] = findings(["town"], by_head(here), by_head(other))
    assert found.verdict == verdict
    text = other_encoders(here, other)
    assert "### `other@28`" in text
    assert f"| TFA | {100 * there['tfa'] / QUERIES:.2f} (87.50) |" in text
    assert "1 findings on these datasets: " in text
    assert f"1 {verdict}" in text
    assert ("- TFA against ANYLOC on Town: +37.5" in text) == (verdict == REVERSED)


def test_what_is_within_chance_is_no_finding() -> None:
    here, other = scored("page@28", tfa=21, anyloc=20), scored("other@28", tfa=30, anyloc=2)
    assert "No findings to compare." in other_encoders(here, other)
    assert other_encoders(here, []) == ""


def test_a_record_made_before_there_were_two_rules_goes_by_the_longer_name(tmp_path: Path) -> None:
    about = {"id": DEFAULT, "fingerprint": FINGERPRINTS[OLDER], "grid": [23, 23]}
    rows = [[[ranking([0])]] for _ in range(QUERIES)]
    [path] = written(tmp_path, TRUTH, synthetic_record(TRUTH, rows, encoder=about))
    assert Record.read(path).encoder == {**about, "id": OLDER}
    [one] = score_folder(tmp_path, ks=[1], encoder=OLDER)
    assert one.encoder == OLDER


def test_a_run_beside_records_of_the_other_rule_says_where_they_belong(bench, tmp_path: Path) -> None:
    def under(name: str):
        encoder = copy.copy(bench.encoder)
        encoder.id, encoder.fingerprint = name, FINGERPRINTS[name]
        return dataclasses.replace(bench, encoder=encoder)

    before = copy.copy(under(OLDER).encoder)
    before.id = DEFAULT
    run_heads(dataclasses.replace(bench, encoder=before), [rigged(NO_CALIBRATION)], tmp_path)
    with pytest.raises(BadSpec, match=rf"was made with the encoder {OLDER}, .*{DEFAULT}_hf, or use --encoder {OLDER}"):
        run_heads(under(DEFAULT), [rigged(NO_CALIBRATION)], tmp_path)
    (tmp_path / "town" / DEFAULT).rename(tmp_path / "town" / f"{DEFAULT}_hf")
    assert run_heads(under(OLDER), [rigged(NO_CALIBRATION)], tmp_path, again=True)[0].outcome == "same"
    assert run_heads(under(DEFAULT), [rigged(NO_CALIBRATION)], tmp_path)[0].outcome == "written"
