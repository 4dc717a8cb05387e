"""SPCN against reservoirpy, on one thread, in one run.

Every repetition times all contenders in turn, so that a busy moment of the machine hits them alike; ratios are taken
within a repetition and their median is reported. The kernels are checked against the dense float64 reference before
anything is timed.

Floor: one settling step reads the rows of the active units. At widths 512/256/128/64 and k = 8% that is 55K
multiply-adds over 220 KB of weights, three times per token; 2.3 MB of weights just miss a 2 MB L2 cache. So most bytes
come from a cache and are not held against the bandwidth of memory; the operations are, against products on one thread.

    python benchmarks/spcn.py --record results/benchmarks
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported: one thread for everybody

import numba  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

from ematrace.bench import BenchmarkRecord, Row, Timing, finish, matmul_rate, progress, ratio  # noqa: E402
from ematrace.grammar import load_grammar  # noqa: E402
from ematrace.spcn import SPCN, kernels  # noqa: E402
from ematrace.spcn.reference import ReferenceHierarchy  # noqa: E402

NEEDS = "cpu"
SENTENCES, QUICK_SENTENCES = 5000, 100
PLASTIC_SENTENCES = 60  # reservoirpy's Hebbian fit is too slow for all of them; its rate per step does not depend on it
REPETITIONS, QUICK_REPETITIONS = 15, 2
OPERATIONS_PER_TOKEN = 3 * 2 * 55_000  # of settling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sentences, to see that it runs")
    parser.add_argument("--record", type=Path, help="folder for the record")
    arguments = parser.parse_args()
    try:
        import reservoirpy
        from reservoirpy.nodes import LocalPlasticityReservoir, Reservoir
    except ImportError:
        raise SystemExit("reservoirpy, the peer, is not installed: pip install -e '.[bench]'") from None

    n_sentences = QUICK_SENTENCES if arguments.quick else SENTENCES
    repetitions = QUICK_REPETITIONS if arguments.quick else REPETITIONS
    grammar = load_grammar("A")
    sentences = [s.words for s in grammar.sample(n_sentences, seed=0)]
    tokens = sum(map(len, sentences))
    error = check_against_reference(sentences[:3])

    one_hot = np.eye(len(grammar.words))
    index = {word: i for i, word in enumerate(grammar.words)}
    inputs = [one_hot[[index[w] for w in s]] for s in sentences]
    plastic = inputs[: 3 if arguments.quick else PLASTIC_SENTENCES]
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
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    with progress((repetitions + 1) * len(runs)) as step:
        for repetition in range(-1, repetitions):  # the first one warms up
            for name, (make, work, _) in runs.items():
                step(name)
                subject = make()
                begun = time.perf_counter()
                work(subject)
                if repetition >= 0:
                    seconds[name].append(time.perf_counter() - begun)

    # Contenders that handled different numbers of tokens are compared by the token.
    per_token = {name: Timing(tuple(s / runs[name][2] for s in seconds[name])) for name in runs}
    learning = per_token["spcn_learn"].median
    settling = {"spcn_learn", "spcn_encode_1_core"}  # on one thread, like the ceiling, and with nothing left out
    record = BenchmarkRecord(
        benchmark="spcn",
        title="SPCN online against reservoirpy, one thread",
        rows=tuple(
            Row(
                name,
                Timing(tuple(seconds[name])),
                operations=OPERATIONS_PER_TOKEN * n_tokens if name in settling else 0,
                tokens=n_tokens,
            )
            for name, (_, _, n_tokens) in runs.items()
        ),
        ratios={
            "learning_over_reservoirpy_run": ratio(per_token["reservoirpy_run"], per_token["spcn_learn"]),
            "learning_over_reservoirpy_hebbian_fit": ratio(
                per_token["reservoirpy_hebbian_fit"], per_token["spcn_learn"]
            ),
            "two_cores_over_one": ratio(per_token["spcn_encode_1_core"], per_token["spcn_encode_2_cores"]),
        },
        ceilings={"matmul_flops_per_second": matmul_rate(torch.device("cpu"), torch.float32)},
        checks=(f"W_fb against the dense float64 reference: largest difference {error:.1e}",),
        settings={
            "sentences": n_sentences,
            "tokens": tokens,
            "plastic_tokens": plastic_tokens,
            "repetitions": repetitions,
            "reservoirpy": reservoirpy.__version__,
        },
        # By leaving each part out; top-k, lateral and SPA are parts of settling.
        figures={
            "share_of_learning_time.settling_3_steps": 1.5 * (1 - per_token["one_settling_step"].median / learning),
            "share_of_learning_time.top_k": top_k_seconds_per_token(frozen) / learning,
            "share_of_learning_time.lateral": 1 - per_token["without_lateral"].median / learning,
            "share_of_learning_time.spa": 1 - per_token["without_spa"].median / learning,
            "share_of_learning_time.pghu": 1 - per_token["without_learning"].median / learning,
        },
    )
    finish(record, arguments.record)


def check_against_reference(sentences: list[tuple[str, ...]]) -> float:
    """Same weights as the dense specification, or no benchmark; the largest difference."""
    model = SPCN(directions="forward", dtype="float64", random_state=0).fit(sentences)
    fast = np.array(model.alpha_fast)
    reference = ReferenceHierarchy(
        [np.array(W) for W in model.W_ff()],
        [np.array(W) for W in model.W_lat()],
        list(model.ks_),
        model.rule_,
        model.spa_window,
        list(fast),
        list(fast * model.slow_ratio),
    )
    for sentence in sentences:
        reference.start_sentence()
        for word in sentence:
            reference.step(model.vocabulary_[word], learning=True)
    pairs = list(zip(model.W_fb(), reference.W_fb, strict=False))
    if not all(np.allclose(ours, theirs, rtol=1e-9, atol=1e-12) for ours, theirs in pairs):
        raise SystemExit("W_fb differs from the dense float64 reference; nothing was timed")
    return float(max(np.abs(ours - theirs).max() for ours, theirs in pairs))


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
