"""Figures as HTML tables: the paper's number, ours, its interval over seeds and, beside it, that over tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ematrace.ledger import Figure
from ematrace.report.markup import Child, Html, el, join
from ematrace.report.sources import Sources, over_seeds, over_tokens
from ematrace.report.wording import digits, interval, number

MAX_COLUMNS = 7

RefOf = Callable[[str, str], str]


@dataclass(frozen=True)
class Line:
    """A row of a table or plot: its name, its key, and the group it stands with."""

    label: str
    key: str
    group: int = 0


def dotted(key: str, measure: str) -> str:
    """The usual place of a figure, `experiment/name.measure`, where the row's key is `experiment/name`."""
    return f"{key}.{measure}"


def measured_lines(
    sources: Sources, lines: Sequence[Line], measures: Sequence[str], ref_of: RefOf = dotted
) -> list[Line]:
    """The rows that have a figure under one of the measures."""
    return [line for line in lines if any(sources.figure(ref_of(line.key, m)) is not None for m in measures)]


def scrolled(table: Html, label: str) -> Html:
    """A table too wide for a phone scrolls inside its own box, which the keyboard can reach."""
    return el("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def ours_cell(sources: Sources, ref: str) -> Html:
    """Mean, interval over seeds, interval over tokens, and this machine's own run where another is the evidence."""
    figure = sources.figure(ref)
    if figure is None or not figure.known:
        return el("td", "–", class_="num none")
    return el("td", _measured(figure, ref), _here(sources.figure_here(ref)), class_="num")


def _measured(figure: Figure, ref: str) -> Html:
    decimals = digits(figure.mean)
    seeds, tokens = over_seeds(figure), over_tokens(figure)
    return join(
        el("span", number(figure.mean, decimals), class_="mean", data_ref=ref),
        (" ", el("span", interval(seeds, decimals), class_="seeds")) if seeds else None,
        (" ", el("span", interval(tokens, decimals), class_="tokens")) if tokens else None,
    )


def _here(figure: Figure | None) -> Html | None:
    if figure is None or not figure.known:
        return None
    ends = over_seeds(figure)
    decimals = digits(figure.mean)
    spread = f" {interval(ends, decimals)}" if ends else ""
    return join(" ", el("span", f"here {number(figure.mean, decimals)}{spread}", class_="here"))


def measure_table(
    sources: Sources, lines: Sequence[Line], measures: Mapping[str, str], label: str, ref_of: RefOf = dotted
) -> Html | None:
    """A row per line, and per measure the paper's number (where it has any) and ours."""
    lines = measured_lines(sources, lines, list(measures), ref_of)
    if not lines:
        return None
    refs = {m: [ref_of(line.key, m) for line in lines] for m in measures}
    shown = [m for m in measures if any(sources.figure(ref) for ref in refs[m])]
    papers = {m for m in shown if any(sources.paper(ref) is not None for ref in refs[m])}
    # "Paper" and "ours" need a line of their own only where there are both.
    depth = 2 if papers else 1
    top: list[Child] = [el("td", "", rowspan=depth)]
    second: list[Child] = []
    for m in shown:
        both = m in papers
        scope = "colgroup" if both else "col"
        rows = 1 if both else depth
        top.append(el("th", measures[m], colspan=2 if both else 1, rowspan=rows, scope=scope, class_="num"))
        second += [el("th", word, scope="col", class_="num") for word in ("paper", "ours")] if both else []
    top.append(el("th", "seeds", rowspan=depth, scope="col", class_="num"))
    body: list[Child] = []
    for i, line in enumerate(lines):
        cells: list[Child] = [el("th", line.label, scope="row")]
        for m in shown:
            if m in papers:
                cells.append(_paper_cell(sources.paper(refs[m][i])))
            cells.append(ours_cell(sources, refs[m][i]))
        # The columns of a row can come from files with different seeds: all counts, in the order of the columns.
        counts = dict.fromkeys(len(f.values) for m in shown if (f := sources.figure(refs[m][i])) is not None)
        cells.append(el("td", ", ".join(map(str, counts)), class_="num quiet"))
        first = i > 0 and line.group != lines[i - 1].group
        body.append(el("tr", cells, class_="first" if first else None))
    head = el("thead", el("tr", top), el("tr", second) if papers else None)
    # Many columns: the intervals go under the means.
    dense = " dense" if len(shown) + len(papers) > MAX_COLUMNS else ""
    return scrolled(el("table", head, el("tbody", body), class_=f"figures{dense}"), label)


def _paper_cell(paper: float | None) -> Html:
    return el("td", "" if paper is None else number(paper), class_="num paper")


def figure_table(sources: Sources, refs: Mapping[str, str], label: str, unit: str = "seeds") -> Html:
    """One figure per row, `refs` from its name to where it is."""
    papers = any(sources.paper(ref) is not None for ref in refs.values())
    heads = ["figure", *(["paper"] if papers else []), "ours", f"95% over {unit}", "95% over tokens", unit, "tokens"]
    body = []
    for name, ref in refs.items():
        figure = sources.figure(ref)
        if figure is None:
            continue
        decimals = digits(figure.mean) if figure.known else None
        seeds, tokens = over_seeds(figure), over_tokens(figure)
        cells: list[Child] = [el("th", name, scope="row")]
        if papers:
            cells.append(_paper_cell(sources.paper(ref)))
        ours = el("span", number(figure.mean, decimals), class_="mean", data_ref=ref)
        cells += [
            el("td", ours, _here(sources.figure_here(ref)), class_="num"),
            el("td", interval(seeds, decimals), class_="num quiet"),
            el("td", interval(tokens, decimals), class_="num quiet"),
            el("td", _count(figure), class_="num quiet"),
            el("td", "–" if figure.n is None else f"{figure.n:,}", class_="num quiet"),
        ]
        body.append(el("tr", cells))
    head = el("thead", el("tr", [el("th", h, scope="col", class_="num" if i else None) for i, h in enumerate(heads)]))
    return scrolled(el("table", head, el("tbody", body), class_="figures names"), label)


def _count(figure: Figure) -> str:
    """A figure with a gap says so: it has no mean."""
    known = sum(math.isfinite(v) for v in figure.values)
    return str(len(figure.values)) if known == len(figure.values) else f"{known} of {len(figure.values)}"


def plain_table(
    heads: Sequence[str],
    rows: Sequence[Sequence[Child]],
    label: str,
    cells: Literal["num", "line", "words"] = "num",
) -> Html:
    """A row's name, and cells that are all numbers, single lines or text."""
    head = el("thead", el("tr", [el("th", h, scope="col", class_=cells if i else None) for i, h in enumerate(heads)]))
    body = [el("tr", el("th", row[0], scope="row"), [el("td", c, class_=cells) for c in row[1:]]) for row in rows]
    return scrolled(el("table", head, el("tbody", body), class_=f"figures {cells}"), label)


def value_list(values: Mapping[str, Any]) -> Html:
    """Settings and the like: names and values, nested ones as an indented list."""
    items: list[Child] = []
    for name, value in values.items():
        shown: Child = value_list(value) if isinstance(value, Mapping) and value else _value(value)
        items += [el("dt", str(name)), el("dd", shown)]
    return el("dl", items, class_="values")


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(v) for v in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "–" if value is None or value == {} else str(value)
