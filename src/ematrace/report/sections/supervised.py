"""Supervised models under every coding of words, and whether SPCN is more than an EMA of one-hot words."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.analysis.equivalence import EXPERIMENT as BY_K
from ematrace.analysis.equivalence import MARGIN, compare_by_k
from ematrace.report.data import ReportData
from ematrace.report.factor_tables import factor_text
from ematrace.report.formatting import interval, number
from ematrace.report.parts import Content, plain_table
from ematrace.report.verdicts import LETTERS
from ematrace.results import Factors, Sample, Selector

MODELS = ("supervised_models", "supervised_epochs")
MODEL_FACTORS = ("model", "embedding", "word_dropout", "unseen")
ROLES = ("det_agent", "verb_rel", "noun_agent", "noun_patient")  # that the paper gives
COLUMNS: dict[str, tuple[str, Factors]] = {
    "within": ("within", {}),
    "transfer": ("transfer", {}),
    **{f"{role}, transfer": ("role_transfer", {"role": role}) for role in ROLES},
}


def supervised_models(data: ReportData) -> Sequence[Content | None]:
    """A table for each experiment, with the paper's numbers on top."""
    return [_model_table(data, name) for name in MODELS if name in data.table.experiments]


def _model_table(data: ReportData, experiment: str) -> Content:
    paper = [data.paper(Selector("supervised", m, {"unseen": "untrained", **w})) for m, w in COLUMNS.values()]
    rows: list[list[Content]] = [["the paper", "", "", "", *map(number, paper), "–"]]
    cells = (stored.cell.factors for stored in data.table.evidence[experiment])
    points = dict.fromkeys(tuple(f[name] for name in MODEL_FACTORS) for f in cells if f.keys() >= set(MODEL_FACTORS))
    for values in points:
        where = dict(zip(MODEL_FACTORS, values, strict=True))
        samples = [data.sample(Selector(experiment, m, {**where, **w})) for m, w in COLUMNS.values()]
        seeds = max((len(s.values) for s in samples if s is not None), default=0)
        means = ["–" if s is None else _mean_and_interval(s) for s in samples]
        rows.append([*map(factor_text, values), *means, str(seeds)])
    heads = ["model", "embedding", "word dropout", "unseen words", *COLUMNS, "seeds"]
    return plain_table(heads, rows, f"{experiment}: mean over seeds and 95% interval", "words")


def _mean_and_interval(sample: Sample) -> str:
    """Without the interval where its ends read as the mean does."""
    mean, ends = number(sample.mean, 3), interval(sample.interval, 3)
    return mean if ends == f"{mean}–{mean}" else f"{mean} ({ends})"


def network_by_k(data: ReportData) -> Sequence[Content | None]:
    """SPCN minus an EMA of one-hot words, seed by seed."""
    tables: list[Content | None] = []
    for grammar in data.cells.values_of(BY_K, "grammar"):
        rows: list[list[Content]] = []
        for c in compare_by_k(data.cells, str(grammar)):
            name = f"k {float(c.where['k']):.0%}, {LETTERS[c.metric]}"
            numbers = [number(c.difference, 3, signed=True), interval(c.interval, 3), number(c.p_same, 3)]
            rows.append([name, *numbers, number(c.p_different, 3), c.outcome, str(c.seeds)])
        heads = [
            "k, accuracy",
            "difference",
            "95% interval",
            f"p of ±{number(MARGIN, 2)} or more",
            "p of none",
            "outcome",
            "seeds",
        ]
        tables.append(
            plain_table(heads, rows, f"SPCN minus EMA of one-hots, grammar {grammar}", "words") if rows else None
        )
    return tables
