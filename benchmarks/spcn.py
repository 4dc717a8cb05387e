"""SPCN against reservoirpy, on one thread, in one run.

The kernels are checked against the dense float64 reference before anything is timed. What settling, lateral
connections, SPA and PGHU cost is measured by leaving each out.

Floor: one settling step reads the rows of the active units. At widths 512/256/128/64 and k = 8% that is 55K
multiply-adds over 220 KB of weights, three times per token. The 2.3 MB of weights just miss a 2 MB L2 cache, so most
bytes come from a cache and are not compared with the bandwidth of memory; the operations are compared with matmuls on
one thread.

    python benchmarks/spcn.py --record results
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported: one thread for all contenders

import numba  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ematrace.bench import Case, Comparison, ceiling_row, finish, matmul_rate, parser, time_cases  # noqa: E402
from ematrace.grammar import Grammar, load_grammar  # noqa: E402
from ematrace.results import Factors, Metric, Row  # noqa: E402
from ematrace.spcn import SPCN, kernels  # noqa: E402
from ematrace.spcn.reference import reference_of  # noqa: E402

NEEDS = "cpu"
SENTENCES, QUICK_SENTENCES = 5000, 100
# reservoirpy's Hebbian fit is too slow for all sentences; its time per step does not depend on how many there are.
PLASTIC_SENTENCES, QUICK_PLASTIC_SENTENCES = 60, 3
REPETITIONS, QUICK_REPETITIONS = 15, 2
OPERATIONS_PER_TOKEN = 3 * 2 * 55_000  # of settling
LEARN = {"contender": "spcn", "task": "learn", "variant": "full"}


@dataclass
class Prepared:
    """Work on a subject that is made anew, untimed, before each call."""

    make: Callable[[], Any]
    work: Callable[[Any], object]
    subject: Any = None

    def prepare(self) -> None:
        self.subject = self.make()

    def __call__(self) -> None:
        self.work(self.subject)


def case(factors: Factors, make: Callable[[], Any], work: Callable[[Any], object], tokens: int) -> Case:
    # Compared with a ceiling of one thread: what runs on one thread with nothing left out.
    settles = factors == LEARN or factors.get("cores") == 1
    prepared = Prepared(make, work)
    operations = OPERATIONS_PER_TOKEN * tokens if settles else 0
    return Case(factors, prepared, operations=operations, tokens=tokens, prepare=prepared.prepare)


def new_spcn(grammar: Grammar, **changes: Any) -> SPCN:
    return SPCN(vocabulary=grammar.words, directions="forward", random_state=0, **changes)


def spcn_cases(grammar: Grammar, sentences: list[tuple[str, ...]], frozen: SPCN) -> list[Case]:
    """Learning, with everything and with a part left out, and encoding by `frozen`."""
    tokens = sum(map(len, sentences))
    features = frozen.encode(sentences)  # reused: clearing new pages would be timed, too

    def started(**changes: Any) -> Callable[[], SPCN]:
        """Weights drawn, one sentence learned: what is timed is learning, for us and for reservoirpy."""
        return lambda: new_spcn(grammar, **changes).fit(sentences[:1])

    def learn(model: SPCN) -> None:
        model.partial_fit(sentences)

    def variant(name: str) -> Factors:
        return {**LEARN, "variant": name}

    def encode(cores: int) -> Case:
        factors: Factors = {"contender": "spcn", "task": "encode", "cores": cores}
        make = lambda: frozen.set_params(n_jobs=cores)  # noqa: E731
        return case(factors, make, lambda model: model.encode(sentences, out=features), tokens)

    return [
        case(LEARN, started(), learn, tokens),
        encode(1),
        encode(2),
        case(variant("no_spa"), started(spa=False), learn, tokens),
        case(variant("no_lateral"), started(gamma=0.0), learn, tokens),
        case(variant("one_settling_step"), started(settle_steps=1), learn, tokens),
        case(
            variant("no_learning"),
            lambda: frozen.set_params(n_jobs=1),
            lambda model: model.encode(sentences, "l3"),
            tokens,
        ),
    ]


def reservoir_cases(grammar: Grammar, sentences: list[tuple[str, ...]], n_plastic: int) -> list[Case]:
    """A reservoir of 512 units, run and trained by a Hebbian rule."""
    from reservoirpy.nodes import LocalPlasticityReservoir, Reservoir

    one_hot = np.eye(len(grammar.words))
    index = {word: i for i, word in enumerate(grammar.words)}
    inputs = [one_hot[[index[w] for w in s]] for s in sentences]
    plastic = inputs[:n_plastic]

    def reservoir(kind: Any, **settings: Any) -> Any:
        node = kind(units=512, seed=0, **settings)
        node.run(inputs[0])
        return node

    return [
        case(
            {"contender": "reservoirpy", "task": "run"},
            lambda: reservoir(Reservoir),
            lambda node: node.run(inputs),
            sum(map(len, inputs)),
        ),
        case(
            {"contender": "reservoirpy", "task": "hebbian_fit"},
            lambda: reservoir(LocalPlasticityReservoir, local_rule="hebbian"),
            lambda node: node.fit(plastic),
            sum(map(len, plastic)),
        ),
    ]


def shares_of_learning(cells: list[Row], top_k_seconds: float) -> list[Row]:
    """The part of learning time that each mechanism takes; top-k, lateral and SPA are parts of settling."""
    per_token = {
        str(cell.factors["variant"]): (cell.metrics["seconds"].value or 0.0) / (cell.metrics["tokens"].value or 1.0)
        for cell in cells
        if cell.factors.get("task") == "learn"
    }
    learning = per_token["full"]
    shares = {
        "settling": 1.5 * (1 - per_token["one_settling_step"] / learning),  # two of three steps left out
        "top_k": top_k_seconds / learning,
        "lateral": 1 - per_token["no_lateral"] / learning,
        "spa": 1 - per_token["no_spa"] / learning,
        "pghu": 1 - per_token["no_learning"] / learning,
    }
    return [Row({"part": part}, {"share_of_learning_time": Metric(share)}) for part, share in shares.items()]


def comparisons() -> list[Comparison]:
    """By the token: contenders handle different numbers of them."""
    encode = {"contender": "spcn", "task": "encode"}
    return [
        *(
            Comparison({"contender": "reservoirpy", "task": task}, LEARN, per="tokens")
            for task in ("run", "hebbian_fit")
        ),
        Comparison({"cores": 1}, {"cores": 2}, where=encode),
    ]


def main() -> None:
    arguments = parser(__doc__, quick="few sentences").parse_args()
    peer = metadata.version("reservoirpy") if importlib.util.find_spec("reservoirpy") else None
    left_out = [] if peer else ["reservoirpy is not timed: it is not installed (pip install -e '.[bench]')."]
    quick: bool = arguments.quick
    n_sentences = QUICK_SENTENCES if quick else SENTENCES
    repetitions = QUICK_REPETITIONS if quick else REPETITIONS
    grammar = load_grammar("A")
    sentences = [s.words for s in grammar.sample(n_sentences, seed=0)]
    error = check_against_reference(sentences[:3])
    frozen = new_spcn(grammar).fit(sentences)
    cases = [
        *spcn_cases(grammar, sentences, frozen),
        *(reservoir_cases(grammar, sentences, QUICK_PLASTIC_SENTENCES if quick else PLASTIC_SENTENCES) if peer else []),
    ]
    cells = time_cases(cases, repetitions)
    cells += shares_of_learning(cells, top_k_seconds_per_token(frozen))
    cells.append(ceiling_row("matmul", matmul_rate(torch.device("cpu"), torch.float32)))
    finish(
        "spcn",
        "SPCN online against reservoirpy, one thread",
        cells,
        scale="cpu",
        checks=[f"W_fb against the dense float64 reference: largest difference {error:.1e}"],
        comparisons=comparisons(),
        notes=left_out,
        settings={"sentences": n_sentences, "repetitions": repetitions, "reservoirpy": peer},
        quick=quick,
        to=arguments.record,
        force=arguments.force,
    )


def check_against_reference(sentences: list[tuple[str, ...]]) -> float:
    """The largest difference of W_fb to that of the dense specification; too large a one ends the benchmark."""
    words = dict.fromkeys(word for sentence in sentences for word in sentence)
    model = SPCN(directions="forward", dtype="float64", vocabulary=words, random_state=0).fit([])
    reference = reference_of(model)
    model.partial_fit(sentences)
    for sentence in sentences:
        reference.start_sentence()
        for word in sentence:
            reference.step(model.vocabulary_[word], learning=True)
    pairs = list(zip(model.W_fb(), reference.W_fb, strict=False))
    if not all(np.allclose(ours, theirs, rtol=1e-9, atol=1e-12) for ours, theirs in pairs):
        raise SystemExit("W_fb differs from the dense float64 reference; nothing was timed")
    return float(max(np.abs(ours - theirs).max() for ours, theirs in pairs))


def top_k_seconds_per_token(model: SPCN, repeats: int = 2000) -> float:
    """Time of selecting top-k for one token: every level, every settling step, on Gaussian drives."""
    drives = np.random.default_rng(0).standard_normal((len(model.widths), max(model.widths))).astype(np.float32)
    idx = np.zeros((len(model.widths), max(model.widths) + 1), np.int64)
    widths, ks = np.array(model.widths), np.array(model.ks_)

    @numba.njit
    def select(times: int, drives: np.ndarray, widths: np.ndarray, ks: np.ndarray, idx: np.ndarray) -> int:
        total = 0
        for _ in range(times):
            for level in range(widths.size):
                total += kernels.select_top_k(drives, level, widths[level], ks[level], 0.0, idx)
        return total

    select(1, drives, widths, ks, idx)
    started = time.perf_counter()
    select(repeats, drives, widths, ks, idx)
    return (time.perf_counter() - started) / repeats * model.settle_steps


if __name__ == "__main__":
    main()
