"""Marked tables in Markdown: found, parsed and replaced.

<!-- table: verdicts-small -->
(written by scripts/write_tables.py)
<!-- end -->
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from ematrace.intervals import paired_difference_interval
from ematrace.report.data import ReportData
from ematrace.report.formatting import MINUS, number, plural
from ematrace.results import Factors, Selection, Selector, Table

NOT_RECORDED = "not recorded yet"
ACCURACIES = ("within", "transfer", "deep")
ROLES = ("det_agent", "verb_rel", "noun_agent", "noun_patient")  # that the paper gives

Write = Callable[[ReportData, str], str]
"""From the cells and the text of the block as it is, of which a hand may have written some columns, to the new text."""
TABLES: dict[str, Write] = {}
_BLOCK = re.compile(r"(<!-- table: (?P<name>[a-z0-9-]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)
_MARK = re.compile(r"<!-- (table: |end)")


def table(name: str, *experiments: str) -> Callable[[Write], Write]:
    """Decorator of the function that writes the block of this name; as long as nothing of these experiments is
    recorded, the block says so."""

    def register(write: Write) -> Write:
        def write_recorded(data: ReportData, block: str) -> str:
            if experiments and not any(experiment in data.table.experiments for experiment in experiments):
                return f"{', '.join(f'`{experiment}`' for experiment in experiments)}: {NOT_RECORDED}.\n"
            return write(data, block)

        TABLES[name] = write_recorded
        return write

    return register


def marked(text: str) -> list[str]:
    """The names of the blocks in a page."""
    return [match["name"] for match in _BLOCK.finditer(text)]


def changed_blocks(text: str, written: str) -> list[str]:
    """The names of the blocks in which two versions of a page differ."""
    both = ({match["name"]: match["text"] for match in _BLOCK.finditer(version)} for version in (text, written))
    before, after = both
    return [name for name in after if before.get(name) != after[name]]


def rewrite(text: str, data: ReportData, page: str) -> str:
    """The page with every block as the cells have it."""
    names = marked(text)
    if len(_MARK.findall(text)) != 2 * len(names):
        raise ValueError(f"{page}: a '<!-- table: NAME -->' has no '<!-- end -->', or the other way round")
    for name in names:
        if name not in TABLES:
            raise ValueError(f"{page}: no table is called '{name}'; there are {', '.join(TABLES)}")
        if names.count(name) > 1:
            raise ValueError(f"{page}: table '{name}' stands there twice")

    def replaced(match: re.Match[str]) -> str:
        return f"{match[1]}{TABLES[match['name']](data, match['text']).rstrip()}\n{match[4]}"

    return _BLOCK.sub(replaced, text)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A stroke, which would end its cell, becomes a slash."""
    head, *body = (f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in (heads, *rows))
    return "".join([head, f"|{'---|' * len(heads)}\n", *body])


def cells_of(block: str) -> list[list[str]]:
    """The rows of a block's first table, without head and rule."""
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines[2:]]


def select(cells: Table, experiment: str, metric: str, where: Factors) -> Selection | None:
    """None also where a seed has no value."""
    selection = cells.select(Selector(experiment, metric, where))
    return selection if selection is not None and selection.sample.known else None


def means(cells: Table, experiment: str, metrics: Sequence[str], where: Factors, separator: str = "/") -> str:
    """`.978/.666/.892`."""
    found = [select(cells, experiment, metric, where) for metric in metrics]
    if all(selection is None for selection in found):
        return NOT_RECORDED
    return separator.join(map(mean_text, found))


def mean_text(selection: Selection | None, missing: str = "–", decimals: int | None = None) -> str:
    return missing if selection is None else number(selection.sample.mean, decimals)


def mean(cells: Table, experiment: str, metric: str, where: Factors) -> str:
    return means(cells, experiment, (metric,), where)


def difference(one: Selection | None, other: Selection | None) -> str:
    """`+.002 [+.001, +.002]`: the first minus the second, on the seeds that both have, with the 95% interval."""
    if one is None or other is None or len(both := set(one.seeds) & set(other.seeds)) < 2:
        return NOT_RECORDED
    one, other = one.on(both), other.on(both)
    of_one_experiment = (one.sample.values, other.sample.values) if one.is_paired_with(other) else None
    pairs = of_one_experiment or one.paired_values(other)
    if pairs is None:
        return NOT_RECORDED
    mean = math.fsum(pairs[0]) / len(pairs[0]) - math.fsum(pairs[1]) / len(pairs[1])
    return with_brackets(mean, paired_difference_interval(*pairs))


def drawn_values(data: ReportData, experiment: str, metric: str, where: Factors) -> dict[int, float]:
    """By drawn grammar, one network on each."""
    found = {draw: select(cells, experiment, metric, where) for draw, cells in data.draws.items()}
    return {draw: one.sample.mean for draw, one in found.items() if one is not None}


def drawn_difference(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """The first minus the second over the grammars that both have, with the 95% interval."""
    both = sorted(one.keys() & other.keys())
    if len(both) < 2:
        return NOT_RECORDED
    pairs = [one[draw] for draw in both], [other[draw] for draw in both]
    mean = math.fsum(pairs[0]) / len(both) - math.fsum(pairs[1]) / len(both)
    return with_brackets(mean, paired_difference_interval(*pairs))


def with_brackets(mean: float, ends: tuple[float, float]) -> str:
    low, high = map(_signed, ends)
    return f"{_signed(mean)} [{low}, {high}]"


def _signed(x: float) -> str:
    """Also of what rounds to zero, so that it can be seen whether an interval excludes zero."""
    return f"{MINUS if x < 0 else '+'}{number(abs(x), 3)}"


def seeds_of(selections: Iterable[Selection | None]) -> str:
    """`5 seeds.` or `5 to 20 seeds.`; nothing where nothing was recorded."""
    counts = sorted({len(s.seeds) for s in selections if s is not None})
    if not counts:
        return ""
    return f"{plural(counts[0], 'seed')}." if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds."
