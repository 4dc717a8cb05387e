"""The page on cells made by hand: what is shown must be what the files say, and nothing may be lost or loaded."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from bench_support import made_up_file
from cells_support import make_file, make_row, make_runs
from ematrace.ledger import Claim, Claims, Direction, PaperFigure, build_ledger, load_claims, parse_claims
from ematrace.report import write_report
from ematrace.report.formatting import interval, number
from ematrace.report.sections import SECTIONS
from ematrace.results import Metric, Row, Sample, Selector, Store, StoredCell, Table
from report_support import (
    GRAMMAR_EXPERIMENTS,
    Reader,
    drawn,
    fill,
    made_up,
    recorded_only,
    render,
    specs_of,
    with_cell,
)

L0 = {"representation": "l0"}
L0_WITHIN = Selector("trace_probe", "within", L0)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def page(full: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(full, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def reader(page: str) -> Reader:
    return Reader(page)


@pytest.fixture(scope="module")
def empty_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("empty")
    return render(Store(None, folder / "local"), folder)


def one_claim(**fields: Any) -> Claims:
    given = {"id": "C01", "part": "small", "claim": "x", "paper": "y", **fields}
    return Claims((Claim(**given),), {"grammar": "default"}, {"grammar": "drawn"})


def recorded_cells(store: Store) -> list[StoredCell]:
    return [stored for stored in store.load() if not stored.local]


def values_of(cells: list[StoredCell], selector: Selector) -> list[float | None]:
    """By hand: the metric of every cell that has these factors, on the default grammar if none is named."""
    where = {"grammar": "default", **selector.where}
    found = [s.cell for s in cells if s.cell.experiment == selector.experiment and selector.metric in s.cell.metrics]
    return [c.metrics[selector.metric].value for c in found if where.items() <= dict(c.factors).items()]


class TestPage:
    def test_loads_nothing(self, page: str, reader: Reader) -> None:
        assert not re.search(r"@import|url\(", page)
        for tag, attributes, _ in reader.elements:
            assert tag not in ("link", "iframe", "img", "object", "embed", "base")
            assert "src" not in attributes
            assert "srcset" not in attributes
            assert attributes.get("href", "#").startswith("#"), attributes  # type: ignore[union-attr]
        assert "default-src 'none'" in page

    def test_links_lead_somewhere_and_ids_are_unique(self, reader: Reader) -> None:
        ids = [a["id"] for _, a, _ in reader.elements if "id" in a]
        assert len(ids) == len(set(ids))
        assert {a["href"] for _, a, _ in reader.elements if "href" in a} <= {f"#{id}" for id in ids}

    def test_every_claim_with_its_verdict(self, reader: Reader, full: Store) -> None:
        for row in build_ledger(Table(full.load())):
            [(_, text)] = reader.all("tbody", id=row.id)
            assert row.verdict in text
            assert row.claim in text
            assert row.paper in text
            assert row.command in text
            for folder in {str(Path(path).parent) for path in row.evidence}:
                assert folder in text

    def test_evidence_of_many_seeds_is_one_folder(self, reader: Reader) -> None:
        [(_, text)] = reader.all("tbody", id="C02")
        assert re.search(r"/trace_probe/ \(8 files\)", text)
        assert "seed-3" not in text.partition("This machine alone")[0]

    def test_counts_of_verdicts_are_the_ledgers(self, reader: Reader, full: Store) -> None:
        part = {claim.id: claim.part for claim in load_claims()}
        small = [row for row in build_ledger(Table(full.load())) if part[row.id] == "small"]
        sentence = next(text for _, text in reader.all("li") if "small-scale" in text)
        found = re.findall(r"(\d+) ((?:not |direction )?[a-z]+)(?=[,.])", sentence)
        assert len(small) == 22
        assert {verdict: int(n) for n, verdict in found} == Counter(row.verdict for row in small)

    def test_numbers_are_those_of_the_files(self, reader: Reader, full: Store) -> None:
        cells = recorded_cells(full)
        shown = [
            (Selector.parse(a["data-selector"] or ""), text)
            for a, text in reader.all("span", **{"class": "mean"})
            if "data-selector" in a
        ]
        assert len({str(selector) for selector, _ in shown}) > 300
        assert any(selector.where.get("grammar") == "drawn" for selector, _ in shown)
        for selector, text in shown:
            mean = np.mean([value for value in values_of(cells, selector) if value is not None])
            value = float(text.replace("−", "-").replace(",", ""))
            digits = len(text.partition(".")[2])
            assert value == pytest.approx(mean, abs=0.5000001 * 10**-digits), selector

    def test_every_cell_is_on_the_page(self, reader: Reader, full: Store) -> None:
        """All metrics of all recorded cells on the default grammar, however a section calls them."""
        shown = [
            Selector.parse(a["data-selector"] or "")
            for a, _ in reader.all("span", **{"class": "mean"})
            if "data-selector" in a
        ]
        keys = {(s.experiment, s.metric, frozenset(s.where.items())) for s in shown}
        for stored in recorded_cells(full):
            factors = {name: value for name, value in stored.cell.factors.items() if name != "grammar"}
            if stored.cell.factors["grammar"] == "default":
                for metric in stored.cell.metrics:
                    assert (stored.cell.experiment, metric, frozenset(factors.items())) in keys

    def test_intervals_beside_a_mean(self, reader: Reader, full: Store) -> None:
        values = [v for v in values_of(recorded_cells(full), L0_WITHIN) if v is not None]
        sample = Sample(tuple(values), 20431, "accuracy")
        shown = f"{number(sample.mean)} {interval(sample.interval)} {interval(sample.over_items)} here"
        assert shown in reader.section("representations")

    def test_paper_values_come_from_the_claims(self, full: Store, tmp_path: Path) -> None:
        claims = one_claim(figure=(PaperFigure(L0_WITHIN, 0.123, "accuracy"),))
        papers = [text for _, text in Reader(render(full, tmp_path, claims=claims)).all("td", **{"class": "num paper"})]
        assert [text for text in papers if text] == [".123", ".123"]  # in its section, and among all cells

    def test_every_predicate_with_its_numbers_and_share(self, reader: Reader, full: Store) -> None:
        [row] = [row for row in build_ledger(Table(full.load())) if row.id == "C03"]
        [(_, text)] = reader.all("tbody", id="C03")
        for check in row.checks:
            assert check.predicate in text
            assert number(check.left) in text
        assert row.robustness is not None
        for _, share in row.robustness.each:
            assert f"{share.holds}/{share.conditions}" in text

    def test_plots_are_valid_plotly_and_have_a_place_and_a_description(self, page: str, reader: Reader) -> None:
        specs = specs_of(page)
        places = {a["id"]: a for a, _ in reader.all("div", **{"class": "plot"})}
        assert set(specs) == set(places)
        assert len(specs) >= 14
        for id, spec in specs.items():
            assert places[id]["aria-label"]
            assert "template" not in spec["layout"]
            go.Figure(spec["data"], spec["layout"])

    def test_plot_points_are_the_samples(self, page: str, full: Store) -> None:
        cells = recorded_cells(full)
        within = next(t for t in specs_of(page)["plot-representations"]["data"] if t["name"].startswith("within A"))
        for i, name in enumerate(("l0", "traces", "l0+traces")):
            values = values_of(cells, Selector("trace_probe", "within", {"representation": name}))
            assert within["x"][i] == pytest.approx(np.mean([v for v in values if v is not None]))
        values = [v for v in values_of(cells, L0_WITHIN) if v is not None]
        ends = Sample(tuple(values)).interval
        assert ends is not None
        assert within["x"][0] + within["error_x"]["array"][0] == pytest.approx(ends[1])
        assert within["x"][0] - within["error_x"]["arrayminus"][0] == pytest.approx(ends[0])

    def test_controls_stand_in_every_spcn_table(self, reader: Reader) -> None:
        for section in ("representations", "dimension", "ablations", "rules"):
            assert "EMA of one-hots" in reader.section(section)

    def test_a_bound_stands_beside_every_code_it_holds_for(self, page: str, reader: Reader) -> None:
        for code in ("projection", "with top-k"):
            assert re.search(rf"words, {code} \.\d+ \S+ \.220 ", reader.section("distances"))
        bound = next(t for t in specs_of(page)["plot-distances"]["data"] if t["name"].startswith("ε"))
        assert bound["x"] == [0.22, 0.22, 0.26, 0.26]

    def test_seeds_of_both_systems_in_one_row(self, reader: Reader) -> None:
        assert "8, 1" in reader.section("roles")

    def test_headings_and_scopes(self, reader: Reader) -> None:
        assert len(reader.all("h1")) == 1
        scopes = {a.get("scope") for a, _ in reader.all("th")}
        assert scopes <= {"row", "col", "colgroup"}

    def test_the_same_input_gives_the_same_page(self, page: str, full: Store, tmp_path: Path) -> None:
        assert render(full, tmp_path) == page

    def test_says_what_is_recorded_and_what_is_local(self, reader: Reader) -> None:
        text = reader.section("representations")
        assert "recorded" in text
        assert "Also run on this machine: 3 seeds" in text
        assert "here .79" in text

    def test_warns_that_figures_are_fitted(self, reader: Reader) -> None:
        [(_, text)] = reader.all("div", **{"class": "note"})
        assert "fitted" in text

    def test_files_are_listed_by_experiment_and_grammar(self, reader: Reader) -> None:
        text = reader.section("provenance")
        assert "trace_probe/ (8 files) grammar=default recorded, evidence cpu 8 seeds commit 012345678" in text
        assert "trace_probe/ (24 files) grammar=drawn recorded, evidence cpu 24 seeds" in text
        assert "trace_probe/ (3 files) grammar=default this machine, beside it cpu 3 seeds" in text

    def test_files_of_one_run_count_its_seconds_once(self, reader: Reader) -> None:
        assert "8 seeds commit 012345678 2026-01-02 03:04 301 s" in reader.section("provenance")


class TestDraws:
    def test_shares_of_draws_are_the_ledgers(self, page: str, reader: Reader, full: Store) -> None:
        shares = {row.id: row.robustness.all for row in build_ledger(Table(full.load())) if row.robustness}
        [bars] = specs_of(page)["plot-shares"]["data"]
        assert bars["text"] == [f"{share.holds}/{share.conditions}" for share in shares.values()]
        assert "All 24 draws" in reader.section("robustness")

    def test_marks_are_the_draws(self, page: str, full: Store) -> None:
        spec = specs_of(page)["plot-conditions"]
        within = next(t for t in spec["data"] if t["name"] == "L0, W")
        cells = [s.cell for s in recorded_cells(full) if s.cell.factors["grammar"] == "drawn"]
        cells = sorted((c for c in cells if c.factors.get("representation") == "l0"), key=lambda c: c.seed)
        cells = [c for c in cells if c.experiment == "trace_probe" and "within" in c.metrics]
        assert within["y"] == [c.metrics["within"].value for c in cells]
        by_label = {choice["label"]: choice["x"] for choice in spec["choices"]}
        assert by_label["k"] == within["x"] == [c.factors["k"] for c in cells]
        assert by_label["noun_bias"] == [c.settings["grammar"]["noun_bias"] for c in cells]
        assert by_label["shares.passive"] == [c.settings["grammar"]["shares"]["passive"] for c in cells]
        assert not {"draw", "drawn_seed"} & set(by_label)

    def test_a_draw_without_a_value_has_no_mark(self, tmp_path: Path) -> None:
        files = drawn("trace_probe", 4)
        files[1] = with_cell(files[1], {"within": Metric(None, "accuracy", 0)}, **L0)
        [trace] = [
            trace
            for trace in specs_of(render(recorded_only(tmp_path, *files), tmp_path))["plot-conditions"]["data"]
            if trace["name"] == "L0, W"
        ]
        assert [y is None for y in trace["y"]] == [False, True, False, False]

    def test_drawn_cells_alone_are_no_evidence_on_the_default_grammar(self, tmp_path: Path) -> None:
        page = render(recorded_only(tmp_path, *drawn("trace_probe", 3)), tmp_path)
        assert "trace_probe is not run yet" in page
        assert "robustness is not run yet" not in page


class TestMissingAndUnknown:
    def test_no_results_at_all(self, empty_page: str) -> None:
        reader = Reader(empty_page)
        for claim in load_claims():
            assert "open" in reader.all("tbody", id=claim.id)[0][1]
        for section in SECTIONS:
            for name in section.experiments or ("robustness",):
                assert f"ematrace reproduce {name}" in reader.section(section.id)
        assert specs_of(empty_page) == {}

    @pytest.mark.parametrize("name", GRAMMAR_EXPERIMENTS)
    def test_one_experiment_alone(self, name: str, tmp_path: Path) -> None:
        page = render(recorded_only(tmp_path, *made_up(name, 2)), tmp_path)
        for other in {name for section in SECTIONS for name in section.experiments} - {name}:
            assert f"{other} is not run yet" in page
        assert f"{name} is not run yet" not in page
        assert Reader(page).section("provenance")

    def test_a_metric_without_a_value_is_a_dash(self, tmp_path: Path) -> None:
        files = made_up("trace_probe", 2)
        files[1] = with_cell(files[1], {"within": Metric(None, "accuracy", 0)}, **L0)
        files = [with_cell(file, {"within": Metric(0.9, "accuracy", 9)}, representation="traces") for file in files]
        page = render(recorded_only(tmp_path, *files), tmp_path)
        assert "nan" not in re.sub(r"[a-z]*(?:nan)[a-z]+|[a-z]+nan", "", page.lower())
        assert "1 of 2" in page

    def test_a_claim_that_is_not_testable_says_why(self, tmp_path: Path) -> None:
        direction = (Direction(Selector("a", "b"), ">", 1.0),)
        claims = one_claim(id="C21", part="large", not_testable="needs an H200", direction=direction)
        page = render(Store(None, tmp_path / "local"), tmp_path, claims=claims)
        [(_, text)] = Reader(page).all("tbody", id="C21")
        assert "not testable here" in text
        assert "needs an H200" in text

    def test_a_claim_on_an_unknown_experiment_that_was_not_run(self, tmp_path: Path) -> None:
        claims = one_claim(direction=(Direction(Selector("spen_size", "parameters"), ">", 1.0),))
        page = render(Store(None, tmp_path / "local"), tmp_path, claims=claims)
        assert "ematrace reproduce spen_size" in page

    def test_a_new_condition_of_a_known_experiment_is_shown(self, tmp_path: Path) -> None:
        files = [
            with_cell(file, {"within": Metric(0.5 + file.seed / 10, "accuracy", 100)}, features="bag_of_words")
            for file in made_up("controls", 2)
        ]
        text = Reader(render(recorded_only(tmp_path, *files), tmp_path)).section("representations")
        assert re.search(r"bag_of_words .550", text)

    def test_repetitions_of_a_timing_are_not_seeds(self, tmp_path: Path) -> None:
        timing = Metric(2.0, "s", repetitions=(1.9, 2.0, 2.1))
        store = recorded_only(tmp_path, make_file(Row({"model": "spen"}, {"seconds": timing}), experiment="speeds"))
        text = Reader(render(store, tmp_path)).section("experiment-speeds")
        ends = Sample((2.0,), repetitions=timing.repetitions).interval
        assert f"spen 2.00 {interval(ends, 2)} 1 (3 repetitions)" in text


OWN_CLAIMS = """
[X1]
part = "extension"
claim = "Dense layers need no traces."
paper = "12.5 nats"
direction = [{ left = "mine/nats{context=none, width=64}", op = ">", right = 10.5 }]
figure = [{ of = "mine/nats{context=ema, width=64}", paper = 12.5, kind = "cross_entropy" }]
"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("mine")
    files = [
        make_file(
            make_row({"nats": 10.0 * width / 64 + (context == "none") + seed / 100}, part="all"),
            make_row({"accuracy": 3.0 + seed / 100, "bytes": 2.0**20}, part="all", domain="code"),
            experiment="mine",
            scale="gpu",
            seed=seed,
            factors={"context": context, "width": width},
            settings={"context": context, "steps": 7},
        )
        for context in ("ema", "none")
        for width in (64, 128)
        for seed in range(3)
    ]
    return Reader(render(recorded_only(folder, *files), folder, claims=load_claims() | parse_claims(OWN_CLAIMS)))


class TestUnknownExperiment:
    """One that the page has no section for: a user's own file."""

    def test_factors_and_metrics_are_columns(self, mine: Reader) -> None:
        text = mine.section("experiment-mine")
        assert "context width part nats seeds paper ours" in text
        assert "context width part domain accuracy bytes seeds" in text
        ends = Sample((21.0, 21.01, 21.02)).interval
        assert f"none 128 all 21.0 {interval(ends, 1)} 3" in text

    def test_its_claim_is_judged_and_linked(self, mine: Reader) -> None:
        [(_, text)] = mine.all("tbody", id="X1")
        assert "answered: mixed" in text
        assert "Claims: → X1" in mine.section("experiment-mine")

    def test_the_papers_number_stands_beside_ours(self, mine: Reader) -> None:
        assert "ema 64 all 12.5 10.0" in mine.section("experiment-mine")

    def test_where_it_comes_from(self, mine: Reader) -> None:
        text = mine.section("experiment-mine")
        assert "mine · 3 seeds · recorded, gpu" in text
        assert "mine/ (12 files)" in text
        assert "settings context ema, none steps 7" in text

    def test_without_a_title_its_name_is_the_title(self, mine: Reader) -> None:
        assert "mine" in [text for _, text in mine.all("h2")]


def test_cells_with_more_factors_do_not_mix_with_those_with_fewer(tmp_path: Path) -> None:
    files = [
        make_file(
            make_row({"nats": 5.0 + seed}, model="ema"),
            make_row({"nats": 1.0 + seed}, model="ema", domain="code"),
            experiment="nested",
            seed=seed,
        )
        for seed in range(2)
    ]
    text = Reader(render(recorded_only(tmp_path, *files), tmp_path)).section("experiment-nested")
    assert "model nats seeds ema 5.50" in text
    assert "model domain nats seeds ema code 1.50" in text


def test_benchmarks_stand_under_speed_alone(tmp_path: Path) -> None:
    page = render(recorded_only(tmp_path, made_up_file()), tmp_path)
    reader = Reader(page)
    assert "Ours against theirs" in reader.section("speed")
    assert not reader.all("section", id="experiment-made_up")
    assert "speed-made_up-share" in specs_of(page)


def test_titles_are_those_of_the_experiments(tmp_path: Path) -> None:
    from ematrace.experiments import EXPERIMENTS

    files = make_runs("choices", within=Sample((0.5, 0.6), 100, "accuracy"))
    page = render(recorded_only(tmp_path, *files), tmp_path)
    assert EXPERIMENTS["choices"].title in [text for _, text in Reader(page).all("h2")]


class TestWriting:
    def test_a_failed_write_leaves_the_old_page(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "report.html"
        out.write_text("old")

        def fail(*_: Any, **__: Any) -> int:
            raise OSError("disk full")

        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write_report(Store(None, tmp_path / "local"), out)
        monkeypatch.undo()
        assert out.read_text() == "old"
        assert list(tmp_path.iterdir()) == [out]

    def test_makes_the_folder_and_returns_the_path(self, tmp_path: Path) -> None:
        out = tmp_path / "new" / "page.html"
        assert write_report(Store(None, tmp_path / "local"), out) == out
        assert out.is_file()
