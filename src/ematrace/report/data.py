"""What the page is made from: cells, the verdicts on them, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from ematrace.ledger import Claims, LedgerRow, build_ledger, load_claims
from ematrace.results import Sample, Selection, Selector, Store, Table

T = TypeVar("T")


@dataclass(frozen=True)
class ReportData:
    """`cells` are all there are, recorded and this machine's. Sections show those with the claims' default factors."""

    cells: Table
    claims: Claims
    rows: tuple[LedgerRow, ...]
    _selected: dict[str, Selection | None] = field(default_factory=dict, repr=False, compare=False)
    _derived: dict[Callable[[ReportData], Any], Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, store: Store, claims: Claims | None = None) -> ReportData:
        """`claims` are the package's by default."""
        known = load_claims() if claims is None else claims
        cells = Table(store.load())
        return cls(cells, known, tuple(build_ledger(cells, known)))

    @cached_property
    def table(self) -> Table:
        """The cells with the default factors: the evidence, and this machine's beside it."""
        return self.claims.choose(self.cells)

    @cached_property
    def own(self) -> Table:
        """What this machine measured of these."""
        return self.table.local()

    @cached_property
    def draws(self) -> Mapping[int, Table]:
        """The cells on which directions are tested again, by seed."""
        return self.cells.where(**self.claims.robustness).by_seed() if self.claims.robustness else {}

    def select(self, selector: Selector) -> Selection | None:
        """The evidence for a metric; kept, as plots and tables ask for the same."""
        key = str(selector)
        if key not in self._selected:
            self._selected[key] = self.table.find(selector)
        return self._selected[key]

    def derived(self, make: Callable[[ReportData], T]) -> T:
        """What a function or class makes of these data; kept, as page, findings and docs ask for the same."""
        if make not in self._derived:
            self._derived[make] = make(self)
        return self._derived[make]  # type: ignore[no-any-return]

    @property
    def problems(self) -> list[str]:
        """What could not be shown so far, a line for each pair of files that cannot both count."""
        files = {**self.cells.ambiguous, **self.table.ambiguous, **self.own.ambiguous}
        return [f"not shown: {pair}" for pair in files]

    def sample(self, selector: Selector) -> Sample | None:
        """A metric over the seeds of the evidence."""
        selection = self.select(selector)
        return None if selection is None else selection.sample

    def own_sample(self, selector: Selector) -> Sample | None:
        """The same metric as this machine measured it, where another machine's cells are the evidence."""
        evidence = self.select(selector)
        own = self.own.find(selector) if evidence is not None and not evidence.local else None
        return None if own is None else own.sample

    def paper(self, selector: Selector) -> float | None:
        """The paper's number for these cells, however a claim's selector spells them; None if it has none."""
        selection = self.select(selector)
        return self._papers.get(str(selector)) if selection is None else self.paper_of(selection)

    def paper_of(self, selection: Selection) -> float | None:
        return self._papers.get(_identity(selection))

    @cached_property
    def _papers(self) -> Mapping[object, float]:
        numbers: dict[object, float] = {}
        for figure in (f for claim in self.claims for f in claim.figure if f.minus is None and f.over is None):
            selection = self.select(figure.of)
            numbers[str(figure.of) if selection is None else _identity(selection)] = figure.paper
        return numbers

    def claims_about(self, about: Callable[[Selector], bool]) -> list[LedgerRow]:
        """The rows of the claims that say something of such a selector, not only compare with it."""
        subjects = {c.id: [d.left for d in c.direction] + [f.of for f in c.figure] for c in self.claims}
        return [row for row in self.rows if any(map(about, subjects[row.id]))]


def _identity(selection: Selection) -> object:
    """Equal for selectors that select the same metric of the same cells."""
    return selection.selector.metric, tuple(map(id, selection.cells))
