"""Where verification was admitted: a table from scored records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tfa_bench.tables.page import admissions


def scored(head, recalls, used=None):
    decisions = [[{"decisions": {} if used is None else {"verification": {"used": one}}}] for one in used or recalls]
    mean = sum(recalls) / len(recalls)
    return SimpleNamespace(
        dataset="town",
        dataset_title="Town",
        head=head,
        title=head.upper(),
        recalls={1: SimpleNamespace(mean=mean)},
        splits=[(one,) for one in recalls],
        decisions=decisions,
    )


@pytest.mark.parametrize(
    ("used", "decided", "cells"),
    [
        ([True, True], [0.7, 0.4], "| 55.00 | 55.00 | 2 of 2 | 1 of 2 |"),
        ([True, False], [0.7, 0.5], "| 60.00 | 55.00 | 1 of 2 | 2 of 2 |"),
        ([False, True], [0.6, 0.4], "| **50.00** | 55.00 | 1 of 2 | 0 of 2 |"),
    ],
)
def test_decisions_are_compared_with_what_labels_say(used, decided, cells):
    without, always = scored("tfa", [0.6, 0.5]), scored("tfa-v-always", [0.7, 0.4])
    page = admissions([without, scored("tfa-v", decided, used), always])
    assert page.splitlines()[-1] == "| Town | TFA | 55.00 " + cells


def test_without_all_three_records_there_is_no_row():
    assert admissions([scored("tfa", [0.6]), scored("tfa-v", [0.6], [True])]) == ""
