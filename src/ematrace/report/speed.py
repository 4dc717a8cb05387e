"""The page's section on speed, from the records that benchmarks leave."""

from __future__ import annotations

from collections.abc import Sequence

from ematrace.bench import BenchmarkRecord, Row
from ematrace.bench.tables import DASH, ceiling, count, duration, duration_range, percent, three_digits
from ematrace.report.markup import Child, Html, el, join
from ematrace.report.section import Part
from ematrace.report.sources import StoredRecord, show_path
from ematrace.report.speed_plots import context_lines, length_lines, points_of, ratio_bars, share_bars, token_bars
from ematrace.report.tables import plain_table, value_list
from ematrace.report.wording import commit_of, hardware_of, plural

LEDE = (
    "Ours and its peers in one run. Results are checked against the reference first; then every repetition times all "
    "contenders in turn, and a time is the median, with the fastest and the slowest repetition beside it. The share of "
    "the ceiling holds the fewest bytes (or operations) that the work needs against a plain copy (or matrix product) "
    "timed in the same run. Ratios are taken within repetitions; above 1, ours is faster (against a copy of the same "
    "bytes: so many times its time is taken)."
)
LONGEST = 14  # lines of a table that is shown without being asked for


def speed_parts(stored: Sequence[StoredRecord]) -> list[Part]:
    """A part of the section for each benchmark: the recorded run, with this machine's own folded in under it."""
    parts: list[Part] = []
    for name in sorted({s.file.record.benchmark for s in stored}):
        runs = [s for s in stored if s.file.record.benchmark == name]
        parts += benchmark_parts(runs[0])
        for other in runs[1:]:
            parts.append(folded_run(other))
    return parts


def benchmark_parts(stored: StoredRecord) -> list[Part]:
    record = stored.file.record
    place = f"speed-{record.benchmark}"
    lengths, contexts = points_of(record, "T"), points_of(record, "context")
    drawn = {row.name for lines in (lengths, contexts) for points in lines.values() for _, row in points}
    # What ran once was timed for information; a bar would make a comparison of it.
    others = [row for row in record.rows if row.name not in drawn and len(row.timing.seconds) > 1]
    bars = share_bars(f"{place}-share", record, others) or token_bars(f"{place}-tokens", others)
    ratios = ratio_bars(f"{place}-ratios", record.ratios)
    return [
        el("h3", record.title, id=place),
        length_lines(f"{place}-lengths", lengths) if lengths else None,
        context_lines(f"{place}-contexts", contexts) if contexts else None,
        bars,
        ratios,
        *tables(record),
        origin(stored),
    ]


def folded_run(stored: StoredRecord) -> Html:
    record = stored.file.record
    run = stored.file.provenance
    summary = f"{record.benchmark}: also run {'on this machine' if stored.local else 'elsewhere'}, {run.date[:10]}"
    return el("details", el("summary", summary), tables(record), origin(stored), class_="fold")


def tables(record: BenchmarkRecord) -> list[Html]:
    """Times with their shares, ratios, and other figures; long ones folded."""
    shown: list[Html] = []
    if record.rows:
        shown.append(fold(rows_table(record), len(record.rows), "row"))
    if record.ratios:
        cells = [
            (name, f"{three_digits(median)}x", f"{three_digits(lowest)}–{three_digits(highest)}")
            for name, (median, lowest, highest) in record.ratios.items()
        ]
        table = plain_table(["against a peer", "median", "range"], cells, f"Ratios of {record.benchmark}")
        shown.append(fold(table, len(cells), "ratio"))
    if record.figures:
        pairs = [(name, three_digits(value)) for name, value in record.figures.items()]
        table = plain_table(["figure", "value"], pairs, f"Other figures of {record.benchmark}")
        shown.append(fold(table, len(pairs), "other figure"))
    return shown


def fold(table: Html, lines: int, noun: str) -> Html:
    if lines <= LONGEST:
        return table
    return el("details", el("summary", f"All {plural(lines, noun)}"), table, class_="fold")


def rows_table(record: BenchmarkRecord) -> Html:
    heads = ["", "median", "range", "tokens/s", "share of the ceiling"]
    cells = [row_cells(record, row) for row in record.rows]
    used = [i for i in range(len(heads)) if i == 0 or any(line[i] != DASH for line in cells)]
    rows = [[line[i] for i in used] for line in cells]
    return plain_table([heads[i] for i in used], rows, f"Times of {record.benchmark}")


def row_cells(record: BenchmarkRecord, row: Row) -> list[Child]:
    note = el("span", row.note, class_="tag remark") if row.note else None
    reached = [f"{percent(share)} of {name}" for name, share in record.shares(row).items()]
    return [
        join(row.name, note),
        duration(row.timing.median),
        duration_range(row.timing),
        count(row.tokens_per_second) if row.tokens else DASH,
        ", ".join(reached) or DASH,
    ]


def origin(stored: StoredRecord) -> Html:
    """Where the figures come from, how to get them again, and, on opening, the rest of the file."""
    record, run = stored.file.record, stored.file.provenance
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if version)
    where = "This machine" if stored.local else "Recorded"
    sizes = ", toy sizes" if "--quick" in stored.file.command.split() else ""
    repetitions = sorted({len(row.timing.seconds) for row in record.rows})
    about = {
        "repetitions": repetitions,
        "ceilings": [ceiling(item).removeprefix("measured ") for item in record.ceilings.items()],
        "checked": list(record.checks),
        "settings": record.settings,
    }
    return el(
        "div",
        el(
            "p",
            f"{where}{sizes}: {hardware_of(run)}; {versions}; {commit_of(run)}; ",
            el("span", run.date[:10], class_="whole"),
            ". Again: ",
            el("code", stored.file.command),
            class_="tag",
        ),
        el(
            "details",
            el(
                "summary",
                el("strong", record.benchmark),
                " · checks, ceilings and settings · ",
                el("code", show_path(stored.path)),
            ),
            el("div", value_list({name: value for name, value in about.items() if value})),
            class_="source",
        ),
        class_="sources",
    )
