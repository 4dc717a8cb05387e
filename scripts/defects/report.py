"""The page and the terminal."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_result, wrap


@defect("report.parts", "test_report_hostile.py", "our_own_tags or as_it_is_written or by_themselves")
def text_of_files_as_markup(parts: Any) -> None:
    """Templates do not escape: a result file writes the page."""

    def trusting(environment: Any) -> Any:
        environment.autoescape = False
        return environment

    with_result(parts, "templates", trusting)


@defect("report.plots", "test_report_hostile.py", "plotly")
def labels_of_plots_as_markup(plots: Any) -> None:
    """Plotly reads tags in the names of a file."""
    wrap(plots, "escape", lambda original: str)


@defect("report.formatting", "test_report.py", "intervals_beside or numbers_are_those")
def interval_of_another_cell(formatting: Any) -> None:
    """The interval on the page is not that of the number beside it."""
    with_result(formatting, "over_seeds", lambda ends: None if ends is None else (ends[0] / 2, ends[1] * 2))


@defect("report.verdicts", "test_report.py", "every_claim_with_its_verdict or counts_of_verdicts")
def claim_without_a_row(verdicts: Any) -> None:
    """A claim is missing from the page."""
    for name in ("ledger_table", "verdict_table", "claims_table"):
        if name in vars(verdicts):
            wrap(verdicts, name, lambda original: lambda rows, *rest: original(rows[1:], *rest))
