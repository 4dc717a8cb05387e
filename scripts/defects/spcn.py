"""SPCN: settling, learning, attention over the past, traces."""

from __future__ import annotations

from typing import Any

import numpy as np

from defects.planting import defect, replaced, skipped, with_arguments, with_result, wrap


def _rule(kernels: Any, function: str, **changes: Any) -> None:
    """The function gets a rule in which change(value) stands for each of these settings."""
    with_arguments(
        kernels,
        function,
        rule=lambda rule: rule._replace(**{name: change(getattr(rule, name)) for name, change in changes.items()}),
    )


@defect("spcn.kernels", "test_spcn_kernels.py", "pghu")
def sign_of_the_update(kernels: Any) -> None:
    """PGHU moves W_fb away from what would predict the state."""
    _rule(kernels, "learn", eta=lambda eta: -eta)


@defect("spcn.kernels", "test_spcn_kernels.py", "pghu")
def precision_once_where_twice(kernels: Any) -> None:
    """Eq. 3 has the precision in the error and before it."""
    _rule(kernels, "learn", precision_power=lambda power: 3 - power)


@defect("spcn.kernels", "test_spcn_kernels.py", "decay_alone")
def weights_grow_instead_of_decaying(kernels: Any) -> None:
    """Decay with the wrong sign."""
    _rule(kernels, "learn", decay=lambda decay: -decay)


@defect("spcn.kernels", "test_spcn_kernels.py", "settling_step")
def one_settling_step_too_few(kernels: Any) -> None:
    """T_settle - 1 applications of Eq. 1."""
    _rule(kernels, "settle", settle_steps=lambda steps: steps - 1)


@defect("spcn.kernels", "test_spcn_kernels.py", "settling_step_synchronous")
def synchronous_update_in_place(kernels: Any) -> None:
    """A level sees the new state of the level below already."""
    _rule(kernels, "settle", synchronous=lambda synchronous: False)


@defect("spcn.kernels", "test_spcn_kernels.py", "what_top_k_keeps")
def one_active_unit_too_many(kernels: Any) -> None:
    """k + 1 units of a level stay active."""
    wrap(
        kernels,
        "select_top_k",
        lambda original: lambda x, level, d, k, floor, idx: original(x, level, d, min(k + 1, d), floor, idx),
    )


@defect("spcn.kernels", "test_spcn_kernels.py", "spa")
def buffer_forgets_its_oldest_state(kernels: Any) -> None:
    """Attention reaches back one state less than the window."""
    with_arguments(kernels, "new_state", window=lambda window: max(1, window - 1))


@defect("spcn.kernels", "test_spcn_kernels.py", "spa")
def attention_to_all_states(kernels: Any) -> None:
    """The softmax is over all of the buffer, not over its best states."""
    _rule(kernels, "add_spa_context", spa_top=lambda top: 10**6)


@defect("spcn.kernels", "test_spcn_kernels.py", "emptied")
def buffer_kept_between_sentences(kernels: Any) -> None:
    """A sentence attends to the one before it."""

    def keep(original: Any) -> Any:
        def clear(weights: Any, state: Any) -> None:
            seen = state.buffer_seen.copy()
            original(weights, state)
            state.buffer_seen[:] = seen

        return clear

    wrap(kernels, "clear", keep)


@defect("spcn.kernels", "test_spcn_kernels.py", "reset_between")
def state_not_reset(kernels: Any) -> None:
    """A sentence starts from the state that the one before it left."""
    skipped(kernels, "clear")


@defect("spcn.kernels", "test_spcn_kernels.py", "half_lives or closed_form")
def fast_and_slow_exchanged(kernels: Any) -> None:
    """The fast traces get the slow rates."""

    def broken(original: Any) -> Any:
        def run(words: Any, starts: Any, backward: Any, ks: Any, fast: Any, slow: Any, *rest: Any) -> Any:
            return original(words, starts, backward, ks, slow, fast, *rest)

        return run

    wrap(kernels, "run", broken)


@defect("spcn.kernels", "test_spcn_kernels.py", "backward_hierarchy")
def backward_hierarchy_reads_forward(kernels: Any) -> None:
    """Both hierarchies read from the first word on."""
    with_arguments(kernels, "run", backward=lambda backward: False)


@defect("spcn.weights", "test_spcn_model.py", "seeds")
def seed_ignored(weights: Any) -> None:
    """Every network has the same weights."""
    with_arguments(weights, "draw_weights", rng=lambda rng: np.random.default_rng(0))


@defect("spcn.storage", "test_spcn_files.py", "round_trip")
def precision_forgotten_in_the_file(storage: Any) -> None:
    """A loaded model has learned weights, but not what it had learned about its errors."""

    def forget(model: Any) -> Any:
        for side, weights in model.weights_.items():
            model.weights_[side] = weights._replace(precision=np.ones_like(weights.precision))
        return model

    with_result(storage, "_restore", forget)


@defect("spcn.feedforward", "test_spcn_feedforward.py", "sanger_by_hand")
def sanger_without_order(feedforward: Any) -> None:
    """All units subtract all others: the subspace is found, its components are not."""

    def sanger(W_IO: Any, X_BI: Any, state: Any, eta: float) -> Any:
        Y_BO = X_BI @ W_IO
        return W_IO + eta * (X_BI.T @ Y_BO - W_IO @ (Y_BO.T @ Y_BO)) / len(X_BI)

    replaced(feedforward, "sanger", sanger)
