"""Whether two systems are the same, within a margin: paired TOST, corrected by Holm over all comparisons of a table.

"The same" is shown only where the 95% interval lies inside the margin, as by `within` in the ledger: each of the two
one-sided tests at 2.5%. Holm's correction asks for more. A difference that is not significant shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ematrace.intervals import (
    Interval,
    equivalence_p_value,
    holm_adjusted,
    mean_p_value,
    paired_difference_interval,
)
from ematrace.results import Factors, Selector, Table
from ematrace.results.sample import CONFIDENCE

MARGIN = 0.03
"""Of accuracies: the ledger's tolerance, which was fixed before any result."""
LEVEL = 1 - CONFIDENCE
SAME_LEVEL = LEVEL / 2
"""Of the TOST: the interval of the confidence in use lies inside the margin."""
EXPERIMENT = "k_by_grammar"
SPCN, WITHOUT_NETWORK = "spcn", "ema_onehot"
METRICS = ("within", "transfer", "deep")
Outcome = Literal["same", "different", "different, within the margin", "undecided"]


@dataclass(frozen=True)
class Comparison:
    """Two systems on the seeds that both have, and p-values that are corrected over all comparisons of the table."""

    where: Factors
    metric: str
    seeds: int
    difference: float
    """Mean of the first minus the second."""
    interval: Interval
    """95%, not corrected."""
    p_same: float
    """That they differ by the margin or more."""
    p_different: float
    """That they do not differ at all."""

    @property
    def outcome(self) -> Outcome:
        same, different = self.p_same < SAME_LEVEL, self.p_different < LEVEL
        if same:
            return "different, within the margin" if different else "same"
        return "different" if different else "undecided"


def compare_by_k(table: Table, grammar: str = "half_passives") -> list[Comparison]:
    """SPCN against an EMA of one-hot words without a network, by k: on which metric is the network of any use?"""
    ks = table.values_of(EXPERIMENT, "k", grammar=grammar)
    wheres = [{"grammar": grammar, "k": k} for k in sorted(ks, key=float)]
    return compare(table, EXPERIMENT, ({"features": SPCN}, {"features": WITHOUT_NETWORK}), wheres, METRICS, MARGIN)


def compare(
    table: Table,
    experiment: str,
    systems: tuple[Factors, Factors],
    wheres: Sequence[Factors],
    metrics: Sequence[str],
    margin: float,
) -> list[Comparison]:
    """The first system minus the second, for each of `wheres` and each metric; what has fewer than two seeds is left
    out."""
    found = []
    for where in wheres:
        for metric in metrics:
            one, other = (_by_seed(table, Selector(experiment, metric, {**where, **system})) for system in systems)
            seeds = [n for n in one if n in other and math.isfinite(one[n]) and math.isfinite(other[n])]
            if len(seeds) < 2:
                continue
            a, b = [one[n] for n in seeds], [other[n] for n in seeds]
            differences = [x - y for x, y in zip(a, b, strict=True)]
            comparison = Comparison(
                where,
                metric,
                len(seeds),
                math.fsum(differences) / len(seeds),
                paired_difference_interval(a, b),
                equivalence_p_value(a, b, margin),
                mean_p_value(differences),
            )
            found.append(comparison)
    if not found:
        return []
    same, different = (holm_adjusted([getattr(c, name) for c in found]) for name in ("p_same", "p_different"))
    return [replace(c, p_same=s, p_different=d) for c, s, d in zip(found, same, different, strict=True)]


def _by_seed(table: Table, selector: Selector) -> dict[int, float]:
    """The metric on each seed. On drawn grammars every seed has settings of its own, so that each is selected alone."""
    selection = table.find(selector)
    if selection is None:
        return {}
    if selection.cells[0].cell.settings.get("grammar", {}).get("drawn_seed") is None:
        return selection.by_seed
    found = {seed: part.find(selector) for seed, part in table.by_seed().items()}
    return {seed: s.sample.mean for seed, s in found.items() if s is not None}
