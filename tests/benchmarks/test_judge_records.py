"""Records of the benchmark as a judgement, for the failure explorer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.synthetic_records import NOTHING, named, synthetic_record, synthetic_truth, written
from tfa.errors import BadSpec
from tfa.evaluate.judgement import score_run
from tfa_bench.judge_records import judge_records
from tfa_bench.records import BadRecord
from tfa_bench.scores import score


def test_records_are_judged_as_they_are_scored(tmp_path):
    rng = np.random.default_rng(1)
    truth = synthetic_truth([[q, q + 1] if q % 5 else [] for q in range(12)])
    ranked = np.stack([rng.permutation(30)[:20] for _ in range(12)])[:, None, None]
    ranked[4] = NOTHING
    confidence = rng.random((12, 1, 1)).round(1)
    records = [
        synthetic_record(truth, ranked, confidence=confidence),
        synthetic_record(truth, ranked[::-1], head=named("bow")),
    ]
    written(tmp_path, truth, *records)
    judged = judge_records([tmp_path], heads=["vlad", "bow"])
    assert [run.name for run in judged.judgement.runs] == ["vlad", "bow"]
    for run, record in zip(judged.judgement.runs, records, strict=True):
        numbers, scored = score_run(judged.judgement, run), score(record, truth)
        assert numbers.recalls == pytest.approx({str(k): recall.mean for k, recall in scored.recalls.items()})
        assert numbers.interval == scored.interval
        assert numbers.acceptance.area == pytest.approx(scored.acceptance.area.mean)
        assert numbers.expected_recall is None  # z-scores are no probabilities
    assert judged.judgement.not_in_map == 3
    assert judged.judgement.runs[0].answers[4].hits == ()
    with pytest.raises(BadRecord, match="no record of head 'fish'; recorded: bow, vlad"):
        judge_records([tmp_path], heads=["fish"])
    with pytest.raises(BadSpec, match="has splits 0 to 0, not 3"):
        judge_records([tmp_path], split=3)
    other = synthetic_truth([[0]] * 12, name="city")
    written(tmp_path, other, synthetic_record(other, ranked))
    with pytest.raises(BadRecord, match="cannot be compared"):
        judge_records([tmp_path])
