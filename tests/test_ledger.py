"""The ledger on results made by hand, whose outcome is known before the code runs."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import ematrace.ledger.results as results_module
from ematrace.ledger import (
    Check,
    Claim,
    ClaimsError,
    Direction,
    Evidence,
    Figure,
    LedgerRow,
    PaperFigure,
    Provenance,
    Result,
    ResultError,
    Store,
    build_ledger,
    check_direction,
    check_figure,
    collect_provenance,
    load_claims,
    read_result,
    tolerance_band,
    write_result,
)

IDS = [f"C{i:02d}" for i in range(1, 19)] + [f"C{i}" for i in range(20, 47)] + [f"F{i}" for i in range(1, 6)]
# Of `ematrace ledger --json`, in DESIGN.md.
DESIGN_FIELDS = [
    *("id", "paper", "ours", "interval", "n_seeds", "direction", "figure", "verdict", "scale", "evidence"),
    "command",
]

PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="abc",
    dirty=False,
    hardware={"cpu": "x", "cores": 2},
    versions={"python": "3.11"},
    seconds=1.5,
    peak_memory_mb=12.0,
)


def make_result(experiment: str = "one", seeds: int = 3, date: str = PROVENANCE.date, **other: Any) -> Result:
    fields: dict[str, Any] = {
        "experiment": experiment,
        "title": "A title",
        "claims": ("C01",),
        "scale": "cpu",
        "command": "ematrace reproduce one",
        "settings": {"k": 61, "rates": [0.3, 0.02]},
        "seeds": tuple(range(seeds)),
        "figures": {},
        "provenance": Provenance(**{**vars(PROVENANCE), "date": date}),
    }
    return Result(**{**fields, **other})


def lookup_in(*results: Result) -> Any:
    """What the ledger's own lookup does, with every result in a file of its own."""

    def lookup(ref: str) -> Evidence | None:
        experiment, figure = ref.split("/")
        for result in results:
            if result.experiment == experiment and figure in result.figures:
                return Evidence(result.figures[figure], Path(f"{experiment}.json"), result.seeds)
        return None

    return lookup


def compare(op: str, left: Figure, right: Figure | float, same_file: bool = True, by: float = 0.0) -> Check:
    """`left op right (+ by)` with both figures in one file, or in one each."""
    name = "one" if same_file else "two"
    figures = {"one": {"left": left}}
    if isinstance(right, Figure):
        figures.setdefault(name, {})["right"] = right
    results = [
        make_result(experiment, max(len(f.values) for f in content.values()), figures=content)
        for experiment, content in figures.items()
    ]
    target: str | float = f"{name}/right" if isinstance(right, Figure) else right
    return check_direction(Direction("one/left", op, target, by=by), lookup_in(*results))


def figure_check(ours: Figure, paper: float, kind: str = "accuracy") -> Check:
    result = make_result(seeds=len(ours.values), figures={"x": ours})
    return check_figure(PaperFigure("one/x", paper, kind), lookup_in(result))


class TestFigure:
    def test_mean_and_sd_over_seeds(self) -> None:
        figure = Figure((0.1, 0.2, 0.6))
        assert figure.mean == pytest.approx(0.3)
        assert figure.sd == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1))

    def test_interval_over_seeds_is_students(self) -> None:
        expected = stats.ttest_1samp([0.1, 0.2, 0.6], 0).confidence_interval(0.95)
        assert Figure((0.1, 0.2, 0.6), n=100).interval == pytest.approx(tuple(expected))

    def test_interval_of_one_seed_is_wilsons(self) -> None:
        expected = stats.binomtest(30, 100).proportion_ci(0.95, method="wilson")
        assert Figure((0.3,), n=100).interval == pytest.approx(tuple(expected))

    def test_nothing_known_gives_no_interval(self) -> None:
        assert Figure((0.3,)).interval is None
        assert Figure((0.3, math.nan)).interval is None
        assert math.isnan(Figure((0.3, math.nan)).mean)

    def test_identical_seeds_have_a_mean_without_rounding(self) -> None:
        figure = Figure((0.1,) * 3)
        assert figure.mean == 0.1
        assert figure.sd == 0.0
        assert figure.interval == (0.1, 0.1)


class TestResultFiles:
    def full_result(self) -> Result:
        return make_result(
            figures={"l0+traces.within": Figure((0.1, 0.2, 1 / 3), n=21234), "loss": Figure((5.2, 5.3, 5.4))}
        )

    def test_round_trip(self) -> None:
        result = self.full_result()
        assert Result.from_json(result.to_json()) == result

    def test_schema_is_the_documented_one(self) -> None:
        record = json.loads(self.full_result().to_json())
        assert set(record) == {
            *("schema", "experiment", "title", "claims", "scale", "command", "settings", "seeds", "figures"),
            *("conditions", "provenance"),
        }
        assert record["schema"] == 1
        assert record["figures"]["l0+traces.within"] == {"values": [0.1, 0.2, 1 / 3], "n": 21234}
        assert set(record["provenance"]) == {
            *("date", "commit", "dirty", "hardware", "versions", "seconds", "peak_memory_mb"),
        }

    def test_missing_value_is_null_both_ways(self) -> None:
        text = make_result(figures={"x": Figure((0.5, math.nan, 0.7))}).to_json()
        assert json.loads(text)["figures"]["x"]["values"] == [0.5, None, 0.7]
        values = Result.from_json(text).figures["x"].values
        assert values[::2] == (0.5, 0.7)
        assert math.isnan(values[1])

    def test_conditions_round_trip_one_value_each(self) -> None:
        result = make_result(
            "robustness",
            seeds=1,
            conditions=({"share": 0.5}, {"share": 0.6}),
            figures={"one/x": Figure((1.0, 2.0))},
        )
        assert Result.from_json(result.to_json()) == result

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"schema": 2}, "schema"),
            ({"experiment": "a/b"}, "experiment"),
            ({"title": 3}, "title"),
            ({"claims": ["C01", 2]}, "claims[1]"),
            ({"scale": "tpu"}, "scale"),
            ({"settings": None}, "settings"),
            ({"seeds": []}, "seeds"),
            ({"seeds": [0, 0, 1]}, "seeds"),
            ({"seeds": [0, 1, True]}, "seeds[2]"),
            ({"seeds": [0, 1, 2.5]}, "seeds[2]"),
            ({"figures": {"x": {"values": [1.0, 2.0], "n": None}}}, "figures.x.values"),
            ({"figures": {"x": {"values": [1, 2, "3"], "n": None}}}, "figures.x.values[2]"),
            ({"figures": {"x": {"values": [1, 2, True], "n": None}}}, "figures.x.values[2]"),
            ({"figures": {"x": {"values": [0.1, 0.2, 1.3], "n": 10}}}, "figures.x.values"),
            ({"figures": {"x": {"values": [0.1, 0.2, 0.3], "n": 0}}}, "figures.x.values"),
            ({"figures": {"x": {"values": [0.1, 0.2, 0.3], "n": -1}}}, "figures.x.n"),
            ({"figures": {"x": {"values": [0.1, 0.2, 0.3]}}}, "figures.x.n"),
            ({"figures": {"x": {"values": [0.1, 0.2, 0.3], "n": 1, "sd": 0}}}, "figures.x.sd"),
            ({"figures": {"x": [0.1]}}, "figures.x"),
            ({"conditions": [{}, {}]}, "figures.loss.values"),
            ({"extra": 1}, "extra"),
            ({"provenance": {**vars(PROVENANCE), "date": "yesterday"}}, "provenance.date"),
            ({"provenance": {**vars(PROVENANCE), "date": "2026-01-02T03:04:05"}}, "provenance.date"),
            ({"provenance": {**vars(PROVENANCE), "seconds": "1"}}, "provenance.seconds"),
            ({"provenance": {**vars(PROVENANCE), "seconds": -1}}, "provenance.seconds"),
            ({"provenance": {**vars(PROVENANCE), "host": "h"}}, "provenance.host"),
        ],
    )
    def test_wrong_field_is_named_with_its_file(self, tmp_path: Path, change: dict[str, Any], field: str) -> None:
        record = json.loads(make_result(figures={"loss": Figure((5.2, 5.3, 5.4))}).to_json())
        path = tmp_path / "wrong.json"
        path.write_text(json.dumps({**record, **change}))
        with pytest.raises(ResultError) as caught:
            read_result(path)
        assert str(path) in str(caught.value)
        assert f"'{field}'" in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("field", json.loads(make_result().to_json()))
    def test_missing_field_is_named(self, field: str) -> None:
        record = json.loads(make_result().to_json())
        del record[field]
        with pytest.raises(ResultError, match=f"^f.json: field '{field}': missing$"):
            Result.from_json(json.dumps(record), "f.json")

    @pytest.mark.parametrize("bad", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
    def test_numbers_that_json_cannot_carry_are_refused(self, bad: str) -> None:
        text = make_result(seeds=1, figures={"x": Figure((123.5,))}).to_json()
        with pytest.raises(ResultError, match=r"^f\.json: "):
            Result.from_json(text.replace("123.5", bad), "f.json")

    def test_a_figure_given_twice_is_refused(self) -> None:
        text = make_result(seeds=1, figures={"x": Figure((1.0,)), "y": Figure((2.0,))}).to_json()
        with pytest.raises(ResultError, match="'x': given twice"):
            Result.from_json(text.replace('"y"', '"x"'))

    def test_write_names_the_file_after_the_experiment(self, tmp_path: Path) -> None:
        result = self.full_result()
        path = write_result(result, tmp_path / "deep" / "folder")
        assert path == tmp_path / "deep" / "folder" / "one.json"
        assert read_result(path) == result

    @pytest.mark.parametrize("settings", [{"x": object()}, {"x": math.nan}])
    def test_failed_serialisation_leaves_the_old_file(self, tmp_path: Path, settings: dict[str, Any]) -> None:
        path = write_result(self.full_result(), tmp_path)
        before = path.read_bytes()
        with pytest.raises(ResultError, match="field 'settings'"):
            write_result(make_result(settings=settings), tmp_path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_failed_write_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        path = write_result(self.full_result(), tmp_path)
        before = path.read_bytes()

        def fail(*_: Any) -> None:
            raise OSError("disk full")

        monkeypatch.setattr({"fsync": os, "replace": Path}[step], step, fail)
        with pytest.raises(OSError, match="disk full"):
            write_result(make_result(title="another"), tmp_path)
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    def test_numpy_numbers_in_settings_are_written(self) -> None:
        text = make_result(settings={"k": np.int64(3), "rate": np.float32(0.5)}).to_json()
        assert json.loads(text)["settings"] == {"k": 3, "rate": 0.5}


class TestProvenance:
    def test_this_machine_and_this_code(self) -> None:
        provenance = collect_provenance(2.5, date=datetime(2026, 1, 2, tzinfo=UTC))
        assert provenance.date == "2026-01-02T00:00:00+00:00"
        assert provenance.seconds == 2.5
        assert provenance.hardware["cores"] == len(os.sched_getaffinity(0))
        assert provenance.hardware["cpu"]
        assert provenance.versions["numpy"] == np.__version__
        assert set(provenance.versions) == {*("python", "numpy", "scipy", "scikit-learn", "numba", "torch", "ematrace")}
        assert provenance.peak_memory_mb is not None
        assert 10 < provenance.peak_memory_mb < 1e6
        assert Result.from_json(make_result(provenance=provenance).to_json()).provenance == provenance

    def test_outside_a_checkout_there_is_no_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(results_module, "checkout_root", lambda: None)
        provenance = collect_provenance(1.0)
        assert provenance.commit is None
        assert provenance.dirty is None

    def test_dirty_means_the_code_not_the_results(self, tmp_path: Path) -> None:
        git = results_module._git
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "code.py").write_text("x = 1\n")
        assert git(tmp_path, "init", "-q") is not None
        git(tmp_path, "add", "src")
        identity = ("-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false")
        assert git(tmp_path, *identity, "commit", "-q", "-m", "first") is not None
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "one.json").write_text("{}")
        assert results_module._git_state(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), False)
        (tmp_path / "src" / "code.py").write_text("x = 2\n")
        assert results_module._git_state(tmp_path)[1] is True


class TestStore:
    def test_folders_and_marks(self, tmp_path: Path) -> None:
        write_result(make_result("a"), tmp_path)
        write_result(make_result("b"), tmp_path / "local")
        loaded = Store(tmp_path, tmp_path / "local").load()
        assert [(s.path.name, s.result.experiment, s.local) for s in loaded] == [
            ("a.json", "a", False),
            ("b.json", "b", True),
        ]

    def test_broken_file_is_named(self, tmp_path: Path) -> None:
        write_result(make_result("a"), tmp_path)
        broken = tmp_path / "cut_short.json"
        broken.write_text((tmp_path / "a.json").read_text()[:100])
        with pytest.raises(ResultError) as caught:
            Store(tmp_path, tmp_path / "local").load()
        assert str(caught.value).startswith(f"{broken}: ")
        assert "\n" not in str(caught.value)

    def test_file_that_is_not_text_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "noise.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(ResultError, match=r"noise\.json: not UTF-8"):
            Store(tmp_path, tmp_path / "local").load()

    def test_environment_and_path_override_the_checkout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EMATRACE_RESULTS", raising=False)
        assert Store.open().recorded == Path(__file__).resolve().parents[1] / "results"
        assert Store.open().local == Path("results/local")
        (tmp_path / "env").mkdir()
        (tmp_path / "given").mkdir()
        monkeypatch.setenv("EMATRACE_RESULTS", str(tmp_path / "env"))
        assert Store.open().recorded == tmp_path / "env"
        assert Store.open(tmp_path / "given").recorded == tmp_path / "given"
        with pytest.raises(ResultError, match="nowhere"):
            Store.open(tmp_path / "nowhere")

    def test_installed_wheel_has_no_recorded_results(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EMATRACE_RESULTS", raising=False)
        monkeypatch.setattr(results_module, "checkout_root", lambda: None)
        assert Store.open(local=tmp_path).recorded is None
        assert Store.open(local=tmp_path).load() == []

    def test_one_folder_given_as_both_is_local(self, tmp_path: Path) -> None:
        write_result(make_result("a"), tmp_path)
        assert [s.local for s in Store(tmp_path, tmp_path).load()] == [True]


class TestClaims:
    def test_every_claim_is_there_in_order(self) -> None:
        assert [claim.id for claim in load_claims()] == IDS

    def test_predicates_are_read_as_written(self) -> None:
        claims = {claim.id: claim for claim in load_claims()}
        assert claims["C08"].direction == (
            Direction("trace_probe/l0+traces.within", ">", 0.9, over="supervised/bigru.within"),
        )
        assert claims["C18"].direction[1] == Direction(
            "lag_decoding/slow.lag1", "<", "lag_decoding/majority.lag1", by=0.10
        )
        assert claims["C04"].figure[0] == PaperFigure(
            "trace_probe/l0+traces.within", 0.165, "accuracy", minus="trace_probe/l0.within"
        )
        assert claims["C01"].fitted
        assert not claims["C16"].fitted
        assert claims["C08"].experiments == ("trace_probe", "supervised")

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            ('direction = [{ left = "a/b", op = "=>", right = 1 }]', "unknown op '=>'"),
            ('direction = [{ left = "a/b", op = ">", right = 1, typo = 1 }]', "unknown field 'typo'"),
            ('direction = [{ left = "a/b", op = ">" }]', "'right' is missing"),
            ('direction = [{ left = "ab", op = ">", right = 1 }]', "not of the form experiment/figure"),
            ('direction = [{ left = "a/b", op = ">", right = true }]', "'right' is not a number"),
            ('direction = [{ left = "a/b", op = "<=", right = 1, by = 0.1 }]', "'by' has no meaning"),
            ('figure = [{ of = "a/b", paper = 1, kind = "acuracy" }]', "unknown kind 'acuracy'"),
            ('figure = [{ of = "a/b", paper = "1", kind = "speed" }]', "'paper' is not a number"),
            ('figure = [{ of = "a/b", paper = 1, kind = "speed", minus = "a/c", over = "a/d" }]', "exclude"),
            ("figure = 3", "'figure' is not a list"),
            ('directions = "x"', "unknown field 'directions'"),
            ('fitted = "yes"', "'fitted' is not true or false"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path: Path, body: str, problem: str) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(f'[C01]\npart = "small"\nclaim = "c"\npaper = "p"\n{body}\n')
        with pytest.raises(ClaimsError) as caught:
            load_claims(path)
        assert problem in str(caught.value)
        assert str(caught.value).startswith(f"{path}: C01: ")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ('[X1]\npart = "small"\nclaim = "c"\npaper = "p"', "X1"),
            ('[C01]\npart = "tiny"\nclaim = "c"\npaper = "p"', "unknown part 'tiny'"),
            ('[C01]\npart = "small"\npaper = "p"', "'claim' is missing"),
            ("[C01\n", "mine.toml"),
        ],
    )
    def test_broken_claims_are_refused(self, tmp_path: Path, text: str, problem: str) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        with pytest.raises(ClaimsError, match=problem):
            load_claims(path)


HIGH, LOW = Figure((0.90, 0.91, 0.92)), Figure((0.50, 0.52, 0.53))
NOISY_HIGH, NOISY_LOW = Figure((0.40, 0.60, 0.95)), Figure((0.60, 0.45, 0.55))


class TestDirection:
    @pytest.mark.parametrize("same_file", [True, False])
    @pytest.mark.parametrize(
        ("op", "left", "right", "holds"),
        [
            (">", HIGH, LOW, True),
            (">", LOW, HIGH, False),
            (">", NOISY_HIGH, NOISY_LOW, False),
            ("<", LOW, HIGH, True),
            ("<", HIGH, LOW, False),
            ("<", NOISY_LOW, NOISY_HIGH, False),
            ("not >", HIGH, LOW, False),
            ("not >", LOW, HIGH, True),
            ("not >", NOISY_HIGH, NOISY_LOW, True),
        ],
    )
    def test_comparison_of_figures(self, op: str, left: Figure, right: Figure, holds: bool, same_file: bool) -> None:
        assert compare(op, left, right, same_file).holds is holds

    def test_record_of_a_comparison(self) -> None:
        check = compare("<", LOW, HIGH, same_file=False)
        welch = stats.ttest_ind(LOW.values, HIGH.values, equal_var=False).confidence_interval(0.95)
        assert check.predicate == "one/left < two/right"
        assert check.left == pytest.approx(LOW.mean)
        assert check.right == pytest.approx(HIGH.mean)
        assert check.difference == pytest.approx(LOW.mean - HIGH.mean)
        assert check.interval == pytest.approx(tuple(welch))
        assert check.method == "welch"

    def test_pairing_finds_what_welch_cannot(self) -> None:
        # Seeds differ by much more than the two figures do, but the gain is there in every seed.
        left, right = Figure((0.30, 0.50, 0.70, 0.90)), Figure((0.29, 0.485, 0.69, 0.885))
        paired, unpaired = compare(">", left, right), compare(">", left, right, same_file=False)
        assert (paired.holds, paired.method) == (True, "paired")
        assert (unpaired.holds, unpaired.method) == (False, "welch")
        expected = stats.ttest_rel(left.values, right.values).confidence_interval(0.95)
        assert paired.interval == pytest.approx(tuple(expected))

    def test_other_seeds_are_not_paired(self) -> None:
        evidence = {
            "one/left": Evidence(HIGH, Path("one.json"), (0, 1, 2)),
            "one/right": Evidence(LOW, Path("one.json"), (3, 4, 5)),
        }
        assert check_direction(Direction("one/left", ">", "one/right"), evidence.get).method == "welch"

    def test_single_seeds_use_newcombe(self) -> None:
        # Newcombe (1998), Table II, contrast (a): 56/70 against 48/80, method 10 gives .0524 to .3339.
        check = compare(">", Figure((56 / 70,), 70), Figure((48 / 80,), 80))
        assert check.method == "newcombe"
        assert check.interval == pytest.approx((0.0524, 0.3339), abs=5e-5)
        assert check.holds is True
        assert compare(">", Figure((0.8,), 10), Figure((0.6,), 10)).holds is False

    def test_seeds_against_tokens_add_their_variances(self) -> None:
        seeds, tokens = Figure((0.70, 0.72, 0.74, 0.76)), Figure((0.6,), 400)
        lo, hi = stats.binomtest(240, 400).proportion_ci(0.95, method="wilson")
        z = stats.norm.ppf(0.975)
        over_seeds, over_tokens = np.var(seeds.values, ddof=1) / 4, ((hi - lo) / 2 / z) ** 2
        df = 3 * ((over_seeds + over_tokens) / over_seeds) ** 2  # Welch-Satterthwaite, no loss from the tokens' part
        half = stats.t.ppf(0.975, df) * math.sqrt(over_seeds + over_tokens)
        for same_file in (True, False):
            check = compare(">", seeds, tokens, same_file)
            assert check.method == "mixed"
            assert check.interval == pytest.approx((0.13 - half, 0.13 + half))
            assert check.holds is True
        assert compare(">", seeds, Figure((0.6,), 20)).holds is False

    def test_single_value_without_tokens_is_a_point(self) -> None:
        check = compare(">", Figure((0.7,)), Figure((0.69,), 50))
        assert (check.interval, check.method, check.holds) == (None, "point", True)
        assert compare(">", Figure((0.69,)), Figure((0.69,))).holds is False

    @pytest.mark.parametrize("same_file", [True, False])
    def test_no_variation_is_a_point(self, same_file: bool) -> None:
        check = compare(">", Figure((0.3, 0.3, 0.3)), Figure((0.2, 0.2, 0.2)), same_file)
        assert (check.interval, check.method, check.holds) == (None, "point", True)
        assert compare(">", Figure((0.3, 0.3)), Figure((0.3, 0.3)), same_file).holds is False
        assert compare("not >", Figure((0.3, 0.3)), Figure((0.3, 0.3)), same_file).holds is True

    def test_variation_on_one_side_is_enough_for_welch(self) -> None:
        check = compare(">", Figure((1.0, 1.0, 1.0)), NOISY_HIGH, same_file=False)
        assert (check.method, check.holds) == ("welch", False)

    @pytest.mark.parametrize(
        ("values", "n", "op", "number", "holds"),
        [
            ((0.10, 0.11, 0.12), None, ">", 0.05, True),
            ((0.01, 0.11, 0.21), None, ">", 0.05, False),
            ((0.01, 0.11, 0.21), None, "not >", 0.05, True),
            ((0.10, 0.11, 0.12), None, "<", 0.5, True),
            ((0.10,), 1000, ">", 0.05, True),
            ((0.10,), 20, ">", 0.05, False),
            ((0.051,), None, ">", 0.05, True),
            ((0.05, 0.05), None, ">", 0.05, False),
        ],
    )
    def test_comparison_with_a_number(
        self, values: tuple[float, ...], n: int | None, op: str, number: float, holds: bool
    ) -> None:
        assert compare(op, Figure(values, n), number).holds is holds

    def test_interval_against_a_number_is_that_of_the_difference(self) -> None:
        check = compare(">", Figure((0.1, 0.2, 0.6)), 0.05)
        lo, hi = stats.ttest_1samp([0.1, 0.2, 0.6], 0.05).confidence_interval(0.95)
        assert check.interval == pytest.approx((lo - 0.05, hi - 0.05))

    @pytest.mark.parametrize(
        ("op", "by", "holds"),
        [
            ("<", 0.10, True),
            ("<", 0.03, False),
            ("<", -0.10, False),
            (">", 0.02, True),
            (">", 0.10, False),
            ("not >", 0.02, False),
            ("not >", 0.10, True),
        ],
    )
    def test_by_moves_the_right_side(self, op: str, by: float, holds: bool) -> None:
        # left - right = .05 to within .01 or so in every case
        left, right = Figure((0.35, 0.45, 0.551)), Figure((0.30, 0.40, 0.50))
        assert compare(op, left, right, by=by).holds is holds

    @pytest.mark.parametrize(
        ("values", "op", "bound", "holds"),
        [
            ((0.10, 0.11, 0.12), "<=", 0.2, True),
            ((0.10, 0.20, 0.22), "<=", 0.2, False),
            ((0.10, 0.15, 0.19), "<=", 0.2, False),
            ((0.10, 0.11, 0.12), ">=", 0.05, True),
            ((0.02, 0.11, 0.20), ">=", 0.05, False),
            ((0.2,), "<=", 0.2, True),
            ((0.1 + 0.2,), "<=", 0.3, True),
            ((0.3001,), "<=", 0.3, False),
            ((0.2, 0.2), ">=", 0.2, True),
        ],
    )
    def test_bounds_use_the_whole_interval_of_left(
        self, values: tuple[float, ...], op: str, bound: float, holds: bool
    ) -> None:
        assert compare(op, Figure(values), bound).holds is holds
        # The bound may be a figure; its own noise plays no part.
        assert compare(op, Figure(values), Figure((bound,), 10), same_file=False).holds is holds

    def test_bound_on_a_single_accuracy_uses_wilson(self) -> None:
        assert compare("<=", Figure((0.19,), 100), 0.2).holds is False
        assert compare("<=", Figure((0.19,), 100_000), 0.2).holds is True

    @pytest.mark.parametrize(
        ("left", "right", "same_file", "holds"),
        [
            ((1024.0, 1024.0), (1024.0, 1024.0), True, True),
            ((1024.0, 1024.0), (1024.0, 512.0), True, False),
            ((1.0, 2.0), (1.0, 2.0), True, True),
            ((1.0, 2.0), (2.0, 1.0), True, False),
            ((5.0,), (5.0, 5.0), False, True),
            ((5.0,), (5.0, 6.0), False, False),
            ((0.1 + 0.2,), (0.3,), True, False),
        ],
    )
    def test_equality_is_exact_in_every_seed(
        self, left: tuple[float, ...], right: tuple[float, ...], same_file: bool, holds: bool
    ) -> None:
        assert compare("==", Figure(left), Figure(right), same_file).holds is holds

    def test_equality_with_a_number(self) -> None:
        assert compare("==", Figure((7.0, 7.0)), 7).holds is True
        assert compare("==", Figure((7.0, 7.5)), 7).holds is False

    def test_over_divides_per_seed_within_a_file(self) -> None:
        figures = {"a": Figure((0.30, 0.45, 0.61)), "b": Figure((0.60, 0.90, 1.20))}
        lookup = lookup_in(make_result(figures=figures))
        check = check_direction(Direction("one/a", "<", 0.52, over="one/b"), lookup)
        ratios = [0.5, 0.5, 0.61 / 1.2]
        lo, hi = stats.ttest_1samp(ratios, 0).confidence_interval(0.95)
        assert check.left == pytest.approx(np.mean(ratios))
        assert check.interval == pytest.approx((lo - 0.52, hi - 0.52))
        assert check.holds is True

    def test_over_across_files_is_the_delta_method(self) -> None:
        a, b = Figure((0.95, 0.96, 0.97, 0.96)), Figure((0.99, 1.0, 1.0))
        lookup = lookup_in(make_result("one", 4, figures={"a": a}), make_result("two", 3, figures={"b": b}))
        check = check_direction(Direction("one/a", ">", 0.9, over="two/b"), lookup)
        va, vb = np.var(a.values, ddof=1) / 4, np.var(b.values, ddof=1) / 3
        u, v = va / b.mean**2, a.mean**2 * vb / b.mean**4
        df = (u + v) ** 2 / (u**2 / 3 + v**2 / 2)
        half = stats.t.ppf(0.975, df) * math.sqrt(u + v)
        ratio = a.mean / b.mean
        assert check.left == pytest.approx(ratio)
        assert check.interval == pytest.approx((ratio - 0.9 - half, ratio - 0.9 + half))
        assert check.holds is True

    def test_delta_method_agrees_with_simulation(self) -> None:
        rng = np.random.default_rng(0)
        a, b = Figure((0.75, 0.80, 0.85, 0.80)), Figure((0.55, 0.60, 0.65))
        lookup = lookup_in(make_result("one", 4, figures={"a": a}), make_result("two", 3, figures={"b": b}))
        check = check_figure(PaperFigure("one/a", 1.3, "accuracy", over="two/b"), lookup)
        draws = rng.normal(a.mean, a.sd / 2, 200_000) / rng.normal(b.mean, b.sd / math.sqrt(3), 200_000)
        va, vb = (a.sd / a.mean) ** 2 / 4, (b.sd / b.mean) ** 2 / 3
        df = (va + vb) ** 2 / (va**2 / 3 + vb**2 / 2)
        assert check.interval is not None
        half = (check.interval[1] - check.interval[0]) / 2
        assert half == pytest.approx(stats.t.ppf(0.975, df) * draws.std(), rel=0.02)

    def test_division_by_zero_is_open_and_says_so(self) -> None:
        lookup = lookup_in(make_result(figures={"a": HIGH, "b": Figure((0.0, 0.1, 0.2))}))
        check = check_direction(Direction("one/a", ">", 0.9, over="one/b"), lookup)
        assert (check.holds, check.method, check.missing) == (None, "undefined ratio", ())

    @pytest.mark.parametrize("right", [None, Figure((0.1, math.nan, 0.2))])
    def test_missing_figure_is_named_and_open(self, right: Figure | None) -> None:
        figures = {"a": HIGH} if right is None else {"a": HIGH, "b": right}
        check = check_direction(Direction("one/a", ">", "one/b"), lookup_in(make_result(figures=figures)))
        assert (check.holds, check.missing) == (None, ("one/b",))


class TestPaperFigure:
    @pytest.mark.parametrize(
        ("kind", "paper", "low", "high"),
        [
            ("accuracy", 0.795, 0.765, 0.825),
            ("cross_entropy", 5.21, 5.16, 5.26),
            ("perplexity", 260, 234, 286),
            ("speed", 315, 315, math.inf),
        ],
    )
    def test_tolerances_are_the_design_s(self, kind: str, paper: float, low: float, high: float) -> None:
        assert tolerance_band(paper, kind) == pytest.approx((low, high))
        assert figure_check(Figure((low,)), paper, kind).holds is True
        assert figure_check(Figure((low - 1e-4,)), paper, kind).holds is False
        assert figure_check(Figure((min(high, 1e9),)), paper, kind).holds is True
        if math.isfinite(high):
            assert figure_check(Figure((high + 1e-4,)), paper, kind).holds is False

    def test_a_value_on_the_bound_is_inside_for_every_three_digit_figure(self) -> None:
        # In binary, about half of these bounds fall just short of the decimal they stand for.
        for paper in range(1001):
            for bound in (paper - 30, paper + 30):
                assert figure_check(Figure((bound / 1000,)), paper / 1000).holds is True

    def test_the_whole_interval_must_be_inside(self) -> None:
        tight, wide = Figure((0.79, 0.80, 0.81)), Figure((0.75, 0.80, 0.85))
        assert figure_check(tight, 0.8).holds is True
        assert wide.mean == pytest.approx(tight.mean)
        assert figure_check(wide, 0.8).holds is False

    def test_speed_counts_its_lower_end(self) -> None:
        assert figure_check(Figure((320.0, 321.0, 322.0)), 315, "speed").holds is True
        assert figure_check(Figure((300.0, 321.0, 342.0)), 315, "speed").holds is False

    def test_single_accuracy_uses_wilson(self) -> None:
        assert figure_check(Figure((0.8,), 20_000), 0.8).holds is True
        assert figure_check(Figure((0.8,), 50), 0.8).holds is False

    def test_minus_is_paired_within_a_file(self) -> None:
        figures = {"a": Figure((0.5, 0.7, 0.91)), "b": Figure((0.3, 0.5, 0.7))}
        check = check_figure(
            PaperFigure("one/a", 0.2, "accuracy", minus="one/b"), lookup_in(make_result(figures=figures))
        )
        expected = stats.ttest_rel(figures["a"].values, figures["b"].values).confidence_interval(0.95)
        assert check.left == pytest.approx(0.61 / 3)
        assert check.interval == pytest.approx(tuple(expected))
        assert check.holds is True

    def test_minus_across_files_carries_the_noise_of_both(self) -> None:
        a, b = Figure((0.5, 0.7, 0.91)), Figure((0.3, 0.5, 0.7))
        lookup = lookup_in(make_result("one", figures={"a": a}), make_result("two", figures={"b": b}))
        check = check_figure(PaperFigure("one/a", 0.2, "accuracy", minus="two/b"), lookup)
        assert (check.method, check.holds) == ("welch", False)

    def test_over_is_per_seed(self) -> None:
        figures = {"a": Figure((0.48, 0.72, 0.96)), "b": Figure((0.5, 0.75, 1.0))}
        check = check_figure(
            PaperFigure("one/a", 0.96, "accuracy", over="one/b"), lookup_in(make_result(figures=figures))
        )
        assert check.left == pytest.approx(0.96)
        assert check.holds is True

    def test_missing_figure_is_open(self) -> None:
        check = check_figure(PaperFigure("one/a", 0.2, "accuracy", minus="one/b"), lookup_in())
        assert (check.holds, check.missing) == (None, ("one/a", "one/b"))

    @given(
        mean=st.floats(0.1, 0.9),
        paper=st.floats(0.1, 0.9),
        shape=st.lists(st.floats(-1, 1), min_size=2, max_size=6),
        small=st.floats(0, 0.1),
        extra=st.floats(1e-6, 0.1),
        kind=st.sampled_from(["accuracy", "cross_entropy", "perplexity", "speed"]),
    )
    def test_noise_never_turns_a_miss_into_a_hit(
        self, mean: float, paper: float, shape: list[float], small: float, extra: float, kind: str
    ) -> None:
        """With mean and shape held, widening the spread over seeds may lose the figure but never gain it.

        (Around another mean, of course, or with more seeds, a miss may become a hit.)
        """
        shape_ = np.array(shape) - np.mean(shape)

        def holds(spread: float) -> bool | None:
            return figure_check(Figure(tuple(mean + spread * shape_)), paper, kind).holds

        if holds(small) is False:
            assert holds(small + extra) is False

    @given(k=st.integers(0, 100), paper=st.floats(0, 1), factor=st.integers(2, 50))
    def test_fewer_tokens_never_turn_a_miss_into_a_hit(self, k: int, paper: float, factor: int) -> None:
        """For a single seed the share stays, the tokens shrink: a point outside the band stays outside."""
        band = tolerance_band(paper, "accuracy")
        if not band[0] - 1e-6 <= k / 100 <= band[1] + 1e-6:
            assert figure_check(Figure((k / 100,), 100 * factor), paper).holds is False
            assert figure_check(Figure((k / 100,), 100), paper).holds is False


def ledger_row(tmp_path: Path, claim: Claim, *recorded: Result, local: tuple[Result, ...] = ()) -> LedgerRow:
    for result in recorded:
        write_result(result, tmp_path)
    for result in local:
        write_result(result, tmp_path / "local")
    (row,) = build_ledger(Store(tmp_path, tmp_path / "local"), [claim])
    return row


def make_claim(*direction: Direction, figure: tuple[PaperFigure, ...] = (), part: str = "small", **other: Any) -> Claim:
    return Claim("C01", part, "the claim", "the paper's", direction=direction, figure=figure, **other)


A_OVER_B, B_OVER_A = Direction("one/a", ">", "one/b"), Direction("one/b", ">", "one/a")
HIT, MISS = PaperFigure("one/a", 0.91, "accuracy"), PaperFigure("one/a", 0.5, "accuracy")


class TestVerdicts:
    @pytest.mark.parametrize(
        ("claim", "verdict", "direction", "figure"),
        [
            (make_claim(A_OVER_B, figure=(HIT,)), "reproduced", True, True),
            (make_claim(A_OVER_B), "reproduced", True, None),
            (make_claim(figure=(HIT,)), "reproduced", None, True),
            (make_claim(A_OVER_B, figure=(HIT, MISS)), "direction only", True, False),
            (make_claim(A_OVER_B, B_OVER_A, figure=(HIT,)), "not reproduced", False, True),
            (make_claim(B_OVER_A, figure=(MISS,)), "not reproduced", False, False),
            (make_claim(figure=(MISS,)), "not reproduced", None, False),
            (make_claim(), "open", None, None),
            (make_claim(A_OVER_B, Direction("one/a", ">", "one/gone")), "open", None, None),
            (make_claim(B_OVER_A, figure=(PaperFigure("gone/a", 1, "speed"),)), "open", False, None),
            (make_claim(A_OVER_B, not_testable="needs 8 GPUs"), "not testable here", True, None),
            (make_claim(part="extension"), "open", None, None),
            (make_claim(A_OVER_B, figure=(HIT,), part="extension"), "answered: yes", True, True),
            (make_claim(B_OVER_A, figure=(MISS,), part="extension"), "answered: no", False, False),
            (make_claim(A_OVER_B, figure=(MISS,), part="extension"), "answered: mixed", True, False),
        ],
    )
    def test_every_verdict(
        self, tmp_path: Path, claim: Claim, verdict: str, direction: bool | None, figure: bool | None
    ) -> None:
        row = ledger_row(tmp_path, claim, make_result(figures={"a": HIGH, "b": LOW}))
        assert (row.verdict, row.direction, row.figure) == (verdict, direction, figure)

    def test_why_names_what_is_missing(self, tmp_path: Path) -> None:
        row = ledger_row(tmp_path, make_claim(Direction("one/a", ">", "gone/x")), make_result())
        assert row.why == "no result for one/a, gone/x"
        assert ledger_row(tmp_path, make_claim(not_testable="needs 8 GPUs")).why == "needs 8 GPUs"

    def test_division_by_zero_is_open(self, tmp_path: Path) -> None:
        zero = make_result(figures={"a": HIGH, "b": Figure((0.0, 0.0, 0.0))})
        row = ledger_row(tmp_path, make_claim(Direction("one/a", ">", 1.0, over="one/b")), zero)
        assert row.verdict == "open"
        assert row.why == "division by zero in one/a / one/b > 1"

    def test_row_has_the_design_s_fields_and_is_plain_json(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        claim = make_claim(Direction("one/a", ">", "two/b"), figure=(HIT,), fitted=True)
        row = ledger_row(
            tmp_path,
            claim,
            make_result("one", 3, figures={"a": HIGH}),
            make_result("two", 2, figures={"b": Figure((0.5, 0.51))}, scale="gpu"),
        )
        record = row.to_json()
        assert list(record)[:11] == DESIGN_FIELDS
        assert set(record) == {*DESIGN_FIELDS, "claim", "fitted", "why", "robustness", "local", "checks"}
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert record["ours"] == {"one/a": pytest.approx(0.91), "two/b": pytest.approx(0.505)}
        assert record["interval"]["one/a"] == pytest.approx(list(HIGH.interval or ()))
        assert record["n_seeds"] == 2
        assert record["scale"] == "mixed"
        assert record["evidence"] == ["one.json", "two.json"]
        assert record["command"] == "ematrace reproduce C01"
        assert record["fitted"] is True
        assert record["local"] is None
        assert [check["holds"] for check in record["checks"]] == [True, True]

    def test_evidence_outside_the_working_directory_is_absolute(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        row = ledger_row(tmp_path, make_claim(A_OVER_B), make_result(figures={"a": HIGH, "b": LOW}))
        assert row.evidence == (str((tmp_path / "one.json").resolve()),)
        assert row.scale == "cpu"

    def test_partly_open_row_shows_what_there_is(self, tmp_path: Path) -> None:
        row = ledger_row(tmp_path, make_claim(A_OVER_B), make_result(figures={"a": HIGH}))
        assert row.ours == {"one/a": pytest.approx(0.91)}
        assert row.checks[0].missing == ("one/b",)

    def test_pairing_survives_the_store(self, tmp_path: Path) -> None:
        figures = {"a": Figure((0.30, 0.50, 0.70, 0.90)), "b": Figure((0.29, 0.485, 0.69, 0.885))}
        row = ledger_row(tmp_path, make_claim(A_OVER_B), make_result(seeds=4, figures=figures))
        assert row.checks[0].method == "paired"
        assert row.verdict == "reproduced"


class TestLedger:
    def test_no_claim_is_ever_missing(self, tmp_path: Path) -> None:
        rows = build_ledger(Store(None, tmp_path / "nothing"))
        assert [row.id for row in rows] == IDS
        assert {row.verdict for row in rows} == {"open"}

    def test_real_claims_on_made_up_results(self, tmp_path: Path) -> None:
        # C41 is false by construction here: 512-d probes have fewer parameters. C16 has ties only.
        rules = ("frozen", "sanger", "foldiak", "pghu", "forward_forward")
        write_result(
            make_result(
                "dimension_control",
                figures={
                    "traces_1024.parameters": Figure((14000.0,) * 3),
                    "l0.parameters": Figure((14000.0,) * 3),
                    "traces_512.parameters": Figure((7000.0,) * 3),
                },
            ),
            tmp_path,
        )
        tied = {f"{rule}.{split}": LOW for rule in rules for split in ("within", "transfer")}
        write_result(make_result("feedforward_rules", figures=tied), tmp_path)
        rows = {row.id: row for row in build_ledger(Store(tmp_path, tmp_path / "local"))}
        assert rows["C41"].verdict == "not reproduced"
        assert [check.holds for check in rows["C41"].checks] == [True, False]
        assert rows["C16"].verdict == "reproduced"
        assert rows["C01"].verdict == "open"


class TestEvidenceChoice:
    def pick(self, tmp_path: Path, recorded: Result | None, local: Result | None) -> LedgerRow:
        return ledger_row(
            tmp_path,
            make_claim(Direction("one/a", ">", 0.5)),
            *([recorded] if recorded else []),
            local=(local,) if local else (),
        )

    def sample(self, seeds: int, mean: float, **other: Any) -> Result:
        values = tuple(mean + 0.001 * (i - (seeds - 1) / 2) for i in range(seeds))
        return make_result(seeds=seeds, figures={"a": Figure(values)}, **other)

    def test_most_seeds_win_wherever_they_are(self, tmp_path: Path) -> None:
        row = self.pick(tmp_path / "x", self.sample(5, 0.9), self.sample(3, 0.1))
        assert row.ours["one/a"] == pytest.approx(0.9)
        assert row.n_seeds == 5
        row = self.pick(tmp_path / "y", self.sample(3, 0.9), self.sample(5, 0.1))
        assert row.ours["one/a"] == pytest.approx(0.1)

    def test_a_tie_goes_to_this_machine_even_if_older(self, tmp_path: Path) -> None:
        old = self.sample(3, 0.1, date="2020-01-01T00:00:00+00:00")
        assert self.pick(tmp_path, self.sample(3, 0.9), old).ours["one/a"] == pytest.approx(0.1)

    @pytest.mark.parametrize("names", [("a.json", "b.json"), ("b.json", "a.json")])
    def test_then_the_newest_by_instant(self, tmp_path: Path, names: tuple[str, str]) -> None:
        # As text the older date sorts last: it is written in another time zone.
        older = self.sample(3, 0.1, date="2026-01-02T01:00:00+09:00")
        newer = self.sample(3, 0.9, date="2026-01-01T23:00:00+00:00")
        (tmp_path / names[0]).write_text(older.to_json())
        (tmp_path / names[1]).write_text(newer.to_json())
        assert self.pick(tmp_path, None, None).ours["one/a"] == pytest.approx(0.9)

    def test_local_verdict_stands_beside(self, tmp_path: Path) -> None:
        row = self.pick(tmp_path / "x", self.sample(5, 0.9), self.sample(3, 0.1))
        assert row.verdict == "reproduced"
        assert row.local is not None
        assert row.local.verdict == "not reproduced"
        assert row.local.n_seeds == 3
        record = row.to_json()["local"]
        assert record["verdict"] == "not reproduced"
        assert record["ours"]["one/a"] == pytest.approx(0.1)
        assert self.pick(tmp_path / "y", self.sample(5, 0.9), None).local is None

    def test_local_verdict_does_not_borrow_recorded_figures(self, tmp_path: Path) -> None:
        row = ledger_row(
            tmp_path,
            make_claim(Direction("one/a", ">", "two/b")),
            make_result("one", figures={"a": HIGH}),
            make_result("two", figures={"b": LOW}),
            local=(make_result("one", figures={"a": HIGH}),),
        )
        assert row.verdict == "reproduced"
        assert row.local is not None
        assert row.local.verdict == "open"


class TestRobustness:
    def robustness(self, tmp_path: Path, claim: Claim, **figures: tuple[float, ...]) -> Any:
        rows = max(len(values) for values in figures.values())
        result = make_result(
            "robustness",
            seeds=1,
            conditions=tuple({"draw": i} for i in range(rows)),
            figures={f"one/{name}": Figure(values) for name, values in figures.items()},
        )
        return ledger_row(tmp_path, claim, result).to_json()["robustness"]

    def test_share_by_hand(self, tmp_path: Path) -> None:
        claim = make_claim(
            Direction("one/a", ">", "one/b"),  # holds in 1, 2, 4; a tie in 3 does not
            Direction("one/a", "not >", "one/c"),  # holds in 2, 3; a tie in 3 does
        )
        found = self.robustness(tmp_path, claim, a=(0.9, 0.5, 0.4, 0.8), b=(0.1, 0.4, 0.4, 0.7), c=(0.8, 0.6, 0.4, 0.1))
        assert (found["holds"], found["conditions"], found["share"]) == (1, 4, 0.25)
        assert [check["holds"] for check in found["checks"]] == [3, 2]
        assert [check["share"] for check in found["checks"]] == [0.75, 0.5]
        assert found["checks"][0]["predicate"] == "one/a > one/b"

    def test_by_over_and_numbers(self, tmp_path: Path) -> None:
        a, b = (0.5, 0.6, 0.9), (0.45, 0.45, 0.90)
        by = self.robustness(tmp_path / "x", make_claim(Direction("one/a", "<", "one/b", by=0.1)), a=a, b=b)
        assert (by["holds"], by["conditions"]) == (2, 3)
        over = Direction("one/a", ">", 1.2, over="one/b")
        assert self.robustness(tmp_path / "y", make_claim(over), a=a, b=b)["holds"] == 1

    @pytest.mark.parametrize(("op", "holds"), [("<=", 2), (">=", 2), ("==", 1), ("<", 1)])
    def test_other_ops(self, tmp_path: Path, op: str, holds: int) -> None:
        found = self.robustness(
            tmp_path, make_claim(Direction("one/a", op, "one/b")), a=(1.0, 2.0, 3.0), b=(2.0, 2.0, 2.0)
        )
        assert found["holds"] == holds

    def test_condition_without_a_value_is_left_out(self, tmp_path: Path) -> None:
        claim = make_claim(Direction("one/a", ">", 0.5), Direction("one/b", ">", 0.5))
        found = self.robustness(tmp_path, claim, a=(0.9, math.nan, 0.9), b=(0.9, 0.9, 0.1))
        assert (found["holds"], found["conditions"]) == (1, 2)
        assert [(c["holds"], c["conditions"]) for c in found["checks"]] == [(2, 2), (2, 3)]

    def test_missing_figure_or_no_direction_gives_none(self, tmp_path: Path) -> None:
        assert self.robustness(tmp_path / "x", make_claim(A_OVER_B), a=(0.9, 0.8)) is None
        assert self.robustness(tmp_path / "y", make_claim(figure=(HIT,)), a=(0.9, 0.8)) is None
        assert ledger_row(tmp_path / "z", make_claim(A_OVER_B)).robustness is None

    def test_robustness_figures_are_not_evidence(self, tmp_path: Path) -> None:
        result = make_result(
            "robustness",
            1,
            conditions=({}, {}),
            figures={"one/a": Figure((1.0, 1.0)), "one/b": Figure((0.0, 0.0))},
        )
        row = ledger_row(tmp_path, make_claim(A_OVER_B), result)
        assert row.verdict == "open"
        assert row.to_json()["robustness"]["share"] == 1.0
