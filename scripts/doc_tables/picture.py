"""docs/gap-chain.svg, the README's picture: the chain from SPEN to GPT-2, each step in its two parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from xml.sax.saxutils import escape

from doc_tables.gap_prose import NOT_RECORDED
from ematrace.analysis.gap import Chain
from ematrace.analysis.gap_design import ATTENTION, END, START
from ematrace.report.data import ReportData
from ematrace.report.formatting import number, with_interval
from ematrace.report.gap import PARTS, GapData, text_name

WIDTH, ROW, TOP, LEFT, RIGHT = 960, 28, 64, 360, 160  # pixels; the bars are between LEFT and RIGHT
# The colours of the parts are those of the page (report/templates/style.css).
STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b1f24 }
.label { text-anchor: end } .small { font-size: 12px } .level { fill: #8b949e }
.part0 { fill: #0068a3 } .part1 { fill: #b84a00 }
.rule { stroke: #8b949e; stroke-dasharray: 2 3 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .part0 { fill: #56b4e9 } .part1 { fill: #f08c3e } }"""


def chain_picture(data: ReportData) -> str:
    gap = data.derived(GapData)
    if gap.scores.is_toy or not gap.chains:
        return _svg(ROW, [_text(0, 20, NOT_RECORDED)])
    chain, beyond = gap.papers_chain, _beyond(gap)
    rows = len(chain.steps) + 2 + len(beyond)
    return _svg(TOP + rows * ROW + 8, [*_legend(chain, gap.parameters), *_bars(chain, beyond)])


def _beyond(gap: GapData) -> dict[str, float]:
    """For comparison: the chain has to end in GPT-2's block, whose learned positions are not the best."""
    scores, text = gap.scores, gap.papers_chain.text
    if ATTENTION not in scores.arms:
        return {}
    nats = scores.nats(ATTENTION, text, "all", scores.common_seeds([ATTENTION]))
    return {"for comparison: attention with RoPE, dense": float(nats.mean())}


def _legend(chain: Chain, size: str) -> Iterator[str]:
    yield _text(
        0, 18, f"Nats per token on {text_name(chain.text)} with {size}, one change at a time; what each change saves"
    )
    for i, part in enumerate(PARTS):
        yield _bar(LEFT + 380 * i - 40, TOP - 26, 12, 12, f"part{i}")
        yield _text(LEFT + 380 * i - 40 + 18, TOP - 15, f"on {part}", "small")


def _bars(chain: Chain, beyond: Mapping[str, float]) -> Iterator[str]:
    """A level, falls, a level. The parts of a step lie one below the other, each from where the one before it ended.
    Then other levels."""
    levels = [chain.start.mean]
    for step in chain.steps:
        levels += [levels[-1] - step.recall.mean, levels[-1] - step.recall.mean - step.other.mean]
    lowest = min(*levels, *beyond.values())
    low = lowest - 0.1 * (max(levels) - lowest)
    scale = (WIDTH - LEFT - RIGHT) / (max(levels) - low)

    def x(nats: float) -> float:
        return LEFT + scale * (nats - low)

    rows = [(START, chain.start), *((step.name, step.nats) for step in chain.steps), (END, chain.end)]
    for at, (name, nats) in enumerate(rows):
        y = TOP + at * ROW
        level = levels[max(0, 2 * at - 2)]
        yield _text(LEFT - 10, y + 19, name, "label")
        if 0 < at < len(rows) - 1:
            parts = levels[2 * at - 2 : 2 * at + 1]
            for i, (start, end) in enumerate(pairwise(parts)):
                left, right = sorted((x(start), x(end)))
                yield _bar(left, y + 4 + 10 * i, right - left, 10, f"part{i}")
            yield f'<line class="rule" x1="{x(level):.1f}" x2="{x(level):.1f}" y1="{y - 6}" y2="{y + 4}"/>'
            yield _text(WIDTH - RIGHT + 10, y + 19, with_interval(nats), "small")
        else:
            yield _bar(x(nats.mean) - 2, y + 4, 4, 20, "level")
            yield _text(WIDTH - RIGHT + 10, y + 19, number(nats.mean, 2))
    for at, (name, mean) in enumerate(beyond.items(), start=len(rows)):
        y = TOP + at * ROW
        yield _text(LEFT - 10, y + 19, name, "label")
        yield _bar(x(mean) - 2, y + 4, 4, 20, "level")
        yield _text(WIDTH - RIGHT + 10, y + 19, number(mean, 2))


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}"/>'


def _svg(height: int, parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>", ""])
