"""The intervals of `ematrace.intervals`, under their former name."""

from ematrace.intervals import (
    Interval,
    newcombe_difference_interval,
    paired_difference_interval,
    seed_interval,
    welch_difference_interval,
    wilson_interval,
)

__all__ = [
    "Interval",
    "newcombe_difference_interval",
    "paired_difference_interval",
    "seed_interval",
    "welch_difference_interval",
    "wilson_interval",
]
