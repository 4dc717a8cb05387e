"""SPCN against reservoirpy, on one thread, in one run: `make bench`.

Every repetition times all contenders in turn, so that a busy moment of the machine hits them alike; ratios are taken
within a repetition and their median is reported. The kernels are checked against the dense float64 reference before
anything is timed. The last line is JSON, also written to the file named as argument.

Floor: one settling step reads the rows of the active units. At widths 512/256/128/64 and k = 8% that is 55K
multiply-adds over 220 KB of weights, three times per token; 2.3 MB of weights just miss a 2 MB L2 cache.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported: one thread for everybody

import numba  # noqa: E402
import numpy as np  # noqa: E402

from ematrace.files import write_atomically  # noqa: E402
from ematrace.grammar import load_grammar  # noqa: E402
from ematrace.ledger import collect_provenance  # noqa: E402
from ematrace.spcn import SPCN, kernels  # noqa: E402
from ematrace.spcn.reference import ReferenceHierarchy  # noqa: E402

SENTENCES = 5000
PLASTIC_SENTENCES = 60  # reservoirpy's Hebbian fit is too slow for all of them; its rate per step does not depend on it
REPETITIONS = 15


def main() -> None:
    import reservoirpy
    from reservoirpy.nodes import LocalPlasticityReservoir, Reservoir

    grammar = load_grammar("A")
    sentences = [s.words for s in grammar.sample(SENTENCES, seed=0)]
    tokens = sum(map(len, sentences))
    check_against_reference(sentences[:3])

    one_hot = np.eye(len(grammar.words))
    index = {word: i for i, word in enumerate(grammar.words)}
    inputs = [one_hot[[index[w] for w in s]] for s in sentences]
    plastic = inputs[:PLASTIC_SENTENCES]
    plastic_tokens = sum(map(len, plastic))

    def spcn(**changes: Any) -> SPCN:
        return SPCN(vocabulary=grammar.words, directions="forward", random_state=0, **changes)

    def started(**changes: Any) -> SPCN:
        """Weights drawn, one sentence learned: what is timed is learning, for us and for reservoirpy."""
        return spcn(**changes).fit(sentences[:1])

    def reservoir(kind: Any, **settings: Any) -> Any:
        node = kind(units=512, seed=0, **settings)
        node.run(inputs[0])
        return node

    frozen = spcn().fit(sentences)
    features = frozen.encode(sentences)  # reused below: clearing fresh pages would be timed, too
    # name: (make, work on what was made, tokens); only the work is timed
    runs: dict[str, tuple[Callable[[], Any], Callable[[Any], object], int]] = {
        "spcn_learn": (started, lambda m: m.partial_fit(sentences), tokens),
        "reservoirpy_run": (lambda: reservoir(Reservoir), lambda node: node.run(inputs), tokens),
        "reservoirpy_hebbian_fit": (
            lambda: reservoir(LocalPlasticityReservoir, local_rule="hebbian"),
            lambda node: node.fit(plastic),
            plastic_tokens,
        ),
        "spcn_encode_1_core": (
            lambda: frozen.set_params(n_jobs=1),
            lambda m: m.encode(sentences, out=features),
            tokens,
        ),
        "spcn_encode_2_cores": (
            lambda: frozen.set_params(n_jobs=2),
            lambda m: m.encode(sentences, out=features),
            tokens,
        ),
        "without_spa": (lambda: started(spa=False), lambda m: m.partial_fit(sentences), tokens),
        "without_lateral": (lambda: started(gamma=0.0), lambda m: m.partial_fit(sentences), tokens),
        "one_settling_step": (lambda: started(settle_steps=1), lambda m: m.partial_fit(sentences), tokens),
        "without_learning": (lambda: frozen.set_params(n_jobs=1), lambda m: m.encode(sentences, "l3"), tokens),
    }
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(-1, REPETITIONS):  # the first one warms up
        for name, (make, work, steps) in runs.items():
            subject = make()
            begun = time.perf_counter()
            work(subject)
            if repetition >= 0:
                rates[name].append(steps / (time.perf_counter() - begun))
            print(f"\r{name:28s} {repetition + 1}/{REPETITIONS}", end="", flush=True)
    print("\r" + " " * 50)

    def ratio(over: str, under: str) -> dict[str, float]:
        """Within each repetition; the spread says how far one run can be trusted on a shared machine."""
        values = [a / b for a, b in zip(rates[over], rates[under], strict=True)]
        return {"median": statistics.median(values), "min": min(values), "max": max(values)}

    micro = {name: 1e6 / statistics.median(values) for name, values in rates.items()}
    top_k = 1e6 * top_k_seconds_per_token(frozen)
    share = {
        "settling_3_steps": 1.5 * (micro["spcn_learn"] - micro["one_settling_step"]) / micro["spcn_learn"],
        "top_k": top_k / micro["spcn_learn"],
        "lateral": 1 - micro["without_lateral"] / micro["spcn_learn"],
        "spa": 1 - micro["without_spa"] / micro["spcn_learn"],
        "pghu": 1 - micro["without_learning"] / micro["spcn_learn"],
    }
    for name, values in rates.items():
        print(f"{name:28s} {statistics.median(values):10.0f} tokens/s   ({min(values):.0f} to {max(values):.0f})")
    print("\nshare of learning time, by leaving each part out (top-k, lateral, SPA: parts of settling):")
    for name, value in share.items():
        print(f"{name:28s} {100 * value:5.0f}%")
    ratios = {
        "learning_over_reservoirpy_run": ratio("spcn_learn", "reservoirpy_run"),
        "learning_over_reservoirpy_hebbian_fit": ratio("spcn_learn", "reservoirpy_hebbian_fit"),
        "two_cores_over_one": ratio("spcn_encode_2_cores", "spcn_encode_1_core"),
    }
    print()
    for name, spread in ratios.items():
        print(f"{name:40s} {spread['median']:7.2f}x   ({spread['min']:.2f} to {spread['max']:.2f})")
    provenance = collect_provenance(0.0)
    record = {
        "benchmark": "spcn",
        "tokens_per_s": {n: {"median": statistics.median(v), "min": min(v), "max": max(v)} for n, v in rates.items()},
        "ratios": ratios,
        "share_of_learning_time": share,
        "sentences": SENTENCES,
        "repetitions": REPETITIONS,
        "reservoirpy": reservoirpy.__version__,
        "hardware": provenance.hardware,
        "versions": provenance.versions,
        "commit": provenance.commit,
        "date": provenance.date,
    }
    print(json.dumps(record))
    if len(sys.argv) > 1:
        write_atomically(Path(sys.argv[1]), (json.dumps(record, indent=1) + "\n").encode())


def check_against_reference(sentences: list[tuple[str, ...]]) -> None:
    """Same states and same weights as the dense specification, or no benchmark."""
    model = SPCN(directions="forward", dtype="float64", random_state=0).fit(sentences)
    fast = np.array(model.alpha_fast)
    reference = ReferenceHierarchy(
        [np.array(W) for W in model.W_ff()],
        [np.array(W) for W in model.W_lat()],
        list(model.ks_),
        model._rule(),
        model.spa_window,
        list(fast),
        list(fast * model.slow_ratio),
    )
    for sentence in sentences:
        reference.start_sentence()
        for word in sentence:
            reference.step(model.vocabulary_[word], learning=True)
    for ours, theirs in zip(model.W_fb(), reference.W_fb, strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def top_k_seconds_per_token(model: SPCN, repeats: int = 2000) -> float:
    """Time of the selections of one token: every level, every settling step, on Gaussian drives."""
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
