"""Line 171 of the paper as a test: "The activation at time t is dominated by the feedforward projection".

The described network passes and the locked one fails every criterion, so each test can fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ematrace.grammar import half_passives, load_grammar
from ematrace.spcn import SPCN
from ematrace.spcn.diagnosis import (
    LevelStates,
    cosines,
    diagnose_states,
    drive_shares,
    precision_in_range,
)

NETWORKS = ("described", "locked")
DOMINATED = 0.5
"""In a network that line 171 describes, more than this share of a state's power lies along the code of its input."""


class Measured:
    """A full-size network after 600 sentences of grammar A."""

    def __init__(self, network: str) -> None:
        A, B = (half_passives(load_grammar(side)) for side in "AB")  # the grammar of the experiments
        train, held_out = ([s.words for s in A.sample(n, seed=seed)] for n, seed in ((600, 0), (200, 1)))
        model = SPCN(network=network, vocabulary=dict.fromkeys(A.words + B.words), epochs=0).fit(train)
        self.precision = precision_in_range(model, train)
        self.states = diagnose_states(model, held_out)
        self.drive = drive_shares(model, held_out[:8])


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    return {network: Measured(network) for network in NETWORKS}


def dominated(level: LevelStates) -> bool:
    """Most of the state is its input's code, and it is nearer to that than to the state before."""
    return level.input_share > DOMINATED and level.to_input > level.to_previous


@pytest.mark.parametrize("level", range(3))
def test_the_input_dominates_the_state(measured: dict[str, Measured], level: int) -> None:
    assert dominated(measured["described"].states[level])
    assert not dominated(measured["locked"].states[level])


@pytest.mark.parametrize("level", range(4))
def test_the_input_is_most_of_the_drive(measured: dict[str, Measured], level: int) -> None:
    described, locked = (measured[network].drive[level] for network in NETWORKS)
    assert described["feedforward"] > DOMINATED > locked["feedforward"]
    assert sum(described.values()) == pytest.approx(1)
    assert sum(locked.values()) == pytest.approx(1)


@pytest.mark.parametrize("level", range(3))
def test_precision_stays_within_its_bounds(measured: dict[str, Measured], level: int) -> None:
    """Strictly inside (.1, 10) for at least nine in ten units and moments; at the ceiling in the locked network."""
    assert measured["described"].precision[level] > 0.9
    assert measured["locked"].precision[level] < 0.1


def test_the_units_of_every_level_are_in_use(measured: dict[str, Measured]) -> None:
    assert min(level.units_used for level in measured["described"].states) > 0.9
    assert min(level.units_used for level in measured["locked"].states) < 0.3


def test_the_top_level_keeps_its_first_precision(measured: dict[str, Measured]) -> None:
    """Nothing predicts it, so that it has no error."""
    assert [measured[network].precision[3] for network in NETWORKS] == [1.0, 1.0]


# The measurements themselves

TEXTS = [["a", "b", "a"], ["b", "a"]]
ALONE: dict[str, Any] = {"widths": (20, 10), "k": 0.2, "vocabulary": ("a", "b"), "learn_feedback": False}


@pytest.mark.parametrize("network", NETWORKS)
def test_with_nothing_else_the_state_is_its_code(network: str) -> None:
    model = SPCN(network=network, gamma=0.0, spa=False, **ALONE).fit(TEXTS)
    states = diagnose_states(model, TEXTS)
    x = model.encode([["a"], ["b"]], "l0@forward")
    for level in states:
        assert level.to_input == pytest.approx(1, abs=1e-6)
        assert level.input_share == pytest.approx(1, abs=1e-6)
    assert states[0].to_previous == pytest.approx(float(cosines(x[:1], x[1:])[0]), abs=1e-6)
    assert states[0].units_used == (x != 0).any(axis=0).mean()
    assert [level["feedforward"] for level in drive_shares(model, TEXTS)] == [1.0, 1.0]


def test_a_state_that_never_changes_is_its_previous_one() -> None:
    model = SPCN(network="locked", spa_gain=1000.0, settle_steps=1, **ALONE).fit(TEXTS)
    (level, _), (shares, _) = diagnose_states(model, TEXTS), drive_shares(model, TEXTS)
    assert level.to_previous > 0.999
    assert level.to_input < 0.9
    assert shares["spa"] > 0.99


def test_precision_in_range_counts_units_and_moments() -> None:
    """Errors of variance far above 1 / pi_min or below 1 / pi_max leave the range at once; a rate of 0 never does."""
    settings = {**ALONE, "network": "locked", "learn_feedback": True, "eta": 0.0, "directions": "forward"}
    texts = [["a", "b"]] * 4
    moving = SPCN(pi_min=0.9, pi_max=1.1, variance_rate=1.0, **settings).fit([])
    assert precision_in_range(moving, texts, every=2) == [0.0, 1.0]
    still = SPCN(variance_rate=0.0, **settings).fit([])
    assert precision_in_range(still, texts) == [1.0, 1.0]
    assert still.n_tokens_seen_ == 8


def test_cosines() -> None:
    a, b = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 1.0]])
    assert cosines(a, b).tolist() == [1.0, 0.0, 0.0]
