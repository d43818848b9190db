"""Names of heads and groups."""

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa_bench.heads.catalogue import CARDS, GROUPS, NEED_FILES, Supplied, head_card, head_cards, names


def test_every_name_and_every_group_resolves():
    for name in names():
        if name not in NEED_FILES:
            assert head_card(name).name == name
    assert {"anyloc-released", "segvlad", "salad", "boq", "selavpr++-l", "sample4geo"} <= set(NEED_FILES)
    everyone = [card.name for card in head_cards(["all"])]
    assert len(everyone) == len(set(everyone))
    assert set(everyone) == {name for group in GROUPS.values() for name in group}
    assert set(CARDS) <= set(everyone)


def test_the_heads_of_the_paper_are_there():
    peers = {"anyloc", "anyloc-gem", "cls", "mean", "tfvpr", "tfvpr-transductive", "ria", "ria-power"}
    controls = {f"{a}-{c}" for a in ("hard", "soft") for c in ("original", "centred", "partial", "full", "adaptive")}
    own = {"tfa", "tfa-c64", "tfa-fullq", "tfa-crossfit", "dual", "dual-c64", "dual-crossfit", "tfa-c64+"}
    rules = ("support-only", "agreement-only", "ties-partial", "always-cls", "no-cls", "forced-hard", "forced-soft")
    ablations = {f"tfa-{rule}" for rule in (*rules, "single")} | {f"tfa-fullq-{rule}" for rule in (*rules, "single")}
    assert peers | controls | own | ablations | {"segvlad-superpixels"} <= set(names())


@pytest.mark.parametrize(
    ("name", "title", "plan", "sees"),
    [
        ("tfa", "TFA", "no calibration", "database"),
        ("tfa-ensemble", "TFA ensemble", "no calibration", "database"),
        ("tfa-c17", "TFA-C17", "C17", "target"),
        ("tfa-c64+", "TFA-C64+", "C64", "target"),
        ("tfa-c64+-ensemble", "TFA-C64+ ensemble", "C64", "target"),
        ("dual-c8", "TFA dual-C8", "C8", "target"),
        ("dual-crossfit-contiguous", "TFA dual-FullQ (cross-fit, contiguous halves)", "cross-fit contiguous", "target"),
        ("tfa-fullq+", "TFA-FullQ+", "FullQ", "target"),
        ("tfa-v", "TFA +V", "no calibration", "database"),
        ("tfa-c64-v", "TFA-C64 +V", "C64", "target"),
        ("tfa-c64-v-always", "TFA-C64 +V, always", "C64", "target"),
        ("tfa-c64+-ensemble-v", "TFA-C64+ ensemble +V", "C64", "target"),
        ("dual-c64-v", "TFA dual-C64 +V", "C64", "target"),
    ],
)
def test_names_of_our_own_heads_say_what_happens(name, title, plan, sees):
    card = head_card(name)
    assert (card.title, card.plan.name, card.sees) == (title, plan, sees)
    assert card.note.startswith("ours") == any(ours in name for ours in ("+", "ensemble", "-v"))


def test_reconstructions_and_fallbacks_say_so():
    assert head_card("ria").note.startswith("reconstruction")
    assert "ours" in head_card("segvlad-superpixels").note
    assert "SAM" in head_card("segvlad-superpixels").note


@pytest.mark.parametrize("name", ["tfa-c0", "tfa+", "dual-c", "tfa-c64-plus", "anylock", ""])
def test_an_unknown_name_is_refused(name):
    with pytest.raises(BadSpec, match="there is no head"):
        head_card(name)


def test_a_slip_gets_a_suggestion():
    with pytest.raises(BadSpec, match="did you mean 'anyloc'"):
        head_card("anylocc")


def test_heads_that_need_a_file_say_which(tmp_path):
    with pytest.raises(BadSpec, match="--vocabulary"):
        head_card("anyloc-released")
    with pytest.raises(BadSpec, match=r"--sam FILE.*segvlad-superpixels"):
        head_card("segvlad")
    np.save(tmp_path / "words.npy", np.eye(3))
    card = head_card("anyloc-released", Supplied(vocabulary=tmp_path / "words.npy"))
    assert card.name == "anyloc-released"


def test_groups_and_names_mix_and_nothing_comes_twice():
    listed = [card.name for card in head_cards(["tfa", "calibrated", "mean"])]
    assert listed == ["tfa", "tfa-c64", "tfa-fullq", "tfa-crossfit", "mean"]
