"""The gap on the page: the opening picture and its section, on cells with planted effects."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cells_support import make_table
from ematrace.analysis.gap_design import ATTENTION, CHAIN, EMA, STEP_ENDS, Arm, step_name
from ematrace.ledger import build_ledger, load_claims
from ematrace.report.charts import Fall, LineChart, RowChart, waterfall_chart
from ematrace.report.data import ReportData
from ematrace.report.findings import FindingView, gap_finding
from ematrace.report.gap import GapData
from ematrace.report.gap_terminal import chain_view
from ematrace.report.page import render_report
from ematrace.report.parts import DataTable
from ematrace.report.sections.gap import gap_parts
from ematrace.report.sections.gap_trend import trend
from ematrace.results import CellFile, Metric, Row, Store, write_file
from gap_support import ARMS, NATS, run, sweep
from report_support import charts_in, value_at

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from doc_tables.gap_prose import NOT_RECORDED, details, findings, recall_finding, verdict_on_traces
from doc_tables.gap_rows import chain_rows, place_rows, share_rows, split_rows


def nats_of(arm: Arm) -> float:
    """Half a nat for the top-k, .2 for its gradient, .1 for traces."""
    ffn = {"topk_ste": 0.7, "topk_masked": 0.5, "dense": 0.0}[arm.ffn]
    return 4.0 + ffn + 0.1 * arm.context.startswith("ema")


def recall_of(arm: Arm) -> float:
    return 3.0 + 0.4 * arm.context.startswith("ema")


def files(arms: Sequence[Arm] = ARMS, size: str = "2m") -> list[CellFile]:
    made = [
        run(arm, seed, nats_of(arm) + 0.001 * (i % 3) * seed, recall_of(arm) + 0.001 * (i % 2) * seed, size=size)
        for i, arm in enumerate(arms)
        for seed in range(3)
    ]
    return [*made, *([] if size == "toy" else sweep(arms))]


def data_of(folder: Path, *made: CellFile) -> ReportData:
    folder.mkdir(exist_ok=True)
    for file in made:
        write_file(file, folder)
    return ReportData.load(Store(folder, folder / "none"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ReportData:
    return data_of(tmp_path_factory.mktemp("gap"), *files())


def section_of(data: ReportData) -> str:
    """The text of the gap's section."""
    html = "".join(part if isinstance(part, str) else part.__html__() for part in gap_parts(data) if part is not None)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


@pytest.fixture(scope="module")
def section(data: ReportData) -> str:
    return section_of(data)


AT_130M: dict[str, Any] = {
    **{"experiment": "gap_130m", "size": "130m", "lr": 0.000667},
    "settings": {"tokens": 2**20, "vocab_size": 50257},
}


def text_of(finding: FindingView) -> str:
    return " ".join(finding.points)


class TestWaterfall:
    chart = waterfall_chart(
        "c",
        ("start", 5.0),
        [Fall("a", (0.3, 0.5), (0.7, 0.9), "x"), Fall("b", (-0.2, 0.1), None, "y")],
        "end",
        "nats",
        ("one", "two"),
    )

    def test_every_part_begins_where_the_last_one_ended(self) -> None:
        parts = [(lane.style, lane.bar) for row in self.chart.rows for lane in row.lanes if lane.bar is not None]
        ends = [[value_at(self.chart.axis, x) for x in bar] for _, bar in parts]
        assert ends == [pytest.approx(pair, abs=0.001) for pair in ([4.7, 5.0], [4.2, 4.7], [4.2, 4.4], [4.3, 4.4])]
        assert [style for style, _ in parts] == [0, 1, 0, 1]

    def test_the_interval_is_of_where_a_step_ends(self) -> None:
        first, second = (row.lanes[-1].ends for row in self.chart.rows[1:-1])
        assert [value_at(self.chart.axis, x) for x in first or ()] == pytest.approx([4.1, 4.3], abs=0.001)
        assert second is None

    def test_it_starts_and_ends_at_the_levels(self) -> None:
        marks = [lane.mark for row in self.chart.rows for lane in row.lanes if lane.mark is not None]
        assert [value_at(self.chart.axis, mark) for mark in marks] == pytest.approx([5.0, 4.3], abs=0.001)
        assert (self.chart.rows[0].value, self.chart.rows[-1].value) == ("5.00", "4.30")


class TestFinding:
    def test_it_opens_the_page_before_the_counts(self, data: ReportData) -> None:
        page = render_report(data)
        assert page.index("At 2M parameters, most of the gap is not the traces.") < page.index("class=tally")

    def test_its_numbers_are_those_of_the_cells(self, data: ReportData) -> None:
        found = gap_finding(data)
        assert found is not None
        start, end = (0.8 * nats_of(arm) + 0.2 * recall_of(arm) for arm in (CHAIN[0], CHAIN[-1]))
        assert "Only 3 seeds, where the plan has 5." in text_of(found)
        assert isinstance(found.chart, RowChart)
        assert [row.label for row in found.chart.rows[1:-1]] == [step_name(*ends) for ends in pairwise(STEP_ENDS)]
        values = {row.label: row.value for row in found.chart.rows}
        assert values["all units, not 6%"].startswith("−.4")
        gap = re.search(
            r"at 2M parameters, a gap of (\S+) \(\S+\) nats on C4 \((\S+) times in perplexity\), where the paper has "
            "8x on C4",
            text_of(found),
        )
        assert gap is not None
        assert float(gap[1]) == pytest.approx(start - end, abs=0.002)
        assert f"On held-out text, as in the chart, it is {gap[1]} (" in text_of(found)
        assert float(gap[2]) == pytest.approx(math.exp(start - end), abs=0.01)

    def test_the_largest_size_stands_beside_it(self, data: ReportData, tmp_path: Path) -> None:
        first = gap_finding(data)
        assert first is not None
        assert "tokens per parameter, SPEN's block" not in text_of(first)
        masked = replace(CHAIN[0], ffn="topk_masked")

        def text(nats: dict[Arm, float], seeds: int = 1) -> str:
            """`nats` are those of four fifths of the tokens."""
            settings = {"tokens": 104_857_600, "vocab_size": 50257}
            of: dict[str, Any] = {**AT_130M, "settings": settings, "parameters": 130_629_888.0}
            large = [
                run(arm, seed, n + 0.01 * seed * (arm == masked), 3.0, **of)
                for arm, n in nats.items()
                for seed in range(seeds)
            ]
            found = gap_finding(data_of(tmp_path / f"{nats.values()}", *files(), *large))
            assert found is not None
            return text_of(found)

        rates = "rates carried over from 2M parameters"
        assert (
            "At 130.6M parameters, after .8 tokens per parameter, SPEN's block is .400 nats behind GPT-2's and the "
            f"true gradient of its top-k costs .200 on held-out text (1 seed, {rates})."
        ) in text({CHAIN[0]: 4.0, masked: 4.25, CHAIN[-1]: 3.5})
        assert "SPEN's block is .400 nats ahead of GPT-2's on held-out text (1 seed" in text(
            {CHAIN[0]: 4.0, CHAIN[-1]: 4.5}
        )
        saved = text({CHAIN[0]: 4.0, masked: 3.75}, seeds=3)
        assert f"the true gradient of its top-k saves .192 (.172–.212) on held-out text (3 seeds, {rates})." in saved

    def test_a_verdict_of_one_reading_alone_says_so(self, tmp_path: Path) -> None:
        """The straight-through gradient costs two nats more, and without it traces are nearly all."""
        made = [
            run(arm, seed, 3 + 2 * (arm.ffn == "topk_ste") + (arm.context != "attention") + 0.001 * (i % 3) * seed, 3.0)
            for i, arm in enumerate(ARMS)
            for seed in range(3)
        ]
        found = gap_finding(data_of(tmp_path / "two readings", *made, *sweep(ARMS)))
        assert found is not None
        assert found.heading.endswith(
            "most of the gap is not the traces, if “straight-through” means what we take it to mean."
        )
        assert "If the paper means a mask held constant, traces are 100%, 100% and 100% of what is left." in (
            text_of(found)
        )

    def test_a_toy_is_called_one_and_decides_nothing(self, tmp_path: Path) -> None:
        toy = data_of(tmp_path / "toy", *files((*CHAIN, ATTENTION), size="toy"))
        found = gap_finding(toy)
        assert found is not None
        assert found.heading == "A toy, which shows that it runs, and nothing else."
        assert found.chart is not None
        assert found.chart.caption.startswith("TOY")
        assert found.command is not None
        assert "--scale gpu" in found.command.text
        assert "no verdict rests on them" in section_of(toy)
        assert {row.verdict for row in toy.rows} == {"open", "not testable here"}

    @pytest.mark.parametrize("size", ["toy", "2m"])
    def test_a_local_run_of_one_arm_does_not_hide_what_was_recorded(self, size: str) -> None:
        """A toy of this machine, or one arm of the real size on all seeds."""
        settings = {"settings": {"tokens": 1}} if size == "toy" else {}
        own = [run(CHAIN[2], seed, 9.0, 9.0, size=size, **settings) for seed in range(3)]
        cells = make_table(*files(CHAIN), local=own)
        data = ReportData(cells, load_claims(), tuple(build_ledger(cells)))
        found = gap_finding(data)
        assert found is not None
        assert found.chart is not None
        assert not found.chart.caption.startswith("TOY")
        assert f"10 arms with {GapData(data).size}" in section_of(data)

    def test_nothing_is_said_without_an_end(self, tmp_path: Path) -> None:
        found = gap_finding(data_of(tmp_path / "few", *files(CHAIN[:-1])))
        assert found is not None
        assert (found.heading, found.points, found.chart) == ("Not measured yet", (), None)

    def test_a_small_distance_is_no_gap(self, tmp_path: Path) -> None:
        flat = [run(arm, seed, 4.0 + 0.001 * seed * (i % 2), 3.0) for i, arm in enumerate(ARMS) for seed in range(3)]
        found = gap_finding(data_of(tmp_path / "flat", *flat, *sweep(ARMS)))
        assert found is not None
        assert "less than a tenth of a nat apart" in found.heading


class TestMarkdown:
    def test_findings_are_those_of_the_cells(self, data: ReportData) -> None:
        distance, picture = findings(data).split("\n\n")
        start, end = (0.8 * nats_of(arm) + 0.2 * recall_of(arm) for arm in (CHAIN[0], CHAIN[-1]))
        assert f": {math.exp(start - end):.1f}, " in distance
        assert "Only 3 seeds, where the plan has 5." in distance
        alt = re.fullmatch(r"!\[Nats that each change saves: (.*)\]\(docs/gap-chain\.svg\)\n", picture)
        assert alt is not None
        steps = [step.rpartition(" ") for step in alt[1].split("; ")]
        assert [name for name, _, _ in steps] == [step_name(*ends) for ends in pairwise(STEP_ENDS)]
        nats = {name: float(value.replace("−", "-")) for name, _, value in steps}
        assert nats["all units, not 6%"] == pytest.approx(0.4, abs=0.003)
        assert abs(nats["context into the residual"]) < 0.003
        ratio = nats["true gradient of the top-k, not straight-through"] + nats["load-balance loss off"]
        said = re.search(r"straight-through gradient of the top-k, ([\d.]+)%", details(data))
        assert said is not None
        assert float(said[1]) == pytest.approx(100 * ratio / math.fsum(nats.values()), abs=0.3)
        assert "nats behind attention with RoPE" in recall_finding(data)

    def test_verdict_on_the_traces_has_all_orders_and_both_gradients(self, data: ReportData) -> None:
        orders, other = verdict_on_traces(data).split("\n\n")
        three = r"22\.\d% \([^)]*\), 22\.\d% \([^)]*\) and 22\.\d% \([^)]*\)"
        assert re.search(f"Traces are {three} of the distance on average, {three} as the first change", orders)
        assert re.search(f"and {three} as the last ", orders)
        assert "this counts against the claim that the whole gap is the traces:" in orders
        in_all = re.search(r"and traces are (\d+)%, .* of it: against that claim", other)
        assert in_all is not None
        assert float(in_all[1]) == pytest.approx(100 * 0.16 / 0.56, abs=0.6)

    def test_details_name_checks_and_every_text(self, data: ReportData) -> None:
        text = details(data)
        for name in ("held-out text", "WikiText-2", "C4"):
            assert f"- EMA traces on {name}, with a dense layer and as many parameters: " in text
        assert text.count("(seeds 1000) put ") == text.count("one seed, which checks nothing") == 3
        assert "- Reasons to doubt: " in text

    def test_without_the_factorial_the_chains_own_attention(self, tmp_path: Path) -> None:
        data = data_of(tmp_path / "chain", *files(CHAIN))
        assert "nats behind attention with learned positions; on held-out text, " in recall_finding(data)
        assert "attention with RoPE" not in recall_finding(data) + findings(data)

        verdicts = {row.id: (row.verdict, row.why or "") for row in data.rows}
        for id in (
            "C24",
            "C25",
            "C27",
            "C29",
            "C30",
            "C39",
            "C44",
            "F1",
            "F3",
        ):  # on other experiments
            assert verdicts[id][0] == "open"
            assert verdicts[id][1].startswith(("no result for gap_", "no result for trace_decoding"))

    def test_a_missing_arm_is_named(self, tmp_path: Path) -> None:
        made = [file for file in files(CHAIN) if not (file.factors["ffn"] == "topk_masked" and file.seed == 1)]
        text = findings(data_of(tmp_path / "partial", *made))
        assert "topk_masked, residual ffn, norm algorithm1: it lacks seed 1, which the others have." in text
        assert "; true gradient of the top-k, not straight-through; all units, not 6% " in text

    def test_shares_of_the_distance_to_attention_with_rope(self, tmp_path: Path) -> None:
        """Planted, on other tokens: .2 nats for the gradient, .5 for the top-k, .1 for traces, .2 for rope; on the
        fifth that recall, .4 for traces."""
        made = [
            run(arm, seed, nats_of(arm) - 0.2 * (arm == ATTENTION) + 0.001 * (i % 3) * seed, recall_of(arm))
            for i, arm in enumerate(ARMS)
            for seed in range(3)
        ]
        text = details(data_of(tmp_path / "rope", *made, *sweep(ARMS)))
        said = re.search(r"loss and the gradient are ([\d.]+)%.* in place of attention ([\d.]+)%", text)
        masked = re.search(r"and traces in place of attention are ([\d.]+)%", text)
        assert said is not None
        assert masked is not None
        gradient, traces = 0.8 * 0.2, 0.8 * (0.1 + 0.2) + 0.2 * 0.4
        whole = gradient + 0.8 * 0.5 + traces
        assert float(said[1]) == pytest.approx(100 * gradient / whole, abs=0.6)
        assert float(said[2]) == pytest.approx(100 * traces / whole, abs=0.6)
        assert float(masked[1]) == pytest.approx(100 * traces / (whole - gradient), abs=0.6)

    def test_every_change_wherever_it_was_measured(self, data: ReportData) -> None:
        """Six places for context and for the residual, four for either change of the feed-forward layer."""
        found = place_rows(data)
        assert found is not None
        heads, rows = found
        assert {len(row) for row in rows} == {len(heads)} == {7}
        assert [sum(row[0] == name for row in rows) for name in dict.fromkeys(row[0] for row in rows)] == [6, 4, 4, 6]
        assert len({tuple(row[:4]) for row in rows}) == len(rows)
        expected = {"attention with RoPE": 0.16, "true gradient": 0.16, "all units": 0.4, "context into": 0.0}
        for row in rows:
            planted = next(value for name, value in expected.items() if row[0].startswith(name))
            assert float(row[4].split(" ")[0].replace("−", "-")) == pytest.approx(planted, abs=0.003)

    def test_without_context_only_the_layer_changes(self, tmp_path: Path) -> None:
        alone = [Arm("none", ffn=ffn) for ffn in ("topk_ste", "topk_masked", "dense")]
        made = [run(arm, seed, 5.0 - 0.1 * i, 5.0 - 0.1 * i) for i, arm in enumerate(alone) for seed in range(2)]
        found = place_rows(data_of(tmp_path / "no context", *made, *sweep(alone)))
        assert found is not None
        assert [row[1:5] for row in found[1]] == [["none", "", "direct", ".100"]] * 2

    def test_shares_in_all_orders(self, data: ReportData) -> None:
        """Of .72 nats: .16 for context whenever it changes, .16 for the gradient, .4 for the selection."""
        found = share_rows(data)
        assert found is not None
        heads, rows = found
        assert {len(row) for row in rows} == {len(heads)} == {7}
        nats = [float(row[1].split(" ")[0].replace("−", "-")) for row in rows]
        assert nats == pytest.approx([0.16, 0.16, 0.4, 0.0, 0.16, 0.16, 0.72], abs=0.003)
        assert float(rows[2][2].split("%")[0]) == pytest.approx(100 * 0.4 / 0.72, abs=0.3)

    def test_nothing_of_toys_and_nothing_of_nothing(self, tmp_path: Path) -> None:
        for name, made in {"toy": files((*CHAIN, ATTENTION), size="toy"), "none": []}.items():
            data = data_of(tmp_path / name, *made)
            assert findings(data) == recall_finding(data) == verdict_on_traces(data) == f"{NOT_RECORDED}\n"
            assert details(data) == f"- {NOT_RECORDED}\n"
            assert chain_rows(data) is split_rows(data) is None
            assert place_rows(data) is None
            assert share_rows(data) is None

    def test_the_table_has_every_step_on_every_text(self, data: ReportData) -> None:
        found = chain_rows(data)
        assert found is not None
        heads, rows = found
        assert [row[0] for row in rows] == [*(step_name(*ends) for ends in pairwise(STEP_ENDS)), "the whole distance"]
        assert {len(row) for row in rows} == {len(heads)} == {7}
        split = split_rows(data)
        assert split is not None
        assert split[0][:3] == ["step", "held-out text, repeated pairs", "held-out text, other tokens"]

        def nats(cell: str) -> float:
            return float(cell.split(" ")[0].replace("−", "-"))

        for column in (1, 3, 5):
            values = [nats(row[column]) for row in rows]
            assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.004)
            parts = [nats(row[column]) + nats(row[column + 1]) for row in split[1]]
            assert parts == pytest.approx(values, abs=0.002)


class TestSection:
    def test_the_chain_of_every_text_is_checked_by_other_runs(self, tmp_path: Path) -> None:
        """The ends .72 nats apart; on the sweep's seeds as well, or .92 apart on C4."""
        ends = (CHAIN[0], CHAIN[-1])
        again = [
            run(arm, seed, nats_of(arm) + 0.002 * i * (arm == ends[0]), recall_of(arm), experiment="gap_rates")
            for arm in ends
            for i, seed in enumerate((1000, 1001, 1002))
        ]
        swept = [
            run(arm, 1000, nats_of(arm) + 0.1, recall_of(arm), experiment="gap_rates", lr=rate)
            for arm in ends
            for rate in (0.001, 0.002, 0.008, 0.016)
        ]
        off = again[0].cells.index(next(row for row in again[0].cells if row.factors.get("text") == "c4"))
        assert again[0].cells[off].factors["slice"] == "all"
        for file in again[:3]:
            of_c4 = file.cells[off].metrics
            higher = Metric((of_c4["nats"].value or 0) + 0.2, "nats", of_c4["nats"].n)
            file.cells[off] = Row(file.cells[off].factors, {**of_c4, "nats": higher})
        text = section_of(data_of(tmp_path / "again", *files(CHAIN), *swept, *again))
        assert "they add up to the whole distance by construction" in text
        row = r"(held-out text|WikiText-2|C4) \.72\d \(\S+\) \S+ \(\S+\) 1000, 1001, 1002 .*? (closes|does not close)"
        assert re.findall(row, text) == [
            ("held-out text", "closes"),
            ("WikiText-2", "closes"),
            ("C4", "does not close"),
        ]

    def test_halves_stand_under_the_joined_step(self, section: str) -> None:
        assert section.count("of which attention, not traces") == section.count("of which learned positions") == 3

    def test_context_as_first_and_as_last_change(self, section: str) -> None:
        """Of .72 nats, context is worth .16 whenever it changes: .1 on others, .4 on recall tokens, a fifth of all."""
        for when in ("as the first change", "averaged over orders", "as the last"):
            row = re.search(rf"context {when} (\S+) \S+ (\S+)%", section)
            assert row is not None
            assert float(row[1]) == pytest.approx(0.16, abs=0.003)
            assert float(row[2]) == pytest.approx(100 * 0.16 / 0.72, abs=0.3)
        assert "“The whole gap is the traces”: against; at 2M parameters, a gap of" in section

    def test_without_c4_nothing_is_judged(self, tmp_path: Path) -> None:
        made = files()
        for file in made:
            file.cells[:] = [row for row in file.cells if row.factors.get("text") != "c4"]
        text = section_of(data_of(tmp_path / "two texts", *made))
        assert "“The whole gap is the traces”: not judged; at 2M parameters, a gap of" in text

    def test_zoologys_table_is_marked_as_published_elsewhere(self, section: str) -> None:
        assert "Published elsewhere, not measured here: Zoology" in section
        assert section.index("Published elsewhere") < section.index("13.27")

    def test_a_missing_arm_is_named_with_its_command(self, tmp_path: Path) -> None:
        present = [arm for arm in ARMS if arm not in (CHAIN[3], EMA)]
        partial = data_of(tmp_path / "partial", *files(present), *sweep([CHAIN[3]]))
        text = section_of(partial)
        assert "ema_error, residual ffn, norm algorithm1: no cells." in text
        assert (
            "ematrace reproduce gap --scale gpu --data SOURCE --only context=ema_error positions=none ffn=dense" in text
        )
        found = gap_finding(partial)
        assert found is not None
        assert "of the chain not measured yet" in text_of(found)

    def test_an_arm_at_the_end_of_its_grid_is_not_published(self, tmp_path: Path) -> None:
        made = [run(arm, seed, n, 4.0) for arm, n in NATS.items() for seed in range(2)]
        edge = sweep(CHAIN[2:3], rates=(0.0005, 0.001, 0.002, 0.003, 0.004))
        rest = sweep((*CHAIN[:2], *CHAIN[3:]))
        text = section_of(data_of(tmp_path / "edge", *made, *rest, *edge))
        assert "is at the end of the grid" in text
        assert "true gradient of the top-k, not straight-through; all units, not 6%" in text

    def test_the_trend_has_tokens_per_parameter(self, section: str, tmp_path: Path) -> None:
        assert "1.9M, 117M, 8,192 61.8" in section
        assert "Differences by tokens per parameter" not in section  # of one budget there is no trend
        settings = {"tokens": 2**20, "vocab_size": 8192}
        fewer = [
            run(arm, seed, nats_of(arm) + 0.001 * seed * i, 3.0, experiment="gap_sizes", settings=settings)
            for i, arm in enumerate((CHAIN[0], CHAIN[3], CHAIN[-1]))
            for seed in range(3)
        ]
        both = section_of(data_of(tmp_path / "sizes", *files(CHAIN), *fewer))
        assert "Differences by tokens per parameter" in both
        assert "Share of the distance from SPEN to GPT-2" in both
        assert "1.9M, 1M, 8,192 .551 +.6" in both
        two = section_of(data_of(tmp_path / "two seeds", *sweep(CHAIN), *(file for file in fewer if file.seed < 2)))
        assert "1.9M, 1M, 8,192 .551 +.6" not in two
        assert "Left out of gap_sizes at 1.9M, 1M, 8,192:" in two
        assert "seeds 0, 1: it takes 3" in two

    def test_at_130m_two_seeds_have_no_interval(self) -> None:
        large = [
            run(arm, seed, nats_of(arm) + 0.001 * seed * i, 3.0, **AT_130M)
            for i, arm in enumerate((CHAIN[0], CHAIN[3], CHAIN[-1]))
            for seed in range(3)
        ]
        for seeds in (3, 2):
            parts = [*trend(make_table(*files(CHAIN), *(file for file in large if file.seed < seeds)))]
            assert charts_in(parts) == {}  # more than one thing differs
            [table] = [part for part in parts if isinstance(part, DataTable)]
            first = [str(cell.content) for cell in table.body[0].cells]
            assert first[0] == "1.9M, 1M, 50,257"
            assert first[-1] == str(seeds)
            assert ["(" in text for text in first[2:4]] == [seeds == 3] * 2

    def test_a_chart_is_of_what_differs_in_one_thing(self) -> None:
        def of(size: str, parameters: float, tokens: int, vocabulary: int) -> list[CellFile]:
            settings = {"tokens": tokens, "vocab_size": vocabulary}
            made = {"experiment": "gap_sizes", "size": size, "parameters": parameters, "settings": settings}
            return [run(arm, seed, nats_of(arm), 3.0, **made) for arm in (CHAIN[0], CHAIN[-1]) for seed in range(3)]

        whole = 117_440_512
        larger = [*of("7m", 7e6, whole, 8192), *sweep(CHAIN, experiment="gap_size_rates", size="7m")]
        others = [*of("2m", 1.9e6, whole // 2, 8192), *of("2m", 8e6, whole, 50257), *larger]
        charts = charts_in([*trend(make_table(*files(CHAIN), *others))])
        xs = {}
        for name, chart in charts.items():
            assert isinstance(chart, LineChart)
            xs[name] = [round(point.x, 1) for point in chart.lines[0].points]
        assert xs == {
            "Differences by tokens per parameter": [30.9, 61.8],
            "Differences by parameters": [7e6, 1901824.0],
        }


class TestTerminal:
    def view(self, *local: CellFile) -> str:
        written = StringIO()
        found = chain_view(make_table(*files(), local=local))
        Console(width=100, file=written).print("" if found is None else found)
        return written.getvalue()

    def test_what_was_just_measured_is_shown_and_toys_are_called_that(self) -> None:
        text = self.view(*files((*CHAIN, ATTENTION), size="toy"))
        assert "no verdict rests on them" in text
        assert "TOY: nats per token on held-out text, 3 seeds" in text
        whole = 0.8 * (nats_of(CHAIN[0]) - nats_of(CHAIN[-1])) + 0.2 * (recall_of(CHAIN[0]) - recall_of(CHAIN[-1]))
        assert re.search(rf"the whole distance\s+−{str(round(whole, 2))[1:]}", text)
        assert "EMA instead of attention (rope), both dense: +" in text
        halves = [
            re.search(rf"of which {name}\s+(\S+)", text) for name in ("attention, not traces", "learned positions")
        ]
        joined = re.search(r"attention with learned positions, not traces\s+−(\S+)", text)
        assert joined is not None
        values = [float(half[1].replace("−", "-")) for half in halves if half is not None]
        assert sum(values) == pytest.approx(-float(joined[1]), abs=0.002)

    def test_recorded_cells_alone_are_not_this_machines(self) -> None:
        assert self.view().strip() == ""
