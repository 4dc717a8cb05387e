"""Made-up text: its best loss by enumeration, its slices, and that arms learn what they can on it."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from ematrace.experiments import gap_made_pairs
from ematrace.experiments.base import Context, Point
from ematrace.experiments.gap_made_pairs import ARMS, EXPERIMENT, PairsArm, batches, rows_of_windows
from ematrace.experiments.made_text import MadeText
from ematrace.results import Row

SMALL = MadeText(symbols=3, length=7, follow=0.6)


def windows(text: MadeText, n: int, seed: int = 0) -> np.ndarray:
    return text.draw(n, np.random.default_rng(seed))


def test_bayes_is_the_mean_over_all_successor_functions() -> None:
    """P(x_t+1 | x_0 .. x_t) from the joint probability, summed over all 27 functions."""
    by_chance = (1 - SMALL.follow) / SMALL.symbols

    def joint(symbols: np.ndarray) -> float:
        total = 0.0
        for f in product(range(SMALL.symbols), repeat=SMALL.symbols):
            steps = [SMALL.follow * (f[a] == b) + by_chance for a, b in pairwise(symbols)]
            total += math.prod(steps)
        return total

    read = windows(SMALL, 20)
    wanted = [[math.log(joint(w[: t + 1])) - math.log(joint(w[: t + 2])) for t in range(SMALL.length)] for w in read]
    np.testing.assert_allclose(SMALL.bayes_nats(read), wanted, rtol=1e-9)


def test_no_reader_is_better_than_bayes_and_knowing_f_is_its_limit() -> None:
    text = MadeText(symbols=4, length=400, follow=0.8)
    nats = text.bayes_nats(windows(text, 50))
    p = text.follow + (1 - text.follow) / text.symbols
    known = -p * math.log(p) - (1 - p) * math.log((1 - p) / (text.symbols - 1))
    assert nats[:, 300:].mean() == pytest.approx(known, abs=0.02)  # f is known by then
    assert nats[:, 0] == pytest.approx(math.log(text.symbols))  # and nothing is known at first
    assert nats.mean() < text.counting_nats(windows(text, 50)).mean()


def test_counting_knows_the_symbols_of_the_window_up_to_the_last_one_and_no_more() -> None:
    text = MadeText(symbols=2, length=3, follow=0.5)
    read = np.array([[0, 0, 1, 1], [1, 1, 0, 0]])
    found = text.counting_nats(read)
    np.testing.assert_allclose(found[0], found[1])  # the same with the symbols exchanged
    p = np.exp(-found[0])
    # λ from the first target, (1 + λ) / (1 + 2 λ); the others follow from it.
    lam = (1 - p[0]) / (2 * p[0] - 1)
    np.testing.assert_allclose(p[1:], [lam / (2 + 2 * lam), (1 + lam) / (3 + 2 * lam)], rtol=1e-6)


def test_the_next_symbol_is_the_windows_own_successor_as_often_as_it_should_be() -> None:
    text = MadeText(symbols=8, length=50, follow=0.7)
    read = windows(text, 400)
    assert not np.array_equal(read, windows(text, 400, seed=1))
    pairs = read[:, :-1] * 8 + read[:, 1:]
    most = [max((p == c).sum() for c in range(a * 8, a * 8 + 8)) for p in pairs for a in range(8)]
    share = sum(most) / pairs.size  # of each symbol's successors, the most frequent one
    assert 0.7 < share < 0.85  # .74 and what chance adds to the largest count
    overall = np.bincount(read.ravel(), minlength=8) / read.size
    np.testing.assert_allclose(overall, 1 / 8, atol=0.02)  # windows share no successor


def test_no_other_lambda_counts_better() -> None:
    text = MadeText(symbols=6, length=30, follow=0.9)
    read = windows(text, 50)
    counts = np.array([[(w[: t + 1] == w[t + 1]).sum() for t in range(text.length)] for w in read])
    seen = np.arange(1, text.length + 1)
    others = [-np.log((counts + lam) / (seen + 6 * lam)).mean() for lam in np.geomspace(0.01, 100, 41)]
    assert text.counting_nats(read).mean() <= min(others)
    assert text.counting_nats(read).mean() < others[20] - 1e-3  # λ = 1


def test_distances_at_the_bounds() -> None:
    text = MadeText(symbols=40, length=39)
    for distance, name in {4: "seen 1-4", 5: "seen 5-16", 16: "seen 5-16", 17: "seen 17+"}.items():
        read = np.arange(40)[None]
        read[0, distance] = 0  # the first symbol again; all others are new
        found = rows_of_windows(read, np.zeros((1, 39)), text)
        rows = {row.factors.get("slice"): row.metrics["nats"].n for row in found}
        assert rows[name] == 1, distance


def test_slices_are_by_the_symbol_before_the_target() -> None:
    text = MadeText(symbols=8, length=8)
    read = np.array([[1, 2, 1, 3, 4, 5, 6, 2, 7]])
    rows = {row.factors.get("slice"): row.metrics["nats"] for row in rows_of_windows(read, np.arange(8.0)[None], text)}
    assert rows[None].value == pytest.approx(3.5)
    assert (rows["new"].n, rows["seen"].n) == (6, 2)
    assert rows["seen 1-4"].value == 2.0  # after the second 1, two steps back
    assert rows["seen 5-16"].value == 7.0  # after the second 2
    assert "seen 17+" not in rows


def test_every_arm_is_one_model_and_the_switches_are_as_planned() -> None:
    assert len({tuple(asdict(arm).values()) for arm in ARMS}) == len(ARMS) == 18
    assert len(EXPERIMENT.points("cpu", 2)) == 2 * 18 * len(gap_made_pairs.RATES)
    fourth = PairsArm(predictor="mixer", fourth_trace=True).overrides("small", 8)
    assert fourth["mixer_options"] == {"alphas": (0.5, 0.1, 0.02, 0.002)}
    assert pytest.approx(0.88, abs=0.005) == (1 - gap_made_pairs.HARDLY_FADES) ** 64


def measured(arm: PairsArm, lr: float = 0.004, seed: int = 0, **settings: float) -> list[Row]:
    changed = {
        **EXPERIMENT.settings,
        "symbols": 4,
        "length": 12,
        "windows": 64,
        "sequences": 8,
        "steps": 30,
        **settings,
    }
    factors = {**asdict(arm), "size": "toy", "lr": lr}
    ctx = Context(seed=seed, settings=EXPERIMENT.resolve_settings(Point(factors, 0), changed))
    return list(EXPERIMENT.measure(ctx, **factors))


@cache
def parameters_of_first() -> float | None:
    return measured(ARMS[0], steps=1)[0].metrics["parameters"].value


@pytest.mark.parametrize("arm", ARMS, ids=lambda arm: arm.text)
def test_every_arm_trains_and_is_scored(arm: PairsArm) -> None:
    whole, *rows = measured(arm, steps=3)
    assert whole.metrics["nats"].value == pytest.approx(math.log(4), abs=0.5)
    assert whole.metrics["selection_nats"].value != whole.metrics["nats"].value  # two halves
    assert {row.factors["slice"] for row in rows} == {"new", "seen", "seen 1-4", "seen 5-16"}
    assert whole.metrics["parameters"].value == pytest.approx(parameters_of_first(), rel=0.03)


def test_a_model_without_context_stays_at_a_guess_and_a_rate_too_high_is_a_result() -> None:
    whole = measured(ARMS[0], steps=300)[0].metrics
    assert whole["nats"].value == pytest.approx(math.log(4), abs=0.05)
    with np.errstate(all="ignore"):
        (broken,) = measured(ARMS[0], lr=1e30)
    assert broken.metrics["selection_nats"].value is None


def test_all_arms_of_a_seed_read_the_same_windows_and_no_window_twice() -> None:
    def first(seed: int) -> np.ndarray:
        of = batches(Context(seed=seed, settings={"sequences": 5}), SMALL)
        return np.concatenate([next(of).numpy() for _ in range(3)])

    assert np.array_equal(first(0), first(0))
    assert not np.array_equal(first(0), first(1))
    of = batches(Context(seed=3, settings={"sequences": 5}), SMALL)
    assert len({next(of).numpy().tobytes() for _ in range(50)}) == 50


def test_figures_are_of_the_half_that_rates_are_not_chosen_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the number of each window as its nats: even ones choose, figures are of the odd ones, window by window."""
    scored: list[np.ndarray] = []

    def score(model: object, read: np.ndarray) -> tuple[np.ndarray, None]:
        scored.append(read)
        return np.broadcast_to(np.arange(len(read))[:, None], (len(read), read.shape[1] - 1)).astype(float), None

    monkeypatch.setattr(gap_made_pairs, "score", score)
    whole, *rows = measured(ARMS[0], steps=1)
    assert whole.metrics["selection_nats"].value == pytest.approx(np.arange(0, 64, 2).mean())
    assert whole.metrics["nats"].value == pytest.approx(np.arange(1, 64, 2).mean())
    seen = np.stack([[w[t] in w[:t] for t in range(12)] for w in scored[0]])
    expected = np.broadcast_to(np.arange(64)[:, None], seen.shape)[1::2][seen[1::2]].mean()
    assert next(r for r in rows if r.factors["slice"] == "seen").metrics["nats"].value == pytest.approx(expected)

    measured(ARMS[0], seed=1, steps=1)
    assert np.array_equal(*scored)  # the same for all seeds
    trained = batches(Context(seed=0, settings={"sequences": 64}), MadeText(4, 12))
    assert not np.array_equal(next(trained).numpy(), scored[0])
