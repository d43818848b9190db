"""Near duplicates (ours): images whose compiled vectors, less what all images share, nearly coincide."""

from __future__ import annotations

import numpy as np

from tfa.report.neighbours import KEPT_ALIKE, Resemblance

# Cosine from which two images count as near duplicates: a photo saved anew has 0.95, the next frame of a video 0.5.
NEAR = 0.9


def near_duplicates(found: Resemblance, threshold: float = NEAR) -> list[list[int]]:
    """Groups of images (columns), each led by its first: every member is at least `threshold` alike to the leader.

    Led groups do not chain: along a video every frame resembles the next, and a whole street would be one group.
    """
    assert threshold >= KEPT_ALIKE, "pairs less alike are not kept"
    one, other, cosine = found.alike
    groups: dict[int, list[int]] = {}
    taken: set[int] = set()
    order = np.lexsort((other, one))
    for leader, member in zip(one[order].tolist(), other[order].tolist(), strict=True):
        groups.setdefault(leader, [])
        groups[leader].append(member)
    alike = {(a, b) for a, b, c in zip(one.tolist(), other.tolist(), cosine.tolist(), strict=True) if c >= threshold}
    led = []
    for leader in sorted(groups):
        if leader in taken:
            continue
        members = [m for m in groups[leader] if m not in taken and (leader, m) in alike]
        if members:
            led.append([leader, *members])
            taken.update(led[-1])
    return led
