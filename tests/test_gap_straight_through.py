"""Whether the straight-through gradient misleads, on cells with planted gradients."""

from __future__ import annotations

from dataclasses import asdict, replace

from cells_support import make_file, make_row, make_table
from ematrace.analysis.gap_design import SPEN
from ematrace.analysis.gap_straight_through import GRADIENTS, build_gradients, is_misleading
from ematrace.experiments.gap_gradients import MEASURED
from ematrace.results import Sample, Table


def gradients(cosine: dict[int, tuple[float, ...]], halves: float = 0.9) -> Table:
    steps = [128 * part for part in (*MEASURED, 28)]
    files = []
    for seed in range(3):
        rows = []
        for step in steps:
            metrics = {
                "cosine": cosine.get(step, (0.1,) * 3)[seed],
                "norm_ratio": 5.0,
                "masked_cosine_of_halves": halves,
            }
            metrics |= {"dead_units": 0.1, "usage_entropy": 0.9, "nats": 5.0}
            rows.append(make_row(metrics, step=step, part="all"))
            rows.append(make_row({"cosine": 1.0, "norm_ratio": 1.0}, step=step, part="W_up"))
        factors = {**asdict(SPEN), "size": "2m", "lr": 0.004}
        files.append(make_file(*rows, experiment=GRADIENTS, seed=seed, factors=factors, scale="gpu"))
    return make_table(*files)


def test_a_misleading_gradient_is_one_on_all_seeds_at_the_end() -> None:
    def judged(table: Table) -> bool | None:
        return is_misleading(build_gradients(table, "topk_ste", 0.01))

    low = gradients({})
    at = build_gradients(low, "topk_ste", 0.01)
    assert [found.step for found in at] == [0, 128, 256, 512, 1024, 1792, 2560, 3584]  # as the plan says
    assert at[0].cosine.values == (0.1,) * 3
    assert judged(low) is True
    assert judged(gradients({512: (0.9,) * 3})) is True  # before the last four
    assert judged(gradients({1024: (0.1, 0.6, 0.1)})) is False
    assert judged(gradients({}, halves=0.05)) is False  # the true gradient itself is mostly text
    assert build_gradients(low, "topk_masked", 0.0) == ()
    assert is_misleading(()) is None


def test_too_few_seeds_or_values_do_not_tell_whether_a_gradient_misleads() -> None:
    (*_, at) = build_gradients(gradients({}), "topk_ste", 0.01)
    assert at.misleads is True
    for change in (
        {"cosine": Sample(()), "halves": Sample(())},
        {"cosine": Sample((0.1, 0.1)), "halves": Sample((0.9, 0.9))},
        {"halves": Sample(())},
        {"cosine": Sample((0.1, 0.1, float("nan")))},
    ):
        assert replace(at, **change).misleads is None
        assert is_misleading([replace(at, step=step, **change) for step in range(4)]) is None


def test_one_seed_is_enough_to_deny_that_a_gradient_misleads() -> None:
    (*_, at) = build_gradients(gradients({}), "topk_ste", 0.01)
    denied = replace(at, cosine=Sample((0.1, 0.4)), halves=Sample((0.9, 0.3)))
    assert denied.misleads is False
    few = replace(at, cosine=Sample((0.1,)), halves=Sample((0.9,)))
    assert is_misleading([replace(denied if step == 2 else few, step=step) for step in range(4)]) is False
    assert is_misleading([replace(denied, step=step) for step in range(3)]) is None
