"""What the page opens with: a few findings, as data.

A finding is a claim whose verdict decides the heading, a sentence in which every number is a selector, and a chart.
To add one, add it to FINDINGS; where one of its numbers was not measured it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from ematrace.bench.tables import count
from ematrace.ledger import LedgerRow
from ematrace.ledger.verdicts import Verdict
from ematrace.report.charts import LineChart, RowChart, Series, dot_chart, log_axis
from ematrace.report.commands import Command, command_for, command_of
from ematrace.report.data import ReportData
from ematrace.report.formatting import hardware_of, number
from ematrace.report.gap import (
    CLAIM,
    GapData,
    chain_chart,
    distance_sentence,
    gap_heading,
    largest_sentence,
    mixers_sentence,
    shares_sentence,
    toy_text,
)
from ematrace.report.gap_context import context_sentence
from ematrace.report.gradient_cost import gradient_sentence, share_sentence
from ematrace.report.sections.accuracy import rows_by, samples_of
from ematrace.report.sections.content import lag_chart
from ematrace.report.sections.spen import RATE, STREAMS
from ematrace.report.tables import Header, measured_rows, metric_columns
from ematrace.report.verdicts import LOOKS
from ematrace.results import Sample, Selector

Chart = RowChart | LineChart
LEAD = 2
HOLDS: Set[Verdict] = {"reproduced", "direction only", "answered: yes"}
FAILS: Set[Verdict] = {"not reproduced", "answered: no"}
UNCLEAR: Mapping[Verdict, str] = {
    "undecided": "Not decided: the measured interval excludes neither side.",
    "answered: mixed": "Mixed: part of it holds.",
}
"""Headings where the verdict is neither yes nor no."""


@dataclass(frozen=True)
class HeadlineFinding:
    """`holds` and `fails` are headings, by the verdict on `claim`; `fails` says that it is the paper that says it."""

    topic: str
    claim: str
    holds: str
    fails: str
    sentence: str
    numbers: Mapping[str, Selector]
    chart: Callable[[ReportData], Chart | None]
    papers: Mapping[str, Selector] = field(default_factory=dict)
    """The paper's numbers in the sentence, which need not be measured here."""


@dataclass(frozen=True)
class FindingView:
    topic: str
    heading: str
    points: tuple[str, ...]
    claim: str
    sign: str
    verdict: str
    chart: Chart | None
    command: Command | None = None
    wide: bool = False

    @property
    def lead(self) -> int:
        """Points above the chart; the others stand below it."""
        return LEAD if self.chart is not None else len(self.points)


def build_finding(finding: HeadlineFinding, data: ReportData) -> FindingView | None:
    """None where the claims are others than the paper's."""
    found = {row.id: row for row in data.rows}.get(finding.claim)
    if found is None:
        return None
    samples = {name: data.sample(selector) for name, selector in finding.numbers.items()}
    texts = {name: shown(sample) for name, sample in samples.items() if sample is not None and sample.known}
    look = LOOKS[found.verdict]
    heading = _heading(finding, found)
    if len(texts) < len(samples) or heading is None:
        lacking = dict.fromkeys(finding.numbers[name].experiment for name in samples if name not in texts)
        command = command_for(list(lacking), data) if lacking else command_of(data.claims[finding.claim], data)
        return FindingView(finding.topic, "Not measured yet", (), found.id, look.sign, found.verdict, None, command)
    first = data.select(next(iter(finding.numbers.values())))
    hardware = hardware_of(first.cells[0].cell.provenance) if first is not None else ""
    papers = {name: number(data.paper(selector)) for name, selector in finding.papers.items()}
    text = f"{finding.sentence.format(**texts, **papers, hardware=hardware)} {seeds_of(samples.values())}"
    return FindingView(finding.topic, heading, (text,), found.id, look.sign, found.verdict, finding.chart(data))


def gap_finding(data: ReportData) -> FindingView | None:
    """What the gap is made of: its text and its heading follow from the cells, its link is the claim of the gap."""
    found = {row.id: row for row in data.rows}.get(CLAIM)
    if found is None:
        return None
    gap, look = data.derived(GapData), LOOKS[found.verdict]
    heading, chart = "Not measured yet", None
    if gap.chains:
        heading, chart = gap_heading(gap), chain_chart(gap.chains[0], gap.scores.is_toy)
    command = None if gap.chains and not gap.scores.is_toy else gap.command
    return FindingView(
        "The gap", heading, _gap_points(data, gap), found.id, look.sign, found.verdict, chart, command, wide=True
    )


def _gap_points(data: ReportData, gap: GapData) -> tuple[str, ...]:
    """The parts of the gap, what traces give, and what limits the largest part."""
    if not gap.chains or gap.scores.is_toy:
        return (toy_text(gap),) if gap.chains else ()
    traces = f"{context_sentence(data)} {mixers_sentence(gap)}".strip()
    larger = f"{share_sentence(data)} {largest_sentence(gap)}".strip()
    points = (distance_sentence(gap), shares_sentence(gap), traces, larger, gradient_sentence(data))
    return tuple(filter(None, points))


def seeds_of(samples: Iterable[Sample | None]) -> str:
    """How many seeds the numbers are means over; the chart has their intervals."""
    counts = sorted({len(sample.values) for sample in samples if sample is not None})
    if counts == [1]:
        return "One seed."
    return f"Means over {' and '.join(map(str, counts))} seeds; the intervals are in the chart."


def shown(sample: Sample) -> str:
    """As people say it: a share in percent, a rate in thousands."""
    return f"{sample.mean:.1%}" if sample.unit == "accuracy" else count(sample.mean)


def _heading(finding: HeadlineFinding, row: LedgerRow) -> str | None:
    """None where there is nothing to say yet."""
    if row.verdict in HOLDS:
        return finding.holds
    return finding.fails if row.verdict in FAILS else UNCLEAR.get(row.verdict)


def structure_chart(data: ReportData) -> Chart | None:
    columns = metric_columns({"within": "words it knows (W)", "transfer": "words it never saw (T)"})
    rows = [
        *rows_by("trace_probe", "representation", {"l0": "SPCN, activation", "l0+traces": "SPCN, with traces"}),
        Header("SPCN, nothing learned", "controls", where={"features": "no_feedback"}),
        Header("traces of words, no network", "controls", where={"features": "ema_onehot"}),
    ]
    rows = measured_rows(data, rows, columns)
    series = [Series(column.label, samples_of(data, rows, column)) for column in columns]
    values = [
        ", ".join(number(s.mean) for one in series if (s := one.samples[i]) and s.known) for i in range(len(rows))
    ]
    labels = [row.label for row in rows]
    return dot_chart("Roles read by a linear probe", labels, series, x_title="share correct", values=values)


def content_chart(data: ReportData) -> Chart | None:
    readers = {
        "probe": "linear probe, told that a noun stood there",
        "role": "guess from the noun's role",
        "peel": "decoder with one code for each word",
    }
    untold = {"noun_among_words_accuracy": "linear probe, not told"}
    caption = "The noun k steps back, read from the slow trace"
    return lag_chart(data, "slow", readers, caption, "noun_accuracy", untold)


def cost_chart(data: ReportData) -> Chart | None:
    rows = measured_rows(data, STREAMS, [RATE])
    samples = samples_of(data, rows, RATE)
    papers = [data.paper(Selector("spen_streaming", "tokens_per_second", row.where)) for row in rows]
    known = [f.mean for f in samples if f is not None and f.known] + [p for p in papers if p is not None]
    axis = log_axis(min(known) / 1.3, 1.3 * max(known), count)
    values = ["" if f is None else count(f.mean) for f in samples]
    series = [Series("ours", samples, papers)]
    labels = [row.label for row in rows]
    return dot_chart("Tokens per second", labels, series, x_title="tokens per second", axis=axis, values=values)


def _roles(metric: str, representation: str) -> Selector:
    return Selector("trace_probe", metric, {"representation": representation})


def _control(metric: str, features: str) -> Selector:
    return Selector("controls", metric, {"features": features})


def _before(metric: str, **where: str) -> Selector:
    return Selector("lag_decoding", metric, {**where, "lag": 1})


def _streams(model: str, streams: int) -> Selector:
    return Selector("spen_streaming", "tokens_per_second", {"model": model, "streams": streams})


FINDINGS = (
    HeadlineFinding(
        "Structure",
        "C04",
        "EMA traces carry structure.",
        "The paper says that traces carry structure. Not reproduced here.",
        "From SPCN's activation and traces a linear probe reads {both} of the roles, from the activation alone {l0}; "
        "from traces of the bare words, without a network, {onehot}. On words never seen before these are {both_t}, "
        "{l0_t} and {onehot_t}, and {unlearned_t} from an SPCN that has learned nothing.",
        {
            "both": _roles("within", "l0+traces"),
            "l0": _roles("within", "l0"),
            "onehot": _control("within", "ema_onehot"),
            "both_t": _roles("transfer", "l0+traces"),
            "l0_t": _roles("transfer", "l0"),
            "onehot_t": _control("transfer", "ema_onehot"),
            "unlearned_t": _control("transfer", "no_feedback"),
        },
        structure_chart,
    ),
    HeadlineFinding(
        "Content",
        "C18",
        "Which noun it was is washed out of the slow trace; structure stays.",
        "The paper says that the slow trace washes out which noun it was. Not reproduced here.",
        "Told that a noun stood one word back, a linear probe of the slow trace names it in {noun} of cases; not told, "
        "and choosing among all words, in {untold}; a guess that knows its role and nothing else, in {guess}. "
        "The role of the word one back is read in {role} of cases. A decoder that knows one code for each word "
        "names {peeled} of these nouns on the network's codes, which depend on context, and {plain} where they do not.",
        {
            "noun": _before("noun_accuracy", reader="probe", trace="slow"),
            "untold": _before("noun_among_words_accuracy", reader="probe", trace="slow"),
            "guess": _before("noun_accuracy", reader="role"),
            "role": _before("lagged_role_accuracy", reader="probe", trace="slow"),
            "peeled": _before("noun_accuracy", reader="peel", codes="network", trace="slow"),
            "plain": _before("noun_accuracy", reader="peel", codes="plain", trace="slow"),
        },
        content_chart,
    ),
    HeadlineFinding(
        "Cost",
        "F5",
        "With a fused kernel SPEN streams a text faster than a GPT-2 of its size.",
        "The paper hopes that a fused kernel closes the speed gap. It does not here.",
        "SPEN reads one stream of text at {one} tokens per second (from Python at {ours}, the paper at {eager}), a "
        "GPT-2 of its size at {gpt2}; 1,024 streams together at {many}, GPT-2 at {gpt2_many}. Measured on {hardware}.",
        {
            "one": _streams("spen", 1),
            "ours": _streams("spen_eager", 1),
            "gpt2": _streams("gpt2", 1),
            "many": _streams("spen", 1024),
            "gpt2_many": _streams("gpt2", 1024),
        },
        cost_chart,
        {"eager": _streams("spen_eager", 1)},
    ),
)
