"""Answers for other programs: a table, points on a map of the world, a recording that a robot's tools play.

In: answers of a map. Out: one file, whole or not at all, in the format its ending names. May see: the photos asked.
"""

from tfa.exports.answers.formats import ANSWER_FORMATS, AnswerFormat, check_positions, format_of, write_answers
from tfa.exports.answers.record import ExportContext

__all__ = ["ANSWER_FORMATS", "AnswerFormat", "ExportContext", "check_positions", "format_of", "write_answers"]
