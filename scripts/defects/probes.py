"""Probes, and the models that they and SPEN are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np

from defects.planting import defect, replaced, with_arguments, with_result, wrap


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


@defect("probes.ridge", "test_probes.py", "float32_chunks")
def sums_rounded_to_float32(ridge: Any) -> None:
    """Products of float32 features lose what float64 would keep."""
    with_result(ridge, "_block", lambda block: (block * np.float32(1 + 1e-6)).astype(np.float32).astype(np.float64))


@defect("probes.decoding", "test_decoding.py", "lagged_words_by_hand")
def lag_off_by_one(decoding: Any) -> None:
    """The word before the one that was asked for."""
    with_arguments(decoding, "lagged_words", lag=lambda lag: lag + 1)


@defect("probes.controls", "test_probes.py", "control_labels_depend")
def control_task_follows_the_place(controls: Any) -> None:
    """The label of a control task depends on where a word stands, so that it cannot be memorised."""
    wrap(
        controls,
        "control_labels",
        lambda original: (
            lambda words, *rest, **kwargs: original([f"{word} {i}" for i, word in enumerate(words)], *rest, **kwargs)
        ),
    )


@defect("probes.scores", "test_probes.py", "scores_by_hand")
def every_role_weighs_the_same(scores: Any) -> None:
    """Accuracy as a mean over roles instead of over tokens."""
    replaced(
        scores.Scores,
        "accuracy",
        lambda self: sum(correct / n for correct, n in self.per_role.values() if n) / max(1, len(self.per_role)),
    )


@defect("baselines.bigru", "test_baselines.py", "mask_hides or one_at_a_time or shortcut")
def word_shown_instead_of_hidden(bigru: Any) -> None:
    """The context is hidden where the word should be, and the other way round."""
    wrap(
        bigru.BiGRUTagger,
        "_predict",
        lambda original: (
            lambda self, tokens, masked, *rest: original(self, tokens, None if masked is None else ~masked, *rest)
        ),
    )


@defect("baselines.onehot", "test_baselines.py", "ema_of_onehots")
def traces_cross_sentences(onehot: Any) -> None:
    """A trace of words goes on into the next sentence."""

    def across(original: Any) -> Any:
        def at_offset(tokens: Any, offset: int) -> Any:
            here = np.arange(max(0, -offset), len(tokens.ids) - max(0, offset))
            return here, tokens.ids[here + offset]

        return at_offset

    wrap(onehot, "_at_offset", across)


@defect("baselines.language", "test_baselines_language.py", "smoothed")
def unigram_without_smoothing(language: Any) -> None:
    """A token that was never seen costs everything."""
    with_arguments(language.Unigram, "__init__", smoothing=lambda smoothing: 0.0)
