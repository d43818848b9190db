"""Export answers as CSV, GeoJSON, GPX or MCAP files, written atomically."""

from tfa.exports.answers.formats import ANSWER_FORMATS, AnswerFormat, check_positions, format_of, write_answers
from tfa.exports.answers.record import ExportContext

__all__ = ["ANSWER_FORMATS", "AnswerFormat", "ExportContext", "check_positions", "format_of", "write_answers"]
