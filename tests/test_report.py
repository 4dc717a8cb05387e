"""The page on cells made by hand: what is shown must be what the files say, and nothing may be lost or loaded."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markupsafe import escape

from bench_support import made_up_file
from cells_support import make_file, make_row
from ematrace.ledger import VERDICTS, Claim, Claims, Direction, PaperFigure, load_claims, parse_claims
from ematrace.report import write_report
from ematrace.report.charts import CAP, N_STYLES, Line, LineChart, Point, linear_axis
from ematrace.report.compact import compact
from ematrace.report.data import ReportData
from ematrace.report.findings import FAILS, HOLDS, UNCLEAR
from ematrace.report.formatting import interval, number
from ematrace.report.overview import Overview, numbers_of, without_factors, without_repetition
from ematrace.report.page import render_report, title_of
from ematrace.report.parts import DataTable, TableCell, TableRow
from ematrace.report.sections import SECTIONS
from ematrace.report.tables import Measured
from ematrace.results import Metric, Row, Sample, Selector, Store, StoredCell
from report_support import (
    GRAMMAR_EXPERIMENTS,
    MADE,
    Reader,
    bars_of,
    chart_of,
    drawn,
    fill,
    made_up,
    marks_of,
    parts_of,
    recorded_only,
    render,
    value_at,
    with_cell,
)

L0 = {"representation": "l0"}
L0_WITHIN = Selector("trace_probe", "within", L0)
PAPER = "https://arxiv.org/abs/2604.08556"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def data(full: Store) -> ReportData:
    return ReportData.load(full)


@pytest.fixture(scope="module")
def cells(full: Store) -> list[StoredCell]:
    """Those that are recorded: the evidence."""
    return [stored for stored in full.load() if not stored.local]


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
    return Claims((Claim(**given),), {"grammar": "half_passives"}, {"grammar": "fully_drawn"})


def values_of(cells: list[StoredCell], selector: Selector) -> list[float | None]:
    """By hand: the metric of every cell that has these factors, on the default grammar if none is named."""
    where = {"grammar": "half_passives", **selector.where}
    found = [s.cell for s in cells if s.cell.experiment == selector.experiment and selector.metric in s.cell.metrics]
    return [c.metrics[selector.metric].value for c in found if where.items() <= dict(c.factors).items()]


def mean_of(cells: list[StoredCell], selector: Selector) -> float:
    return float(np.mean([value for value in values_of(cells, selector) if value is not None]))


class TestPage:
    def test_loads_nothing_and_is_small(self, page: str, reader: Reader) -> None:
        assert not re.search(r"@import|url\((?!#)", page)
        for tag, attributes, _ in reader.elements:
            assert tag not in ("link", "iframe", "img", "object", "embed", "base")
            assert not {"src", "srcset", "xlink:href"} & set(attributes)
            target = attributes.get("href") or "#"
            assert target.startswith("#") or (tag == "a" and target == PAPER), attributes
        assert "default-src 'none'" in page
        assert len(page.encode()) < 1_500_000

    def test_every_series_has_a_colour_and_a_shape(self, page: str, reader: Reader) -> None:
        """In rows and legends by a class, in the plane of lines by a symbol, filled and hollow."""
        symbols = {a["id"] for tag, a, _ in reader.elements if tag in ("path", "g") and "id" in a}
        assert symbols == {f"{letter}{i}" for letter in "mh" for i in range(N_STYLES)}
        for i in range(N_STYLES):
            assert re.search(rf"\.m{i},:where\(\.rows i:nth-child\({i + 1}\)\){{--c:var\(--s{i}\);--shape:\w+\(", page)

    def test_intervals_of_lines_have_ends(self) -> None:
        """A mark may hide the line between them."""
        line = Line("", [Point(0.0, 0.5, (0.0, 1.0)), Point(1.0, 0.5)])
        chart = LineChart("", [line], linear_axis(0, 1), linear_axis(0, 1), "", "")
        _, _, intervals = chart.paths
        (x, low), (_, high) = chart.place(0.0, 0.0), chart.place(0.0, 1.0)
        half = CAP // 2
        assert intervals.places == f"M{x - half:g} {low:g}h{CAP}m-{half} 0V{high:g}m-{half} 0h{CAP}"

    def test_links_lead_somewhere_and_ids_are_unique(self, reader: Reader) -> None:
        ids = [a["id"] for _, a, _ in reader.elements if "id" in a]
        assert len(ids) == len(set(ids))
        targets = {a["href"] for _, a, _ in reader.elements if "href" in a}
        assert PAPER in targets
        assert targets - {PAPER} <= {f"#{id}" for id in ids}

    def test_opens_with_the_paper_the_question_and_the_findings(self, page: str) -> None:
        opening = page.partition("<header>")[2].partition("</header>")[0]
        places = [opening.index(text) for text in ("EMA Is Not All You Need", "<h1>", "<figure", "class=tally")]
        assert places == sorted(places)

    @pytest.mark.parametrize(
        "word", ["EMA traces", "SPCN", "SPEN", "roles", "W, T, D", "SPA", "PGHU", "BiGRU", "drawn"]
    )
    def test_words_are_defined_before_the_claims(self, page: str, word: str) -> None:
        assert 0 < page.index(f"<dfn>{word}</dfn>") < page.index("<tbody id=C01 ")

    def test_every_claim_with_its_verdict(self, reader: Reader, data: ReportData) -> None:
        for row in data.rows:
            text = reader.claim(row.id)
            assert row.verdict in text
            assert row.claim in text
            assert row.paper in text
            for folder in {str(Path(path).parent) for path in row.evidence}:
                assert folder in text

    def test_a_refuted_claim_is_the_papers_saying_wherever_it_stands(self, page: str, data: ReportData) -> None:
        refuted = [row for row in data.rows if row.verdict == "not reproduced"]
        assert refuted
        for row in refuted:
            before = [page[: m.start()][-60:] for m in re.finditer(re.escape(compact(escape(row.claim))), page)]
            assert before
            assert all("The paper says: " in text for text in before), before
            assert re.search(rf"href=#{row.id}>{row.id}</a> The paper says: .*?Not reproduced here:", page)

    def test_evidence_of_many_seeds_is_one_folder(self, reader: Reader) -> None:
        text = reader.claim("C02")
        assert re.search(r"/trace_probe/ \(8 files\)", text)
        assert "seed-3" not in text.partition("Evidence")[2]

    def test_counts_of_verdicts_are_the_ledgers(self, reader: Reader, data: ReportData) -> None:
        rows = data.rows
        [(_, text)] = reader.all("ul", **{"class": "tally"})
        found = re.findall(r"(\d+) ((?:not |direction |answered: )?[a-z]+(?: here)?)", text)
        assert {verdict: int(n) for n, verdict in found} == {
            **Counter(row.verdict for row in rows),
            "claims": len(rows),
        }

    def test_numbers_are_those_of_the_files(self, data: ReportData, page: str, cells: list[StoredCell]) -> None:
        shown = [part for part in parts_of(data) if isinstance(part, Measured)]
        assert len({str(part.selector) for part in shown}) > 200
        for part in shown:
            value = float(part.mean.replace("−", "-").replace(",", ""))
            digits = len(part.mean.partition(".")[2])
            assert value == pytest.approx(mean_of(cells, part.selector), abs=0.5000001 * 10**-digits), part.selector
            assert compact(part.__html__()) in page

    def test_intervals_beside_a_mean(self, reader: Reader, cells: list[StoredCell]) -> None:
        values = [v for v in values_of(cells, L0_WITHIN) if v is not None]
        sample = Sample(tuple(values), 20431, "accuracy")
        assert f"{number(sample.mean)} {interval(sample.interval)} here" in reader.section("representations")
        assert f"{interval(sample.interval)} {interval(sample.over_items)}" in reader.section("spread")

    def test_paper_values_come_from_the_claims(self, full: Store, tmp_path: Path) -> None:
        claims = one_claim(figure=(PaperFigure(L0_WITHIN, 0.123, "accuracy"),))
        papers = [text for _, text in Reader(render(full, tmp_path, claims=claims)).all("td", **{"class": "paper"})]
        assert [text for text in papers if text] == [".123"]

    def test_every_predicate_with_its_numbers_and_share(self, reader: Reader, data: ReportData) -> None:
        [row] = [row for row in data.rows if row.id == "C03"]
        text = reader.claim("C03")
        for check in row.checks:
            assert without_repetition(check.predicate) in text
            assert numbers_of(check, dict(row.robustness.each).get(check.predicate) if row.robustness else None) in text
            assert number(check.left) in text
        assert row.robustness is not None
        for _, share in row.robustness.each:
            assert f"{share.holds}/{share.conditions}" in text

    def test_of_many_predicates_those_that_fail_are_shown_and_the_rest_counted(
        self, reader: Reader, data: ReportData
    ) -> None:
        [claim] = [claim for claim in Overview(data).claims if claim.row.id == "C40"]
        checks, text = claim.row.checks, reader.claim("C40")
        failing = [check for check in checks if check.undecided or check.holds is False]
        assert failing
        common = set(claim.common_factors)
        shown = [c for c in checks if without_repetition(without_factors(c.predicate, common)) in text]
        assert set(map(id, failing)) < set(map(id, shown))
        assert f"{len(checks) - len(shown)} more, none of which fails: ematrace ledger C40" in text

    def test_every_column_of_a_table_has_a_name_for_phones(self, data: ReportData) -> None:
        """There the cells stand below each other, without the head."""
        tables = [part for part in parts_of(data) if isinstance(part, DataTable)]
        assert len(tables) > 10
        for table in tables:
            assert all(table.columns[1:]), table.label
            assert {len(row.cells) for row in table.body} == {len(table.columns)}
            assert len(table.columns) <= 20  # as many as style.css knows
        named = next(table for table in tables if table.label == "Accuracy by representation")
        assert named.columns[:3] == ["condition", "within A (W), paper", "within A (W), ours"]

    def test_marks_of_a_chart_are_the_samples(self, data: ReportData, cells: list[StoredCell]) -> None:
        chart = chart_of(data, "representations")
        marks = marks_of(chart, "within A (W)")
        for label, name in {"L0 activation": "l0", "traces": "traces", "L0 + traces": "l0+traces"}.items():
            mean = mean_of(cells, Selector("trace_probe", "within", {"representation": name}))
            assert marks[label] == pytest.approx(mean, abs=1e-4)
        ends = Sample(tuple(v for v in values_of(cells, L0_WITHIN) if v is not None)).interval
        lane = chart.rows[0].lanes[0]
        assert [value_at(chart.axis, x) for x in lane.ends or ()] == pytest.approx(ends, abs=1e-4)
        assert value_at(chart.axis, lane.paper or 0.0) == pytest.approx(0.795)

    def test_points_of_a_line_are_the_samples(self, data: ReportData, cells: list[StoredCell]) -> None:
        slow = next(p for p in parts_of(data, "lag") if isinstance(p, LineChart) and p.caption == "slow trace")
        probe = next(line for line in slow.lines if line.name == "linear probe")
        for point in probe.points:
            where = {"reader": "probe", "trace": "slow", "lag": int(point.x)}
            assert point.y == pytest.approx(mean_of(cells, Selector("lag_decoding", "word_accuracy", where)))

    def test_the_main_control_stands_in_every_spcn_table_and_all_of_them_once(self, reader: Reader) -> None:
        for section in ("representations", "dimension", "ablations", "rules", "controls"):
            assert "EMA of one-hots" in reader.section(section)
        assert [s.id for s in SECTIONS if "EMA, content merged" in reader.section(s.id)] == ["controls"]

    def test_a_bound_stands_beside_every_code_it_holds_for(self, data: ReportData, reader: Reader) -> None:
        for code in ("projection", "with top-k"):
            assert re.search(rf"words, {code} \.\d+ \S+ \.220 ", reader.section("distances"))
        bound = marks_of(chart_of(data, "distances"), "ε of the lemma")
        assert list(bound.values()) == pytest.approx([0.22, 0.22, 0.26, 0.26], abs=1e-3)

    def test_seeds_of_both_systems_in_one_row(self, reader: Reader) -> None:
        assert "8, 1" in reader.section("roles")

    def test_headings_and_scopes(self, reader: Reader) -> None:
        assert len(reader.all("h1")) == 1
        scopes = {a.get("scope") for a, _ in reader.all("th")}
        assert scopes <= {None, "row", "col", "colgroup"}

    def test_a_table_needs_no_scopes_only_if_its_headers_tell(self) -> None:
        """HTML's algorithm: headers are a row, or a column, without data cells."""
        head, body = (
            [TableCell("a", scope="col"), TableCell("b", scope="col")],
            [TableCell("c", scope="row"), TableCell("1")],
        )
        assert not DataTable("", [TableRow(head)], [TableRow(body)]).says_scopes
        assert DataTable("", [TableRow([TableCell(), head[1]])], [TableRow(body)]).says_scopes
        assert DataTable("", [TableRow(head)], [TableRow([TableCell("c"), TableCell("1")])]).says_scopes
        assert "scope" not in DataTable("", [TableRow(head)], [TableRow(body)]).__html__()

    def test_the_same_input_gives_the_same_page(self, page: str, full: Store, tmp_path: Path) -> None:
        assert render(full, tmp_path) == page

    def test_says_what_is_recorded_and_what_is_local(self, reader: Reader) -> None:
        text = reader.section("source-trace_probe")
        assert "recorded" in text
        assert "Also run on this machine: 3 seeds" in text
        assert "here .79" in reader.section("representations")

    def test_warns_that_figures_are_fitted(self, reader: Reader) -> None:
        [(_, text)] = reader.all("div", **{"class": "note"})
        assert "fitted" in text

    def test_files_are_listed_by_experiment_and_grammar(self, reader: Reader) -> None:
        text = reader.section("provenance")
        assert "trace_probe/ (8 files) commit 012345678" in reader.section("source-trace_probe")
        assert "trace_probe/ (24 files) grammar=fully_drawn recorded, evidence cpu 24 seeds 012345678" in text
        assert "trace_probe/ (3 files) grammar=half_passives this machine, beside it cpu 3 seeds" in text

    def test_files_of_one_run_count_its_seconds_once(self, reader: Reader) -> None:
        assert "seeds 0 to 7 seconds 301 " in reader.section("source-trace_probe")


class TestFindings:
    def test_numbers_and_verdicts_are_those_of_the_files(self, reader: Reader, cells: list[StoredCell]) -> None:
        structure, content, cost = [" ".join(text.split()) for _, text in reader.all("section", **{"class": "finding"})]
        assert "EMA traces carry structure." in structure
        assert f"{mean_of(cells, L0_WITHIN):.1%}" in structure
        where = {"reader": "probe", "trace": "slow", "lag": 1}
        told, untold = (
            f"{mean_of(cells, Selector('lag_decoding', metric, where)):.1%}"
            for metric in ("noun_accuracy", "noun_among_words_accuracy")
        )
        assert f"names it in {told} of cases; not told, and choosing among all words, in {untold};" in content
        assert "The paper says" in content
        assert "Not measured yet ematrace reproduce spen_streaming --scale gpu (needs a CUDA GPU)" in cost

    def test_a_heading_follows_the_verdict(self, tmp_path: Path) -> None:
        """With traces that add nothing, the page must not say that they do."""
        files = made_up("trace_probe", 3) + made_up("controls", 3)
        worse = {m: Metric(0.1, "accuracy", 100) for m in ("within", "transfer", "deep")}
        files = [
            with_cell(file, worse, representation="l0+traces") if file.experiment == "trace_probe" else file
            for file in files
        ]
        page = render(recorded_only(tmp_path, *files), tmp_path)
        assert "EMA traces carry structure." not in page
        assert "The paper says that traces carry structure. Not reproduced here." in page

    def test_every_verdict_has_a_heading(self) -> None:
        """But for those that no results speak for."""
        headed = [*HOLDS, *FAILS, *UNCLEAR]
        assert sorted([*headed, "open", "not testable here"]) == sorted(VERDICTS)

    def test_a_finding_that_lacks_numbers_names_what_measures_them(self, tmp_path: Path) -> None:
        """The claim's own experiment is there; what is missing is another one."""
        page = render(recorded_only(tmp_path, *made_up("trace_probe", 3)), tmp_path)
        structure = " ".join(Reader(page).all("section", **{"class": "finding"})[0][1].split())
        assert "Not measured yet ematrace reproduce controls" in structure

    def test_nothing_is_found_without_results(self, empty_page: str) -> None:
        assert empty_page.count("Not measured yet") == 4


class TestDraws:
    def test_shares_of_draws_are_the_ledgers(self, data: ReportData) -> None:
        shares = {row.id: row.robustness.all for row in data.rows if row.robustness}
        chart = chart_of(data, "robustness")
        assert {row.label: row.value for row in chart.rows} == {
            id: f"{share.holds}/{share.conditions}" for id, share in shares.items()
        }
        assert bars_of(chart) == pytest.approx({id: s.holds / s.conditions for id, s in shares.items()}, abs=1e-3)

    def test_drawn_cells_alone_are_no_evidence_on_the_default_grammar(self, tmp_path: Path) -> None:
        page = render(recorded_only(tmp_path, *drawn("trace_probe", 3)), tmp_path)
        assert "trace_probe is not run yet" in page
        assert "robustness is not run yet" not in page


class TestMissingAndUnknown:
    def test_no_results_at_all(self, empty_page: str) -> None:
        reader = Reader(empty_page)
        for claim in load_claims():
            assert ("not testable here" if claim.not_testable else "open") in reader.claim(claim.id)
        for section in SECTIONS:
            for name in section.experiments or ("robustness",):
                assert f"ematrace reproduce {name}" in reader.section(section.id)
        assert not reader.all("figure")

    def test_commands_name_what_they_need_and_only_those_are_offered_that_run(
        self, empty_page: str, data: ReportData
    ) -> None:
        from ematrace.cli.reproduce import experiments_for

        reader = Reader(empty_page)
        commands = {text for _, text in reader.all("code") if text.startswith("ematrace ")}
        assert "ematrace reproduce C21 --scale gpu --data SOURCE" in commands
        cards = {command for command in commands if command.startswith("ematrace ledger ")}
        assert {command.split(" ", 2)[2] for command in cards} <= {claim.id for claim in load_claims()}
        for words in (command.split() for command in commands - cards):
            assert words[1] == "reproduce"
            scale = "gpu" if "gpu" in words else "cpu"
            assert experiments_for([name for name in words[2:3] if name != "--scale"], load_claims(), scale)
        for claim in load_claims():  # nothing tests the others yet
            assert ("ematrace" in reader.claim(claim.id)) == bool(claim.experiments), claim.id

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
        text = Reader(page).claim("C21")
        assert "not testable here" in text
        assert "needs an H200" in text

    def test_a_claim_on_an_unknown_experiment_that_was_not_run(self, tmp_path: Path) -> None:
        claims = one_claim(direction=(Direction(Selector("spen_size", "parameters"), ">", 1.0),))
        text = Reader(render(Store(None, tmp_path / "local"), tmp_path, claims=claims)).claim("C01")
        assert "waits for spen_size" in text
        assert "ematrace reproduce" not in text  # there is no such experiment

    def test_a_new_condition_of_a_known_experiment_is_shown(self, tmp_path: Path) -> None:
        files = [
            with_cell(file, {"within": Metric(0.5 + file.seed / 10, "accuracy", 100)}, features="bag_of_words")
            for file in made_up("controls", 2)
        ]
        text = Reader(render(recorded_only(tmp_path, *files), tmp_path)).section("controls")
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
        assert "answered: mixed" in mine.claim("X1")
        assert "Claims: X1" in mine.section("experiment-mine")

    def test_the_papers_number_stands_beside_ours(self, mine: Reader) -> None:
        assert "ema 64 all 12.5 10.0" in mine.section("experiment-mine")

    def test_where_it_comes_from(self, mine: Reader) -> None:
        text = mine.section("source-mine")
        assert "mine · 3 seeds · recorded, gpu" in text
        assert "mine/ (12 files)" in text
        assert "settings context ema, none steps 7" in text

    def test_without_a_title_its_name_is_the_title(self, mine: Reader) -> None:
        assert "mine" in [text for _, text in mine.all("h3")]


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


def test_faults_are_summed_by_kind(tmp_path: Path) -> None:
    counts = {"trials": 3.0, "failures": 1.0, "refused": 2.0, "recovered": 0.0, "harmless": 0.0, "changed": 0.0}
    rows = [
        make_row({**counts, "trials": trials}, kind=kind, target=target)
        for kind, target, trials in (("damage", "model", 1500.0), ("damage", "state", 3.0), ("kill", "train", 4.0))
    ]
    text = Reader(render(recorded_only(tmp_path, make_file(*rows, experiment="faults")), tmp_path)).section(
        "experiment-faults"
    )
    assert "a file that is read, damaged 1,503 2 4 0 0 0" in text
    assert "SIGKILL while it writes 4 1 2 0 0 0" in text
    assert "results/faults/" in text


def test_the_page_leaves_out_what_html_implies_and_nothing_else(data: ReportData, page: str) -> None:
    """Read by the same rules, it has the same elements, attributes and words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ematrace.report.page.compact", lambda text: text)
        whole = render_report(data, MADE)
    assert "</td>" in whole
    assert "</td>" not in page
    assert [(tag, a, t.split()) for tag, a, t in Reader(page).elements] == [
        (tag, a, t.split()) for tag, a, t in Reader(whole).elements
    ]


def test_benchmarks_stand_under_speed_alone(tmp_path: Path) -> None:
    page = render(recorded_only(tmp_path, made_up_file()), tmp_path)
    reader = Reader(page)
    assert "Ours against theirs" in reader.section("speed")
    assert not reader.all("section", id="experiment-made_up")
    assert reader.section("speed-made_up")


def test_titles_are_those_of_the_experiments() -> None:
    from ematrace.experiments import EXPERIMENTS

    assert title_of("choices") == EXPERIMENTS["choices"].title
    assert title_of("mine") == "mine"


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


def test_findings_that_are_measured_come_first(data: ReportData) -> None:
    """The page opens with an answer, not with a toy or with what is missing."""
    missing = [view.command is not None for view in Overview(data).findings]
    assert missing == sorted(missing)
    assert not missing[0]
    assert missing[-1], "the gap has no cells here"
