"""Cells made by hand for the page, near the paper where the paper has a number, and a reader of the page."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from cells_support import make_file, make_provenance
from ematrace.report import write_report
from ematrace.report.charts import Axis, LineChart, RowChart
from ematrace.report.data import ReportData
from ematrace.report.parts import Part, walk
from ematrace.report.sections import SECTIONS
from ematrace.results import CellFile, Metric, Row, Store, write_file

MADE = datetime(2026, 3, 4, 5, 6, tzinfo=UTC)
ROLES = (
    *("det_agent", "adj_agent", "noun_agent", "det_patient", "adj_patient", "noun_patient", "det_rel", "adj_rel"),
    *("noun_rel", "det_recip", "noun_recip", "verb", "verb_intrans", "verb_pass", "verb_rel", "aux", "prep_by"),
    *("prep_to", "rel_pron", "adverb"),
)
TOKENS = {"within": 20431, "transfer": 20288, "deep": 2790, "deep_strict": 2190}
GRAMMAR_EXPERIMENTS = (
    *("trace_probe", "controls", "dimension_control", "supervised", "ablations", "feedforward_rules", "position"),
    *("lag_decoding", "distances", "shortcuts"),
)
ONE_SEED = ("supervised", "shortcuts")
PROVENANCE = make_provenance(
    commit="0123456789abcdef",
    hardware={"cpu": "Some CPU @ 2.20GHz", "cores": 2, "memory_gib": 7.6},
    versions={"python": "3.11.9", "numpy": "2.4.6", "torch": "2.13.0"},
    seconds=301.2,
    command="ematrace reproduce everything --seeds 8",
)
SETTINGS = {"spcn": {"k": 0.06, "alphas": [0.5, 0.075], "spa": True}, "lambda": 0.01}


@dataclass(frozen=True)
class Mean:
    """One metric of one cell: about `value`, the same on every seed if `fixed`; an accuracy if it has `n`."""

    experiment: str
    metric: str
    value: float
    n: int | None
    factors: dict[str, Any]
    fixed: bool = False

    def draw(self, count: int, width: float) -> np.ndarray:
        if self.fixed:
            return np.full(count, self.value)
        seed = zlib.crc32(repr((self.experiment, self.metric, sorted(self.factors.items()))).encode())
        noise = np.random.default_rng(seed).normal(0, width * max(1.0, abs(self.value)), count)
        values = self.value + noise - noise.mean()
        return values if self.n is None else np.clip(values, 0, 1)


def accuracies(experiment: str, values: Sequence[float], **factors: Any) -> Iterator[Mean]:
    for metric, value in zip(TOKENS, values, strict=False):
        yield Mean(experiment, metric, value, TOKENS[metric], factors)


def by_role(experiment: str, known: dict[str, float], **factors: Any) -> Iterator[Mean]:
    for i, role in enumerate(ROLES):
        value = known.get(role, 0.25 + 0.7 * (7 * i % 20) / 20)
        where = {**factors, "role": role}
        yield Mean(experiment, "role_within", 0.95, 300 + 90 * i, where)
        yield Mean(experiment, "role_transfer", value, 300 + 90 * i, where)


def _representations() -> Iterator[Mean]:
    table = {"l0": (0.79, 0.42, 0.33, 0.21), "traces": (0.95, 0.49, 0.77, 0.70), "l0+traces": (0.973, 0.60, 0.83, 0.78)}
    spcn = {"det_agent": 0.99, "verb_rel": 0.88, "noun_agent": 0.55, "noun_patient": 0.35}
    for name, values in table.items():
        yield from accuracies("trace_probe", values, representation=name)
        yield Mean("trace_probe", "control_task", 0.71, 20431, {"representation": name})
        yield Mean("trace_probe", "selectivity", 0.25, None, {"representation": name})
        yield from by_role("trace_probe", spcn, representation=name)
    dimensions = {
        ("l0", 1024): (0.80, 0.46, 0.33),
        ("l0", 512): (0.74, 0.41, 0.27),
        ("traces", 1024): (0.94, 0.51, 0.69),
        ("traces", 512): (0.91, 0.47, 0.56),
    }
    for (name, size), triple in dimensions.items():
        where = {"representation": name, "dimensions": size, "projected": (name, size) != ("l0", 1024)}
        yield from accuracies("dimension_control", triple, **where)
        yield Mean("dimension_control", "parameters", 20.0 * size + 20, None, where, fixed=True)


def _controls() -> Iterator[Mean]:
    table = {
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
        "no_feedback_no_spa": (0.96, 0.59, 0.80, 0.75),
        "no_feedback_no_spa_no_lateral": (0.95, 0.58, 0.79, 0.74),
    }
    for name, values in table.items():
        yield from accuracies("controls", values, features=name)
    bigru = {"det_agent": 0.97, "verb_rel": 0.42, "noun_agent": 0.78, "noun_patient": 0.86}
    for unseen, transfer in (("untrained", 0.74), ("zero", 0.81), ("mean", 0.86)):
        yield from accuracies("supervised", (0.9995, transfer, 0.999, 0.999), unseen=unseen)
        yield from by_role("supervised", bigru, unseen=unseen)


def _ablations() -> Iterator[Mean]:
    variants = {
        "full": (0.973, 0.60, 0.83),
        "forward_only": (0.90, 0.585, 0.60),
        "backward_only": (0.80, 0.45, 0.5),
        "no_spa": (0.96, 0.6, 0.82),
        "no_spa_no_slow": (0.93, 0.55, 0.7),
        "fast_only": (0.94, 0.56, 0.75),
        "slow_only": (0.92, 0.55, 0.70),
    }
    for name, values in variants.items():
        yield from accuracies("ablations", values, variant=name)
    levels = ((0.95, 0.49, 0.77), (0.62, 0.40, 0.31), (0.45, 0.33, 0.15), (0.33, 0.25, 0.06))
    for level, values in enumerate(levels):
        yield from accuracies("ablations", values, level=level)
    ranks = {"frozen": 71.0, "sanger": 1.4, "foldiak": 3.0, "pghu": 1.1, "forward_forward": 40.0}
    for i, (rule, rank) in enumerate(ranks.items()):
        yield from accuracies("feedforward_rules", (0.97 - 0.09 * i, 0.6 - 0.04 * i, 0.83 - 0.1 * i), rule=rule)
        for j, metric in enumerate(("weight_pr", "code_pr", "weight_rank", "code_rank")):
            yield Mean("feedforward_rules", metric, rank * (1 + 0.4 * j), None, {"rule": rule})


def _words() -> Iterator[Mean]:
    yield from accuracies("position", (0.41,), features="position")
    for role, share in (("det_agent", 0.75), ("det_patient", 0.25)):
        yield Mean("position", "first_word_share", share, 5000, {"role": role}, fixed=True)
    for lag in range(7):
        n = 20431 - 2900 * lag
        yield Mean("lag_decoding", "word_accuracy", 0.2, n, {"reader": "majority", "lag": lag})
        yield Mean("lag_decoding", "lagged_role_accuracy", 0.15, n, {"reader": "majority", "lag": lag})
        yield Mean("lag_decoding", "noun_accuracy", 0.08, n // 3, {"reader": "role", "lag": lag})
        for trace, start, fall in (("fast", 1.0, 0.7), ("slow", 0.9, 0.8), ("traces", 1.0, 0.82)):
            where = {"reader": "probe", "trace": trace, "lag": lag}
            yield Mean("lag_decoding", "word_accuracy", max(0.2, start * fall**lag), n, where)
            for metric, of in (("noun_accuracy", 0.5), ("noun_among_words_accuracy", 0.25)):
                yield Mean("lag_decoding", metric, max(0.08, of * start * fall**lag), n // 3, where)
            yield Mean("lag_decoding", "lagged_role_accuracy", max(0.3, start * fall**lag), n, where)
        peeled = (("network", "fast", 0.6), ("network", "slow", 0.4), ("onehot", "fast", 1.0), ("plain", "slow", 0.99))
        for codes, trace, fall in peeled:
            where = {"reader": "peel", "codes": codes, "trace": trace, "lag": lag}
            for metric in ("word_accuracy", "noun_accuracy"):
                yield Mean("lag_decoding", metric, fall**lag, n // 8, where)
    for trace, value in (("fast", 0.78), ("slow", 0.74), ("traces", 0.81)):
        yield Mean("lag_decoding", "role_accuracy", value, 20431, {"reader": "probe", "trace": trace})
    for points, epsilon in (("words", 0.22), ("contexts", 0.26)):
        yield Mean("distances", "jl_epsilon", epsilon, None, {"points": points}, fixed=True)
        for code, distortion, share in (("linear", 0.19, 0.995), ("topk", 0.61, 0.7)):
            where = {"points": points, "code": code}
            yield Mean("distances", "max_distortion", distortion, None, where)
            yield Mean("distances", "share_within_epsilon", share, None, where)
            if points == "contexts":
                yield Mean("distances", "spearman", 0.9, None, where)
    for name, value in (("intact", 0.99), ("context_only", 0.93), ("word_only", 0.52), ("swapped", 0.95)):
        yield Mean("shortcuts", "content_accuracy", value, 3500, {"input": name})
        for i, role in enumerate(r for r in ROLES if r.startswith(("noun", "adj", "verb"))):
            yield Mean("shortcuts", "role_accuracy", value - 0.03 * (i % 4), 200, {"input": name, "role": role})


MEANS = (*_representations(), *_controls(), *_ablations(), *_words())


def made_up(experiment: str, seeds: int = 8, width: float = 0.006) -> list[CellFile]:
    """A file per seed, on the default grammar."""
    means = [mean for mean in MEANS if mean.experiment == experiment]
    values = {id(mean): mean.draw(seeds, width) for mean in means}
    files = []
    for seed in range(seeds):
        rows: dict[str, Row] = {}
        for mean in means:
            row = rows.setdefault(json.dumps(mean.factors), Row(mean.factors, {}))
            unit = "" if mean.n is None else "accuracy"
            row.metrics[mean.metric] = Metric(float(values[id(mean)][seed]), unit, mean.n)
        files.append(
            make_file(
                *rows.values(),
                experiment=experiment,
                seed=seed,
                factors={"grammar": "half_passives"},
                settings=SETTINGS,
                provenance=PROVENANCE,
            )
        )
    return files


def drawn(experiment: str, draws: int = 24) -> list[CellFile]:
    """The same on drawn grammars, whose description stands in the settings."""
    files = []
    for file in made_up(experiment, draws, width=0.05):
        rng = np.random.default_rng(file.seed)
        shares = rng.dirichlet(np.ones(3)).tolist()
        grammar = {
            "file": "default.toml",
            "drawn_seed": file.seed,
            "shares": dict(zip(("transitive", "passive", "relative"), shares, strict=True)),
            "variant_weights": {"relative": {"object": float(rng.uniform(0.05, 0.95))}},
            "adjective_rate": float(rng.uniform(0.1, 0.6)),
            "noun_bias": float(rng.uniform(0.5, 1)),
        }
        settings = {**file.settings, "grammar": grammar}
        files.append(replaced(file, factors={"grammar": "fully_drawn"}, settings=settings))
    return files


def replaced(file: CellFile, **changes: Any) -> CellFile:
    names = ("schema", "experiment", "scale", "seed", "factors", "settings", "provenance", "cells")
    return CellFile(**{**{name: getattr(file, name) for name in names}, **changes})


def with_cell(file: CellFile, metrics: dict[str, Metric], **factors: Any) -> CellFile:
    """The file with one cell more, or another in its place."""
    others = [row for row in file.cells if row.factors != factors]
    return replaced(file, cells=[*others, Row(factors, metrics)])


def write_all(files: Sequence[CellFile], folder: Path) -> None:
    for file in files:
        write_file(file, folder)


def fill(folder: Path) -> Store:
    """Every experiment recorded, on drawn grammars too; some run on this machine with fewer seeds."""
    for name in GRAMMAR_EXPERIMENTS:
        write_all(made_up(name, 1 if name in ONE_SEED else 8), folder / "results")
        if name not in ONE_SEED:
            write_all(drawn(name), folder / "results")
    for name, seeds in (("trace_probe", 3), ("controls", 3), ("supervised", 1)):
        write_all(made_up(name, seeds), folder / "results" / "local")
    return Store(folder / "results", folder / "results" / "local")


def recorded_only(folder: Path, *files: CellFile) -> Store:
    write_all(files, folder / "results")
    return Store(folder / "results", folder / "local")


def render(store: Store, folder: Path, **options: Any) -> str:
    return write_report(store, folder / "report.html", made=MADE, **options).read_text(encoding="utf-8")


def parts_of(data: ReportData, id: str = "") -> list[Part]:
    """All parts of the page's sections, or of one."""
    built = [section.build(data) for section in SECTIONS if id in ("", section.id)]
    return [part for contents in built for content in contents for part in walk(content)]


def chart_of(data: ReportData, id: str) -> RowChart:
    """The first chart with rows in a section."""
    return next(part for part in parts_of(data, id) if isinstance(part, RowChart))


def value_at(axis: Axis, percent: float) -> float:
    """The number that stands at this place of an axis."""
    low, high = axis.low, axis.high
    if axis.log:
        return float(low * (high / low) ** (percent / 100))
    return low + (high - low) * percent / 100


def marks_of(chart: RowChart, series: str) -> dict[str, float]:
    """Where the marks of a series stand, by the label of their row."""
    [style] = [key.style for key in chart.keys if key.name == series]
    return {
        row.label: value_at(chart.axis, lane.mark)
        for row in chart.rows
        for lane in row.lanes
        if lane.style == style and lane.mark is not None
    }


def bars_of(chart: RowChart, base: float = 0.0) -> dict[str, float]:
    """The label of each bar, and where it ends."""
    ends = {}
    for row in chart.rows:
        [lane] = row.lanes
        assert lane.bar is not None
        left, right = (value_at(chart.axis, x) for x in lane.bar)
        ends[row.label] = left if abs(right - base) < 1e-3 * base else right
    return ends


def charts_in(contents: Sequence[object]) -> dict[str, RowChart | LineChart]:
    found = [part for content in contents for part in walk(content) if isinstance(part, RowChart | LineChart)]
    return {chart.caption: chart for chart in found}


# A page may leave these open: another of the same row ends them, and so does the end of what they stand in.
ENDED_BY = {
    "td": ("td", "th", "tr", "tbody"),
    "th": ("td", "th", "tr", "tbody"),
    "tr": ("tr", "tbody"),
    "thead": ("tbody",),
    "tbody": ("tbody",),
    "colgroup": ("thead",),
    "li": ("li",),
    "dt": ("dt", "dd"),
    "dd": ("dt", "dd"),
    "option": ("option",),
    "p": ("p", "div", "ul", "dl", "table", "details", "figure", "section", "footer", "nav", "form", "h2"),
}


APART = re.compile(
    r"t[dhr]|d[dtl]|li|p|div|ul|table|t(head|body)|details|summary|fig.*|section|header|footer|nav|main|h\d"
)


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
        if tag in ("meta", "col", "br", "hr", "input"):
            self.elements.append((tag, dict(attrs), ""))
            return
        while self.open and tag in ENDED_BY.get(self.open[-1][0], ()):
            self.end()
        self.open.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_data(self, data: str) -> None:
        self.texts = [text + data for text in self.texts]

    def handle_endtag(self, tag: str) -> None:
        while self.open[-1][0] != tag and self.open[-1][0] in ENDED_BY:
            self.end()
        assert self.open[-1][0] == tag
        self.end()

    def end(self) -> None:
        tag, attributes = self.open.pop()
        self.elements.append((tag, attributes, self.texts.pop()))
        if APART.fullmatch(tag):  # a reader sees them apart
            self.handle_data(" ")

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        return [(a, t) for name, a, t in self.elements if name == tag and wanted.items() <= a.items()]

    def section(self, id: str) -> str:
        """The text of a section or fold, each run of white space one space."""
        [text] = [text for tag, a, text in self.elements if tag in ("section", "details") and a.get("id") == id]
        return " ".join(text.split())

    def claim(self, id: str) -> str:
        [(_, text)] = self.all("tbody", id=id)
        return text
