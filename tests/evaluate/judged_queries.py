"""Judgements made in memory for tests."""

from __future__ import annotations

import numpy as np

from tfa.evaluate.judgement import EvaluatedHit, JudgedAnswer, JudgedQuery, Judgement, Run


def made_judgement(seed: int = 0, queries: int = 40, images: int = 15, depth: int = 12) -> Judgement:
    """Answers by chance, some of them right, some sure."""
    rng = np.random.default_rng(seed)
    names = [f"/map/{at}.jpg" for at in range(images)]
    asked, answers = [], []
    for number in range(queries):
        right = set(rng.choice(images, rng.integers(0, 4), replace=False).tolist())
        order = rng.permutation(images)[:depth].tolist()
        confidence = round(float(rng.random()), 1)  # with ties
        hits = [EvaluatedHit(names[image], image in right, confidence, None, float(image), None) for image in order]
        asked.append(JudgedQuery(number, f"/walk/{number}.jpg", bool(right), true_image=names[min(right, default=0)]))
        answers.append(JudgedAnswer(tuple(hits), confidence, confidence > 0.7, True))
    run = Run("none", "without calibration", "probability", depth, tuple(answers))
    return Judgement("town.tfa", "as listed", dict.fromkeys(names), tuple(asked), (run,))
