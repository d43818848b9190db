"""Compare answers with ground truth: recall, confidence, position errors and mistakes.

Labeled photos of a map, and benchmark records, become a `Judgement`. Labels are read only after the answers.
"""
