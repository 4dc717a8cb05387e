"""What drives the states of a network, and where its precision lies.

"The activation at time t is dominated by the feedforward projection of the current input token" (the paper, line 171).
Here a level's input is what W_ff projects to it: the word for L0, the state below for the others. Its code is what the
state would be if nothing else drove it. Everything is measured in the forward direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ematrace.spcn.model import SPCN
from ematrace.spcn.reference import Vector, reference_of, top_k

Floats = npt.NDArray[np.floating]
Texts = Sequence[Sequence[str]]


@dataclass(frozen=True)
class LevelStates:
    """Means over all words but the first of each sentence, which has no state before it."""

    to_input: float
    """Cosine of the state and the code of its input."""
    input_share: float
    """Square of that cosine: the share of the state's power along the code."""
    to_previous: float
    """Cosine of the state and the level's state at the word before."""
    units_used: float
    """Share of the level's units that were active at least once, at any word."""


def diagnose_states(model: SPCN, sentences: Texts) -> list[LevelStates]:
    """One entry for each level of a fitted network."""
    states = [model.encode(sentences, f"l{level}@forward") for level in range(len(model.widths))]
    words = np.array([model.vocabulary_[word] for sentence in sentences for word in sentence])
    ends = np.cumsum([len(sentence) for sentence in sentences])
    first = np.zeros(len(words), bool)
    first[ends - [len(s) for s in sentences]] = True
    later = np.flatnonzero(~first)
    found = []
    for level, (x, W) in enumerate(zip(states, model.W_ff(), strict=True)):
        drive = W.T[words] if level == 0 else states[level - 1] @ W.T
        codes = np.maximum([top_k(row, model.ks_[level]) for row in drive], 0.0)
        to_input = cosines(x[later], codes[later])
        found.append(
            LevelStates(
                to_input=float(to_input.mean()),
                input_share=float((to_input**2).mean()),
                to_previous=float(cosines(x[later], x[later - 1]).mean()),
                units_used=float((x != 0).any(axis=0).mean()),
            )
        )
    return found


def cosines(a: Floats, b: Floats) -> Floats:
    """Row by row; 0 where a row is zero."""
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(axis=1) / np.where(lengths > 0, lengths, 1))


def drive_shares(model: SPCN, sentences: Texts) -> list[dict[str, float]]:
    """For each level, the share of each term of Eq. 1 in the drive of the settled state, along that state.

    Over all words but the first of each sentence. The shares sum to 1; a negative one works against the state.
    Computed by the dense reference, so a hundred sentences take seconds.
    """
    reference = reference_of(model)
    sums: list[dict[str, float]] = [{} for _ in model.widths]
    for sentence in sentences:
        reference.start_sentence()
        for place, word in enumerate(sentence):
            one_hot: Vector = reference.one_hot(model.vocabulary_[word])
            reference.settle(one_hot)
            for level, total in enumerate(sums):
                terms = reference.drive_terms(level, one_hot, reference.x) if place else {}
                for name, term in terms.items():
                    total[name] = total.get(name, 0.0) + float(term @ reference.x[level])
            reference.commit(learning=False)
    return [{name: value / sum(total.values()) for name, value in total.items()} for total in sums]


def precision_in_range(model: SPCN, sentences: Texts, every: int = 50) -> list[float]:
    """Learn the sentences, and for each level the share of units and moments with pi_min < π < pi_max.

    The moments are after each `every` sentences. The top level has nothing above it to predict it: its precision is 1.
    """
    inside = []
    for start in range(0, len(sentences), every):
        model.partial_fit(sentences[start : start + every])
        low, high = (np.asarray(bound, model.dtype) for bound in (model.pi_min, model.pi_max))
        inside.append([float(((low < pi) & (pi < high)).mean()) for pi in model.precision()])
    return [float(share) for share in np.mean(inside, axis=0)]
