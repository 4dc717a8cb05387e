"""The page's section on speed, from the cells of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ematrace.bench import Run, Timed, runs_of
from ematrace.bench.tables import DASH, ceiling, count, duration, duration_range, figure, percent
from ematrace.files import show_path
from ematrace.report.formatting import commit_of, hardware_of, plural
from ematrace.report.parts import Block, Content, DataTable, Fold, Paragraph, Values, code, plain_table
from ematrace.report.speed_charts import context_lines, length_lines, points_of, ratio_bars
from ematrace.results import Table

LEDE = (
    "Ours and its peers in one run. Results are checked against the reference first; then every repetition times all "
    "contenders in turn. A time is the median, with the fastest and the slowest repetition beside it. The share of a "
    "ceiling is the fewest bytes (or operations) that the work needs, divided by its time and by the rate of a plain "
    "copy (or matmul) in the same run. A ratio A / B is the time of A divided by the time of B, taken within "
    "repetitions: above 1, B is faster."
)
LONGEST = 14  # rows of a table that is not folded


def speed_parts(table: Table) -> list[Content]:
    """The recorded run of every benchmark in a fold, with this machine's own folded in under it."""
    by_name: dict[str, list[Run]] = {}
    for run in runs_of(table):
        by_name.setdefault(run.benchmark, []).append(run)
    return [
        Fold(first.about.title, [*benchmark_parts(first), *map(folded_run, others)], "topic", f"speed-{name}")
        for name, (first, *others) in by_name.items()
    ]


def benchmark_parts(run: Run) -> list[Content]:
    lengths, contexts = points_of(run, "tokens"), points_of(run, "context")
    charts = [
        length_lines(lengths) if lengths else None,
        context_lines(contexts) if contexts else None,
        ratio_bars(run.ratios),
    ]
    shown = [chart for chart in charts if chart is not None]
    return [*([Block(shown, "panels")] if shown else []), *tables(run), origin(run)]


def folded_run(run: Run) -> Fold:
    summary = f"{run.benchmark}: also run {'on this machine' if run.local else 'elsewhere'}, {run.provenance.date[:10]}"
    return Fold(summary, [*tables(run), origin(run)])


def tables(run: Run) -> list[Content]:
    """Times with their shares, and other figures; long ones folded. The chart of ratios has every number of them."""
    shown: list[Content] = []
    if run.timed:
        shown.append(fold(times_table(run), len(run.timed), "time"))
    if run.figures:
        pairs = [(name, figure(value)) for name, value in run.figures.items()]
        table = plain_table(["figure", "value"], pairs, f"Other figures of {run.benchmark}")
        shown.append(fold(table, len(pairs), "other figure"))
    return [*shown, *(Paragraph(note, "tag") for note in run.about.notes)]


def fold(table: DataTable, rows: int, noun: str) -> Content:
    return table if rows <= LONGEST else Fold(f"All {plural(rows, noun)}", [table])


def times_table(run: Run) -> DataTable:
    heads = ["contender", "median", "range", "tokens/s", "share of the ceiling"]
    cells = [time_cells(run, timed) for timed in run.timed]
    used = [i for i in range(len(heads)) if i == 0 or any(line[i] != DASH for line in cells)]
    rows = [[line[i] for i in used] for line in cells]
    return plain_table([heads[i] for i in used], rows, f"Times of {run.benchmark}")


def time_cells(run: Run, timed: Timed) -> Sequence[Content]:
    reached = [f"{percent(share)} of {name}" for name, share in run.shares(timed).items()]
    return [
        timed.label,
        duration(timed.timing.median),
        duration_range(timed.timing),
        count(timed.tokens_per_second) if timed.tokens else DASH,
        ", ".join(reached) or DASH,
    ]


def origin(run: Run) -> Block:
    """Where the times come from, how to measure them again, and, folded, the rest of the file."""
    provenance = run.provenance
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items() if version)
    where = "This machine" if run.local else "Recorded"
    sizes = ", toy sizes" if run.about.quick else ""
    about = {
        "repetitions": sorted({len(timed.timing.seconds) for timed in run.timed}),
        "ceilings": [ceiling(item).removeprefix("measured ") for item in run.ceilings.items()],
        "checked": run.about.checks,
        "settings": run.settings,
    }
    line = Markup("{}{}: {}; {}; {}; {}. Again: {}").format(
        where,
        sizes,
        hardware_of(provenance),
        versions,
        commit_of(provenance),
        Markup('<span class="whole">{}</span>').format(provenance.date[:10]),
        code(provenance.command),
    )
    summary = Markup("<strong>{}</strong> · checks, ceilings and settings · {}").format(
        run.benchmark, code(show_path(run.path))
    )
    rest = Fold(summary, [Values({name: value for name, value in about.items() if value})], "source")
    return Block([Paragraph(line, "tag"), rest], "sources")
