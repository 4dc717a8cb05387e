"""The claims that the gap's experiments decide, on cells with planted differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from cells_support import make_file, make_table
from ematrace.experiments.gap_predictors import ABLATION, WIDE, WIDE_DENSE, PredictorArm
from ematrace.ledger import judge, load_claims
from ematrace.results import CellFile, Metric, Row, Table

CLAIMS = load_claims()
ARMS_OF = {"ablation": (*ABLATION, *WIDE), "2m": (*ABLATION, *WIDE, *WIDE_DENSE), "130m": ABLATION[:3]}
SIZE_OF = {"C27": "ablation", "C30": "2m", "F1": "130m"}


def predictors(
    size: str, worse: Callable[[PredictorArm], float] = lambda arm: 0.0, *, seeds: int = 5, noise: float = 0.001
) -> Table:
    """All arms of a size at 5 nats and what they are worse by; differences of two arms scatter by `noise`."""
    rng = np.random.default_rng(1)
    files = []
    for arm in ARMS_OF[size]:
        scatter = noise * rng.normal(size=seeds)
        files += [_predictor(arm, size, seed, 5 + worse(arm) + scatter[seed]) for seed in range(seeds)]
    return make_table(*files)


def _predictor(arm: PredictorArm, size: str, seed: int, nats: float) -> CellFile:
    metrics = {"nats": Metric(nats, "nats"), "unigram_nats": Metric(7.0 + 0.001 * seed, "nats")}
    factors = {**vars(arm), "size": size, "lr": 0.004}
    row = Row({"text": "validation", "slice": "all"}, metrics)
    return make_file(row, experiment="gap_predictors", seed=seed, factors=factors, scale="gpu")


def better(reads: str, ffn: str, widths: Iterable[str]) -> Callable[[PredictorArm], float]:
    """Softmax over these is .2 nats better in one block, at these widths."""

    def worse(arm: PredictorArm) -> float:
        return -0.2 * ((arm.predictor, arm.reads, arm.ffn) == ("softmax", reads, ffn) and arm.width in widths)

    return worse


BOTH = ("matched", "fixed")


class TestPredictors:
    @pytest.mark.parametrize("id", ["C27", "C30"])
    def test_equal_in_every_block_at_every_width(self, id: str) -> None:
        assert judge(CLAIMS[id], predictors(SIZE_OF[id])).verdict == "reproduced"

    @pytest.mark.parametrize(
        ("id", "reads", "ffn", "widths", "verdict"),
        [
            ("C27", "traces_now", "topk_ste", BOTH, "not reproduced"),
            ("C27", "trace_sequence", "topk_ste", BOTH, "not reproduced"),  # the other reading
            ("C27", "trace_sequence", "topk_ste", ("matched",), "undecided"),
            ("C27", "trace_sequence", "topk_ste", ("fixed",), "undecided"),
            ("C27", "inputs", "topk_ste", BOTH, "reproduced"),  # reads no traces
            ("C27", "traces_now", "dense", BOTH, "undecided"),  # at 500 steps it ran at one width
            ("C27", "trace_sequence", "topk_masked", BOTH, "undecided"),
            ("C30", "traces_now", "topk_ste", BOTH, "not reproduced"),
            ("C30", "trace_sequence", "dense", BOTH, "not reproduced"),
            ("C30", "trace_sequence", "dense", ("fixed",), "undecided"),
            ("C30", "traces_now", "topk_masked", BOTH, "undecided"),
        ],
    )
    def test_one_difference(self, id: str, reads: str, ffn: str, widths: tuple[str, ...], verdict: str) -> None:
        assert judge(CLAIMS[id], predictors(SIZE_OF[id], better(reads, ffn, widths))).verdict == verdict

    @pytest.mark.parametrize(("id", "margin", "seeds"), [("C27", 0.05, 5), ("C30", 0.02, 5), ("F1", 0.02, 3)])
    def test_the_note_says_which_scatter_the_margin_allows(self, id: str, margin: float, seeds: int) -> None:
        """Of differences with mean 0, the SD at which Student's interval reaches the margin."""
        most = margin * seeds**0.5 / stats.t.ppf(0.975, seeds - 1)
        assert (
            f"±{margin:g} of {seeds} seeds needs a paired SD of at most {most:.3f}".replace("0.", ".")
            in CLAIMS[id].note
        )
        assert CLAIMS[id].seeds == seeds
        assert {d.by for d in CLAIMS[id].direction} == {margin}

    def test_too_much_scatter_is_undecided(self) -> None:
        assert judge(CLAIMS["C30"], predictors("2m", noise=0.04)).verdict == "undecided"

    def test_not_below_the_unigram_says_nothing(self) -> None:
        def one_is_bad(arm: PredictorArm) -> float:
            return 2.5 * ((arm.ffn, arm.reads) == ("dense", "trace_sequence"))

        finding = judge(CLAIMS["C27"], predictors("ablation", one_is_bad))
        assert finding.verdict == "undecided"
        assert finding.why == "uninformative: softmax over the sequence of traces is not below the unigram (dense)"

    def test_130m_is_answered_at_130m(self) -> None:
        assert judge(CLAIMS["F1"], predictors("2m")).verdict == "open"
        assert judge(CLAIMS["F1"], predictors("130m", seeds=2)).verdict == "undecided"
        assert judge(CLAIMS["F1"], predictors("130m", seeds=3)).verdict == "answered: yes"
        differ = predictors("130m", better("traces_now", "topk_ste", ("matched",)), seeds=3)
        assert judge(CLAIMS["F1"], differ).verdict == "undecided"  # one width


class TestEqualCompute:
    def table(self, tokens_per_parameter: float, spen: float, gpt2: float, on_c4: float = 0.0) -> Table:
        """GPT-2's block for SPEN's FLOPs; with SPEN's tokens it is .1 better. On C4 it has `on_c4` nats more."""
        arms: list[tuple[dict[str, Any], float]] = [
            ({"context": "ema_error", "ffn": "topk_ste", "block": "skeleton", "budget": "tokens"}, spen),
            ({"context": "attention", "ffn": "dense", "block": "gpt2", "budget": "flops"}, gpt2),
            ({"context": "attention", "ffn": "dense", "block": "gpt2", "budget": "tokens"}, gpt2 - 0.1),
        ]
        of_run = Row({}, {"tokens": Metric(131e6 * tokens_per_parameter), "parameters": Metric(131e6)})
        return make_table(
            *(
                make_file(
                    of_run,
                    *(
                        Row(
                            {"text": text, "slice": "all"},
                            {"nats": Metric(nats + 0.01 * seed * i + more * (factors["block"] == "gpt2"), "nats")},
                        )
                        for text, more in (("validation", 0.0), ("wikitext2", 0.0), ("c4", on_c4))
                    ),
                    experiment="gap_130m",
                    seed=seed,
                    factors={**factors, "width": "matched", "size": "130m", "lr": 0.001},
                )
                for i, (factors, nats) in enumerate(arms)
                for seed in range(3)
            )
        )

    @pytest.mark.parametrize(
        ("id", "yes", "no", "by_text"),
        [
            ("C39", "reproduced", "not reproduced", "not reproduced"),
            ("F3", "answered: yes", "answered: no", "answered: mixed"),
        ],
    )
    def test_it_takes_20_tokens_per_parameter(self, id: str, yes: str, no: str, by_text: str) -> None:
        few = judge(CLAIMS[id], self.table(0.8, 5.0, 4.0))
        assert few.verdict == "not testable here"
        assert few.why is not None
        assert few.why.startswith("fewer than 20 tokens per parameter")
        assert judge(CLAIMS[id], self.table(20, 5.0, 4.0)).verdict == yes
        assert judge(CLAIMS[id], self.table(20, 4.0, 5.0)).verdict == no
        assert judge(CLAIMS[id], self.table(20, 5.0, 4.0, on_c4=2.0)).verdict == by_text  # the paper's own
        assert CLAIMS[id].requires == CLAIMS["C25"].requires
