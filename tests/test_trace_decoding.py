"""What traces keep of tokens: the closed form against determinants, readers against Bayes' rule."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ematrace.analysis.gap_design import SPEN, Arm
from ematrace.experiments import trace_decoding
from ematrace.experiments.base import Context, Point
from ematrace.experiments.gap_task import build_arm
from ematrace.experiments.token_readers import (
    Fitting,
    Prior,
    Samples,
    TopicReader,
    VectorReaders,
    fit_readers,
    whitened,
)
from ematrace.experiments.trace_decoding import at_lag, choose_windows, decay, hold
from ematrace.experiments.trace_information import pair_information, rounding_variance, vector_information
from ematrace.ledger import load_claims
from ematrace.results import Metric

PAST = 1500  # .98^1500 is nothing


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tokenizers and packed text of these tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMATRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def information_by_determinants(mixing: list[list[float]], noise: list[float], lag: int) -> float:
    """I = (ln|Cov x| + ln|Cov y| - ln|Cov (x, y)|) / 2 for y = mixing · inputs + noise, x the input at `lag`.

    With 60 digits: a sequence in float32 holds all but 1e-14 of an input's variance.
    """
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(w) for w in row] for row in mixing]
        cov = mpmath.matrix([[mpmath.fdot(a, b) for a in rows] for b in rows]) + mpmath.diag(noise)
        joint = mpmath.eye(len(rows) + 1)
        joint[1:, 1:] = cov
        for i, row in enumerate(rows, start=1):
            joint[0, i] = joint[i, 0] = row[lag]
        return float(mpmath.log(mpmath.det(cov) / mpmath.det(joint)) / 2)


@pytest.mark.parametrize(("number_format", "bits"), [("float32", 24), ("bfloat16", 8)])
def test_information_is_that_of_the_determinants(number_format: str, bits: int) -> None:
    def weights(rate: float) -> list[float]:
        return [rate * (1 - rate) ** k for k in range(PAST)]

    def noise(rate: float) -> float:
        return rounding_variance(math.sqrt(rate / (2 - rate)), bits)

    for rates in ([0.02], [0.5, 0.1, 0.02]):
        for lag in (0, 16, 100):
            wanted = information_by_determinants([weights(a) for a in rates], [noise(a) for a in rates], lag)
            assert vector_information(rates, lag, number_format) == pytest.approx(wanted, rel=1e-6)
    pair = [weights(0.02), [0.0, *weights(0.02)[:-1]]]
    wanted = information_by_determinants(pair, [noise(0.02)] * 2, 0)
    assert pair_information(0.02, number_format) == pytest.approx(wanted, rel=1e-9)


def test_one_trace_loses_exponentially_and_a_sequence_does_not() -> None:
    late = [vector_information([0.02], lag, "exact") for lag in (100, 200)]
    assert math.log(late[1] / late[0]) == pytest.approx(2 * 100 * math.log(0.98), rel=1e-2)
    assert pair_information(0.02, "exact") == math.inf
    assert pair_information(0.02, "float32") > 10 > pair_information(0.02, "bfloat16") > 1


@pytest.mark.parametrize(("bits", "dtype"), [(24, torch.float32), (8, torch.bfloat16)])
def test_rounding_variance_is_that_of_rounded_numbers(bits: int, dtype: torch.dtype) -> None:
    for std in (0.1, 1.0, 3.0):
        x = std * torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        error = (x - x.to(dtype).double()).square().mean()
        assert rounding_variance(std, bits) == pytest.approx(float(error), rel=0.02)


def part_of(prior: Prior | None, at: Any) -> Prior | None:
    return None if prior is None else Prior(prior.logits[at], prior.topic[at])


def samples_at(features: torch.Tensor, targets: torch.Tensor, prior: Prior | None, at: Any) -> Samples:
    """Of [L, B, ...]."""
    return Samples(features[:, at], targets[:, at], part_of(prior, (slice(None), at)))


def fit_one(features: torch.Tensor, targets: torch.Tensor, *how: Any, prior: Prior | None = None) -> VectorReaders:
    samples = partial(samples_at, features[None], targets[None], part_of(prior, None))
    return fit_readers(samples, len(targets), *how)


def nats_of(reader: VectorReaders, features: torch.Tensor, targets: torch.Tensor, prior: Prior | None = None) -> float:
    with torch.no_grad():
        logits = reader(Samples(features[None], targets[None], part_of(prior, None)))[0]
    return float(F.cross_entropy(logits, targets))


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_reader_learns_the_posterior(kind: Any) -> None:
    """Tokens seen through Gaussian noise: Bayes' rule is linear in the vector, and no reader can do better."""
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(12, 6, generator=generator)
    shares = torch.arange(1.0, 13.0) / 78
    targets = torch.multinomial(shares, 10_000, replacement=True, generator=generator)
    seen = embedding[targets] + 0.8 * torch.randn(10_000, 6, generator=generator)
    distance = (seen[:, None] - embedding).square().sum(-1)
    bayes = F.cross_entropy(shares.log() - distance / (2 * 0.8**2), targets, reduction="none")
    features = whitened(seen[:8_000], seen[8_000:])
    assert torch.cov(features[0].T, correction=0) == pytest.approx(np.eye(6), abs=1e-3)
    fitting = Fitting(epochs=6, batch=100, hidden=16, lr=2e-2)
    counts = torch.bincount(targets[:8_000], minlength=12)
    reader = fit_one(features[0], targets[:8_000], embedding, counts, kind, fitting, generator)
    assert nats_of(reader, features[1], targets[8_000:]) == pytest.approx(float(bayes[8_000:].mean()), abs=0.04)


def test_the_baseline_sees_the_other_tokens_as_counts_alone() -> None:
    torch.manual_seed(0)
    reader = TopicReader(torch.randn(9, 4), torch.ones(9), hidden=5)
    with torch.no_grad():
        for p in reader.parameters():
            p.normal_()
    ids = torch.tensor([[1, 2, 3, 1, 5, 2]])
    at = torch.tensor([[3]])
    changed, shuffled = ids.clone(), ids[:, [4, 0, 5, 3, 2, 1]]
    changed[0, 3] = 8
    with torch.no_grad():
        found = reader(ids, at)
        torch.testing.assert_close(reader(changed, at), found)  # not the token that it is asked for
        torch.testing.assert_close(reader(shuffled, at), found)  # not where the others stand
        others = ids[:, [0, 1, 2, 4, 5]]
        counts = torch.bincount(others[0], minlength=9).float()
        mean = (counts @ reader.embedding.weight) / 5
        by_hand = reader.head(reader.body(reader.norm(mean)))
        by_hand = by_hand + reader.present * (counts > 0) + reader.often * torch.log1p(counts)
        anywhere = reader.prior(torch.cat([shuffled, ids]))(torch.tensor([[1]]), torch.tensor([[3], [0]]))
        torch.testing.assert_close(anywhere.logits, reader(ids, torch.tensor([[3, 0]])).transpose(0, 1))
        torch.testing.assert_close(anywhere.topic[0, 0], reader.body(reader.norm(mean)))
    torch.testing.assert_close(found[0, 0], by_hand)


def test_a_reader_adds_to_what_it_is_given() -> None:
    """Two parts of a token, one known beforehand and one in the vector: together they tell it all."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 8, (6_000,), generator=generator)
    embedding = torch.randn(8, 4, generator=generator)
    features = F.one_hot(targets % 4, 4).float() + 0.05 * torch.randn(6_000, 4, generator=generator)
    known = torch.where(torch.arange(8) // 4 == (targets // 4)[:, None], 0.0, -20.0).log_softmax(-1)
    fitting = Fitting(epochs=4, batch=100, hidden=16, lr=2e-2)
    priors = (None, Prior(known, torch.zeros(6_000, 4)))
    alone, given = (
        nats_of(
            fit_one(features, targets, embedding, torch.ones(8), "linear", fitting, generator, prior=prior),
            *(features, targets, prior),
        )
        for prior in priors
    )
    assert alone == pytest.approx(math.log(2), abs=0.05)
    assert given < 0.05


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_a_reader_starts_as_the_baseline_or_as_the_shares(kind: Any) -> None:
    torch.manual_seed(0)
    counts, features, targets = torch.arange(5.0), torch.randn(1, 7, 4), torch.zeros(3, 7, dtype=torch.long)
    prior = Prior(torch.randn(3, 7, 5), torch.randn(3, 7, 6))
    given, alone = (VectorReaders(3, n, torch.randn(5, 6), counts, kind, 8, given=n == 10) for n in (10, 4))
    with torch.no_grad():
        assert torch.equal(given(Samples(features, targets, prior)), prior.logits)
        shares = alone(Samples(features, targets)).softmax(-1)
    torch.testing.assert_close(shares, ((counts + 1) / 15).expand(3, 7, 5))


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_where_a_vector_says_nothing_the_baseline_is_kept(kind: Any) -> None:
    """The baseline is right, and samples are so few that they are learned by heart: the start is the best."""
    generator, n = torch.Generator().manual_seed(0), 2_400
    logits, features = torch.randn(n, 6, generator=generator), torch.randn(n, 40, generator=generator)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    prior = Prior(logits, torch.randn(n, 5, generator=generator))
    how = (torch.randn(6, 5, generator=generator), torch.ones(6), kind)
    fitting = Fitting(epochs=2, batch=10, hidden=16, lr=2e-2, selection=0.5)
    reader = fit_one(features[:400], targets[:400], *how, fitting, generator, prior=part_of(prior, slice(400)))
    for part, noise in ((slice(200, 400), 1e-6), (slice(400, n), 0.02)):  # that of the selection, then new ones
        baseline = float(F.cross_entropy(logits[part], targets[part]))
        assert nats_of(reader, features[part], targets[part], part_of(prior, part)) < baseline + noise


@pytest.mark.parametrize("needed", ["scale", "topic"])
def test_what_the_baseline_knows_already_is_not_counted_twice(needed: str) -> None:
    """Two independent looks at a token: the baseline has the first, the vector is the sum of both.

    Bayes' rule wants this sum alone (`scale`), which a reader that starts from the baseline has to learn. Where the
    vector has the first look turned round (`topic`), it has to be taken off, which the vector alone does not allow.
    """
    generator = torch.Generator().manual_seed(0)
    embedding, n, noise = torch.randn(12, 6, generator=generator), 8_000, 1.2
    targets = torch.randint(0, 12, (n,), generator=generator)
    looks = embedding[targets] + noise * torch.randn(2, n, 6, generator=generator)
    first, second = -(looks[:, :, None] - embedding).square().sum(-1) / (2 * noise**2)
    turned = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    vectors = looks.sum(0) if needed == "scale" else 2 * looks[0] @ turned + looks[1]
    prior = Prior(first, torch.zeros_like(looks[0]) if needed == "scale" else looks[0])
    features = whitened(vectors[:6_000], vectors[6_000:])
    fitting, held = Fitting(epochs=6, batch=100, lr=2e-2), slice(6_000, None)
    bayes = float(F.cross_entropy((first + second)[held], targets[held]))
    how = (embedding, torch.ones(12), "linear", fitting, generator)
    alone = nats_of(fit_one(features[0], targets[:6_000], *how), features[1], targets[held])
    reader = fit_one(features[0], targets[:6_000], *how, prior=part_of(prior, slice(6_000)))
    given = nats_of(reader, features[1], targets[held], part_of(prior, held))
    assert given == pytest.approx(bayes, abs=0.06)
    assert alone == pytest.approx(bayes, abs=0.06) if needed == "scale" else alone > bayes + 0.2


@pytest.mark.parametrize("given", [False, True])
def test_readers_side_by_side_are_those_fitted_alone(given: bool) -> None:
    """They are best after different epochs, one as it began: each keeps its own. One never learns."""
    generator, n = torch.Generator().manual_seed(0), 403  # the last batch is odd
    targets = torch.randint(0, 6, (4, n), generator=generator)
    targets[1, :300], targets[1, 360:375] = 0, 0  # of the selection part fewer: what is learned soon is too much
    embedding, features = torch.randn(6, 5, generator=generator), torch.randn(4, n, 4, generator=generator)
    features[2] += F.one_hot(targets[2], 6)[:, :4]
    features[3] = math.nan
    prior = Prior(*(torch.randn(4, n, k, generator=generator) for k in (6, 5))) if given else None
    if prior is not None:
        prior.logits[0] = 0  # it says nothing, nor does the vector
    fitting = Fitting(epochs=3, batch=50, lr=0.1)

    def fitted(*these: int) -> VectorReaders:
        which, shuffled = torch.tensor(these), torch.Generator().manual_seed(1)
        samples = partial(samples_at, features[which], targets[which], part_of(prior, which))
        return fit_readers(samples, n, embedding, torch.ones(6), "linear", fitting, shuffled)

    together = fitted(0, 1, 2, 3)
    for reader in range(4):
        for own, shared in zip(fitted(reader).parameters(), together.parameters(), strict=True):
            torch.testing.assert_close(shared[reader], own[0], rtol=1e-4, atol=1e-5)
    assert together.last.any(-1).any(-1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("at_target", [False, True], ids=["one vector", "sequence"])
def test_samples_are_the_tokens_so_many_steps_back(at_target: bool) -> None:
    ids = torch.arange(12).view(2, 6)
    vectors = ids[..., None].float() if at_target else ids[:, 3:, None].float()

    def prior(windows: torch.Tensor, positions: torch.Tensor) -> Prior:
        found = ids[windows, positions][..., None]
        return Prior(found * 10, found * 100)

    found = trace_decoding.samples_of(vectors, ids, prior, [1, 2], torch.tensor([0, 2, 3, 5]), at_target)
    assert found.targets.tolist() == [[2, 4, 8, 10], [1, 3, 7, 9]]  # t = 3 and 5 of either window
    assert found.features[..., 0].tolist() == (found.targets.tolist() if at_target else [[3, 5, 9, 11]])
    assert found.prior is not None
    assert torch.equal(found.prior.logits[..., 0], found.targets * 10)
    assert found.inputs().shape == (2, 4, 2)
    assert torch.equal(found.inputs()[..., :1], found.features.expand(2, -1, -1))
    assert torch.equal(found.inputs()[..., 1], found.targets * 100)  # the topic of the target's position
    assert trace_decoding.samples_of(vectors, ids, None, [1], torch.tensor([0]), at_target).prior is None


def test_baseline_and_readers_are_fitted_to_blocks_of_their_own() -> None:
    reader = {"blocks": 64, "windows": 700, "topic_windows": 3000}
    of_topic, of_readers = choose_windows(6400, reader, seed=0)
    assert (len(set(of_topic)), len(set(of_readers))) == (3000, 700)
    assert set(of_readers // 100) == set(range(0, 64, 5))
    assert set(of_topic // 100) == set(range(64)) - set(range(0, 64, 5))
    for chosen in (of_topic, of_readers):  # the last eighth chooses the epoch, from blocks of its own but for one
        start = len(chosen) - len(chosen) // 8
        assert len(set(chosen[:start] // 100) & set(chosen[start:] // 100)) <= 1
    assert not np.array_equal(of_readers, choose_windows(6400, reader, seed=1)[1])
    assert [sorted(found) for found in choose_windows(10, {"blocks": 5, "windows": 2, "topic_windows": 8}, 0)] == [
        [2, 3, 4, 5, 6, 7, 8, 9],
        [0, 1],
    ]
    for few in ({"windows": 1301}, {"topic_windows": 5101}, {"windows": 0}):
        with pytest.raises(ValueError, match=rf"^settings: reader: {next(iter(few))}: .* have (1300|5100)$"):
            choose_windows(6400, {**reader, **few}, seed=0)


def test_lags_are_counted_from_the_second_half() -> None:
    ids = torch.arange(16)[None]
    for lag in (0, 1, 8):
        assert at_lag(ids, lag).tolist() == [[t - lag for t in range(8, 16)]]


@pytest.mark.parametrize("arm", [Arm("ema"), SPEN], ids=["ema", "spen"])
def test_what_is_read_is_what_the_mixer_had(arm: Arm) -> None:
    torch.manual_seed(0)
    model = build_arm(arm, "toy", 64, 50, 16).eval()
    kept: list[torch.Tensor] = []
    for block in model.model.layers:
        block.mixer.traces.register_forward_hook(lambda module, args, out: kept.append(out[0]))
    ids = torch.randint(0, 50, (3, 16))
    with torch.no_grad():
        logits = model(ids).logits
    by_block = [h.permute(1, 2, 0, 3).flatten(2) for h in kept]
    held = hold(model, ids)
    torch.testing.assert_close(held["traces", 0], by_block[0][:, 8:])
    torch.testing.assert_close(held["state", 0], torch.cat(by_block, -1)[:, 8:])
    torch.testing.assert_close(held["slow", 0], kept[0][2][:, 8:])
    torch.testing.assert_close(held["sequence", 0][:, 5, 32:], kept[0][2][:, 4])
    torch.testing.assert_close(held["hidden", 2] @ model.lm_head.weight.T, logits[:, 8:])
    inputs = (held["sequence", 0][..., :32] - 0.98 * held["sequence", 0][..., 32:]) / 0.02  # the sequence has them all
    embedded = model.model.embed_tokens(ids)
    torch.testing.assert_close(inputs, model.model.layers[0].mixer_norm(embedded), atol=1e-4, rtol=1e-3)


def gained(gain: Callable[[float], float], noise: float = 0.001) -> dict[str, float | None]:
    """What `decay` finds if a reader gains so much at each lag."""
    lags = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    found = decay({lag: {"gain_nats": Metric(gain(lag)), "gain_noise": Metric(noise)} for lag in lags})
    return {name.removeprefix("decay_"): metric.value for name, metric in found.items()}


def test_decay_tells_an_exponential_from_what_looks_like_one() -> None:
    exponential = gained(lambda lag: 0.3 * math.exp(-0.04 * lag))
    assert exponential == pytest.approx({"lags": 7, "shape": 1, "r2": 1, "per_step": 0.04}, rel=1e-3)
    stretched = gained(lambda lag: 0.3 * math.exp(-math.sqrt(lag / 15)))
    assert stretched["shape"] == pytest.approx(0.5, abs=0.01)
    assert (stretched["r2"] or 0) > 0.95  # which is why R² alone does not judge
    assert (gained(lambda lag: 0.3 / lag)["shape"] or 1) < 0.4


def test_lags_without_a_gain_count() -> None:
    """Where they were left out of a line through logarithms, this was an exponential with R² = 1."""
    found = gained(lambda lag: -0.1 if lag in (2, 8, 32) else 0.3 * math.exp(-0.04 * lag))
    assert found["lags"] == 4
    assert (found["r2"] or 0) < 0.8
    assert gained(lambda lag: 0.3 * math.exp(-0.04 * lag), noise=0.1)["lags"] == 4  # 1 to 8 have .2 or more
    assert gained(lambda lag: 0.2)["r2"] == 0.0  # no decay at all
    few = {lag: {"gain_nats": Metric(0.1), "gain_noise": Metric(0.01)} for lag in (1, 2, 4, 8, 16, 32)}
    assert {metric.value for metric in decay(few).values()} == {None}


def test_the_noise_of_a_gain_is_that_of_windows() -> None:
    """Targets of a window that all move together count once."""
    of_windows = torch.tensor([0.1, 0.3, 0.5, 0.7])
    nats = (2 - of_windows)[:, None].expand(4, 50)
    found = trace_decoding.Scores(nats.flatten(), nats.flatten() > 0).metrics(torch.full((4, 50), 2.0))
    assert found["gain_nats"].value == pytest.approx(0.4)
    assert found["gain_noise"].value == pytest.approx(float(of_windows.std()) / 2)


def test_attention_keeps_keys_and_values() -> None:
    torch.manual_seed(0)
    model = build_arm(Arm("attention", "rope"), "toy", 64, 50, 16).eval()
    ids = torch.randint(0, 50, (3, 16))
    held = hold(model, ids)
    first = model.model.layers[0]
    _, k, v = first.mixer.W_qkv(first.mixer_norm(model.model.embed_tokens(ids))).chunk(3, -1)
    torch.testing.assert_close(held["keys", 0], torch.cat([k, v], -1))
    assert set(held) == {("keys", 0), ("hidden", 1), ("hidden", 2)}


def test_tokens_are_decoded_from_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = ("slow", "sequence")
    monkeypatch.setattr(
        trace_decoding, "hold", lambda *args: {name: v for name, v in hold(*args).items() if name[0] in some}
    )
    data = tmp_path / "text.txt"
    rng = np.random.default_rng(0)
    data.write_text("\n".join(" ".join(rng.choice(["cat", "dog", "sat", "ran", "on", "mat"], 9)) for _ in range(300)))
    factors = {**asdict(Arm("ema")), "size": "toy", "lr": 3e-3}
    settings = {**trace_decoding.EXPERIMENT.settings, "validation": str(data), "windows": 16}
    settings |= {"vocab_size": 300, "tokens": 8 * 8 * 4, "sequences": 8, "length": 8, "warmup": 1}
    settings["reader"] = {"blocks": 10, "windows": 60, "topic_windows": 100, "epochs": 2, "batch": 40, "hidden": 8}
    resolved = trace_decoding.EXPERIMENT.resolve_settings(Point(factors, 0), settings)
    rows = trace_decoding.measure(Context(seed=0, data=str(data), settings=resolved), **factors)
    cells = [json.dumps(row.factors, sort_keys=True) for row in rows]
    assert len(cells) == len(set(cells))
    assert not {name for row in rows for name in row.factors} & set(factors)
    names = ("representation", "reader", "number_format", "given", "lag")
    by = {tuple(row.factors.get(n) for n in names): row for row in rows}
    found = by["sequence", "linear", "float32", "nothing", 4].metrics
    topic, unigram = (by[None, reader, None, None, 4].metrics for reader in ("topic", "unigram"))
    assert (found["accuracy"].value or 0) > 2 * (unigram["accuracy"].value or 0) > 0
    assert found["gain_nats"].value == pytest.approx((topic["nats"].value or 0) - (found["nats"].value or 0), abs=1e-4)
    assert {row.factors["kept"] for row in rows if "kept" in row.factors} == {"one vector", "sequence"}
    assert all("number_format" in row.factors for row in rows if "representation" in row.factors)
    assert ("sequence", "gaussian", "bfloat16", None, 4) in by
    for kind in ("linear", "mlp"):  # starting from what the topic says, little can be lost
        assert (by["slow", kind, "float32", "topic", 4].metrics["gain_nats"].value or 0) > -0.05
    selectors = [s for claim in load_claims() for s in claim.selectors if s.experiment == "trace_decoding"]
    assert {s.metric for s in selectors} == {"accuracy", "nats", "decay_r2", "decay_shape", "decay_lags"}
    for selector in selectors:  # what the ledger looks for, at a lag that a toy has
        of_row = {n: 4 if n == "lag" else v for n, v in selector.where.items() if n not in factors}
        found_rows = [r for r in rows if selector.metric in r.metrics and of_row.items() <= r.factors.items()]
        assert len(found_rows) == 1, selector


def test_seeds_are_those_of_the_arm_that_claims_are_about() -> None:
    found = [(p.factors["context"], p.factors["ffn"], p.seed) for p in trace_decoding.EXPERIMENT.points("gpu", 3)]
    assert found == [
        *(("ema_error", "topk_ste", seed) for seed in range(3)), ("ema", "dense", 0), ("attention", "dense", 0)
    ]  # fmt: skip
