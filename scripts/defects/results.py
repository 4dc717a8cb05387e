"""Cells: reading, selecting, choosing the evidence."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, replaced, skipped, with_result


@defect("results.select", "test_results_select.py", "ambiguous")
def ambiguous_selection_accepted(select: Any) -> None:
    """Cells that differ in a factor which was not named pass for seeds of one another."""
    skipped(select, "_refuse_ambiguity")


@defect("results.select", "test_results_select.py", "settings_are_never_mixed")
def settings_mixed(select: Any) -> None:
    """Cells measured with different settings become one sample."""
    with_result(select.Table, "_settings_key", lambda key: "")


@defect("results.select", "test_results_select.py", "most_seeds_win or tie_goes")
def newest_evidence_wins(select: Any) -> None:
    """One new seed displaces twenty recorded ones."""
    with_result(select, "_rank", lambda rank: (0, 0, rank[2]))


@defect("results.select", "test_results_select.py", "pairing")
def different_seeds_paired(select: Any) -> None:
    """Values of different seeds or experiments stand against each other."""
    with_result(select.Selection, "is_paired_with", lambda paired: True)


@defect("results.select", "test_ledger_verdicts.py", "repetitions_are_not_seeds")
def repetitions_counted_as_seeds(select: Any) -> None:
    """The repetitions of one timing become as many seeds."""

    def spread(selection: Any) -> Any:
        repetitions = selection.metrics[0].repetitions if len(selection.metrics) == 1 else ()
        if len(repetitions) > 1:
            object.__setattr__(selection, "seeds", tuple(range(len(repetitions))))
        return selection

    with_result(select.Table, "select", lambda found: None if found is None else spread(found))


@defect("files", "test_results.py", "given_twice")
def metric_given_twice_accepted(files: Any) -> None:
    """Of two equal keys in a file the first is lost without a word."""
    replaced(files, "_unique", lambda pairs: dict(pairs))


def _renamed(file: Any, path: Any) -> Any:
    """The file as if it belonged where it lies."""

    class Anywhere:
        experiment, name = path.parent.name, path.name
        unpack = staticmethod(file.unpack)

    return Anywhere()


@defect("results.sample", "test_results_select.py", "one_timing")
def median_with_the_interval_of_the_mean(sample: Any) -> None:
    """What is shown is a median, and the interval lies around something else."""
    replaced(sample, "median_interval", sample.seed_interval)
