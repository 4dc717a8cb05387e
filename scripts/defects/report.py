"""The page and the terminal."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_result, wrap


@defect("report.parts", "test_report_hostile.py", "our_own_tags and alert")
def text_of_files_as_markup(parts: Any) -> None:
    """Templates do not escape: a result file writes the page."""

    def trusting(environment: Any) -> Any:
        environment.autoescape = False
        return environment

    with_result(parts, "templates", trusting)


@defect("report.findings", "test_report.py", "heading_follows")
def findings_whatever_the_verdict(findings: Any) -> None:
    """A finding is announced although its claim failed."""
    wrap(findings, "_heading", lambda original: lambda finding, row: finding.holds)


@defect("report.charts", "test_report.py", "marks_of_a_chart")
def intervals_half_as_long(charts: Any) -> None:
    """A chart shows less uncertainty than there is."""

    def halved(original: Any) -> Any:
        def whisker(axis: Any, ends: Any) -> Any:
            return original(axis, None if ends is None else (ends[0], (ends[0] + ends[1]) / 2))

        return whisker

    wrap(charts, "_whisker", halved)
