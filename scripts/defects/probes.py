"""Probes, and the models that they and SPEN are compared with."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, with_arguments, wrap


@defect("probes.ridge", "test_probes.py", "solve_is_sklearn_ridge")
def probe_without_intercept(ridge: Any) -> None:
    """Features and targets are not centred."""
    with_arguments(ridge.GramMatrix, "solve", fit_intercept=lambda fit: False)


@defect("probes.ridge", "test_probes.py", "solve_is_sklearn_ridge")
def penalty_per_row(ridge: Any) -> None:
    """The penalty is multiplied by the number of rows."""
    wrap(
        ridge,
        "_solve_regularised",
        lambda original: lambda A, B, lam, n_rows: original(A, B, lam * n_rows, n_rows),
    )


@defect("baselines.bigru", "test_baselines.py", "one_at_a_time")
def word_shown_instead_of_hidden(bigru: Any) -> None:
    """The context is hidden where the word should be, and the other way round."""
    wrap(
        bigru.BiGRUTagger,
        "_predict",
        lambda original: (
            lambda self, tokens, masked, *rest: original(self, tokens, None if masked is None else ~masked, *rest)
        ),
    )
