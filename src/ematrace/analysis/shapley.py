"""Shapley values: what each of a few changes is worth, averaged over the orders in which they can be made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import factorial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Player = TypeVar("Player")
Worth = Callable[[frozenset[Player]], Values]


def occasions(player: Player, players: Sequence[Player]) -> Iterator[tuple[frozenset[Player], float]]:
    """The sets of others that may have moved before a player, and in which share of all orders it is just these.

    >>> [(sorted(before), round(share, 3)) for before, share in occasions("a", "abc")]
    [([], 0.333), (['b'], 0.167), (['c'], 0.167), (['b', 'c'], 0.333)]
    """
    others = [other for other in players if other != player]
    n = len(players)
    for size in range(n):
        share = factorial(size) * factorial(n - 1 - size) / factorial(n)
        for before in combinations(others, size):
            yield frozenset(before), share


def shapley_value(player: Player, players: Sequence[Player], worth: Worth[Player]) -> Values:
    """Of worth(set of players that moved), which may be an array: a value per seed."""
    total = sum(share * (worth(before | {player}) - worth(before)) for before, share in occasions(player, players))
    return np.asarray(total, dtype=np.float64)


def first_and_last(player: Player, players: Sequence[Player], worth: Worth[Player]) -> tuple[Values, Values]:
    """What a player adds before all others, and after them. Its Shapley value hides how far these are apart.

    >>> together = lambda moved: np.array([float(len(moved) == 2)])  # worth something only where both moved
    >>> first_and_last("a", "ab", together)
    (array([0.]), array([1.]))
    """
    nobody, all_others = frozenset[Player](), frozenset(other for other in players if other != player)
    first, last = (np.asarray(worth(before | {player}) - worth(before)) for before in (nobody, all_others))
    return first, last
