"""x"""

from benchmarks.http.report import Report


def soak(report: Report) -> None:
    """x"""
