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


@defect("report.plots", "test_report_hostile.py", "plotly_sees and alert")
def labels_of_plots_as_markup(plots: Any) -> None:
    """Plotly reads tags in the names of a file."""
    wrap(plots, "escape", lambda original: str)
