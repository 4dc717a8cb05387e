"""The ledger in the terminal, and how numbers, names and paths are written there and on the page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from cells_support import make_provenance
from ematrace.ledger import VERDICTS, LedgerRow, PaperFigure, build_ledger, load_claims
from ematrace.report import ledger_table, verdict_summary
from ematrace.report.card import LEGEND, claim_card
from ematrace.report.formatting import commit_of, fold_paths, hardware_of, interval, number, over_seeds, seed_count
from ematrace.report.terminal import VerdictList
from ematrace.report.verdicts import LOOKS, ours_lines, short_names
from ematrace.results import Sample, Selector, Table
from report_support import fill


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return Table(fill(tmp_path_factory.mktemp("full")).load())


@pytest.fixture(scope="module")
def rows(cells: Table) -> list[LedgerRow]:
    return build_ledger(cells)


@pytest.fixture(scope="module")
def cards(cells: Table, rows: list[LedgerRow]) -> dict[str, tuple[LedgerRow, str]]:
    claims = load_claims()
    chosen = cells.at(claims.defaults)
    return {row.id: (row, text_of(claim_card(row, claims[row.id], chosen))) for row in rows}


def printed(rows: list[LedgerRow], width: int) -> str:
    return text_of(ledger_table(rows), width)


def text_of(shown: RenderableType, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_every_verdict_has_a_sign() -> None:
    assert set(LOOKS) == set(VERDICTS)


class TestLedger:
    @pytest.mark.parametrize("width", [80, 100, 160])
    def test_every_id_and_no_line_too_long(self, rows: list[LedgerRow], width: int) -> None:
        text = printed(rows, width)
        assert all(len(line) <= width for line in text.splitlines())
        starts = [line.split()[0] for line in text.splitlines() if re.match(r"[CF]\d", line)]
        assert starts == [row.id for row in rows]

    @pytest.mark.parametrize("width", [100, 160])
    def test_numbers_and_verdicts_are_whole(self, rows: list[LedgerRow], width: int) -> None:
        text = printed(rows, width)
        [row] = [row for row in rows if row.id == "C02"]
        for _, mean, ends in ours_lines(row, load_claims()["C02"]):
            assert re.search(rf"{re.escape(mean)}\s+{re.escape(ends)}", text)
        assert row.robustness is not None
        assert f"{row.robustness.all.holds}/{row.robustness.all.conditions}" in text
        # Every word of the claim is there, none cut.
        words = set(re.findall(r"[\w.,()-]+", text))
        assert set(re.findall(r"[\w.,()-]+", row.claim)) <= words

    def test_nothing_run(self) -> None:
        rows = build_ledger(Table(()))
        text = printed(rows, 100)
        assert "waits for" in text
        assert f"{sum(row.verdict == 'open' for row in rows)} open" in text

    def test_summary_counts_every_row_once(self, rows: list[LedgerRow]) -> None:
        text = verdict_summary(rows).plain
        assert "\n" not in text
        head, _, tail = text.partition(":")
        assert int(head.split()[0]) == len(rows) == sum(int(n) for n in re.findall(r"\d+", tail))

    @pytest.mark.parametrize("width", [50, 80, 120])
    def test_the_overview_has_each_claim_under_its_verdict(self, rows: list[LedgerRow], width: int) -> None:
        claims = load_claims()
        text = text_of(VerdictList(rows, claims), width)
        assert all(len(line) <= width for line in text.splitlines())
        groups = {head.split("  ")[0]: body for head, body in re.findall(r"^([^ 0-9].*)\n((?: .*\n)+)", text, re.M)}
        for row in rows:
            claim = claims[row.id]
            (group,) = [body for head, body in groups.items() if head[2:].lstrip("0123456789") == f" {row.verdict}"]
            shown = bool(claim.selectors) or row.verdict != "open"
            assert claim.title in " ".join(group.split()) if shown else claim.title not in text
        if width == 80:
            assert len(text.splitlines()) <= 32


class TestCard:
    def test_it_has_every_measured_predicate_and_shows_which_fail(
        self, cards: dict[str, tuple[LedgerRow, str]]
    ) -> None:
        for row, text in cards.values():
            body = text.split("\n", 1)[1]
            signs = {(True, False): "✓", (False, False): "✗", (False, True): "◐", (None, False): "○"}
            for outcome, sign in signs.items():
                measured = [check for check in row.checks if not check.missing]
                shown = sum((check.holds, check.undecided) == outcome for check in measured)
                assert body.count(sign) == shown, row.id

    def test_what_is_not_measured_is_said_once(self) -> None:
        """With the experiment and the command, above everything that is long."""
        for claim, row in zip(load_claims(), build_ledger(Table(())), strict=True):
            if not row.checks:
                continue
            words = " ".join(text_of(claim_card(row, claim, Table(()))).split())
            count, experiments = len(row.checks), ", ".join(claim.experiments)
            said = f"none yet: {count} comparison{'' if count == 1 else 's'} wait{'s' if count == 1 else ''} for "
            assert f"results {said}" in words
            assert all(experiment in words.split(said)[1] for experiment in claim.experiments)
            assert words.count("to run it") == words.count("results none yet") == 1
            assert words.index(row.command) < words.index(" here ")
            assert f"why waits for {experiments}" not in words
            assert LEGEND not in words  # of letters that no number here has
            assert not {"○", "✓", "✗", "◐", "directions"} & set(words.split(said)[1].split())

    def test_a_part_that_is_measured_is_shown_and_the_other_named(self, cells: Table) -> None:
        claim = load_claims()["C10"]
        part = Table(stored for stored in cells.cells if stored.cell.experiment == "trace_probe")
        [row] = [row for row in build_ledger(part) if row.id == "C10"]
        text = " ".join(text_of(claim_card(row, claim, part.at(load_claims().defaults))).split())
        assert "results for 1 of 3 comparisons; the others wait for supervised (BiGRU) to run it" in text
        assert "figures ✓ SPCN" in text or "figures ✗ SPCN" in text or "figures ◐ SPCN" in text
        assert "directions" not in text
        assert text.count("BiGRU") == 3  # in the claim, in what it waits for and in the control

    def test_what_cannot_be_judged_has_no_sign_that_it_holds_or_fails(
        self, cells: Table, cards: dict[str, tuple[LedgerRow, str]]
    ) -> None:
        chosen = cells.at(load_claims().defaults)
        judged = [(row, text) for row, text in cards.values() if row.checks and {"✓", "✗"} & set(text.split())]
        assert len(judged) > 5
        for row, before in judged:
            other = replace(row, verdict="not testable here")
            words = text_of(claim_card(other, load_claims()[row.id], chosen)).split("\n", 1)[1].split()
            assert not {"✓", "✗", "◐"} & set(words), row.id
            assert words.count("⊘") == sum(before.split("\n", 1)[1].split().count(sign) for sign in "✓✗◐○"), row.id

    def test_it_names_claim_verdict_figure_evidence_and_command(self, cards: dict[str, tuple[LedgerRow, str]]) -> None:
        for row, text in cards.values():
            words = " ".join(text.split())
            assert words.startswith(f"{row.id} ")
            assert row.verdict in text.splitlines()[0]
            for part in (row.claim, row.paper):
                assert " ".join(part.split()) in words
            assert (row.command in words) == bool(row.checks)
            assert all(len(line) <= 80 for line in text.splitlines())
            for path in fold_paths(row.evidence):
                assert re.sub(r"\s", "", path) in re.sub(r"\s", "", text)

    def test_the_numbers_are_those_of_the_checks(self, cards: dict[str, tuple[LedgerRow, str]]) -> None:
        row, text = cards["C10"]
        words = " ".join(text.split())
        direction, figure, _ = row.checks
        assert direction.interval is not None
        assert f"{number(direction.left)} > " in words
        assert f"{number(direction.difference, signed=True)} ({interval(direction.interval, 3)})" in words
        assert f"{number(figure.left)}" in words
        assert "paper .893; ours must be in .863–.923" in words

    def test_the_control_is_measured_or_says_what_would(self, cards: dict[str, tuple[LedgerRow, str]]) -> None:
        for claim in load_claims():
            if claim.control is not None:
                text = " ".join(cards[claim.id][1].split())
                assert re.search(rf"control {re.escape(claim.control.what)}: (\w[\w ]* )?[\d.,]+|not measured", text), (
                    claim.id
                )
        rows = build_ledger(Table(()))
        bare = text_of(claim_card(rows[0], load_claims()["C01"], Table(())))
        assert "not measured; ematrace reproduce controls" in " ".join(bare.split())
        assert "not run on this machine" in bare


class TestNumbers:
    @pytest.mark.parametrize(
        ("x", "text"),
        [
            (0.9731, ".973"),
            (0.9999, "1.000"),
            (1.0, "1.000"),
            (0.0, ".000"),
            (-0.0121, "−.012"),
            (-0.00001, "−1.0e-05"),
            (5.214, "5.21"),
            (71.26, "71.3"),
            (20500.0, "20,500"),
            (float("nan"), "–"),
            (None, "–"),
        ],
    )
    def test_numbers(self, x: float | None, text: str) -> None:
        assert number(x) == text

    def test_a_rounded_zero_has_no_sign(self) -> None:
        assert number(-0.0001, 3, signed=True) == ".000"
        assert number(0.0121, signed=True) == "+.012"

    def test_intervals(self) -> None:
        assert interval((0.9701, 0.9759)) == ".970–.976"
        assert interval((-0.01, 0.02)) == "−.010 to .020"
        assert interval((6.9e-15, 1.2e-14)) == "6.9e-15–1.2e-14"
        assert interval(None) == "–"

    def test_no_interval_over_seeds_where_nothing_varies(self) -> None:
        assert over_seeds(Sample((0.5, 0.5))) is None
        assert over_seeds(Sample((0.5,), 100, "accuracy")) is None
        assert over_seeds(Sample((0.5, 0.6))) == Sample((0.5, 0.6)).interval
        assert over_seeds(Sample((2.0,), repetitions=(1.9, 2.1))) is not None

    def test_counts_of_seeds(self) -> None:
        assert seed_count(Sample((1.0, 2.0))) == "2"
        assert seed_count(Sample((1.0, float("nan")))) == "1 of 2"
        assert seed_count(Sample((2.0,), repetitions=(1.9, 2.0, 2.1))) == "1 (3 repetitions)"


class TestNames:
    def test_names_of_a_claims_numbers_differ(self) -> None:
        for claim in load_claims():
            for operands in (claim.figure, claim.selectors):
                names = short_names(operands)
                assert len(set(names)) == len(names), claim.id

    def test_differences_and_ratios(self) -> None:
        def figure(metric: str, **other: Selector) -> PaperFigure:
            return PaperFigure(Selector("a", metric, {"x": "y"}), 0.5, "accuracy", **other)

        minus = Selector("a", "within", {"x": "z"})
        assert short_names([figure("within", minus=minus), figure("deep", minus=minus)]) == ["ΔW", "ΔD"]
        assert short_names([figure("within", over=minus)]) == ["ratio"]

    def test_what_sets_numbers_apart(self) -> None:
        here = [Selector("gap", "nats", {"context": c, "width": w}) for c in ("ema", "none") for w in (64, 128)]
        assert short_names(here) == ["ema width 64", "ema width 128", "none width 64", "none width 128"]
        assert short_names([Selector("gap", "nats"), Selector("other", "nats", {"x": 1})]) == ["gap", "other"]

    def test_a_rate_has_its_unit(self) -> None:
        one = [Selector("spen_streaming", "tokens_per_second", {"model": name}) for name in ("spen_eager", "gpt2")]
        assert short_names(one) == ["SPEN from Python tokens/s", "GPT-2 tokens/s"]

    def test_names_that_meet_are_written_in_full(self) -> None:
        alike = [Selector("e", "m", {"a": "x"}), Selector("e", "m", {"b": "x"})]
        assert short_names(alike) == ["e/m{a=x}", "e/m{b=x}"]

    def test_files_of_one_folder_are_folded(self) -> None:
        many = [f"results/trace_probe/seed-{i}_cpu.json" for i in range(20)]
        assert fold_paths([*many, "results/position/seed-0_cpu.json"]) == [
            "results/trace_probe/ (20 files)",
            "results/position/seed-0_cpu.json",
        ]
        assert fold_paths(many[:2]) == many[:2]

    def test_commit_and_hardware(self) -> None:
        assert commit_of(make_provenance(commit="0123456789abc", dirty=True)) == "commit 012345678 with changes"
        assert commit_of(make_provenance(commit=None)) == "no commit"
        assert hardware_of(make_provenance(hardware={"gpu": "H200", "cores": 16})) == "H200, 16 cores"
        assert hardware_of(make_provenance(hardware={})) == "hardware not known"
