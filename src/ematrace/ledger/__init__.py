"""The ledger: the paper's claims as data, the results that bear on them, and the verdict on each."""

from ematrace.ledger.claims import Claim, ClaimsError, Direction, PaperFigure, load_claims
from ematrace.ledger.predicates import Check, Evidence, Lookup, check_direction, check_figure, tolerance_band
from ematrace.ledger.results import (
    Figure,
    Provenance,
    Result,
    ResultError,
    Store,
    StoredResult,
    collect_provenance,
    read_result,
    write_result,
)
from ematrace.ledger.verdicts import (
    VERDICTS,
    Finding,
    LedgerRow,
    Robustness,
    Share,
    build_ledger,
    choose_evidence,
    judge,
)

__all__ = [
    "VERDICTS",
    "Check",
    "Claim",
    "ClaimsError",
    "Direction",
    "Evidence",
    "Figure",
    "Finding",
    "LedgerRow",
    "Lookup",
    "PaperFigure",
    "Provenance",
    "Result",
    "ResultError",
    "Robustness",
    "Share",
    "Store",
    "StoredResult",
    "build_ledger",
    "check_direction",
    "check_figure",
    "choose_evidence",
    "collect_provenance",
    "judge",
    "load_claims",
    "read_result",
    "tolerance_band",
    "write_result",
]
