"""The ledger: the paper's claims as data, predicates over cells, and the verdict on each claim."""

from ematrace.ledger.claims import (
    Claim,
    Claims,
    ClaimsError,
    Condition,
    Control,
    Direction,
    PaperFigure,
)
from ematrace.ledger.own import keep_claims, with_kept_claims, with_own_claims
from ematrace.ledger.predicates import Check, check_direction, check_figure, tolerance_band
from ematrace.ledger.reading import load_claims, parse_claims
from ematrace.ledger.verdicts import (
    VERDICTS,
    Finding,
    LedgerRow,
    Robustness,
    Share,
    build_ledger,
    holds_at_points,
    judge,
)

__all__ = [
    "VERDICTS",
    "Check",
    "Claim",
    "Claims",
    "ClaimsError",
    "Condition",
    "Control",
    "Direction",
    "Finding",
    "LedgerRow",
    "PaperFigure",
    "Robustness",
    "Share",
    "build_ledger",
    "check_direction",
    "check_figure",
    "holds_at_points",
    "judge",
    "keep_claims",
    "load_claims",
    "parse_claims",
    "tolerance_band",
    "with_kept_claims",
    "with_own_claims",
]
