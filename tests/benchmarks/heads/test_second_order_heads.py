"""Second-order and judged heads: they are the pipeline's, share their fits, and their ablations change one thing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.benchmarks.fields import town
from tfa import pipeline
from tfa.core.progress import SilentProgress
from tfa.core.tokens import Tokens
from tfa.errors import BadSpec, BadTokens
from tfa.maps.answer import answer_tokens
from tfa.maps.fit_map import describe_calibrated_reranking, fit_map
from tfa.maps.map import Map
from tfa.maps.state import MapState, NamedHead, make_state
from tfa.maps.storage import MemorySnapshot, MemoryStorage
from tfa.maps.tracker import Tracker
from tfa.method import second_order as method
from tfa.method.carriers import CARRIER_KERNELS
from tfa.method.decisions import SecondOrderDecisions
from tfa.method.described_queries import DescribedQueries
from tfa.method.head import Head
from tfa.types import BuildOptions, HeadSpec, ImageRecord, QueryOptions
from tfa.verification.patches import CompactTokens, prepare_photo_evidence
from tfa_bench.heads import second_order
from tfa_bench.heads.catalogue import GROUPS, head_card
from tfa_bench.heads.contract import Photos, Shared
from tfa_bench.heads.judge import Competition, JudgedEvidence, calibrate_judged, fit_judged
from tfa_bench.heads.second_order import UNPOOLED, by_support
from tfa_bench.rank import ranked, scored

DATABASE, QUERIES = town(places=66)
TARGET = np.arange(64)  # as many as the judge asks for
SPEC = HeadSpec(words=4)


def fit(name: str, shared: Shared | None = None, database: Tokens = DATABASE):
    return head_card(name).fit(Photos(database), shared or Shared(spec=SPEC))


@pytest.fixture(scope="module")
def shared():
    return Shared(spec=SPEC)


@pytest.fixture(scope="module")
def calibrated(shared):
    """judged-c64 and its ablations, calibrated on the same photos."""
    photos = Photos(DescribedQueries(QUERIES).select(TARGET))
    rules = ("", "-no-judge", "-support", "-no-centring", "-no-score")
    return {rule: fit(f"judged-c64{rule}", shared).calibrate(photos) for rule in rules}


def assert_same_head(head, expected) -> None:
    own = head.retriever
    assert own.decisions == expected.decisions
    if isinstance(expected.evidence, JudgedEvidence):
        assert own.evidence.to_dict() == expected.evidence.to_dict()
    for replica in head.replicas:
        found = head.scores(Photos(DescribedQueries(QUERIES)), replica)
        np.testing.assert_array_equal(found, expected.scores(QUERIES, int(replica)))


@pytest.mark.parametrize("carrier", list(CARRIER_KERNELS))
def test_a_carrier_alone_is_the_pipelines(carrier, shared):
    assert_same_head(fit(f"second-{carrier}", shared), pipeline.fit_second_order(DATABASE, carrier, spec=SPEC))


def test_judged_heads_are_the_judges(shared, calibrated):
    judged = fit_judged(DATABASE, spec=SPEC)
    assert_same_head(fit("judged", shared), judged)
    base = pipeline.fit_second_order(DATABASE, spec=SPEC)
    target = QUERIES.select(TARGET)
    expected = calibrate_judged(base, target, prepare_photo_evidence(CompactTokens.fit(DATABASE, cells=False), target))
    assert_same_head(calibrated[""], expected)
    assert calibrated[""].data_used == "target"


def test_a_database_is_fitted_once_for_all_heads(monkeypatch):
    calls: list[object] = []

    def watch(owner, name):
        real = getattr(owner, name)

        def watched(*given, **options):
            calls.append(owner)
            return real(*given, **options)

        monkeypatch.setattr(owner, name, watched)

    watch(second_order, "fit_spaces")
    watch(second_order.ResidualChallengers, "fit")
    watch(CompactTokens, "fit")
    shared = Shared(spec=SPEC)
    for name in ("second-partial", "judged", "judged-v", "judged-support", "judged-c64", "judged-c64-v"):
        fit(name, shared)
    assert len(calls) == len(set(calls)) == 3


def test_a_record_holds_what_was_decided_and_every_candidate(calibrated, shared):
    for head, candidates in ((fit("judged", shared), 9), (calibrated[""], 22)):
        decisions = json.loads(json.dumps(head.decisions))
        assert {"representation", "carrier", "centring", "score_calibrated", "incumbent", "judge"} <= decisions.keys()
        assert len(decisions["candidates"]) == candidates
        assert all({"value", "error"} <= one.keys() for one in decisions["candidates"].values())
        assert decisions["photos"] > 0


def test_without_a_judge_the_incumbent_answers(shared, calibrated):
    photos = Photos(QUERIES)
    found = fit("judged-no-judge", shared)
    np.testing.assert_array_equal(found.scores(photos, "1"), fit("second-tempered", shared).scores(photos, "1"))
    assert found.decisions["candidates"] == {}
    name = calibrated["-no-judge"].retriever.decisions.name
    assert name == "second_order/partial+centring+score"


def test_what_is_left_out_does_not_compete(calibrated):
    for rule, absent, incumbent in (
        ("-no-centring", "+centring", "second_order/partial+score"),
        ("-no-score", "+score", "second_order/partial+centring"),
    ):
        decisions = calibrated[rule].decisions
        assert decisions["incumbent"] == incumbent
        assert incumbent in decisions["candidates"]
        assert not any(absent in name for name in decisions["candidates"])
        assert any(absent in name for name in calibrated[""].decisions["candidates"])


def test_support_chooses_the_most_distinct_first_answers_and_of_equals_the_incumbent():
    heads = {head.name: head for head in (SecondOrderDecisions(representation="soft", carrier=c) for c in "abc")}
    answers = [np.array(row) for row in ([1, 2, 2, -1], [1, 2, 3, -1], [4, 5, 6, 6])]
    fitted = SimpleNamespace(strengths=None)

    def winner(incumbent: str) -> tuple[str, dict[str, float]]:
        competition = Competition(
            heads, dict(zip(heads, answers, strict=True)), heads[f"soft/{incumbent}"], np.arange(4), "4 photos", False
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(second_order, "describe_judged", lambda head: head.name)
            decisions, evidence = by_support(fitted, competition, None)
        return decisions.carrier, {name: one.value for name, one in evidence.candidates.items()}

    assert winner("a") == ("b", {"soft/a": 2, "soft/b": 3, "soft/c": 3})
    assert winner("c")[0] == "c"


def test_a_residual_head_that_wins_answers_with_three_vocabularies(monkeypatch):
    def residual(fitted, competition, evidence):
        _, seen = second_order.by_rank(fitted, competition, evidence)
        return competition.heads["soft/partial"], seen

    rules = {**second_order.RULES, "": second_order.Rule("", residual)}
    monkeypatch.setattr(second_order, "RULES", rules)
    shared = Shared(spec=SPEC)
    head, control = fit("judged", shared), fit("soft-partial", shared)
    assert isinstance(head.retriever, Head)
    assert head.decisions["representation"] == "soft"
    for replica in head.replicas:
        np.testing.assert_array_equal(head.scores(Photos(QUERIES), replica), control.scores(Photos(QUERIES), replica))


def test_few_photos_calibrate_the_incumbent(shared):
    for count, name in ((6, "second_order/partial+centring"), (12, "second_order/partial+centring+score")):
        for rule in ("", "-no-judge"):
            head = fit(f"judged-c{count}{rule}", shared)
            assert head.calibrate(Photos(QUERIES.select(np.arange(count)))).retriever.decisions.name == name


@pytest.mark.parametrize("name", ["second-partial-v", "judged-v", "judged-v-always", "judged-c64-v"])
def test_verified_they_say_whether_verification_is_used(name, shared):
    head = fit(name, shared)
    if "c64" in name:
        head = head.calibrate(Photos(QUERIES.select(TARGET)))
    used = head.decisions["verification"]["used"]
    assert used or not name.endswith("always")
    right = 2 * np.arange(len(QUERIES))
    plain = head.base.scores(Photos(QUERIES), "0")
    scores, sure = head.scores_and_confidence(Photos(QUERIES), "0")
    if used:
        assert ((sure >= 0) & (sure <= 1)).all()
        assert (scores.argmax(axis=1) == right).mean() > (plain.argmax(axis=1) == right).mean()
    else:
        np.testing.assert_array_equal(scores, plain)


def test_pairs_that_one_split_compared_are_not_compared_again(monkeypatch, shared):
    photos = Photos(DescribedQueries(QUERIES))
    head = fit("judged-c64", shared)
    first = head.calibrate(photos.select(TARGET))
    compared: list[int] = []
    real = CompactTokens.match_each
    monkeypatch.setattr(CompactTokens, "match_each", lambda *given: compared.append(len(given[1])) or real(*given))
    again = head.calibrate(photos.select(TARGET[::-1].copy()))
    assert again.decisions["candidates"].keys() == first.decisions["candidates"].keys()
    head.calibrate(photos.select(TARGET))
    assert sum(compared) < len(TARGET)  # halves differ in the reversed order, so a few answers may


def test_where_patches_lie_is_unknown_the_incumbents_answer():
    ragged = Tokens([np.asarray(DATABASE.patches[i])[: 20 + i] for i in range(len(DATABASE))])
    judged = fit("judged", database=ragged)
    assert judged.retriever.decisions.name == "second_order/tempered"
    calibrated = fit("judged-c64", database=ragged).calibrate(Photos(QUERIES.select(TARGET)))
    assert calibrated.retriever.decisions.name == "second_order/partial+centring+score"
    with pytest.raises(BadTokens, match="grid"):
        fit("judged-v", database=ragged)


@pytest.mark.parametrize(
    ("name", "title", "plan", "sees", "stage"),
    [
        (
            "second-blend",
            "Second order, half plain scores, half partly whitened scores",
            "no calibration",
            "database",
            "",
        ),
        ("judged", "Judged", "no calibration", "database", "judge"),
        ("judged-c17", "Judged-C17", "C17", "target", "judge"),
        ("judged-c64-v", "Judged-C64 +V", "C64", "target", "verification"),
        ("judged-support", "Judged, support in place of the judge", "no calibration", "database", "judge"),
        ("judged-c64-no-score", "Judged-C64, no score calibration", "C64", "target", "score_calibration"),
        ("judged-c64-ensemble", "Judged-C64 ensemble", "C64", "target", "second_order"),
    ],
)
def test_names_say_what_happens(name, title, plan, sees, stage):
    card = head_card(name)
    assert (card.title, card.plan.name, card.sees) == (title, plan, sees)
    assert card.note == ("ablation" if ("support" in name or "no-" in name) else "ours, beyond the paper")
    assert {"second_order", stage or "second_order"} <= set(card.stages)
    assert len(set(card.stages)) == len(card.stages)


@pytest.mark.parametrize(
    "name", ["second-ordered", "second-order-c0", "judged-c0", "judged-no-score", "judged-no-centring", "judged+"]
)
def test_other_names_are_refused(name):
    with pytest.raises(BadSpec, match="unknown head"):
        head_card(name)


def test_without_pooling_two_depths_are_described_as_their_tokens_are(monkeypatch):
    rng = np.random.default_rng(0)
    base = rng.normal(size=(30, 12, 10)) + rng.normal(size=(30, 1, 10))
    database, queries = (Tokens(base + 0.3 * rng.normal(size=base.shape), grid=(3, 4), depths=2) for _ in range(2))
    names = ("second-order", "second-order-c64", "second-order-online")

    def answer(name: str) -> np.ndarray:
        head = fit(name, database=database)
        head = head.calibrate(Photos(queries.select(range(8)))) if "c64" in name else head
        return head.scores(Photos(queries), "0")

    pooled, unpooled = (
        [answer(name.replace("second-order", system)) for name in names] for system in ("second-order", UNPOOLED)
    )
    # Pooling over each cell alone leaves tokens as they are.
    monkeypatch.setattr(method, "cell_bands", lambda grid, dtype: tuple(np.eye(side, dtype=dtype) for side in grid))
    for name, before, after in zip(names, pooled, unpooled, strict=True):
        assert not np.allclose(before, after, atol=0.05)
        np.testing.assert_allclose(after, answer(name), atol=2e-3)


def test_the_groups_hold_them():
    assert set(GROUPS["carriers"]) == {f"second-{c}" for c in CARRIER_KERNELS}
    assert {"judged", "judged-v", "judged-c64", "judged-c64-v"} <= set(GROUPS["judged-heads"])
    ablations = {"judged-no-judge", "judged-support", "judged-c64-no-judge", "judged-c64-support"}
    depths = [head_card(name) for name in GROUPS["depth-ablations"]]
    assert all(card.needs_depths and card.title.startswith("Second-order head, no pooling") for card in depths)
    assert set(GROUPS["judge-ablations"]) == ablations | {"judged-c64-no-centring", "judged-c64-no-score"}


# --- the default head of maps ----------------------------------------------------------------------------------


def placed_map(target: Tokens | None = None) -> MapState:
    """The map that `tfa build` makes of the database, calibrated if there are target photos."""
    options = BuildOptions()
    fitted = fit_map(DATABASE, options, SPEC, "cpu", SilentProgress())
    records = [ImageRecord(id=i, path=f"{i}.jpg", digest=str(i), fitted=True) for i in range(len(DATABASE))]
    state = make_state(fitted, options, records, {})
    if target is None:
        return state
    assert state.spaces is not None
    tuned = pipeline.calibrate(state.spaces.fitted(len(records), SPEC, None), target)
    admission = describe_calibrated_reranking(tuned, target, prepare_photo_evidence(state.compact, target))
    head = NamedHead.of("target", tuned, 0, options.storage, {}, admission, state.spaces, None)
    return state.with_calibration(head)


@pytest.mark.parametrize("rerank", [False, True])
@pytest.mark.parametrize("photos", [0, 64])
def test_the_default_rows_answer_as_a_map_does(photos, rerank, shared):
    target = Photos(DescribedQueries(QUERIES).select(TARGET)) if photos else None
    head = fit("second-order" + "-c64" * bool(photos) + "-v" * rerank, shared)
    if target is not None:
        head = head.calibrate(target)
    state = placed_map(None if target is None else target.tokens)
    depth = 5
    answers = answer_tokens(MemorySnapshot(state), QUERIES, QueryOptions(k=depth, rerank=None if rerank else False))
    assert head.replicas == ("0",)
    scores, confidence = scored(head, Photos(DescribedQueries(QUERIES)), "0")
    found, _ = ranked(scores, depth, np.dtype("u2"))
    np.testing.assert_array_equal(found, [[hit.id for hit in answer.hits] for answer in answers])
    assert any(answer.reranked for answer in answers) == (confidence is not None)
    if confidence is not None:
        np.testing.assert_allclose(confidence, [answer.confidence for answer in answers], rtol=1e-12)
    if rerank:
        used = head.decisions["verification"]["used"]
        assert used == state.chosen(None).verifies


@pytest.mark.parametrize("follows", [False, True])
def test_the_default_rows_follow_a_camera_as_a_map_does(follows, shared):
    head = fit("second-order-follow" if follows else "second-order-online-v", shared)
    state = placed_map()
    tracker = Tracker(Map(MemoryStorage(state)), QueryOptions(k=3), sequence=follows)
    answers = [tracker.step(QUERIES.select([row])) for row in range(len(QUERIES))]
    rows = [ranked(scores, 3, np.dtype("u2"))[0] for scores, _ in head.in_order(Photos(QUERIES), "0")]
    for found, answer in zip(np.concatenate(rows), answers, strict=True):
        assert not answer.hits or [hit.id for hit in answer.hits] == found.tolist()
    assert sum(bool(answer.hits) for answer in answers) > len(answers) / 2
