"""Which part of a text is held out, chosen from the text and recorded with the model that was trained on the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ematrace.files import read_json
from ematrace.text.documents import Source, hash_fraction

TRAINING = "training.json"
"""File in a model's folder: the fingerprint of its training text, and which part of that was held out, if any."""

LEAST_DOCUMENTS = 10
LEAST_BYTES = 40_000  # some ten thousand tokens
USUAL_SHARE = 0.1
"""Share of a small text that is held out; less than `LEAST_BYTES` then have to do."""
LARGEST_SHARE = 0.2


@dataclass(frozen=True)
class HeldOut:
    """The documents whose ids have a hash below `share`, or the last `share` of every document."""

    share: float
    tails: bool = False

    @classmethod
    def of(cls, source: Source) -> Self:
        return cls(source.validation_share, source.held_out_tails)

    @classmethod
    def read(cls, record: dict[str, Any], where: str | Path, default: HeldOut) -> HeldOut:
        """As recorded; earlier versions recorded nothing and had the source's own share of documents."""
        share = record.get("validation_share")
        tails = record.get("held_out_tails") or False
        if share is None:
            return default
        if not isinstance(share, int | float) or not 0 < share < 1:
            raise ValueError(f"{where}: field 'validation_share': {share!r} is not between 0 and 1")
        if not isinstance(tails, bool):
            raise ValueError(f"{where}: field 'held_out_tails': {tails!r} is neither true nor false")
        return HeldOut(share, tails)

    def record(self) -> dict[str, Any]:
        return {"validation_share": self.share, "held_out_tails": self.tails}

    def apply(self, source: Source) -> None:
        source.validation_share, source.held_out_tails = self.share, self.tails


def choose_held_out(source: Source, share: float | None = None, least_bytes: int = 1) -> HeldOut:
    """Documents by the hash of their ids where that holds out enough of them, else more of them, else tails.

    Reads no further than it must: a large corpus has enough after a few hundred documents. `share` is the user's.
    ValueError for a text of which less than `least_bytes` would be held out.
    """
    usual = source.validation_share if share is None else share
    fractions, sizes = [], []
    held_documents = held_bytes = 0
    for document in source:
        fractions.append(hash_fraction(document.id))
        sizes.append(len(document.text.encode()))
        if fractions[-1] < usual:
            held_documents += 1
            held_bytes += sizes[-1]
            if held_documents >= LEAST_DOCUMENTS and held_bytes >= LEAST_BYTES:
                return HeldOut(usual)
    if not sizes:
        raise ValueError(f"{source.spec}: empty corpus, no document has any text")
    if share is not None:
        held_out = HeldOut(share, tails=not 2 <= held_documents < len(sizes))
    else:
        held_out = _raised_share(fractions, sizes) or HeldOut(USUAL_SHARE, tails=True)
    if held_out.tails and held_out.share * sum(sizes) < least_bytes:
        needed = math.ceil(least_bytes / held_out.share)
        raise ValueError(
            f"{source.spec}: too little text: {sum(sizes)} bytes, and at least {needed:,} are needed, since "
            f"{held_out.share:.0%} of them are held out"
        )
    return held_out


def _raised_share(fractions: list[float], sizes: list[int]) -> HeldOut | None:
    """The least share of documents that holds out enough; None if that is too much of a small text."""
    total, held = sum(sizes), 0
    enough = min(LEAST_BYTES, USUAL_SHARE * total)
    ordered = sorted(zip(fractions, sizes, strict=True))
    for count, (fraction, size) in enumerate(ordered):
        if count >= LEAST_DOCUMENTS and held >= enough and fraction > ordered[count - 1][0]:
            return HeldOut(fraction)
        held += size
        if held > LARGEST_SHARE * total:
            return None
    return None


def held_out_split(folder: Path, source: Source) -> str:
    """ "validation" if the model in `folder` was trained on the rest of `source`, else "all".

    Sets on `source` which part that is.
    """
    trained_on = _trained_on(folder, source)
    if trained_on is None or not trained_on.get("held_out"):
        return "all"
    HeldOut.read(trained_on, folder / TRAINING, HeldOut.of(source)).apply(source)
    return "validation"


def is_training_text(folder: Path, source: Source) -> bool:
    """Whether the model in `folder` was trained on all of `source`, with nothing held out."""
    trained_on = _trained_on(folder, source)
    return trained_on is not None and not trained_on.get("held_out")


def _trained_on(folder: Path, source: Source) -> dict[str, Any] | None:
    """The record of the model's training if that was on `source`, or on part of it."""
    path = folder / TRAINING
    record = read_json(path) if path.is_file() else {}
    return record if "text" in record and record["text"] == source.text_fingerprint() else None
