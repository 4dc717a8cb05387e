"""The report on results made by hand: what is shown must be what the files say, and nothing may be lost or loaded."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console

from ematrace.ledger import (
    Claim,
    Direction,
    Figure,
    LedgerRow,
    PaperFigure,
    Provenance,
    Result,
    Store,
    build_ledger,
    load_claims,
    write_result,
)
from ematrace.report import ledger_table, verdict_summary, write_report
from ematrace.report.sections import SECTIONS
from ematrace.report.wording import interval, number, ours_lines, short_names

ROLES = (
    *("det_agent", "adj_agent", "noun_agent", "det_patient", "adj_patient", "noun_patient", "det_rel", "adj_rel"),
    *("noun_rel", "det_recip", "noun_recip", "verb", "verb_intrans", "verb_pass", "verb_rel", "aux", "prep_by"),
    *("prep_to", "rel_pron", "adverb"),
)
WTD = ("within", "transfer", "deep", "deep_strict")
TOKENS = {"within": 20431, "transfer": 20288, "deep": 2790, "deep_strict": 2190}
MADE = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)


def made_up_means() -> dict[str, dict[str, tuple[float, int | None]]]:
    """Experiment -> figure -> (mean, tokens), near the paper where the paper has a number."""
    out: dict[str, dict[str, tuple[float, int | None]]] = {}

    def accuracies(experiment: str, name: str, *means: float) -> None:
        table = out.setdefault(experiment, {})
        for measure, mean in zip(WTD, means, strict=False):
            table[f"{name}.{measure}"] = (mean, TOKENS[measure])

    def by_role(experiment: str, name: str, sides: tuple[str, ...], known: Mapping[str, float]) -> None:
        for side in sides:
            for i, role in enumerate(ROLES):
                mean = known.get(role, 0.25 + 0.7 * ((7 * i + len(name)) % 20) / 20)
                out[experiment][f"{name}.{side}.role.{role}"] = (mean if side == "transfer" else 0.95, 300 + 90 * i)

    accuracies("trace_probe", "l0", 0.79, 0.42, 0.33, 0.21)
    accuracies("trace_probe", "traces", 0.95, 0.49, 0.77, 0.70)
    accuracies("trace_probe", "l0+traces", 0.973, 0.60, 0.83, 0.78)
    for name in ("l0", "traces", "l0+traces"):
        spcn = {"det_agent": 0.99, "verb_rel": 0.88, "noun_agent": 0.55, "noun_patient": 0.35}
        by_role("trace_probe", name, ("within", "transfer"), spcn)
        out["trace_probe"][f"{name}.control_task"] = (0.71, 20431)
        out["trace_probe"][f"{name}.selectivity"] = (0.25, None)
    controls = {
        "majority": (0.17, 0.17, 0.0, 0.0),
        "position": (0.41, 0.41, 0.05, 0.04),
        "onehot": (0.72, 0.31, 0.28, 0.10),
        "window1": (0.88, 0.52, 0.66, 0.60),
        "window2": (0.93, 0.55, 0.80, 0.76),
        "window3": (0.95, 0.56, 0.84, 0.80),
        "ema_onehot": (0.97, 0.62, 0.88, 0.85),
        "ema_merged": (0.93, 0.91, 0.86, 0.83),
        "untrained_bigru": (0.90, 0.50, 0.61, 0.50),
        "no_feedback": (0.97, 0.61, 0.83, 0.77),
        "no_spa_no_lateral": (0.96, 0.60, 0.80, 0.75),
    }
    for name, means in controls.items():
        accuracies("controls", name, *means)
    dimensions: dict[str, tuple[float, ...]] = {
        "l0": (0.80, 0.46, 0.33),
        "l0_512": (0.74, 0.41, 0.27),
        "traces_1024": (0.94, 0.51, 0.69),
        "traces_512": (0.91, 0.47, 0.56),
    }
    for name, accuracy in dimensions.items():
        accuracies("dimension_control", name, *accuracy)
        out["dimension_control"][f"{name}.parameters"] = (10260.0 if "512" in name else 20500.0, None)
    bigru = {"det_agent": 0.97, "verb_rel": 0.42, "noun_agent": 0.78, "noun_patient": 0.86}
    accuracies("supervised", "bigru", 0.9995, 0.74, 0.999, 0.999)
    by_role("supervised", "bigru", ("within", "transfer"), bigru)
    for name, transfer in (("bigru_zero", 0.81), ("bigru_mean", 0.86)):
        accuracies("supervised", name, 0.9995, transfer, 0.999, 0.999)
        by_role("supervised", name, ("transfer",), {role: min(1.0, v + 0.1) for role, v in bigru.items()})
    ablations: dict[str, tuple[float, ...]] = {
        "full": (0.973, 0.60, 0.83),
        "forward_only": (0.90, 0.585, 0.60),
        "backward_only": (0.80, 0.45, 0.5),
        "no_spa": (0.96, 0.6, 0.82),
        "no_spa_no_slow": (0.93, 0.55, 0.7),
        "fast_only": (0.94, 0.56, 0.75),
        "slow_only": (0.92, 0.55, 0.70),
        "level0": (0.95, 0.49, 0.77),
        "level1": (0.62, 0.40, 0.31),
        "level2": (0.45, 0.33, 0.15),
        "level3": (0.33, 0.25, 0.06),
    }
    for name, accuracy in ablations.items():
        accuracies("ablations", name, *accuracy)
    ranks = {"frozen": 71.0, "sanger": 1.4, "foldiak": 3.0, "pghu": 1.1, "forward_forward": 40.0}
    for i, (name, rank) in enumerate(ranks.items()):
        accuracies("feedforward_rules", name, 0.97 - 0.09 * i, 0.6 - 0.04 * i, 0.83 - 0.1 * i)
        for j, measure in enumerate(("weight_pr", "code_pr", "weight_rank", "code_rank")):
            out["feedforward_rules"][f"{name}.{measure}"] = (rank * (1 + 0.4 * j), None)
    out["position"] = {
        "position0.det_agent": (0.75, 5000),
        "position0.det_patient": (0.25, 5000),
        "position_only.within": (0.41, 20431),
    }
    lags: dict[str, tuple[float, int | None]] = {}
    for lag in range(7):
        n = 20431 - 2900 * lag
        lags[f"majority.lag{lag}"] = (0.2, n)
        for name, start, fall in (("fast", 1.0, 0.7), ("slow", 0.9, 0.8), ("traces", 1.0, 0.82)):
            lags[f"{name}.lag{lag}"] = (max(0.2, start * fall**lag), n)
        for name, fall in (("fast", 0.6), ("slow", 0.4), ("onehot_fast", 1.0), ("onehot_slow", 0.99)):
            lags[f"peel_{name}.lag{lag}"] = (fall**lag, n // 8)
    lags |= {"fast.role": (0.78, 20431), "slow.role": (0.74, 20431), "traces.role": (0.81, 20431)}
    out["lag_decoding"] = lags
    out["distances"] = {}
    for points, epsilon in (("words", 0.22), ("contexts", 0.26)):
        out["distances"][f"{points}.jl_epsilon"] = (epsilon, None)
        for code, distortion in (("linear", 0.19), ("topk", 0.61)):
            out["distances"][f"{points}.{code}.max_distortion"] = (distortion, None)
            out["distances"][f"{points}.{code}.share_within_epsilon"] = (0.995 if code == "linear" else 0.7, None)
            if points == "contexts":
                out["distances"][f"{points}.{code}.spearman"] = (0.93 if code == "linear" else 0.81, None)
    shortcuts: dict[str, tuple[float, int | None]] = {}
    for name, mean in (("intact", 0.99), ("context_only", 0.93), ("word_only", 0.52), ("swapped", 0.95)):
        shortcuts[f"{name}.content"] = (mean, 3500)
        for i, role in enumerate(r for r in ROLES if r.startswith(("noun", "adj", "verb"))):
            shortcuts[f"{name}.role.{role}"] = (max(0.0, mean - 0.03 * (i % 4)), 200)
    out["shortcuts"] = shortcuts
    return out


PROVENANCE = Provenance(
    date="2026-01-02T03:04:05+00:00",
    commit="0123456789abcdef",
    dirty=False,
    hardware={"cpu": "Some CPU @ 2.20GHz", "cores": 2, "memory_gib": 7.6},
    versions={"python": "3.11.9", "numpy": "2.4.6", "torch": "2.13.0"},
    seconds=301.2,
    peak_memory_mb=812.0,
)
FIXED = ("position0.", ".parameters", ".jl_epsilon")


def draw(name: str, mean: float, n: int | None, m: int, width: float = 0.006) -> Figure:
    """m values about the mean, the same for the same name; no spread where no seed has a say."""
    if any(part in name for part in FIXED):
        return Figure((mean,) * m, n)
    noise = np.random.default_rng(zlib.crc32(name.encode())).normal(0, width * max(1.0, abs(mean)), m)
    values = mean + noise - noise.mean()
    return Figure(tuple(np.clip(values, 0, 1) if n is not None else values), n)


def made_up_result(
    experiment: str, seeds: int = 8, figures: Mapping[str, Figure] | None = None, **changes: Any
) -> Result:
    if figures is None:
        figures = {name: draw(name, mean, n, seeds) for name, (mean, n) in made_up_means()[experiment].items()}
    fields: dict[str, Any] = {
        "experiment": experiment,
        "title": f"Title of {experiment}",
        "claims": (),
        "scale": "cpu",
        "command": f"ematrace reproduce {experiment} --seeds {seeds}",
        "settings": {"spcn": {"k": 0.06, "alphas": [0.5, 0.075], "spa": True}, "lambda": 0.01},
        "seeds": tuple(range(seeds)),
        "figures": figures,
        "provenance": PROVENANCE,
    }
    return Result(**{**fields, **changes})


def made_up_robustness(draws: int = 24) -> Result:
    rng = np.random.default_rng(5)
    conditions: list[dict[str, Any]] = [
        {
            "grammar_seed": i,
            "k": (0.02, 0.04, 0.08, 0.16)[i % 4],
            "file": "default.toml",
            "shares": dict(zip(("transitive", "passive", "relative"), rng.dirichlet(np.ones(3)).tolist(), strict=True)),
            "variant_weights": {"relative": {"object": float(rng.uniform(0.05, 0.95))}},
            "adjective_rate": float(rng.uniform(0.1, 0.6)),
            "noun_bias": float(rng.uniform(0.5, 1)),
        }
        for i in range(draws)
    ]
    figures = {
        f"{experiment}/{name}": draw(f"{experiment}/{name}", mean, n, draws, width=0.05)
        for experiment, table in made_up_means().items()
        if experiment not in ("supervised", "shortcuts")
        for name, (mean, n) in table.items()
    }
    return made_up_result("robustness", draws, figures, conditions=tuple(conditions))


def fill(folder: Path, local: bool = True) -> Store:
    """Every experiment recorded; some run on this machine, too, with fewer seeds."""
    for name in made_up_means():
        seeds = 1 if name in ("supervised", "shortcuts") else 8
        write_result(made_up_result(name, seeds), folder / "results")
    write_result(made_up_robustness(), folder / "results")
    if local:
        for name in ("trace_probe", "controls"):
            write_result(made_up_result(name, 3), folder / "results" / "local")
        write_result(made_up_result("supervised", 1), folder / "results" / "local")
    return Store(folder / "results", folder / "results" / "local")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def page(full: Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(full, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def empty_page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("empty")
    return render(Store(None, folder / "local"), folder)


def render(store: Store, folder: Path, **options: Any) -> str:
    """The page without plotly.js, whose text no test here is about; it must be there once."""
    path = write_report(store, folder / "report.html", made=MADE, **options)
    text = path.read_text(encoding="utf-8")
    assert text.count(get_plotlyjs()) == 1
    return text.replace(get_plotlyjs(), "")


class Reader(HTMLParser):
    """Checks that tags are balanced, and collects elements with their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute is given twice in <{tag}>"
        if tag in ("meta", "col", "br", "hr"):
            self.elements.append((tag, dict(attrs), ""))
            return
        self.open.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts = [text + data for text in self.texts]

    def handle_endtag(self, tag: str) -> None:
        opened, attributes = self.open.pop()
        assert opened == tag
        self.elements.append((tag, attributes, self.texts.pop()))

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        return [(a, t) for name, a, t in self.elements if name == tag and wanted.items() <= a.items()]


def specs_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="plot-specs">(.*?)</script>', page, flags=re.DOTALL)
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


class TestPage:
    def test_loads_nothing(self, page: str) -> None:
        assert not re.search(r"@import|url\(", page)
        for tag, attributes, _ in Reader(page).elements:
            assert tag not in ("link", "iframe", "img", "object", "embed", "base")
            assert "src" not in attributes
            assert "srcset" not in attributes
            assert attributes.get("href", "#").startswith("#"), attributes  # type: ignore[union-attr]
        assert "default-src 'none'" in page

    def test_links_lead_somewhere_and_ids_are_unique(self, page: str) -> None:
        elements = Reader(page).elements
        ids = [a["id"] for _, a, _ in elements if "id" in a]
        assert len(ids) == len(set(ids))
        assert {a["href"] for _, a, _ in elements if "href" in a} <= {f"#{id}" for id in ids}

    def test_every_claim_with_its_verdict(self, page: str, full: Store) -> None:
        reader = Reader(page)
        for row in build_ledger(full):
            [(_, text)] = reader.all("tbody", id=row.id)
            assert row.verdict in text
            assert row.claim in text
            assert row.paper in text
            assert row.command in text
            for path in row.evidence:
                assert path in text

    def test_counts_of_verdicts_are_the_ledgers(self, page: str, full: Store) -> None:
        part = {claim.id: claim.part for claim in load_claims()}
        small = [row for row in build_ledger(full) if part[row.id] == "small"]
        sentence = next(text for _, text in Reader(page).all("li") if "small-scale" in text)
        found = re.findall(r"(\d+) ((?:not |direction )?[a-z]+)(?=[,.])", sentence)
        assert len(small) == 22
        assert {verdict: int(n) for n, verdict in found} == Counter(row.verdict for row in small)

    def test_numbers_are_those_of_the_files(self, page: str, full: Store) -> None:
        stored = {s.result.experiment: s.result for s in full.load() if not s.local}
        cells = Reader(page).all("span", **{"class": "mean"})
        shown = [(a["data-ref"], text) for a, text in cells if "data-ref" in a]
        assert len({ref for ref, _ in shown}) > 300
        for ref, text in shown:
            assert ref is not None
            experiment, _, name = ref.partition("/")
            mean = np.mean(stored[experiment].figures[name].values)
            value = float(text.replace("−", "-").replace(",", ""))
            digits = len(text.partition(".")[2])
            assert value == pytest.approx(mean, abs=0.5000001 * 10**-digits)

    def test_intervals_beside_a_mean(self, page: str, full: Store) -> None:
        figure = next(s for s in full.load() if s.result.experiment == "trace_probe").result.figures["l0.within"]
        tokens = Figure((figure.mean,), figure.n).interval
        [(_, section)] = Reader(page).all("section", id="representations")
        assert f"{number(figure.mean)} {interval(figure.interval)} {interval(tokens)} here" in section

    def test_paper_values_come_from_the_claims(self, full: Store, tmp_path: Path) -> None:
        claim = Claim("C01", "small", "x", "y", figure=(PaperFigure("trace_probe/l0.within", 0.123, "accuracy"),))
        page = render(full, tmp_path, claims=[claim])
        papers = [text for _, text in Reader(page).all("td", **{"class": "num paper"}) if text]
        assert set(papers) == {".123"}

    def test_every_predicate_with_its_numbers_and_share(self, page: str, full: Store) -> None:
        rows = {row.id: row for row in build_ledger(full)}
        [(_, text)] = Reader(page).all("tbody", id="C03")
        for check in rows["C03"].checks:
            assert check.predicate in text
            assert number(check.left) in text
        robust = rows["C03"].robustness
        assert robust is not None
        for _, share in robust.each:
            assert f"{share.holds}/{share.conditions}" in text

    def test_plots_are_valid_plotly_and_have_a_place_and_a_description(self, page: str) -> None:
        specs = specs_of(page)
        places = {a["id"]: a for a, _ in Reader(page).all("div", **{"class": "plot"})}
        assert set(specs) == set(places)
        assert len(specs) >= 14
        for id, spec in specs.items():
            assert places[id]["aria-label"]
            assert "template" not in spec["layout"]
            go.Figure(spec["data"], spec["layout"])

    def test_plot_points_are_the_figures(self, page: str, full: Store) -> None:
        figures = next(s for s in full.load() if s.result.experiment == "trace_probe").result.figures
        within = next(t for t in specs_of(page)["plot-representations"]["data"] if t["name"].startswith("within A"))
        assert within["x"][:3] == [figures[f"{r}.within"].mean for r in ("l0", "traces", "l0+traces")]
        ends = figures["l0.within"].interval
        assert ends is not None
        assert within["x"][0] + within["error_x"]["array"][0] == pytest.approx(ends[1])
        assert within["x"][0] - within["error_x"]["arrayminus"][0] == pytest.approx(ends[0])

    def test_controls_stand_in_every_spcn_table(self, page: str) -> None:
        for section in ("representations", "dimension", "ablations", "rules"):
            [(_, text)] = Reader(page).all("section", id=section)
            assert "EMA of one-hots" in text

    def test_seeds_of_both_systems_in_one_row(self, page: str) -> None:
        [(_, text)] = Reader(page).all("section", id="roles")
        assert "8, 1" in text

    def test_headings_and_scopes(self, page: str) -> None:
        reader = Reader(page)
        assert len(reader.all("h1")) == 1
        assert {a.get("scope") for a, _ in reader.all("th")} <= {"row", "col", "colgroup"}
        assert None not in {a.get("scope") for a, _ in reader.all("th")}

    def test_the_same_input_gives_the_same_page(self, page: str, full: Store, tmp_path: Path) -> None:
        assert render(full, tmp_path) == page

    def test_says_what_is_recorded_and_what_is_local(self, page: str) -> None:
        [(_, text)] = Reader(page).all("section", id="representations")
        assert "recorded" in text
        assert "Also run on this machine: 3 seeds" in text
        assert "here .79" in text

    def test_warns_that_figures_are_fitted(self, page: str) -> None:
        [(_, text)] = Reader(page).all("div", **{"class": "note"})
        assert "fitted" in text


class TestMissingAndUnknown:
    def test_no_results_at_all(self, empty_page: str) -> None:
        reader = Reader(empty_page)
        for claim in load_claims():
            assert "open" in reader.all("tbody", id=claim.id)[0][1]
        for section in SECTIONS:
            [(_, text)] = reader.all("section", id=section.id)
            for name in section.experiments:
                assert f"ematrace reproduce {name}" in text
        assert specs_of(empty_page) == {}

    @pytest.mark.parametrize("name", [*made_up_means(), "robustness"])
    def test_one_experiment_alone(self, name: str, tmp_path: Path) -> None:
        write_result(made_up_robustness() if name == "robustness" else made_up_result(name, 2), tmp_path / "results")
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path)
        reader = Reader(page)
        missing = {name for section in SECTIONS for name in section.experiments} - {name}
        for other in missing:
            assert f"{other} is not run yet" in page
        assert f"{name} is not run yet" not in page
        assert reader.all("section", id="provenance")

    def test_a_figure_without_a_value_is_a_dash(self, tmp_path: Path) -> None:
        figures = dict(made_up_result("trace_probe", 2).figures)
        figures["l0.within"] = Figure((0.8, float("nan")), 20431)
        del figures["traces.deep"]
        write_result(made_up_result("trace_probe", 2, figures), tmp_path / "results")
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path)
        assert "nan" not in re.sub(r"[a-z]*(?:nan)[a-z]+|[a-z]+nan", "", page.lower())
        assert "1 of 2" in page

    def test_a_draw_without_a_value_has_no_mark(self, tmp_path: Path) -> None:
        drawn = made_up_robustness(4)
        name = "trace_probe/l0.within"
        gap = Figure((0.5, float("nan"), 0.6, 0.7), 100)
        figures = {**drawn.figures, name: gap}
        write_result(Result(**{**vars(drawn), "figures": figures}), tmp_path / "results")
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path)
        [trace] = [t for t in specs_of(page)["plot-conditions"]["data"] if t["name"] == "L0, W"]
        assert trace["y"] == [0.5, None, 0.6, 0.7]

    def test_a_claim_that_is_not_testable_says_why(self, tmp_path: Path) -> None:
        claim = Claim("C21", "large", "x", "y", not_testable="needs an H200", direction=(Direction("a/b", ">", 1.0),))
        page = render(Store(None, tmp_path / "local"), tmp_path, claims=[claim])
        [(_, text)] = Reader(page).all("tbody", id="C21")
        assert "not testable here" in text
        assert "needs an H200" in text

    def test_an_unknown_experiment_has_a_table_of_its_figures(self, tmp_path: Path) -> None:
        figures = {"loss.final": Figure((5.21, 5.25)), "speed": Figure((165_000.0, 166_000.0))}
        write_result(made_up_result("spen_train", 2, figures, scale="gpu"), tmp_path / "results")
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path)
        [(_, text)] = Reader(page).all("section", id="experiment-spen_train")
        for part in ("Title of spen_train", "loss.final", "5.23", "165,500", "gpu", "recorded"):
            assert part in text

    def test_a_claim_on_an_unknown_experiment_that_was_not_run(self, tmp_path: Path) -> None:
        claim = Claim("C20", "large", "x", "y", direction=(Direction("spen_size/parameters", ">", 1.0),))
        page = render(Store(None, tmp_path / "local"), tmp_path, claims=[claim])
        assert "ematrace reproduce spen_size" in page

    def test_a_new_condition_of_a_known_experiment_is_shown(self, tmp_path: Path) -> None:
        figures = dict(made_up_result("controls", 2).figures) | {"bag_of_words.within": Figure((0.5, 0.6), 100)}
        write_result(made_up_result("controls", 2, figures), tmp_path / "results")
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path)
        [(_, text)] = Reader(page).all("section", id="representations")
        assert "bag_of_words" in text


EVIL = "<script>alert('x')</script><b>&amp;"


class TestEscaping:
    def test_texts_of_files_are_escaped(self, tmp_path: Path) -> None:
        role = "<i>role"
        figures = dict(made_up_result("trace_probe", 2).figures) | {
            f"{EVIL}.within": Figure((0.5, 0.6), 100),
            f"l0+traces.transfer.role.{role}": Figure((0.5, 0.6), 100),
        }
        evil = made_up_result("trace_probe", 2, figures, title=EVIL, command=EVIL, settings={EVIL: {EVIL: [EVIL]}})
        run = Provenance(**{**vars(PROVENANCE), "hardware": {"cpu": EVIL}, "versions": {EVIL: EVIL}, "commit": EVIL})
        write_result(Result(**{**vars(evil), "provenance": run}), tmp_path / "results")
        write_result(made_up_result("later", 2, {EVIL: Figure((1.0, 2.0))}, title=EVIL), tmp_path / "results")
        drawn = made_up_robustness(3)
        conditions = tuple({**c, EVIL: float(i), "text": EVIL} for i, c in enumerate(drawn.conditions or ()))
        write_result(Result(**{**vars(drawn), "conditions": conditions}), tmp_path / "results")
        claim = Claim(
            "C01", "small", EVIL, EVIL, not_testable=EVIL, direction=(Direction("trace_probe/l0.within", ">", 0.1),)
        )
        page = render(Store(tmp_path / "results", tmp_path / "local"), tmp_path, claims=[claim])
        reader = Reader(page)
        assert len(reader.all("script")) == 3
        assert not reader.all("b")
        assert not reader.all("i")
        assert reader.all("td", **{"class": "claim"})[0][1] == EVIL
        assert any(text == EVIL for _, text in reader.all("h2"))
        spec = specs_of(page)
        assert "<i>" not in json.dumps(spec["plot-roles"]["layout"])
        assert "&lt;script" in json.dumps(spec["plot-conditions"]["choices"])


class TestWriting:
    def test_a_failed_write_leaves_the_old_page(
        self, full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "report.html"
        out.write_text("old")

        def fail(*_: Any, **__: Any) -> int:
            raise OSError("disk full")

        monkeypatch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match="disk full"):
            write_report(full, out)
        monkeypatch.undo()
        assert out.read_text() == "old"
        assert list(tmp_path.iterdir()) == [out]

    def test_makes_the_folder_and_returns_the_path(self, full: Store, tmp_path: Path) -> None:
        out = tmp_path / "new" / "page.html"
        assert write_report(full, out) == out
        assert out.is_file()


def printed(rows: list[LedgerRow], width: int) -> str:
    console = Console(width=width, record=True, file=None, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(ledger_table(rows))
    return capture.get()


class TestTerminal:
    @pytest.mark.parametrize("width", [80, 100, 160])
    def test_every_id_and_no_line_too_long(self, full: Store, width: int) -> None:
        rows = build_ledger(full)
        text = printed(rows, width)
        assert all(len(line) <= width for line in text.splitlines())
        starts = [line.split()[0] for line in text.splitlines() if re.match(r"[CF]\d", line)]
        assert starts == [row.id for row in rows]

    @pytest.mark.parametrize("width", [100, 160])
    def test_numbers_and_verdicts_are_whole(self, full: Store, width: int) -> None:
        rows = build_ledger(full)
        text = printed(rows, width)
        [row] = [row for row in rows if row.id == "C02"]
        for _, mean, ends in ours_lines(row):
            assert re.search(rf"{re.escape(mean)}\s+{re.escape(ends)}", text)
        assert row.robustness is not None
        assert f"{row.robustness.all.holds}/{row.robustness.all.conditions}" in text
        # Every word of the claim is there, none cut.
        words = set(re.findall(r"[\w.,()-]+", text))
        assert set(re.findall(r"[\w.,()-]+", row.claim)) <= words

    def test_nothing_run(self, tmp_path: Path) -> None:
        rows = build_ledger(Store(None, tmp_path))
        text = printed(rows, 100)
        assert "waits for" in text
        assert f"{len(rows)} open" in text

    def test_markup_in_a_claim_is_text(self, tmp_path: Path) -> None:
        claim = Claim("C01", "small", "[red]x[/red] [/]", "[b]y", not_testable="[/z]")
        text = printed(build_ledger(Store(None, tmp_path), [claim]), 160)
        assert "[red]x[/red] [/]" in text
        assert "[b]y" in text

    def test_summary_counts_every_row_once(self, full: Store) -> None:
        rows = build_ledger(full)
        text = verdict_summary(rows).plain
        assert "\n" not in text
        head, _, tail = text.partition(":")
        assert int(head.split()[0]) == len(rows) == sum(int(n) for n in re.findall(r"\d+", tail))


class TestWording:
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
        assert interval(None) == "–"

    def test_short_names_stay_apart(self) -> None:
        for claim in load_claims():
            names = short_names([f.text.rpartition(" = ")[0] for f in claim.figure])
            assert len(set(names)) == len(names)
        assert short_names(["a/x.within - a/y.within", "a/x.deep - a/y.deep"]) == ["ΔW", "ΔD"]
