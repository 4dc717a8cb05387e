"""The report: one HTML page that needs no network, made from results and verdicts alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from ematrace.files import write_atomically
from ematrace.ledger import Check, Claim, LedgerRow, Share, Store, StoredResult
from ematrace.report.markup import Child, Html, el, join
from ematrace.report.plots import Plot
from ematrace.report.section import Part, Section
from ematrace.report.sections import SECTIONS
from ematrace.report.sources import Sources, show_path
from ematrace.report.speed import LEDE, speed_parts
from ematrace.report.tables import figure_table, plain_table, scrolled, value_list
from ematrace.report.wording import (
    checks_line,
    commit_of,
    count_verdicts,
    decimals_for,
    hardware_of,
    interval,
    local_agreement,
    look_of,
    number,
    ours_lines,
    plural,
    share,
    why_undecided,
)

TITLE = "ematrace: a paper's claims, and what we found"
QUESTION = "What does a context mechanism keep of the past, structure or content, and what does it cost?"
# What the claims of each part are called, and its heading.
PARTS = {
    "small": ("small-scale claims", "Small scale: SPCN on the formal grammar"),
    "large": ("large-scale claims", "Large scale: SPEN"),
    "extension": ("questions for future work", "What the paper leaves as future work"),
}
SHORT_PARTS = {"small": "small scale", "large": "large scale", "extension": "future work"}


def write_report(
    store: Store, out: str | Path, *, claims: Sequence[Claim] | None = None, made: datetime | None = None
) -> Path:
    """Write the page to `out`, whole or not at all; returns its path. `claims` are the package's by default."""
    text = render_report(Sources.read(store, claims), made)
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, text.encode())


def render_report(sources: Sources, made: datetime | None = None) -> str:
    """The page as text; `made` is the date at its foot, now by default."""
    plots: list[Plot] = []
    told: set[str] = set()
    known = {name for section in SECTIONS for name in section.experiments}
    others = [name for name in sources.chosen if name not in known]
    sections = [*SECTIONS, *(other_section(sources.chosen[name]) for name in others)]
    body = join(
        header(sources, sections),
        verdicts(sources),
        [render_section(section, sources, plots, told) for section in sections],
        speed_section(sources, plots),
        never_run(sources, known),
        provenance(sources),
        foot(made or datetime.now(UTC)),
    )
    files = resources.files("ematrace.report")
    # A "<" could close the script that holds the specs.
    specs = json.dumps({plot.id: plot.spec() for plot in plots}, ensure_ascii=False, allow_nan=False).replace(
        "<", "\\u003c"
    )
    return Template(files.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=join(TITLE),
        style=files.joinpath("style.css").read_text(encoding="utf-8"),
        script=files.joinpath("page.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        body=body,
        specs=specs,
    )


def parts_of(sources: Sources) -> list[tuple[str, list[LedgerRow]]]:
    """The rows of each part of the claims, without empty parts."""
    part = {claim.id: claim.part for claim in sources.claims}
    groups = [(name, [row for row in sources.rows if part[row.id] == name]) for name in PARTS]
    return [(name, rows) for name, rows in groups if rows]


# The top of the page


def header(sources: Sources, sections: Sequence[Section]) -> Html:
    groups = parts_of(sources)
    chips = [(el("dt", SHORT_PARTS[name]), el("dd", [chip(row) for row in rows])) for name, rows in groups]
    legend = [el("span", verdict_tag(v), f" {n}") for v, n in count_verdicts(sources.rows)]
    links = [("verdicts", "Verdicts"), *((s.id, s.title) for s in sections)]
    links += [("speed", "Speed")] if sources.speed else []
    links.append(("provenance", "Provenance"))
    return el(
        "header",
        el("h1", TITLE),
        el("p", QUESTION, class_="question"),
        el("h2", "What we found"),
        el("ul", [el("li", line) for line in found(sources)], class_="found"),
        el("p", legend, class_="legend"),
        el("dl", chips, class_="chips"),
        el(
            "div",
            el(
                "p",
                el("strong", "Read figures with care, directions with more trust. "),
                "Figures on the default grammar are ",
                el("em", "fitted"),
                ": the paper does not publish its grammar, and ours was chosen knowing the paper's tables, so "
                "agreement of figures proves little. The share of randomly drawn grammars in which a direction "
                "holds is the better evidence.",
            ),
            class_="note",
        ),
        el("nav", [el("a", text, href=f"#{id}") for id, text in links], class_="contents", aria_label="Contents"),
    )


def found(sources: Sources) -> list[Child]:
    """What the ledger says, in numbers."""
    lines: list[Child] = []
    for name, rows in parts_of(sources):
        noun = PARTS[name][0]
        counts = count_verdicts(rows)
        if len(counts) == 1:
            lines.append(f"All {len(rows)} {noun}: {counts[0][0]}.")
        else:
            lines.append(f"Of {len(rows)} {noun}: " + ", ".join(f"{n} {verdict}" for verdict, n in counts) + ".")
    drawn = [row.robustness.all for row in sources.rows if row.robustness is not None]
    if drawn:
        always = sum(s.holds == s.conditions for s in drawn)
        most = max(s.conditions for s in drawn)
        lines.append(
            f"On {most} randomly drawn grammars, all directions hold in every one of them for {always} of the "
            f"{plural(len(drawn), 'claim')} that were tested on them."
        )
    missed = [row for row in sources.rows if row.verdict == "not reproduced"]
    if missed:
        claims = [el("li", el("a", row.id, href=f"#{row.id}"), f" {row.claim}") for row in missed]
        lines.append(["Not reproduced:", el("ul", claims)])
    return lines


def chip(row: LedgerRow) -> Html:
    look = look_of(row.verdict)
    label = f"{row.id}: {row.verdict}. {row.claim}"
    return el(
        "a", f"{look.sign} {row.id}", href=f"#{row.id}", class_=f"chip v-{look.name}", title=label, aria_label=label
    )


def verdict_tag(verdict: str) -> Html:
    look = look_of(verdict)
    return el("span", f"{look.sign} {verdict}", class_=f"verdict v-{look.name}")


# The verdict table


def verdicts(sources: Sources) -> Html:
    parts: list[Child] = []
    for name, rows in parts_of(sources):
        table = verdict_table(rows)
        heading = PARTS[name][1]
        if all(row.verdict == "open" for row in rows) and name != "small":
            # A part of which nothing has been run takes one line until someone asks for it.
            fold = el("summary", f"{plural(len(rows), 'claim')}, all open")
            parts += [el("h3", heading), el("details", fold, table, class_="fold")]
        else:
            parts += [el("h3", heading), table]
    lede = (
        "A claim is reproduced if every direction holds over model seeds at 95% and every figure lies, with its whole "
        "interval, within a tolerance fixed beforehand (accuracy ±.03); the worst predicate decides. “Drawn” is the "
        "share of randomly drawn grammars in which all its directions hold; “here” is what this machine's own run says."
    )
    return el("section", el("h2", "Verdicts"), el("p", lede), parts, id="verdicts")


def verdict_table(rows: Sequence[LedgerRow]) -> Html:
    names = ("id", "claim", "paper", "ours", "seeds", "verdict", "drawn", "here")
    classes = ("c-id", "c-claim", "c-paper", "c-ours", "c-seeds", "c-verdict", "c-share", "c-here")
    columns = el("colgroup", [el("col", class_=c) for c in classes])
    head = el("thead", el("tr", [el("th", n, scope="col") for n in names]))
    return el("table", columns, head, [verdict_rows(row, len(names)) for row in rows], class_="verdicts")


def verdict_rows(row: LedgerRow, columns: int) -> Html:
    """A claim: the row, and under it one that opens to the predicates."""

    def cell(name: str, *content: Child, empty: bool = False) -> Html:
        return el("td", el("div", *content), data_label=name, class_="empty" if empty else None)

    fitted = el("span", " fitted", class_="tag", title="the grammar was chosen knowing this figure")
    verdict = [verdict_tag(row.verdict), fitted if row.fitted and row.figure is not None else None]
    drawn = row.robustness.all if row.robustness else None
    return el(
        "tbody",
        el(
            "tr",
            el("th", row.id, scope="row", class_="id"),
            el("td", row.claim, class_="claim"),
            cell("paper", paper_items(row.paper)),
            cell("ours", ours(row)),
            cell("seeds", str(row.n_seeds or "–"), empty=row.n_seeds is None),
            cell("verdict", verdict),
            cell("drawn", el("span", share(drawn), class_="whole"), empty=drawn is None),
            cell("here", local_agreement(row) if row.ours else "–", empty=not row.ours),
        ),
        el("tr", el("td", predicates(row), colspan=columns), class_="more"),
        id=row.id,
    )


def paper_items(text: str) -> Child:
    """Figures that two spaces keep apart stand on a line each."""
    return [(("  " if i else None), el("span", item, class_="item")) for i, item in enumerate(text.split("  "))]


def ours(row: LedgerRow) -> Html:
    shown: list[Child] = []
    lines = ours_lines(row)
    if lines:
        spans = [
            (el("span", n, class_="name"), el("span", mean, class_="mean"), el("span", ends, class_="ends"))
            for n, mean, ends in lines
        ]
        # A long name would push the numbers out of the column.
        stacked = max(len(n) for n, _, _ in lines) > 12
        if stacked:
            shown.append(
                el("div", [el("div", [(part, " ") for part in span]) for span in spans], class_="lines stacked")
            )
        else:
            shown.append(el("div", spans, class_="lines"))
    if why := why_undecided(row):
        shown.append(el("span", why, class_="tag"))
    elif not lines:
        shown.append(checks_line(row))
    return join(shown)


def predicates(row: LedgerRow) -> Html:
    """What the verdict rests on; evidence and command stay in sight."""
    where = [el("code", path) for path in row.evidence]
    evidence = el("span", [(w, " ") for w in where]) if where else None
    command = el("span", el("code", row.command))
    if not row.checks:
        return el("div", command)
    each = dict(row.robustness.each) if row.robustness else {}
    heads = ("predicate", "left", "right", "difference", "95% interval", "method", "holds", "drawn")
    head = el("tr", [el("th", h, scope="col", class_="num" if 0 < i < 5 else None) for i, h in enumerate(heads)])
    body = [predicate_row(check, each.get(check.predicate)) for check in row.checks]
    table = scrolled(el("table", el("thead", head), el("tbody", body)), f"Predicates of {row.id}")
    return el(
        "details",
        el("summary", el("span", checks_line(row) or plural(len(row.checks), "predicate")), evidence, command),
        table,
        el("p", "Why: ", row.why, class_="tag") if row.why else None,
        local_finding(row),
    )


def predicate_row(check: Check, drawn: Share | None) -> Html:
    decimals = None if check.left is None else decimals_for(check.left)
    of = "left" if check.kind == "figure" or check.method == "bound" else "difference"
    ends = "–" if check.interval is None else f"{interval(check.interval, decimals)} ({of})"
    holds = {True: el("span", "✓ holds"), False: el("span", "✗ fails", class_="fails"), None: el("span", "○ open")}
    return el(
        "tr",
        el("th", check.predicate, scope="row", class_="predicate"),
        el("td", number(check.left), class_="num"),
        el("td", number(check.right), class_="num"),
        el("td", number(check.difference, decimals, signed=True), class_="num"),
        el("td", ends, class_="num"),
        el("td", check.method or "–", class_="line"),
        el("td", holds[check.holds], class_="line"),
        el("td", share(drawn), class_="line"),
    )


def local_finding(row: LedgerRow) -> Html | None:
    if row.local is None or row.local.evidence == row.evidence:
        return None
    seeds = plural(row.local.n_seeds, "seed") if row.local.n_seeds else "no seed"
    files = ", ".join(row.local.evidence)
    return el(
        "p", f"This machine alone: {row.local.verdict}, {checks_line(row.local)}, {seeds} ({files}).", class_="tag"
    )


# Sections


def other_section(stored: StoredResult) -> Section:
    """An experiment this page knows nothing of: all its figures in one table."""
    result = stored.result
    unit = "seeds" if result.conditions is None else "conditions"

    def build(sources: Sources) -> Sequence[Part]:
        refs = {name: f"{result.experiment}/{name}" for name in result.figures}
        return [figure_table(sources, refs, f"Figures of {result.experiment}", unit)]

    about = f"{re.escape(result.experiment)}/"
    return Section(f"experiment-{result.experiment}", result.title, "", about, (result.experiment,), build)


def render_section(section: Section, sources: Sources, plots: list[Plot], told: set[str]) -> Html:
    """Adds its plots to `plots`, whose specs stand at the end of the page, and its experiments to `told`."""
    present = [name for name in section.experiments if name in sources.chosen]
    missing = [name for name in section.experiments if name not in sources.chosen]
    parts = [render_part(part, plots) for part in section.build(sources)] if present else []
    rows = sources.claims_about(section.about)
    reading = (
        "Beside each mean: its 95% interval over seeds. Under it, in italics: the Wilson interval over tokens. "
        "“Here”: this machine's own run, where a recorded one is the evidence."
    )
    lines = [source_line(sources, name, every_figure=name not in told) for name in present]
    told.update(present)
    return el(
        "section",
        el("h2", section.title),
        el("p", section.lede) if section.lede else None,
        el("p", "Claims: ", [(chip(row), " ") for row in rows], class_="legend") if rows else None,
        parts,
        el("p", reading, class_="tag") if any('class="tokens"' in part for part in parts) else None,
        [not_run(name) for name in missing],
        el("div", lines, class_="sources") if lines else None,
        id=section.id,
    )


def render_part(part: Part, plots: list[Plot]) -> Html:
    if part is None:
        return Html("")
    if isinstance(part, Plot):
        plots.append(part)
        place = el("div", id=part.id, class_="plot", role="img", aria_label=part.alt)
        hint = el("noscript", el("p", "Plots need JavaScript; the tables have every number.", class_="missing"))
        return el("figure", el("figcaption", part.caption) if part.caption else None, place, hint)
    if isinstance(part, tuple):
        return el("div", [render_part(plot, plots) for plot in part], class_="panels")
    return part


def speed_section(sources: Sources, plots: list[Plot]) -> Html | None:
    """Nothing where no benchmark has left a record."""
    if not sources.speed:
        return None
    parts = [render_part(part, plots) for part in speed_parts(sources.speed)]
    return el("section", el("h2", "Speed"), el("p", LEDE), parts, id="speed")


def not_run(experiment: str) -> Html:
    command = el("code", f"ematrace reproduce {experiment}")
    return el("p", f"{experiment} is not run yet: ", command, class_="missing")


def never_run(sources: Sources, known: Iterable[str]) -> Html | None:
    """Experiments that claims wait for and that no section above speaks of."""
    seen = {*known, *sources.chosen}
    names = [name for name in dict.fromkeys(n for c in sources.claims for n in c.experiments) if name not in seen]
    return el("section", el("h2", "Other experiments"), [not_run(name) for name in names]) if names else None


def source_line(sources: Sources, experiment: str, every_figure: bool) -> Html:
    """Where figures come from, in one line that opens to the settings, and to every figure of the file if asked for."""
    stored = sources.chosen[experiment]
    result, run = stored.result, stored.result.provenance
    summary = el(
        "summary",
        el("strong", experiment),
        f" · {rows_of(stored)} · {origin(stored)}, {result.scale} · ",
        el("code", show_path(stored.path)),
        f" · {commit_of(run)} · {run.date[:10]} · {hardware_of(run)}",
    )
    here = sources.here.get(experiment)
    beside = None
    if here is not None:
        beside = el(
            "p",
            f"Also run on this machine: {rows_of(here)}, {here.result.provenance.date[:10]}, ",
            el("code", show_path(here.path)),
        )
    everything = None
    if every_figure:
        figures = {name: f"{experiment}/{name}" for name in result.figures}
        unit = "seeds" if result.conditions is None else "conditions"
        table = figure_table(sources, figures, f"All figures of {experiment}", unit)
        fold = el("summary", f"All {plural(len(figures), 'figure')} of {experiment}")
        everything = el("details", fold, table, class_="fold")
    seeds = ", ".join(map(str, result.seeds))
    about = {"title": result.title, "command": result.command, "seeds": seeds, "seconds": run.seconds}
    inside = el("div", beside, value_list({**about, "settings": result.settings}), everything)
    return el("details", summary, inside, class_="source")


def rows_of(stored: StoredResult) -> str:
    result = stored.result
    if result.conditions is None:
        return plural(len(result.seeds), "seed")
    return plural(len(result.conditions), "condition")


def origin(stored: StoredResult) -> str:
    return "this machine" if stored.local else "recorded"


# The foot of the page


def provenance(sources: Sources) -> Html:
    rows = []
    for stored in sources.stored:
        run = stored.result.provenance
        used = "evidence" if sources.chosen[stored.result.experiment] is stored else "beside it"
        memory = "–" if run.peak_memory_mb is None else f"{run.peak_memory_mb:,.0f} MB"
        rows.append(
            [
                show_path(stored.path),
                f"{origin(stored)}, {used}",
                stored.result.scale,
                rows_of(stored),
                commit_of(run),
                run.date[:16].replace("T", " "),
                f"{run.seconds:,.0f} s",
                memory,
            ]
        )
    heads = ("file", "origin", "scale", "rows", "commit", "date", "time", "memory")
    if not rows:
        content: Child = el("p", "There are no results yet: ", el("code", "ematrace reproduce"), class_="missing")
    else:
        content = [plain_table(heads, rows, "Result files", "line"), environments(sources)]
    return el("section", el("h2", "Provenance"), content, id="provenance")


def environments(sources: Sources) -> Html:
    """Hardware and versions, once for all files that share them."""
    shared: dict[str, list[StoredResult]] = {}
    for stored in sources.stored:
        run = stored.result.provenance
        key = json.dumps([run.hardware, run.versions], sort_keys=True, default=str)
        shared.setdefault(key, []).append(stored)
    parts: list[Child] = []
    for group in shared.values():
        run = group[0].result.provenance
        files = "all files" if len(shared) == 1 else ", ".join(show_path(s.path) for s in group)
        parts += [
            el("h3", "Hardware and versions"),
            el("p", f"Of {files}.", class_="tag"),
            value_list({"hardware": run.hardware, "versions": run.versions}),
        ]
    return join(parts)


def foot(made: datetime) -> Html:
    try:
        version = metadata.version("ematrace")
    except metadata.PackageNotFoundError:
        version = "without a version"
    date = made.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return el("footer", f"Made {date} by ematrace {version} from results and verdicts alone.")
