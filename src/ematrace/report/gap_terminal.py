"""The gap's chain in the terminal, after a run of `gap`."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ematrace.analysis.gap import Chain, Step, build_chain, build_recall
from ematrace.analysis.gap_design import END, JOINED_NAME, START
from ematrace.analysis.gap_scores import EXPERIMENT, MAIN, TOY, load_scores
from ematrace.report.formatting import number, plural, with_interval
from ematrace.report.gap import share_text, text_name
from ematrace.results import Table as Cells

TOY_LINE = "Toys, which show that it runs: nothing follows from their numbers, and no verdict rests on them."


def chain_view(cells: Cells) -> RenderableType | None:
    """From this machine's own cells, as they were just measured; None where an end of the chain is missing."""
    own = cells.local()
    size = MAIN if MAIN in own.values_of(EXPERIMENT, "size") else TOY
    scores = load_scores(own if size == TOY else cells, size)
    chains = [chain for text in scores.texts if (chain := build_chain(scores, text)) is not None]
    if not chains:
        return None
    lines: list[RenderableType] = [Text(TOY_LINE, style="bold yellow")] if scores.is_toy else []
    for chain in chains:
        lines.append(_table(chain, scores.is_toy))
        if (found := build_recall(scores, chain.text, "pair")) is not None:
            share = f"; {share_text(found.recall)} of it" if found.recall.share is not None else ""
            recalled = (
                f"{with_interval(found.recall.part, signed=True)} on repeated pairs, {found.tokens:.0%} of tokens"
            )
            gap = with_interval(found.gap, signed=True)
            lines.append(
                Text(f"EMA instead of attention (rope), both dense: {gap} nats, {recalled}{share}", style="dim")
            )
    return Group(*lines)


def _table(chain: Chain, toy: bool) -> Table:
    title = f"{'TOY: ' if toy else ''}nats per token on {text_name(chain.text)}, {plural(len(chain.seeds), 'seed')}"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=title, title_justify="left")
    for head in ("step", "change", "on repeated pairs", "on other tokens"):
        table.add_column(head, justify="left" if head == "step" else "right")
    table.add_row(START, number(chain.start.mean, 3), "", "")
    for step in (*chain.steps, chain.whole):
        table.add_row(step.name, *_changes(step), style="bold" if step is chain.whole else "")
        if JOINED_NAME in step.name:
            for half in chain.halves:
                table.add_row(f"  of which {half.name}", *_changes(half), style="dim")
    table.add_row(END, number(chain.end.mean, 3), "", "")
    return table


def _changes(step: Step) -> Iterator[str]:
    return (number(-part.mean, 3, signed=True) for part in (step.nats, step.recall, step.other))
