"""From cells to verdicts: on cells made by hand, and on the recorded ones as they were judged before."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cells_support import make_file, make_row, make_runs, make_table, recorded_cells
from ematrace.ledger import Claim, Claims, Condition, Direction, LedgerRow, PaperFigure, build_ledger, load_claims
from ematrace.ledger.claims import Unpublished
from ematrace.results import CellFile, Metric, Row, Sample, Selector, Store, Table, write_file

# Of `ematrace ledger --json`, in DESIGN.md.
DESIGN_FIELDS = [
    *("id", "paper", "ours", "interval", "n_seeds", "direction", "figure", "verdict", "scale", "evidence"),
    "command",
]
HIGH, LOW = Sample((0.90, 0.91, 0.92)), Sample((0.50, 0.52, 0.53))
parse = Selector.parse


def more(left: str, right: str | float, op: Any = ">", **other: Any) -> Direction:
    return Direction(parse(left), op, parse(right) if isinstance(right, str) else right, **other)


def make_claim(*direction: Direction, figure: Sequence[PaperFigure] = (), part: Any = "small", **other: Any) -> Claim:
    return Claim("C01", part, "the claim", "the paper's", direction=direction, figure=tuple(figure), **other)


def judge_one(claim: Claim, table: Table) -> LedgerRow:
    (row,) = build_ledger(table, Claims((claim,), {"grammar": "default"}, {"grammar": "drawn"}))
    return row


A_OVER_B, B_OVER_A = more("one/a", "one/b"), more("one/b", "one/a")
HIT, MISS = PaperFigure(parse("one/a"), 0.91, "accuracy"), PaperFigure(parse("one/a"), 0.5, "accuracy")
# The interval of a - b is .36 to .42, that of a .885 to .935.
A_NEAR_B, NEAR = more("one/a", "one/b", by=0.4), PaperFigure(parse("one/a"), 0.95, "accuracy")
NEEDS_HIGH, NEEDS_LOW = (Condition(parse(f"one/{name}"), ">=", 0.6, why=f"{name} is too low") for name in "ab")
BOTH = make_table(*make_runs("one", a=HIGH, b=LOW))


class TestVerdict:
    @pytest.mark.parametrize(
        ("claim", "verdict", "direction", "figure"),
        [
            (make_claim(A_OVER_B, figure=[HIT]), "reproduced", True, True),
            (make_claim(A_OVER_B), "reproduced", True, None),
            (make_claim(figure=[HIT]), "reproduced", None, True),
            (make_claim(A_OVER_B, figure=[HIT, MISS]), "direction only", True, False),
            (make_claim(A_OVER_B, B_OVER_A, figure=[HIT]), "not reproduced", False, True),
            (make_claim(B_OVER_A, figure=[MISS]), "not reproduced", False, False),
            (make_claim(figure=[MISS]), "not reproduced", None, False),
            (make_claim(), "open", None, None),
            (make_claim(A_OVER_B, more("one/a", "one/gone")), "open", None, None),
            (make_claim(B_OVER_A, figure=[PaperFigure(parse("gone/a"), 1, "speed")]), "open", False, None),
            (make_claim(A_OVER_B, not_testable="needs 8 GPUs"), "not testable here", True, None),
            (make_claim(A_NEAR_B), "undecided", False, None),
            (make_claim(A_OVER_B, A_NEAR_B, figure=[HIT]), "undecided", False, True),
            (make_claim(A_NEAR_B, B_OVER_A), "not reproduced", False, None),
            (make_claim(figure=[NEAR]), "undecided", None, False),
            (make_claim(figure=[NEAR, MISS]), "not reproduced", None, False),
            (make_claim(A_OVER_B, figure=[NEAR]), "direction only", True, False),
            (make_claim(A_NEAR_B, A_OVER_B, part="extension"), "undecided", False, None),
            (make_claim(A_OVER_B, seeds=3), "reproduced", True, None),
            (make_claim(A_OVER_B, seeds=4), "undecided", True, None),
            (make_claim(A_OVER_B, requires=(NEEDS_HIGH,)), "reproduced", True, None),
            (make_claim(A_OVER_B, requires=(NEEDS_HIGH, NEEDS_LOW)), "not testable here", True, None),
            (make_claim(A_OVER_B, requires=(replace(NEEDS_LOW, otherwise="undecided"),)), "undecided", True, None),
            (make_claim(A_OVER_B, requires=(Condition(parse("gone/a"), ">", 1.0, why="?"),)), "open", True, None),
            (make_claim(part="extension"), "open", None, None),
            (make_claim(A_OVER_B, figure=[HIT], part="extension"), "answered: yes", True, True),
            (make_claim(B_OVER_A, figure=[MISS], part="extension"), "answered: no", False, False),
            (make_claim(A_OVER_B, figure=[MISS], part="extension"), "answered: mixed", True, False),
        ],
    )
    def test_every_verdict(self, claim: Claim, verdict: str, direction: bool | None, figure: bool | None) -> None:
        row = judge_one(claim, BOTH)
        assert (row.verdict, row.direction, row.figure) == (verdict, direction, figure)

    def test_why_names_what_is_missing(self) -> None:
        row = judge_one(make_claim(more("one/a{k=1}", "gone/x")), BOTH)
        assert row.why == "no result for one/a{k=1}, gone/x"
        assert judge_one(make_claim(not_testable="needs 8 GPUs"), BOTH).why == "needs 8 GPUs"
        assert judge_one(make_claim(A_OVER_B, seeds=4), BOTH).why == "3 seeds, and it takes 4"
        assert judge_one(make_claim(A_OVER_B, requires=(NEEDS_LOW,)), BOTH).why == "b is too low"

    def test_division_by_zero_is_open(self) -> None:
        table = make_table(*make_runs("one", a=HIGH, b=Sample((0.0, 0.0, 0.0))))
        row = judge_one(make_claim(more("one/a", 1.0, over=parse("one/b"))), table)
        assert (row.verdict, row.why) == ("open", "division by zero in one/a / one/b > 1")

    def test_partly_open_row_shows_what_there_is(self) -> None:
        row = judge_one(make_claim(A_OVER_B), make_table(*make_runs("one", a=HIGH, b=Sample((0.5, math.nan, 0.5)))))
        assert row.ours == {"one/a": pytest.approx(0.91)}
        assert row.checks[0].missing == ("one/b",)

    def test_repetitions_are_not_seeds(self) -> None:
        a, b = (Metric(s, "s", repetitions=(0.9 * s, s, 1.1 * s)) for s in (2.0, 1.0))
        timed = Row({}, {"a": a, "b": b})
        row = judge_one(make_claim(A_OVER_B), make_table(make_file(timed)))
        assert row.n_seeds == 1
        assert row.interval["one/a"] is not None


class TestRow:
    def test_fields_are_the_design_s_and_plain_json(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        two = make_runs("two", b=Sample((0.5, 0.51)), scale="gpu")
        for file in make_runs("one", a=HIGH) + two:
            write_file(file, tmp_path / "results")
        table = Table(Store(tmp_path / "results", tmp_path / "local").load())
        record = judge_one(make_claim(more("one/a", "two/b"), figure=[HIT], fitted=True), table).to_json()
        assert list(record)[:11] == DESIGN_FIELDS
        assert set(record) == {*DESIGN_FIELDS, "claim", "fitted", "why", "robustness", "local", "checks"}
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert record["ours"] == {"one/a": pytest.approx(0.91), "two/b": pytest.approx(0.505)}
        assert record["interval"]["one/a"] == pytest.approx(list(HIGH.interval or ()))
        assert (record["n_seeds"], record["scale"]) == (2, "mixed")
        names = [f"one/seed-{i}_cpu.json" for i in range(3)] + [f"two/seed-{i}_gpu.json" for i in range(2)]
        assert record["evidence"] == [f"results/{name}" for name in names]
        assert record["command"] == "ematrace reproduce C01 --scale gpu"  # as the runs of `two` needed it
        assert (record["fitted"], record["local"], record["robustness"]) == (True, None, None)
        assert [check["holds"] for check in record["checks"]] == [True, True]

    def test_evidence_outside_the_working_directory_is_absolute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        (file,) = make_runs("one", a=Sample((0.9,)))
        path = write_file(file, tmp_path)
        row = judge_one(make_claim(more("one/a", 0.5)), Table(Store(tmp_path, tmp_path / "local").load()))
        assert row.evidence == (str(path.resolve()),)
        assert row.scale == "cpu"


@pytest.mark.parametrize(
    ("a", "b", "verdict", "beyond"),
    [
        (0.20, 0.20, "not reproduced", 0),  # beyond .1 twice, on one side
        (0.20, 0.05, "undecided", 1),
        (0.20, -0.20, "undecided", 2),
        (0.05, 0.05, "reproduced", 0),
        (0.099, 0.05, "undecided", 0),  # the interval reaches past .1
    ],
)
def test_a_group_is_refuted_as_a_whole(a: float, b: float, verdict: str, beyond: int) -> None:
    """Two versions of one comparison, such as with and without matched parameters."""
    noise = (-0.01, 0.0, 0.01)
    samples = {"a": Sample(tuple(a + x for x in noise)), "b": Sample(tuple(b - x for x in noise))}
    claim = make_claim(*(more(f"one/{name}", 0.0, "within", by=0.1, group="both") for name in samples))
    row = judge_one(claim, make_table(*make_runs("one", **samples)))
    assert row.verdict == verdict
    why = f"{beyond} of 2 comparisons do not hold, but cannot refute it by themselves"
    assert row.why == (why if beyond else None)


def test_pairs_count_the_seeds_that_both_have() -> None:
    """A claim that takes four is not judged on three pairs, though either side has five seeds or more."""
    noise = (0.0, 0.01, 0.02, 0.03, 0.04)
    files = make_runs("one", a=Sample(tuple(0.9 + x for x in noise)))
    files += make_runs("one", [2, 3, 4, 5, 6], b=Sample(tuple(0.5 - x for x in noise)))
    row = judge_one(make_claim(A_OVER_B, seeds=4), make_table(*files))
    assert (row.n_seeds, row.verdict, row.why) == (3, "undecided", "3 seeds, and it takes 4")
    assert judge_one(make_claim(A_OVER_B, seeds=3), make_table(*files)).verdict == "reproduced"
    figure = PaperFigure(parse("one/a"), 0.41, "accuracy", minus=parse("one/b"))
    assert judge_one(make_claim(figure=[figure]), make_table(*files)).n_seeds == 3


def test_seeds_that_settings_were_chosen_on_are_no_evidence() -> None:
    """A rate that was swept on such a seed would make the selector ambiguous, too."""
    runs = make_runs("one", a=HIGH, factors={"lr": 1})
    swept = make_runs("one", (1000,), a=Sample((0.1,)), factors={"lr": 2})
    claims = Claims((make_claim(more("one/a", 0.5)),), unpublished=Unpublished(1000))
    (row,) = build_ledger(make_table(*runs, *swept), claims)
    assert (row.verdict, row.n_seeds) == ("reproduced", 3)


class TestChoiceOfCells:
    """`test_results_select.py` has the rule: most seeds, then this machine's, then the newest."""

    claim = make_claim(more("one/a", 0.5))

    def runs(self, seeds: int, mean: float, **changes: Any) -> list[CellFile]:
        values = tuple(mean + 0.001 * (i - (seeds - 1) / 2) for i in range(seeds))
        return make_runs("one", a=Sample(values), **changes)

    def test_the_row_is_judged_on_the_best_and_on_this_machine_s(self) -> None:
        row = judge_one(self.claim, make_table(*self.runs(5, 0.9), local=self.runs(3, 0.1)))
        assert (row.verdict, row.n_seeds) == ("reproduced", 5)
        assert row.local is not None
        assert (row.local.verdict, row.local.n_seeds) == ("not reproduced", 3)
        assert row.to_json()["local"]["ours"]["one/a"] == pytest.approx(0.1)
        assert judge_one(self.claim, make_table(*self.runs(3, 0.9), local=self.runs(5, 0.1))).n_seeds == 5
        assert judge_one(self.claim, make_table(*self.runs(5, 0.9))).local is None

    def test_local_finding_does_not_borrow_recorded_cells(self) -> None:
        recorded = make_runs("one", a=HIGH) + make_runs("two", b=LOW)
        row = judge_one(make_claim(more("one/a", "two/b")), make_table(*recorded, local=make_runs("one", a=HIGH)))
        assert row.verdict == "reproduced"
        assert row.local is not None
        assert row.local.verdict == "open"

    def test_defaults_choose_among_cells_that_have_the_factor(self) -> None:
        own = self.runs(2, 0.9, factors={"grammar": "default"})
        other = self.runs(5, 0.1, factors={"grammar": "other"})
        row = judge_one(self.claim, make_table(*own, *other))
        assert (row.n_seeds, row.verdict) == (2, "reproduced")
        assert judge_one(self.claim, make_table(*self.runs(2, 0.9))).n_seeds == 2


def robustness(claim: Claim, **columns: tuple[float, ...]) -> Any:
    """Each column has a value per draw."""
    samples = {name: Sample(values) for name, values in columns.items()}
    return judge_one(claim, make_table(*make_runs("one", factors={"grammar": "drawn"}, **samples))).to_json()[
        "robustness"
    ]


class TestRobustness:
    def test_share_by_hand(self) -> None:
        claim = make_claim(
            more("one/a", "one/b"),  # holds in 1, 2, 4; a tie in 3 does not
            more("one/a", "one/c", "not >"),  # holds in 2, 3; a tie in 3 does
        )
        found = robustness(claim, a=(0.9, 0.5, 0.4, 0.8), b=(0.1, 0.4, 0.4, 0.7), c=(0.8, 0.6, 0.4, 0.1))
        assert (found["holds"], found["conditions"], found["share"]) == (1, 4, 0.25)
        assert [check["holds"] for check in found["checks"]] == [3, 2]
        assert [check["share"] for check in found["checks"]] == [0.75, 0.5]
        assert found["checks"][0]["predicate"] == "one/a > one/b"
        assert len(found["evidence"]) == 4

    def test_by_over_and_numbers(self) -> None:
        a, b = (0.5, 0.6, 0.9), (0.45, 0.45, 0.90)
        by = robustness(make_claim(more("one/a", "one/b", "<", by=0.1)), a=a, b=b)
        assert (by["holds"], by["conditions"]) == (2, 3)
        assert robustness(make_claim(more("one/a", 1.2, over=parse("one/b"))), a=a, b=b)["holds"] == 1

    @pytest.mark.parametrize(("op", "holds"), [("<=", 2), (">=", 2), ("==", 1), ("<", 1)])
    def test_other_ops(self, op: str, holds: int) -> None:
        found = robustness(make_claim(more("one/a", "one/b", op)), a=(1.0, 2.0, 3.0), b=(2.0, 2.0, 2.0))
        assert found["holds"] == holds

    def test_draw_without_a_value_is_left_out(self) -> None:
        claim = make_claim(more("one/a", 0.5), more("one/b", 0.5))
        found = robustness(claim, a=(0.9, math.nan, 0.9), b=(0.9, 0.9, 0.1))
        assert (found["holds"], found["conditions"]) == (1, 2)
        assert [(c["holds"], c["conditions"]) for c in found["checks"]] == [(2, 2), (2, 3)]

    def test_draw_that_an_experiment_did_not_see_is_left_out(self) -> None:
        found = robustness(make_claim(A_OVER_B), a=(0.9, 0.8, 0.1), b=(0.1, 0.2))
        assert (found["holds"], found["conditions"]) == (2, 2)

    def test_nothing_to_test_gives_none(self) -> None:
        assert robustness(make_claim(A_OVER_B), a=(0.9, 0.8)) is None
        assert robustness(make_claim(A_OVER_B), a=(0.9, 0.8), b=(math.nan, math.nan)) is None
        assert robustness(make_claim(figure=[HIT]), a=(0.9, 0.8)) is None
        assert judge_one(make_claim(A_OVER_B), BOTH).robustness is None

    def test_a_few_own_draws_do_not_mix_with_the_recorded_ones(self) -> None:
        drawn = {"factors": {"grammar": "drawn"}}
        recorded = make_runs("one", a=Sample((0.9, 0.9, 0.1)), **drawn)
        table = make_table(*recorded, local=make_runs("one", a=Sample((0.1, 0.1)), **drawn))
        found = judge_one(make_claim(more("one/a", 0.5)), table).robustness
        assert found is not None
        assert (found.all.holds, found.all.conditions) == (2, 3)

    def test_drawn_cells_are_not_evidence(self) -> None:
        files = make_runs("one", a=Sample((1.0, 1.0)), b=Sample((0.0, 0.0)), factors={"grammar": "drawn"})
        row = judge_one(make_claim(A_OVER_B), make_table(*files))
        assert row.verdict == "open"
        assert row.to_json()["robustness"]["share"] == 1.0


class TestPaperClaims:
    def test_no_claim_is_ever_missing(self) -> None:
        rows = build_ledger(make_table())
        assert [row.id for row in rows] == [claim.id for claim in load_claims()]
        assert {row.verdict for row in rows} == {"open", "not testable here"}
        assert [row.id for row in rows if row.verdict != "open"] == ["C23"]

    def test_on_made_up_cells(self) -> None:
        # C41 is false by construction here: 512-d probes have fewer parameters. C16 has ties only, and one collapse.
        sizes = {("l0", 1024): 14000.0, ("traces", 1024): 14000.0, ("traces", 512): 7000.0}
        parameters = [
            make_row({"parameters": count}, representation=name, dimensions=d) for (name, d), count in sizes.items()
        ]
        rules = ("frozen", "sanger", "foldiak", "pghu", "forward_forward")
        swept = {"weight_pr": 60.0, "code_pr": 60.0, "rates_swept": 4.0}
        tied = [
            [make_row({"within": v, "transfer": v, **swept}, rule=rule) for rule in rules] for v in (0.5, 0.52, 0.53)
        ]
        for rows, v in zip(tied, (0.9, 0.91, 0.92), strict=True):  # better, but of rank 1
            rows[2] = make_row({"within": v, "transfer": v, **swept, "code_pr": 1.1}, rule="foldiak")
        table = make_table(
            *(make_file(*parameters, experiment="dimension_control", seed=seed) for seed in range(3)),
            *(make_file(*rows, experiment="feedforward_rules", seed=seed) for seed, rows in enumerate(tied)),
        )
        rows = {row.id: row for row in build_ledger(table)}
        assert rows["C41"].verdict == "not reproduced"
        assert [check.holds for check in rows["C41"].checks] == [True, False]
        assert rows["C16"].verdict == "reproduced"
        assert rows["C01"].verdict == "open"


# Of claims whose predicates and results are the same since: those of the formal grammar were measured again.
BEFORE = {row["id"]: row for row in json.loads((Path(__file__).parent / "data/ledger_v0.1.json").read_text())}


@pytest.fixture(scope="module")
def ledger() -> dict[str, dict[str, Any]]:
    """On the recorded results alone."""
    return {row.id: row.to_json() for row in build_ledger(Table(recorded_cells()))}


@pytest.mark.parametrize("id", BEFORE)
def test_figures_are_those_of_version_0_1(ledger: dict[str, dict[str, Any]], id: str) -> None:
    """The same results gave the same numbers before they were kept as cells."""
    now, before = ledger[id], BEFORE[id]
    for field in ("verdict", "direction", "figure"):
        assert now[field] == before[field]
    assert now["n_seeds"] == before["n_seeds"]
    assert len(now["checks"]) == len(before["checks"])
    for check, old in zip(now["checks"], before["checks"], strict=True):
        for field in ("kind", "method", "holds"):
            assert check[field] == old[field]
        for field in ("left", "right", "difference", "interval"):
            expected = old[field] if old[field] is None else pytest.approx(old[field], rel=1e-9, abs=1e-12)
            assert check[field] == expected, (check["predicate"], field)
    assert now["robustness"] is before["robustness"] is None


def test_every_claim_is_a_row(ledger: dict[str, dict[str, Any]]) -> None:
    assert list(ledger) == [claim.id for claim in load_claims()]
    assert len(ledger) == 50


def test_counts_in_the_readme_are_those_of_the_ledger(ledger: dict[str, dict[str, Any]]) -> None:
    """Those of the small-scale claims, and those of the others."""
    claims = load_claims()
    found: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for id, row in ledger.items():
        found[claims[id].part == "small"][row["verdict"]] += 1
    text = " ".join((Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8").split())
    small = re.search(r"Of the paper's (\d+) .*?\*\*(.*?)\*\*", text)
    large = re.search(r"Of the (\d+) about .*?\*\*(.*?)\*\*", text)
    assert small is not None
    assert large is not None
    verdict = "reproduced|direction only|not reproduced|undecided|not testable here|open|answered \\w+"
    for verdicts, said in ((found[True], small), (found[False], large)):
        counts = re.findall(rf"(\d+) (?:in )?({verdict})", said[2])
        assert {what.replace("answered", "answered:"): int(n) for n, what in counts} == verdicts
        assert int(said[1]) == verdicts.total()


def test_a_difference_of_the_other_sign_counts_in_c40_too(ledger: dict[str, dict[str, Any]]) -> None:
    (of_c10,) = (check for check in ledger["C10"]["checks"] if check["kind"] == "direction")
    failed = {
        check["predicate"].removesuffix(" over tokens") for check in ledger["C40"]["checks"] if not check["holds"]
    }
    assert (of_c10["holds"], ledger["C40"]["verdict"]) == (False, "not reproduced")
    assert of_c10["predicate"] in failed


def test_seeds_that_were_looked_at_before_do_not_count() -> None:
    """Seeds 0 and 1 would refute it; from seed 2 on it holds, once there are enough."""
    values = Sample((0.1, 0.1, 0.7, 0.71, 0.72))
    claim = replace(make_claim(more("one/x", 0.5)), first_seed=2, seeds=3)
    row = judge_one(claim, make_table(*make_runs("one", x=values)))
    assert (row.verdict, row.n_seeds) == ("reproduced", 3)
    assert row.ours["one/x"] == pytest.approx(0.71)
    assert judge_one(replace(claim, seeds=4), make_table(*make_runs("one", x=values))).verdict == "undecided"
    assert judge_one(replace(claim, first_seed=5), make_table(*make_runs("one", x=values))).verdict == "open"


class TestAmbiguity:
    """An arm at two learning rates."""

    swept = (
        make_file(make_row({"a": 0.9}), factors={"lr": 0.1}),
        make_file(make_row({"a": 0.9}), seed=1, factors={"lr": 0.2}),
        make_file(make_row({"b": 0.9}), experiment="two"),
    )

    def rows(self, *claims: Claim) -> list[LedgerRow]:
        return build_ledger(make_table(*self.swept, local=self.swept), Claims(claims))

    def test_only_its_own_claims_are_open(self) -> None:
        spoilt = replace(make_claim(more("two/b", 0.5), more("one/a", 0.5)), id="C02")
        row, other = self.rows(spoilt, make_claim(more("two/b", 0.5)))
        for found in (row, row.local):
            assert found is not None
            assert (found.verdict, found.direction) == ("open", None)
            assert found.why is not None
            assert found.why.startswith("one/a: factor 'lr' has several values (0.1 in ")
            assert all(file.name in found.why for file in self.swept[:2])
            assert found.why.isprintable()
            assert found.ours == {"two/b": 0.9}
        assert other.verdict == "reproduced"

    def test_what_is_not_testable_stays_so(self) -> None:
        (row,) = self.rows(make_claim(more("one/a", 0.5), not_testable="no data"))
        assert (row.verdict, row.why) == ("not testable here", "no data")

    def test_a_drawn_grammar_with_two_arms_does_not_count(self) -> None:
        drawn = [
            make_file(make_row({"a": 0.9}), seed=seed, factors={"grammar": "drawn", "lr": lr})
            for seed, lr in ((0, 0.1), (0, 0.2), (1, 0.1))
        ]
        robustness = judge_one(make_claim(more("one/a", 0.5)), make_table(*drawn)).robustness
        assert robustness is not None
        assert (robustness.all.holds, robustness.all.conditions) == (1, 1)


class TestFamily:
    """Eight comparisons `x < 0.5`, one of which is refuted alone with p = .01."""

    def claim(self, holm: bool) -> Claim:
        return make_claim(*(more(f"one/x{i}", 0.5, "<") for i in range(8)), holm=holm)

    def runs(self, refuted: Sample) -> Table:
        return make_table(*make_runs("one", x0=refuted, **{f"x{i}": Sample((0.1, 0.12, 0.11)) for i in range(1, 8)}))

    def test_holm_takes_back_what_one_of_many_would_show(self) -> None:
        table = self.runs(Sample((0.56, 0.60, 0.58)))  # t = 6.9 on 2 degrees of freedom: p = .01, times 8
        assert judge_one(self.claim(holm=False), table).verdict == "not reproduced"
        row = judge_one(self.claim(holm=True), table)
        assert row.verdict == "undecided"
        assert [check.undecided for check in row.checks] == [True] + [False] * 7
        assert row.checks[0].p_against == pytest.approx(0.0102, abs=1e-4)

    def test_what_is_beyond_doubt_still_refutes(self) -> None:
        assert judge_one(self.claim(holm=True), self.runs(Sample((0.580, 0.581, 0.582)))).verdict == "not reproduced"


def test_an_alternative_counts_on_drawn_grammars() -> None:
    either = more("one/a", 0.5, "<", unless=more("one/b", 0.5, "<"))
    drawn = [
        make_file(make_row({"a": a, "b": b}), seed=i, factors={"grammar": "drawn"})
        for i, (a, b) in enumerate([(0.4, 0.9), (0.9, 0.4), (0.9, 0.9)])
    ]
    robustness = judge_one(make_claim(either), make_table(*drawn)).robustness
    assert robustness is not None
    assert (robustness.all.holds, robustness.all.conditions) == (2, 3)
