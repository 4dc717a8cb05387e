"""Around the gap: predictors in SPEN's block, units kept, the two gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ematrace.analysis.gap_scores import MAIN
from ematrace.analysis.gap_straight_through import GradientsAt, build_gradients, is_misleading
from ematrace.report.charts import Line, line_chart, measured_points
from ematrace.report.data import ReportData
from ematrace.report.formatting import number
from ematrace.report.gap_all_units import network_lines, network_rows
from ematrace.report.gap_halves import halves_rows
from ematrace.report.gap_made_pairs import made_pairs, switch_recall_tables
from ematrace.report.gap_predictions import BLOCKS, PREDICTORS, context_rows, prediction_rows, worth_rows
from ematrace.report.gap_switches import SwitchTables, switch_tables
from ematrace.report.gradient_cost import start_rows
from ematrace.report.parts import Content, DataTable, Paragraph, plain_table
from ematrace.report.tables import Header, measure_table
from ematrace.results import Factors, Selector

HELD_OUT: Factors = {"text": "validation", "slice": "all"}
GRADIENTS = {"topk_ste": "straight-through", "topk_masked": "true gradient"}
TRAINED = (
    ("topk_ste", 0.01, "Algorithm 1's block"),
    ("topk_ste", 0.0, "no load balance"),
    ("topk_masked", 0.0, "true gradient"),
)


def predictors(data: ReportData) -> Sequence[Content | None]:
    rows = [
        Header(
            f"{block}: {name}{', d_ff as it is' if width == 'fixed' else ''}",
            "gap_predictors",
            where={
                **{"context": "ema_error", "ffn": ffn, "residual": "ffn", "width": width, "predictor": predictor},
                **{"reads": reads, "query": "slow_trace", "values": "as_read"},
            },
            group=group,
        )
        for group, (ffn, block) in enumerate(BLOCKS.items())
        for (predictor, reads), name in PREDICTORS.items()
        for width in ("matched", "fixed")
    ]
    columns = [
        Header("nats, 500 steps", metric="nats", where={"size": "ablation", **HELD_OUT}),
        Header("unigram", metric="unigram_nats", where={"size": "ablation", **HELD_OUT}),
        Header("nats, whole budget", metric="nats", where={"size": MAIN, **HELD_OUT}),
        Header("WikiText-2", metric="nats", where={"size": MAIN, "text": "wikitext2", "slice": "all"}),
    ]
    parts: list[Content | None] = [measure_table(data, rows, columns, "Predictors in SPEN's block")]
    for rows_of, caption in (
        (prediction_rows, "What predictions leave of the input, |x − x̂|² / |x|², block by block; small models"),
        (context_rows, "The same as the context has it, W_e x̂ beside W_e x; small models"),
        (worth_rows, "What predictions are worth; small models"),
    ):
        if (rows_found := rows_of(data)) is not None:
            parts.append(plain_table(*rows_found, caption))
    if (found := switch_tables(data)) is not None:
        parts += _switches(found)
    return parts


def _switches(found: SwitchTables) -> Iterator[Content]:
    """Why attention over the inputs helps less as a predictor than as a mixer, if it does."""
    yield plain_table(*found.gains, "Nats that attention over the inputs gains over the static predictor")
    yield plain_table(*found.effects, "Nats that each switch adds to that gain, over the settings of the others")
    yield Paragraph(found.verdict)


def made_text(data: ReportData) -> Sequence[Content | None]:
    parts: list[Content | None] = []
    if (found := made_pairs(data)) is not None:
        parts += [plain_table(*found.contexts, "What each context recalls"), Paragraph(found.rules)]
    if (switched := switch_recall_tables(data)) is not None:
        parts += [
            plain_table(*switched.arms, "The same inside SPEN's block"),
            plain_table(*switched.effects, "What each switch adds to the share, over the settings of the others"),
            Paragraph(switched.causes),
        ]
    return parts


def sparsity(data: ReportData) -> Sequence[Content | None]:
    kept = sorted(
        share for share in data.table.values_of("gap_sparsity", "kept", size=MAIN) if isinstance(share, int | float)
    )
    weights = sorted(float(w) for w in data.table.values_of("gap_sparsity", "load_balance", size=MAIN))
    rows = [
        Header(f"{share:.0%} of units, {name}", "gap_sparsity", where=_sparse(ffn, share, 0.0), group=group)
        for group, share in enumerate(kept)
        for ffn, name in GRADIENTS.items()
    ]
    rows += [
        Header(f"load balance {weight:g}, {name}", "gap_sparsity", where=_sparse(ffn, 0.06, weight), group=-1)
        for weight in weights
        if weight
        for ffn, name in GRADIENTS.items()
    ]
    columns = [
        Header("nats", metric="nats", where=HELD_OUT),
        Header("WikiText-2", metric="nats", where={"text": "wikitext2", "slice": "all"}),
        Header("units never on", metric="dead_units"),
        Header("entropy of use", metric="usage_entropy"),
    ]
    lines = [
        Line(name, points)
        for ffn, name in GRADIENTS.items()
        if (points := measured_points(data, {s: _nats_of_kept(ffn, s) for s in kept}))
    ]
    chart = line_chart("Nats by the share of units kept", lines, "share of units", "nats") if lines else None
    tables = [
        measure_table(data, rows, columns, "Units kept and load balance"),
        measure_table(data, _wide(data), columns, "More units at one width, 6% of them kept"),
    ]
    return [chart, *tables, *_causes(data), *_gradient_parts(data)]


def _causes(data: ReportData) -> Iterator[Content]:
    """How far the gradients are apart before training, and which half of the straight-through one does the harm."""
    for found, caption in (
        (start_rows(data), "Straight-through and true gradient before training, by the units kept"),
        (halves_rows(data), "Nats that dropped units' gradient costs: into their weights, and through them"),
        (network_rows(data), "Gradients of the network that runs and of that with all units on, during training"),
    ):
        if found is not None:
            yield plain_table(*found, caption)
    yield from (Paragraph(line) for line in network_lines(data))


def _wide(data: ReportData) -> list[Header]:
    units = sorted(n for n in data.table.values_of("gap_units", "units", size=MAIN) if isinstance(n, int))
    return [
        Header(f"{n:,} units, {name}", "gap_units", where={"size": MAIN, "ffn": ffn, "units": n}, group=group)
        for group, n in enumerate(units)
        for ffn, name in GRADIENTS.items()
    ]


def _sparse(ffn: str, kept: float, weight: float) -> Factors:
    return {"size": MAIN, "ffn": ffn, "kept": kept, "load_balance": weight}


def _nats_of_kept(ffn: str, kept: float) -> Selector:
    return Selector("gap_sparsity", "nats", {**_sparse(ffn, kept, 0.0), **HELD_OUT})


def _gradient_parts(data: ReportData) -> Iterator[Content]:
    for ffn, weight, name in TRAINED:
        steps = build_gradients(data.table, ffn, weight)
        if not steps:
            continue
        misleading = {True: "misleading", False: "not misleading", None: "too few steps or seeds to say"}[
            is_misleading(steps)
        ]
        yield gradient_table(steps, name)
        yield Paragraph(f"Under the plan's test the straight-through gradient is {misleading} there.")


def gradient_table(steps: Sequence[GradientsAt], name: str) -> DataTable:
    heads = [f"{name}, step", "cosine to the true gradient", "between halves of the text", "ratio of norms"]
    heads += ["units never on", "entropy of use", "nats"]
    rows = [
        [
            f"{at.step:,}",
            *(
                number(sample.mean, 3)
                for sample in (at.cosine, at.halves, at.norm_ratio, at.dead_units, at.usage_entropy, at.nats)
            ),
        ]
        for at in steps
    ]
    return plain_table(heads, rows, f"The straight-through gradient during training: {name}")
