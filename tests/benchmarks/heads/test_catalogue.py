"""Names of heads and groups."""

import subprocess
import sys

import numpy as np
import pytest

from tfa.errors import BadSpec
from tfa.method.carriers import CARRIER_KERNELS
from tfa_bench.heads import catalogue
from tfa_bench.heads.catalogue import GROUPS, NEED_FILES, head_card, head_cards, names
from tfa_bench.heads.contract import Supplied


def test_every_name_and_every_group_resolves():
    for name in names():
        if name not in NEED_FILES:
            assert head_card(name).name == name
    assert {"anyloc-released", "segvlad", "salad", "boq", "selavpr++-l", "sample4geo"} <= set(NEED_FILES)
    everyone = [card.name for card in head_cards(["all"])]
    assert len(everyone) == len(set(everyone))
    assert set(everyone) == {name for group in GROUPS.values() for name in group}
    assert GROUPS["carriers"] == tuple(f"second-{carrier}" for carrier in CARRIER_KERNELS)


def test_the_table_lists_every_card_of_every_module():
    for module, listed in {**catalogue._PEERS, **catalogue._CONTROLS}.items():
        assert tuple(card.name for card in catalogue._load(module).CARDS) == listed, module
    for module, listed in catalogue._FROM_FILES.items():
        assert tuple(catalogue._load(module).NEED_FILES) == listed, module


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("anyloc", {"peers.anyloc"}),
        ("ria", {"peers.pooled"}),
        ("segvlad-superpixels", {"peers.segvlad"}),
        ("hard-full", {"controls", "tfa_heads"}),
        ("tfa-c64+", {"tfa_heads"}),
        ("judged", {"second_order", "tfa_heads"}),
        ("second-order-c64", {"second_order", "tfa_heads"}),
        ("judged-v", {"verified", "second_order", "tfa_heads"}),
        ("anyloc-v", {"verified", "second_order", "tfa_heads", "peers.anyloc"}),
    ],
)
def test_naming_a_head_imports_its_module_and_what_it_is_made_of(name, modules):
    everyone = {*catalogue._PEERS, *catalogue._CONTROLS, *catalogue._FROM_FILES}
    everyone |= {place.partition(":")[0] for place in catalogue._FAMILIES.values()}
    code = (
        "import sys\nfrom tfa_bench.heads.catalogue import head_card, names\n"
        f"names()\nassert head_card({name!r}).name == {name!r}\n"
        "print(*(one for one in sys.modules if one.startswith('tfa_bench.heads.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {one.removeprefix("tfa_bench.heads.") for one in done.stdout.split()} & everyone == modules


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
        ("tfa-c16-forced-original", "TFA-C16, forced original cosine", "C16", "target"),
        ("tfa-fullq-forced-partial", "TFA-FullQ, forced partial whitening", "FullQ", "target"),
        ("dual-k32", "TFA dual, K32 branch", "no calibration", "database"),
        ("dual-k64-crossfit", "TFA dual-FullQ (cross-fit), K64 branch", "cross-fit even-odd", "target"),
        ("dual-database", "TFA dual, calibrated on the database", "no calibration", "database"),
    ],
)
def test_names_of_our_own_heads_say_what_happens(name, title, plan, sees):
    card = head_card(name)
    assert (card.title, card.plan.name, card.sees) == (title, plan, sees)
    assert card.note.startswith("ours") == any(ours in name for ours in ("+", "ensemble", "-v"))


def test_reconstructions_and_fallbacks_say_so(tmp_path):
    assert head_card("ria").note.startswith("reconstruction")
    for name in ("hard-original", "tfa-fullq-support-contraction", "tfa-c64-support-contraction", "dual-database"):
        assert head_card(name).note.startswith("our reading")
    np.save(tmp_path / "words.npy", np.eye(5))
    fitted, released = (head_card("dual-c64", Supplied(file)) for file in (None, tmp_path / "words.npy"))
    for card in (fitted, released):
        assert card.note.startswith("our reading of a system that the paper names without a formula")
    assert fitted.note == f"{released.note}, source words fitted on the database"
    assert "ours" in head_card("segvlad-superpixels").note
    assert "SAM" in head_card("segvlad-superpixels").note


@pytest.mark.parametrize(
    "name",
    ["tfa-c0", "tfa+", "dual-c", "dual-k16", "dual-database-c64", "tfa-c64-forced", "tfa-c64-plus", "anylock", ""],
)
def test_an_unknown_name_is_refused(name):
    with pytest.raises(BadSpec, match="unknown head"):
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
