"""Whether the gap's parts are the same with other sizes, budgets and vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ematrace.analysis.gap_scores import EXPERIMENT
from ematrace.analysis.gap_trend import COMPONENTS, CONTRASTS, FROM_MAIN, Contrast, build_trend
from ematrace.analysis.plan import LEAST_SEEDS
from ematrace.report.charts import Line, LineChart, Point, linear_axis, log_axis
from ematrace.report.formatting import millions, number, over_seeds
from ematrace.report.gap import nats_text, share_text
from ematrace.report.parts import Content, DataTable, Paragraph, plain_table
from ematrace.results import Interval, Sample, Table


def trend(cells: Table) -> Iterator[Content]:
    """Charts of what differs in one thing alone: tokens at one size, or the size at the same tokens. The table has all,
    also 130M parameters, where vocabulary, context and tokens differ as well."""
    everything = build_trend(cells)
    found = [one for one in everything if one.differences]
    main = next((one for one in found if one.experiment == EXPERIMENT), None)
    if main is not None:
        alike = [one for one in found if one.vocabulary == main.vocabulary]
        by_tokens = [one for one in alike if one.size == main.size]
        yield from _charts(by_tokens, lambda one: one.tokens_per_parameter, "tokens per parameter")
        by_size = [one for one in alike if one.tokens == main.tokens and one.size not in FROM_MAIN]
        yield from _charts(by_size, lambda one: one.parameters, "parameters")
    if found:
        yield trend_table(found)
    for one in everything:
        if one.experiment != "gap" and one.left_out:  # those of `gap` are named above
            why = "; ".join(f"{arm.text}: {absence.why}" for arm, absence in one.left_out.items())
            yield Paragraph(f"Left out of {one.experiment} at {_label(one)}: {why}.", "missing")


def _charts(found: Sequence[Contrast], at: Callable[[Contrast], float], title: str) -> Iterator[LineChart]:
    """Of the differences, and of what each component is of the whole; nothing where there is only one point."""
    differences = {
        name: [(at(c), s.mean, _ends(s)) for c in found if (s := c.differences.get(name))] for name in CONTRASTS
    }
    shares = {
        name: [
            (at(c), part.share, part.interval)
            for c in found
            if (part := c.components.get(name)) is not None and part.share is not None
        ]
        for name in COMPONENTS
    }
    if len({at(one) for one in found}) > 1:
        yield _chart(f"Differences by {title}", differences, title, "nats")
        if len({x for points in shares.values() for x, *_ in points}) > 1:
            yield _chart(f"Share of the distance from SPEN to GPT-2, by {title}", shares, title, "share")


def _chart(
    caption: str, lines: dict[str, list[tuple[float, float, Interval | None]]], x_title: str, y_title: str
) -> LineChart:
    shown = [Line(name, [Point(*point) for point in points]) for name, points in lines.items() if points]
    ys = [y for line in shown for point in line.points for y in (point.y, *(point.ends or ()))]
    xs = [point.x for line in shown for point in line.points]
    x_axis = log_axis(min(xs) / 1.1, 1.1 * max(xs), number)
    return LineChart(caption, shown, x_axis, linear_axis(min(0.0, *ys), 1.05 * max(ys)), x_title, y_title)


def _ends(sample: Sample) -> Interval | None:
    """None with fewer seeds than the plan takes for an interval, as at 130M."""
    return over_seeds(sample) if len(sample.values) >= LEAST_SEEDS else None


def _label(one: Contrast) -> str:
    return f"{millions(one.parameters)}, {millions(one.tokens, 0)}, {one.vocabulary:,}"


def trend_table(found: Sequence[Contrast]) -> DataTable:
    heads = ["parameters, tokens, vocabulary", "tokens per parameter", *CONTRASTS, *COMPONENTS, "seeds"]
    rows: list[list[Content]] = []
    for one in found:
        samples = [one.differences.get(name) for name in CONTRASTS]
        counts = sorted({len(sample.values) for sample in samples if sample is not None})
        shown = ["–" if sample is None else nats_text(sample, signed=True) for sample in samples]
        shares = [share_text(one.components[name]) if one.components else "–" for name in COMPONENTS]
        rows.append([_label(one), number(one.tokens_per_parameter), *shown, *shares, ", ".join(map(str, counts))])
    caption = "Nats by which one arm is worse than another, and shares of the distance from SPEN to GPT-2"
    return plain_table(heads, rows, caption)
