"""Figures as HTML tables: the paper's number, ours, its interval over seeds and, beside it, that over tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematrace.ledger import Figure
from ematrace.report.markup import Child, Html, el, join
from ematrace.report.sources import Sources, over_seeds, over_tokens
from ematrace.report.wording import decimals_for, interval, number


@dataclass(frozen=True)
class Line:
    """A row of a table or plot: figures are `<ref>.<measure>`; rows of one `group` stand together."""

    label: str
    ref: str
    group: int = 0


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
    decimals = decimals_for(figure.mean)
    seeds, tokens = over_seeds(figure), over_tokens(figure)
    return join(
        el("span", number(figure.mean, decimals), class_="mean", data_ref=ref),
        el("span", interval(seeds, decimals), class_="seeds") if seeds else None,
        el("span", interval(tokens, decimals), class_="tokens") if tokens else None,
    )


def _here(figure: Figure | None) -> Html | None:
    if figure is None or not figure.known:
        return None
    ends = over_seeds(figure)
    decimals = decimals_for(figure.mean)
    return el("span", f"here {number(figure.mean, decimals)}", f" {interval(ends, decimals)}" if ends else "", class_="here")


def has_figures(sources: Sources, ref: str, measures: Sequence[str]) -> bool:
    return any(sources.figure(f"{ref}.{m}") is not None for m in measures)


def measure_table(sources: Sources, lines: Sequence[Line], measures: Mapping[str, str], label: str) -> Html | None:
    """A row per line, and per measure the paper's number (if it has any) and ours."""
    lines = [line for line in lines if has_figures(sources, line.ref, list(measures))]
    shown = {m: name for m, name in measures.items() if any(sources.figure(f"{x.ref}.{m}") for x in lines)}
    if not lines:
        return None
    papers = {m: any(sources.paper(f"{x.ref}.{m}") is not None for x in lines) for m in shown}
    top: list[Child] = [el("th", "", rowspan=2, scope="col")]
    second: list[Child] = []
    for m, name in shown.items():
        top.append(el("th", name, colspan=2 if papers[m] else 1, scope="colgroup", class_="group"))
        second += [el("th", "paper", scope="col", class_="num")] if papers[m] else []
        second.append(el("th", "ours", scope="col", class_="num"))
    top.append(el("th", "seeds", rowspan=2, scope="col", class_="num"))
    body: list[Child] = []
    for i, line in enumerate(lines):
        cells: list[Child] = [el("th", line.label, scope="row")]
        for m in shown:
            if papers[m]:
                cells.append(_paper_cell(sources.paper(f"{line.ref}.{m}")))
            cells.append(ours_cell(sources, f"{line.ref}.{m}"))
        cells.append(el("td", _seeds(sources, line, list(shown)), class_="num"))
        first = i > 0 and line.group != lines[i - 1].group
        body.append(el("tr", cells, class_="first" if first else None))
    head = el("thead", el("tr", top), el("tr", second))
    return scrolled(el("table", head, el("tbody", body), class_="figures"), label)


def _paper_cell(paper: float | None) -> Html:
    return el("td", "" if paper is None else number(paper), class_="num paper")


def _seeds(sources: Sources, line: Line, measures: Sequence[str]) -> str:
    found = (sources.figure(f"{line.ref}.{m}") for m in measures)
    return str(max((len(f.values) for f in found if f is not None), default=0) or "–")


def figure_table(sources: Sources, refs: Mapping[str, str], label: str, unit: str = "seeds") -> Html:
    """One figure per row, `refs` from its name to where it is."""
    papers = any(sources.paper(ref) is not None for ref in refs.values())
    heads = ["figure", *(["paper"] if papers else []), "ours", f"95% over {unit}", "95% over tokens", unit, "tokens"]
    body = []
    for name, ref in refs.items():
        figure = sources.figure(ref)
        if figure is None:
            continue
        decimals = decimals_for(figure.mean) if figure.known else None
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
    return scrolled(el("table", head, el("tbody", body), class_="figures plain"), label)


def _count(figure: Figure) -> str:
    """A figure with a gap says so: it has no mean."""
    known = sum(math.isfinite(v) for v in figure.values)
    return str(len(figure.values)) if known == len(figure.values) else f"{known} of {len(figure.values)}"


def plain_table(heads: Sequence[str], rows: Sequence[Sequence[Child]], label: str, numbers_from: int = 1) -> Html:
    """Text cells; columns from `numbers_from` on are numbers."""

    def kind(i: int) -> str | None:
        return "num" if i >= numbers_from else None

    head = el("thead", el("tr", [el("th", h, scope="col", class_=kind(i)) for i, h in enumerate(heads)]))
    body = [
        el("tr", el("th", row[0], scope="row"), [el("td", c, class_=kind(i)) for i, c in enumerate(row[1:], start=1)])
        for row in rows
    ]
    return scrolled(el("table", head, el("tbody", body), class_="figures plain"), label)


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
