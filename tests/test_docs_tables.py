"""Tables of docs/: what the recorded cells say; and how they are made, on cells made by hand."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cells_support import make_file, make_row, make_table, recorded_cells
from ematrace.analysis.choices import Quantity, change_of, under_choice
from ematrace.analysis.gap_design import ATTENTION, CHAIN, EMA, STEP_ENDS
from ematrace.ledger import VERDICTS, build_ledger, load_claims
from ematrace.report.data import ReportData
from ematrace.report.sections.choices import choices as choices_section
from ematrace.results import CellFile, Row, Selector, Table, read_file, write_file
from gap_support import run, sweep
from test_gap_switches import cells as switched_cells

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "scripts"))

import write_tables  # noqa: E402
from doc_tables import TABLES, chain_picture, marked, rewrite, small_scale  # noqa: E402
from doc_tables.blocks import markdown_table  # noqa: E402
from doc_tables.readme import SAID  # noqa: E402

TABLE = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
NUMBER = re.compile(r"(?<![\d.])(?:\d*\.\d{2,3}\b|\d+(?:\.\d)?(?=%| to \d+(?:\.\d)?%))")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
GRAMMAR = {"grammar": "half_passives"}
SETTINGS = {"sentences": {"train": 1}, "grammar": {"file": "a"}}
FULL = {"representation": "l0+traces"}


def data_of(table: Table) -> ReportData:
    claims = load_claims()
    return ReportData(table, claims, tuple(build_ledger(table, claims)))


def made(*files: CellFile) -> ReportData:
    return data_of(make_table(*files))


def runs(experiment: str, rows: Sequence[Sequence[Row]], **factors: Any) -> list[CellFile]:
    """A file for each seed."""
    options = {"experiment": experiment, "factors": {**GRAMMAR, **factors}, "settings": SETTINGS}
    return [make_file(*of_seed, seed=seed, **options) for seed, of_seed in enumerate(rows)]


def accuracies(value: float, **factors: Any) -> Row:
    return make_row(dict.fromkeys(("within", "transfer", "deep"), value), **factors)


def write(name: str, data: ReportData, block: str = "") -> str:
    return TABLES[name](data, block)


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def row(text: str, start: str) -> list[str]:
    """The cells of the line that starts so, but for the first one."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


class TestThePages:
    def test_are_what_the_recorded_cells_say(self) -> None:
        data = data_of(Table(recorded_cells()))
        stale = write_tables.stale(data, DOCS)
        assert [page.name for page in stale] == [], "python scripts/write_tables.py writes them"
        assert data.problems == []  # no two recorded files stand for the same cell

    def test_findings_written_by_hand_have_the_numbers_of_the_tables(self) -> None:
        """Those of the pages that a finding links to, and of its own; what no table has is marked *once*."""
        pages = {name: (DOCS / name).read_text(encoding="utf-8") for name in write_tables.PAGES}
        page, readme = pages["gap.md"], pages["../README.md"]
        in_page = page.split("## What it finds")[1].split("## The chain")[0]
        in_readme = readme.split("## What it finds so far")[1].split("\n## ")[0]
        items = []
        for found, within in ((in_page.split("\n- ")[1:], ""), (re.split(r"\n\d+\. ", in_readme)[1:], "docs/")):
            for item in found:
                linked = re.findall(rf"\]\({within}([a-z-]+\.md)", item)
                assert linked or not within
                items.append((" ".join([*linked, "gap.md", "../README.md"]), item))
        checked = 0
        for names, item in items:
            tables = "".join(t for name in names.split() for t in TABLE.findall(pages.get(name, "")))
            sentences = [s for s in re.split(r"(?<=[.:;]) ", item) if "*once*" not in s]
            numbers = set(NUMBER.findall(" ".join(sentences)))
            checked += len(numbers)
            assert numbers - set(NUMBER.findall(tables)) == set(), item
        assert checked > 50

    def test_shares_of_the_traces_in_the_verdict_are_those_of_the_table(self) -> None:
        """On average, as the first change and as the last, on every text."""
        page = (DOCS / "gap.md").read_text(encoding="utf-8")
        said = re.search(r"Traces are (.*?) of the distance on average, (.*?) as the first .*? and (.*?) as the", page)
        assert said is not None
        shares = page.split("<!-- table: gap-shares -->")[1].split("<!-- end -->")[0]
        change = "attention with RoPE, not traces"
        rows = [change, f"{change}, as the first change", f"{change}, as the last change"]
        for place, name in zip(said.groups(), rows, strict=True):
            assert re.findall(r"[\d.]+%(?= \()", place) == [cell.split(" ")[0] for cell in row(shares, name)[1::2]]

    def test_numbers_are_decimals_percentages_and_both_ends_of_a_range(self) -> None:
        found = NUMBER.findall("46.1 to 60.9%, 62 to 68%, .712 nats (1.10), 117M, 7.8 nats, 32 steps to 50%")
        assert found == ["46.1", "60.9", "62", "68", ".712", "1.10", "50"]

    def test_links_of_all_pages_lead_to_headings(self) -> None:
        texts = {path: path.read_text(encoding="utf-8") for path in (*DOCS.glob("*.md"), ROOT / "README.md")}
        anchors = {path.resolve(): {_anchor(h) for h in HEADING.findall(text)} for path, text in texts.items()}
        checked = 0
        for path, text in texts.items():
            for target, fragment in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text):
                where = (path.parent / target).resolve() if target else path.resolve()
                assert fragment in anchors[where], f"{path.name}: {target}#{fragment}"
                checked += 1
        assert checked > 20

    def test_have_every_table_once(self) -> None:
        names = [name for page in write_tables.PAGES for name in marked((DOCS / page).read_text(encoding="utf-8"))]
        assert Counter(names) == Counter(list(TABLES))

    @pytest.mark.parametrize("network", ["locked", "described"])
    def test_have_the_means_of_the_files(self, network: str) -> None:
        """Read and averaged without selectors."""
        text = (DOCS / "objections.md").read_text(encoding="utf-8")
        paths = (ROOT / "results/networks").glob(f"grammar-half_passives_network-{network}_part-frozen*.json")
        files = [read_file(path) for path in paths]

        def mean(metric: str, **factors: Any) -> str:
            values = [c.metrics[metric].value for file in files for c in file.cells if c.factors == factors]
            assert len(values) == len(files) > 1
            return f"{np.mean(np.array(values, float)):.3f}".removeprefix("0")

        column = {"locked": 0, "described": 1}[network]
        for level in range(3):
            shown = row(text, f"L{level}")
            for cell, metric in zip(shown, ("drive_feedforward", "input_share", "to_previous"), strict=False):
                assert cell.split(" → ")[column] == mean(metric, diagnosis="forward", level=level)
        metrics = ("within", "transfer", "deep")
        for name, variant in {
            "activation + traces": "full",
            "without SPA": "no_spa",
            "W_fb = 0": "no_feedback",
        }.items():
            shown = row(text, f"{name}, W/T/D")
            assert shown[column - 2] == "/".join(mean(metric, variant=variant) for metric in metrics)
        levels = row(text, "C15 traces of L0, L1, L2, W")[column - 2]
        assert levels == ", ".join(mean("within", level=level) for level in range(3))


class TestSwitches:
    def test_gains_effects_parts_and_causes(self) -> None:
        """Planted in test_gap_switches: .3 nats for the query, .8 of it on the fifth of the tokens that recall."""
        text = write("gap-switches", data_of(switched_cells()))

        def values(name: str) -> list[float]:
            return [float(cell.split(" ")[0].replace("−", "-")) for cell in row(text, name)]

        every = "as a predictor, query from the input, values of unit scale and context into the residual"
        gains = {"as a predictor, as in SPEN's block": -0.05, every: 0.36, "as a mixer, context into the residual": 0.5}
        for name, gain in gains.items():
            assert values(name) == [pytest.approx(gain, abs=0.004)]
        assert values("as a predictor, query from the input") == [pytest.approx(0.25, abs=0.004)]
        assert values("as a mixer") == [pytest.approx(0.5, abs=0.004)]
        heads = next(line for line in text.splitlines() if line.startswith("| switch |"))
        columns = [cell.strip() for cell in heads.strip("|").split("|")][1:]
        assert columns == ["held-out text", "held-out text, on repeated pairs", "held-out text, on other tokens"]
        assert values("query from the input") == pytest.approx([0.3, 0.2 * 0.8, 0.3 - 0.2 * 0.8], abs=0.004)
        assert "3 seeds. Switches that count as a cause" in text
        assert text.rstrip().endswith("on held-out text, query from the input and values of unit scale.")

    def test_too_few_seeds_are_no_verdict(self) -> None:
        two = [stored for stored in switched_cells().cells if stored.cell.seed < 2]
        text = write("gap-switches", data_of(Table(two)))
        assert text.rstrip().endswith("2 seeds: the plan judges the switches from 3 on.")
        assert "not recorded yet" in write("gap-switches", data_of(Table([])))


class TestPicture:
    def test_parts_are_steps_on_one_scale(self) -> None:
        """Step i saves .01 i nats on recalled tokens, a fifth of all, and .02 i on the others."""
        nats = np.cumsum([0, *range(1, len(CHAIN))])
        files = [
            run(arm, seed, 5 - 0.02 * n, 5 - 0.01 * n) for arm, n in zip(CHAIN, nats, strict=True) for seed in (0, 1)
        ]
        root = ElementTree.fromstring(chain_picture(made(*files, *sweep(CHAIN))))
        bars = [bar.attrib for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
        ends = [float(bar["x"]) for bar in bars if bar["class"] == "level"]
        widths = [[float(bar["width"]) for bar in bars if bar["class"] == f"part{i}"][1:] for i in (0, 1)]  # no legend
        assert len(widths[0]) == len(widths[1]) == len(STEP_ENDS) - 1
        assert sum(map(sum, widths)) == pytest.approx(ends[0] - ends[1], abs=1)
        assert np.array(widths[1]) == pytest.approx(8 * np.array(widths[0]), rel=0.1)
        assert widths[0][1] == pytest.approx(2 * widths[0][0], rel=0.1)

    def test_attention_with_rope_stands_below_the_chain_on_its_scale(self) -> None:
        files = [run(arm, seed, 5 - 0.1 * n, 5 - 0.1 * n) for n, arm in enumerate(CHAIN) for seed in (0, 1)]
        beside = [run(ATTENTION, seed, 5 - 0.1 * len(CHAIN), 5 - 0.1 * len(CHAIN)) for seed in (0, 1)]
        root = ElementTree.fromstring(chain_picture(made(*files, *beside, *sweep([*CHAIN, ATTENTION]))))
        names = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
        assert "for comparison: attention with RoPE, dense" in names
        bars = [bar.attrib for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
        start, end, rope = [float(bar["x"]) for bar in bars if bar["class"] == "level"]
        assert start - end == pytest.approx((len(CHAIN) - 1) * (end - rope), abs=1)

    def test_nothing_recorded_is_said(self) -> None:
        assert "is not recorded yet" in chain_picture(made())


class TestMarkers:
    def test_text_around_them_stays(self) -> None:
        text = "before\n<!-- table: rules -->\n| old |\n<!-- end -->\nafter .123\n"
        assert rewrite(text, made(), "x.md") == (
            "before\n<!-- table: rules -->\n`feedforward_rules`: not recorded yet.\n<!-- end -->\nafter .123\n"
        )

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("<!-- table: rules -->\n", r"x\.md: .* has no '<!-- end -->'"),
            ("<!-- end -->\n", r"x\.md: .* the other way round"),
            ("<!-- table: ruels -->\n<!-- end -->\n", r"x\.md: no table is called 'ruels'"),
            ("<!-- table: rules -->\n<!-- end -->\n" * 2, r"x\.md: table 'rules' stands there twice"),
        ],
    )
    def test_broken_ones_are_refused(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            rewrite(text, made(), "x.md")

    def test_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        docs = tmp_path / "docs"
        docs.mkdir()

        def call(*arguments: str) -> int:
            folders = ["--results", str(tmp_path), "--docs", str(docs)]
            monkeypatch.setattr(sys, "argv", ["write_tables.py", *folders, *arguments])
            return write_tables.main()

        assert call() == 2  # no pages
        for page in write_tables.PAGES:
            (docs / page).write_text("nothing\n")
        marks = "<!-- table: controls -->\n<!-- end -->\n"
        (docs / "results.md").write_text(marks)
        assert call("--check") == 1
        assert (docs / "results.md").read_text() == marks
        assert call() == call("--check") == 0
        for file in runs("trace_probe", [[accuracies(0.5, **FULL)], [accuracies(0.75, **FULL)]]):
            write_file(file, tmp_path)
        assert call("--check") == 1
        assert "results.md: controls: not what the cells say" in capsys.readouterr().err
        assert call() == 0
        assert row((docs / "results.md").read_text(), "SPCN, activation + traces")[0] == ".625/.625/.625"


class TestVerdicts:
    def test_the_readme_has_words_for_each(self) -> None:
        assert set(SAID) == set(VERDICTS)

    def test_those_before_are_of_every_small_claim(self) -> None:
        of_claims = [claim.id for claim in load_claims() if claim.part == "small"]
        assert sorted(small_scale.BEFORE) == sorted([*of_claims, "C22", "C46"])

    def test_causes_are_kept(self) -> None:
        head = "| claim | verdict at e0e4aa2 | verdict now | cause |\n|---|---|---|---|\n"
        block = head + "| C13 x | reproduced | open | because |\n"
        text = write("verdicts-changed", made(), block)
        assert text.splitlines()[0] == head.splitlines()[0]
        assert row(text, "C13 the backward hierarchy helps") == ["reproduced", "open", "because"]
        assert row(text, "C14 SPA and slow traces help") == ["direction only", "open", "not recorded yet"]
        assert row(text, "C22 streaming at 315 tokens/s") == ["reproduced", "open", "not recorded yet"]
        assert "C20" not in text  # not one of those

    def test_a_change_that_cells_show_needs_a_cause(self) -> None:
        rows = [[accuracies(0.9, variant="full"), accuracies(0.8 + s / 100, variant="forward_only")] for s in range(3)]
        data = made(*runs("ablations", rows))
        before = write("verdicts-changed", made())
        text = write("verdicts-changed", data, before)
        assert row(text, "C13 the backward hierarchy helps") == ["reproduced", "direction only", "cause to be written"]
        assert row(write("verdicts-small", data), "C13 the backward hierarchy helps") == [
            "W .810, T .810", "W .903 T .586 (from .960 and .618)", "direction only", "–", "3"
        ]  # fmt: skip

    def test_drawn_grammars_name_what_fails(self) -> None:
        """W holds in both draws, T in one."""
        full, forward = accuracies(0.9, variant="full"), {"within": 0.8, "transfer": 0.8}
        rows = [[full, make_row({**forward, "transfer": t}, variant="forward_only")] for t in (0.8, 0.95)]
        text = write("verdicts-small", made(*runs("ablations", rows, grammar="fully_drawn")))
        assert row(text, "C13 the backward hierarchy helps")[3] == "1/2 (T fails in 1)"

    def test_cells_of_another_grammar_fill_nothing(self) -> None:
        data = made(*runs("controls", [[accuracies(0.5, features="ema_onehot")]] * 2, grammar="default"))
        assert write("controls", data) == "`trace_probe`, `controls`, `ablations`: not recorded yet.\n"


def test_a_stroke_does_not_end_its_cell() -> None:
    assert markdown_table(["a", "b"], [["1|2", "3"]]) == "| a | b |\n|---|---|\n| 1/2 | 3 |\n"


def test_differences_are_over_pairs_of_seeds() -> None:
    """(.1, .2): mean .15, half of the interval 12.706 * .0707 / sqrt(2)."""
    rows = [[accuracies(a, variant="full"), accuracies(b, variant="no_feedback")] for a, b in ((0.9, 0.8), (0.8, 0.6))]
    text = write("pghu", made(*runs("networks", rows, network="described", part="frozen W_ff")))
    assert row(text, "described, half passives") == ["+.150 [−.485, +.785]"] * 3 + ["2 seeds"]
    assert row(text, "locked, half passives") == ["not recorded yet"] * 3 + ["–"]


def test_codings_that_have_the_papers_figure_are_named() -> None:
    factors = {"model": "gru", "embedding": 128, "word_dropout": 0.1}
    rows = [
        part
        for unseen, hard in (("untrained", 0.93), ("unk", 0.1))
        for part in (
            accuracies(0.9, unseen=unseen),
            *(make_row({"role_transfer": v}, unseen=unseen, role=r) for r, v in (("det_agent", 1), ("verb_rel", hard))),
        )
    ]
    text = write("supervised-models", made(*runs("supervised_models", [rows], **factors)))
    assert row(text, "gru, embedding 128, word dropout .1")[1:] == [
        ".900", ".900 / 1.000 / .930", "–", "–", ".900 / 1.000 / .100"
    ]  # fmt: skip
    assert "of the paper's .079 in 1 of 2 cases: gru, embedding 128, word dropout .1, – epochs, unknown word." in text


def test_predictors_stand_against_the_static_one() -> None:
    """Of Algorithm 1's block; others are not recorded here."""
    nats = {"static": (5.0, 5.2), "linear": (5.1, 5.5)}  # differences of .1 and .3
    files = [
        make_file(
            make_row({"nats": value, "unigram_nats": 7.0}, text="validation", slice="all"),
            experiment="gap_predictors",
            seed=seed,
            settings={"tokens": 1},
            factors={
                **{"context": "ema_error", "ffn": "topk_ste", "residual": "ffn", "width": "matched"},
                **{"predictor": predictor, "reads": "inputs" if predictor == "linear" else "traces_now"},
                **{"query": "slow_trace", "values": "as_read", "size": "ablation"},
            },
        )
        for predictor, values in nats.items()
        for seed, value in enumerate(values)
    ]
    text = write("gap-predictors", made(*files))
    assert row(text, "static")[0] == "5.10"
    first, *others = row(text, "linear attention")
    assert first == "+.200 [\u22121.071, +1.471]"  # .2 and 12.706 * .1414 / sqrt(2) on either side
    assert others == ["not recorded yet"] * 3
    assert "2 seeds. The unigram has 7.00 nats." in text


def predictor_run(seed: int, predictor: str, reads: str, *rows: Row, width: str = "fixed") -> CellFile:
    context = "ema" if predictor == "nothing" else "ema_error"
    arm = {"context": context, "ffn": "dense", "residual": "ffn", "width": width, "predictor": predictor}
    arm |= {"reads": reads, "query": "slow_trace", "values": "as_read", "size": "2m"}
    return make_file(*rows, experiment="gap_predictors", seed=seed, settings={"tokens": 1}, factors=arm)


def test_predictors_are_compared_on_the_seeds_that_the_static_one_has_as_well() -> None:
    """The static one at matched width, which is its own; models without predictions have another context."""
    nats = {
        ("static", "traces_now"): {0: 4.0, 1: 4.1, 2: 4.2},
        ("softmax", "traces_now"): {0: 4.0},
        ("softmax", "trace_sequence"): {1: 4.05, 2: 4.1, 7: 9.0},  # .05 and .1 less
        ("nothing", "nothing"): {0: 4.1, 1: 4.2, 2: 4.4},  # .1, .1 and .2 more
    }
    files = [
        predictor_run(
            seed, *pair, make_row({"nats": value}, text="validation", slice="all"),
            width="matched" if pair[0] == "static" else "fixed",
        )
        for pair, of_pair in nats.items()
        for seed, value in of_pair.items()
    ]  # fmt: skip
    text = write("gap-predictors-later", made(*files))
    assert row(text, "static")[0] == "4.10"
    assert row(text, "softmax, traces now")[0] == "not recorded yet"  # on one seed
    assert row(text, "softmax, trace sequence")[0] == "−.075 [−.393, +.243], 2 seeds"  # 12.706 * .0354 / 2**.5
    assert row(text, "none, trained with x̂ = 0")[:2] == ["+.133 [−.010, +.277]", "–"]  # 4.303 * .0577 / 3**.5


def test_what_predictions_leave_over_is_shown_over_blocks_and_seeds() -> None:
    left = {0: (0.5, 1.5), 1: (0.7, 2000.0)}
    files = [
        predictor_run(
            seed, "softmax", "traces_now",
            *(make_row({"unexplained": x, "over_traces": 0.25}, layer=i) for i, x in enumerate(by_layer)),
        )
        for seed, by_layer in left.items()
    ]  # fmt: skip
    assert row(write("gap-left-over", made(*files)), "2M, dense, d_ff as it is") == [
        "softmax, traces now", "1.10 (.50 to over 1,000)", ".25 (.25 to .25)"
    ]  # fmt: skip


def test_two_implementations_are_compared_seed_by_seed() -> None:
    """.01 and .03 apart; the third seed of the second has no partner."""
    first = [run(EMA, seed, 3.8, 3.8) for seed in range(2)]
    second = [run(EMA, seed, x, x, experiment="gap_second") for seed, x in enumerate((3.81, 3.83, 9.0))]
    held_out, *_ = write("gap-second", made(*sweep([EMA]), *first, *second)).splitlines()[2:]
    assert (
        held_out
        == "| held-out text | ema | +.020 (\u2212.107 to .147) | +.020 (\u2212.107 to .147) | too few seeds | 2 |"
    )  # 12.706 * .01


def test_a_change_is_compared_where_both_implementations_have_both_arms() -> None:
    """Saves .2, .2 and .2 in the first, .1, .2 and .3 in the second; the fourth seed lacks an arm."""
    arms = (EMA, ATTENTION)
    first = [run(arm, seed, nats, nats) for arm, nats in zip(arms, (3.8, 3.6), strict=True) for seed in range(4)]
    second = [run(EMA, seed, 3.9, 3.9, experiment="gap_second") for seed in range(4)]
    second += [run(ATTENTION, seed, x, x, experiment="gap_second") for seed, x in enumerate((3.8, 3.7, 3.6))]
    held_out, *_ = write("gap-second-steps", made(*sweep(arms), *first, *second)).splitlines()[2:]
    assert row(held_out, "held-out text") == [
        "attention with RoPE, not traces", ".200", ".200 (\u2212.048 to .448)",
        ".000 (\u2212.248 to .248)", "3",
    ]  # fmt: skip


def test_the_straight_through_gradient_is_shown_at_its_first_and_last_step() -> None:
    """Steps 0 to 5 with cosines of .5 down to .0, on two seeds; by part at the last one."""
    arm = {**asdict(CHAIN[0]), "size": "2m", "lr": 0.004}
    files = []
    for seed in range(2):
        rows = [make_row({"cosine": (5 - step) / 10, "norm_ratio": 2.0}, part="all", step=step) for step in range(6)]
        rows += [make_row({"cosine": 0.1, "norm_ratio": 10.0 * (1 + step)}, part="W_up", step=step) for step in (0, 5)]
        files.append(make_file(*rows, seed=seed, factors=arm, experiment="gap_straight_through", scale="gpu"))
    lines = write("straight-through-steps", made(*files)).splitlines()
    shown = [[cell.strip() for cell in line.strip("|").split("|")][1:4] for line in lines[2:6]]
    assert shown == [["0", ".500", "2.00"], ["2", ".300", "2.00"], ["3", ".200", "2.00"], ["5", ".000", "2.00"]]
    assert lines[-1] == "2 seeds."
    parts = write("straight-through-parts", made(*files))
    assert row(parts, "Algorithm 1's block")[4] == "60.0"


def test_decoded_tokens_are_those_of_the_best_reader() -> None:
    """By accuracy one reader, by nats another; a reader in bfloat16 is not asked."""
    slow = {"representation": "slow", "number_format": "float32", "given": "topic", "reader": "mlp"}
    rows = [
        make_row({"accuracy": 0.05}, reader="topic", lag=1),
        make_row({"accuracy": 0.25, "gain_nats": 1.5}, **slow, lag=1),
        make_row({"accuracy": 0.9, "gain_nats": 3.0}, **{**slow, "number_format": "bfloat16"}, lag=1),
        make_row({"accuracy": 0.1, "gain_nats": 2.5}, **{**slow, "reader": "linear"}, lag=1),
        make_row({"accuracy": 0.3, "gain_nats": 0.5, "nats": 5.0}, **{**slow, "given": "nothing"}, lag=1),
        make_row({"nats": 5.5}, **{**slow, "given": "nothing", "reader": "linear"}, lag=1),
        make_row({"nats": 7.0, "accuracy": 0.01}, reader="unigram", lag=1),
        make_row(
            {"accuracy": 1.0, "gain_nats": 6}, **{**slow, "given": "nothing", "representation": "sequence"}, lag=1
        ),
    ]
    data = made(*runs("trace_decoding", [rows, rows], context="ema_error", size="2m"))
    text = write("trace-decoding", data)
    assert row(text, "*the window's other tokens as counts*")[:2] == [".050", "not recorded yet"]
    assert row(text, "slow trace, one vector")[0] == ".300 / 2.50"
    assert row(text, "slow traces, sequence")[0] == "1.000 / 6.00"
    assert row(text, "slow trace by itself, nats over the unigram")[0] == "2.00"  # the better reader
    assert "2 seeds." in text
    assert "in .300, not recorded yet and not recorded yet from the slow one" in write("gap-tokens", data)


AT_130M = {  # on held-out text; WikiText-2 has 2 more and C4 1
    ("skeleton", "ema_error", "topk_ste", "none", "tokens"): {0: 4.0, 1: 4.6, 2: 4.6},
    ("skeleton", "ema_error", "topk_masked", "none", "tokens"): {0: 4.1},
    ("gpt2", "attention", "dense", "learned", "tokens"): {0: 3.5, 1: 4.0},
}


class TestAt130M:
    def data(self) -> ReportData:
        found = []
        for (block, context, ffn, positions, budget), seeds in AT_130M.items():
            factors = {"block": block, "context": context, "ffn": ffn, "positions": positions, "budget": budget}
            for seed, nats in seeds.items():
                rows = [make_row({"tokens": 1e8})]
                for text, more in (("validation", 0.0), ("wikitext2", 2.0), ("c4", 1.0)):
                    rows.append(make_row({"nats": nats + more}, text=text, slice="all"))
                    rows += [make_row({"perplexity": 77.0 + more}, text=text, state=s) for s in ("reset", "carried")]
                rows += [make_row({"nats": nats - 1}, text="validation", slice="recall")]
                of = {**factors, "width": "matched", "size": "130m"}
                found.append(make_file(*rows, experiment="gap_130m", scale="gpu", seed=seed, factors=of))
        return made(*found)

    def test_differences_are_of_the_seeds_that_both_have(self) -> None:
        text = write("gap-130m", self.data())
        assert "with the true gradient +.100, +.100 and +.100;" in text
        assert "GPT-2's block −.550, −.550 and −.550 at equal tokens and not recorded yet" in text
        assert text.endswith("1 to 2 seeds.\n")

    def test_every_recorded_arm_has_a_line(self) -> None:
        text = write("at-130m", self.data())
        tokens, *perplexities = ["100.0M", "77.0 / 77.0", "79.0 / 79.0", "78.0 / 78.0"]
        assert row(text, "SPEN, Algorithm 1")[:7] == [tokens, *perplexities, "4.400", "3.400", "–"]
        assert row(text, "SPEN, masked gradient")[4] == "4.100"
        assert "1 to 3 seeds." in text
        assert "EMA, dense" not in text


class TestChoices:
    """Two standard deviations of the claim's own cells, .90 and .92, are .028."""

    @pytest.fixture
    def data(self) -> ReportData:
        def of_choice(name: str, full: float, forward: float) -> list[Row]:
            return [
                accuracies(full, choice=name, variant="full"),
                accuracies(forward, choice=name, variant="forward_only"),
            ]

        rows = [*of_choice("default", 0.9, 0.8), *of_choice("k 4%", 0.8, 0.85), *of_choice("no ReLU", 0.92, 0.8)]
        own = [[accuracies(value, **FULL)] for value in (0.90, 0.92)]
        return made(*runs("choices", [rows] * 2), *runs("trace_probe", own))

    def test_changes_beyond_scatter(self, data: ReportData) -> None:
        figure = Quantity(Selector("trace_probe", "within", FULL))
        large, small = (change_of(data.table, name, figure) for name in ("k 4%", "no ReLU"))
        assert large is not None
        assert small is not None
        assert (large.difference, small.difference) == (pytest.approx(-0.1), pytest.approx(0.02))
        assert large.scatter == pytest.approx(2 * np.std([0.90, 0.92], ddof=1))
        assert (large.beyond_scatter, small.beyond_scatter) == (True, False)
        assert change_of(data.table, "three epochs", figure) is None
        by_role = Selector("trace_probe", "role_transfer", {"representation": "l0", "role": "verb"})
        assert under_choice(by_role, "k 4%") is None

    def test_columns_by_hand_stay(self, data: ReportData) -> None:
        page = (DOCS / "deviations.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"<!-- table: choices-spcn -->\n(.*?)<!-- end -->", page, re.DOTALL)
        text = write("choices-spcn", data, block.replace("fitted by eye", "tossed a coin"))
        _, why, matters = row(text, "k of each top-k")
        assert why.startswith("tossed a coin")
        assert matters == "**−.100** / **−.100** / **−.100** at 4%, not recorded yet at 16%"
        assert row(text, "what follows top-k")[-1] == "no ReLU +.020 / +.020 / +.020"
        with pytest.raises(ValueError, match="has no row 'k of each top-k'"):
            write("choices-spcn", data, block.replace("k of each top-k", "k"))

    def test_a_choice_without_a_row_is_refused(self) -> None:
        data = made(*runs("choices", [[accuracies(0.9, choice="lemon", variant="full")]]))
        with pytest.raises(ValueError, match="choice 'lemon' is in no row"):
            write("choices-spcn", data)

    def test_claims_and_directions(self, data: ReportData) -> None:
        text = write("choices-claims", data)
        default = row(text, "*default*, the figures themselves")
        # the claims that have no cell under the default have no column
        assert [head[:3] for head in row(text, "choice")] == ["C03", "C13", "dir"]
        assert default == [".900 / .900 / .900", ".800 / .800", "none"]
        c13, failing = row(text, "k 4%")[1:]
        assert (c13, failing) == ("+.050 / +.050", "C13")  # without cells of its own nothing is known of its scatter
        assert row(text, "*2 standard deviations over seeds*")[0] == ".028 / .028 / .028"

    def test_page(self, data: ReportData) -> None:
        (claims,) = [part for part in choices_section(data) if hasattr(part, "body")]
        shown = [[str(cell.content) for cell in line.cells] for line in claims.body]
        assert shown[1][1] == " / ".join(["<b>−.100</b>"] * 3)
        assert [line[-1] for line in shown] == ["none", "C13", "none"]
