"""SPCN: settling, learning, attention over the past, traces."""

from __future__ import annotations

from typing import Any

from defects.planting import defect, skipped, with_arguments, with_result, wrap


def _rule(kernels: Any, function: str, **changes: Any) -> None:
    """The function gets a rule in which change(value) stands for each of these settings."""
    with_arguments(
        kernels,
        function,
        rule=lambda rule: rule._replace(**{name: change(getattr(rule, name)) for name, change in changes.items()}),
    )


@defect("spcn.kernels", "test_spcn_kernels.py", "update_of_pghu")
def sign_of_the_update(kernels: Any) -> None:
    """PGHU moves W_fb away from what would predict the state."""
    _rule(kernels, "learn", eta=lambda eta: -eta)


@defect("spcn.kernels", "test_spcn_kernels.py", "update_of_pghu")
def precision_once_where_twice(kernels: Any) -> None:
    """Eq. 3 has the precision in the error and before it."""
    _rule(kernels, "learn", precision_power=lambda power: 3 - power)


@defect("spcn.kernels", "test_spcn_kernels.py", "decay_alone")
def weights_grow_instead_of_decaying(kernels: Any) -> None:
    """Decay with the wrong sign."""
    _rule(kernels, "learn", decay=lambda decay: -decay)


@defect("spcn.kernels", "test_spcn_kernels.py", "spa_reaches")
def buffer_forgets_its_oldest_state(kernels: Any) -> None:
    """Attention reaches back one state less than the window."""
    with_arguments(kernels, "new_state", window=lambda window: max(1, window - 1))


@defect("spcn.kernels", "test_spcn_kernels.py", "reset_between")
def state_not_reset(kernels: Any) -> None:
    """A sentence starts from the state that the one before it left."""
    skipped(kernels, "clear")


@defect("spcn.kernels", "test_spcn_model.py", "share_of_active")
def states_of_unit_length(kernels: Any) -> None:
    """Weights are those of the described network, states have the locked one's length: line 171 does not hold."""
    _rule(kernels, "activate_level", per_active=lambda per_active: False)


@defect("spcn.kernels", "test_spcn_kernels.py", "closed_form")
def fast_and_slow_exchanged(kernels: Any) -> None:
    """The fast traces get the slow rates."""

    def broken(original: Any) -> Any:
        def run(words: Any, starts: Any, backward: Any, ks: Any, fast: Any, slow: Any, *rest: Any) -> Any:
            return original(words, starts, backward, ks, slow, fast, *rest)

        return run

    wrap(kernels, "run", broken)


@defect("spcn.storage", "test_spcn_files.py", "flipped_bit")
def damaged_weights_loaded(storage: Any) -> None:
    """The checksum is that of nothing."""
    with_result(storage, "checksum", lambda digest: "")
