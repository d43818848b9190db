"""Each rule that users are told, said once: help texts, tables, the service and reports say it in these words.

The documents quote them too; a test compares.
"""

from __future__ import annotations

CONFIDENCE = "Confidence is the probability, from 0 to 1, that a hit shows the photo's place."
CONFIDENCE_VERIFIED = (
    "Of a verified answer it is estimated from its scores and from how far the evidence of its matching patches leads "
    "that of other places."
)
CONFIDENCE_UNVERIFIED = "Of an answer that was not verified it is estimated from its scores alone."
CONFIDENCE_SEQUENCE = (
    "Of a frame of a sequence it is the filter's probability that the camera is at that place, by this frame and those "
    "before it."
)
LATER_HITS = "A later hit never has more confidence than the hit before it."
SURE = (
    "An answer is sure if it was verified, its confidence is at least 0.9, and its evidence leads that of other places "
    "by at least 0.65; a frame of a sequence must be so confident by itself and by the filter."
)
RELY = "Rely on sure answers: no confidence by itself is a threshold that holds for every map."
CONFIDENCE_RULE = " ".join([CONFIDENCE, CONFIDENCE_VERIFIED, CONFIDENCE_UNVERIFIED, CONFIDENCE_SEQUENCE, LATER_HITS])
SURE_RULE = f"{SURE} {RELY}"

ORDER_VERIFIED = (
    "Hits stand in the order of the answer: those that were verified first, by score and evidence together, then the "
    "others by score."
)
ORDER_UNVERIFIED = "Hits stand in the order of the answer: by score."
ORDER_SEQUENCE = (
    "Hits stand in the order of the answer: by the filter's probability of the image; confidence adds its neighbours'."
)

EXPECTED_RECALL = (
    "Expected recall is the mean confidence of answers, without labels; its interval held the true recall nine times "
    "in ten on public datasets."
)
NEAR_DUPLICATE = (
    "A near duplicate has a cosine of 0.9 or more with the first photo of its group, after what all photos share is "
    "subtracted."
)
HUB = "A hub is among the five best answers of at least four times as many photos as is usual."
LEAST_RECOGNISED = (
    "A photo that nothing else resembles is among nobody's five best answers, and its most similar photo is less so "
    "than is usual by three robust deviations."
)

JUDGE = (
    "The incumbent head answers unless the first answers of another share more evidence with the photos: by more than "
    "2.5 standard errors over the map's own photos, by more than 2 over target photos."
)
VERIFICATION = (
    "Answers are verified if more photos than chance explains, by two standard errors, have more evidence among the "
    "images ranked first than among the next."
)
WITHIN_NOISE = "A decision is within noise if it would be another with numbers one standard error away."


def describe_order(*, verified: bool, sequence: bool) -> str:
    """How the hits of an answer are ordered."""
    return ORDER_SEQUENCE if sequence else ORDER_VERIFIED if verified else ORDER_UNVERIFIED


def list_rules() -> dict[str, str]:
    """All of them by name, for pages and programs."""
    return {
        "confidence": CONFIDENCE_RULE,
        "sure": SURE_RULE,
        "order_verified": ORDER_VERIFIED,
        "order_unverified": ORDER_UNVERIFIED,
        "order_sequence": ORDER_SEQUENCE,
        "expected_recall": EXPECTED_RECALL,
        "near_duplicate": NEAR_DUPLICATE,
        "hub": HUB,
        "least_recognised": LEAST_RECOGNISED,
        "judge": JUDGE,
        "verification": VERIFICATION,
        "within_noise": WITHIN_NOISE,
    }
