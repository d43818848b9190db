"""A report on a map: its decisions with their evidence, images that repeat or attract others, and advice."""

from tfa.report.advice import advice_of
from tfa.report.collect import report_of
from tfa.report.duplicates import near_duplicates
from tfa.report.evidence import evidence_of
from tfa.report.hubs import hubs_of, lonely_of
from tfa.report.page import write_report

__all__ = ["advice_of", "evidence_of", "hubs_of", "lonely_of", "near_duplicates", "report_of", "write_report"]
