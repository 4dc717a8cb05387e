"""Cells: one measurement each, with what was varied, on which seed, what came out and where it came from.

A run of an experiment writes its cells to one file, whole, the moment it is done. Everything that is published is
selected from cells by their factors:

>>> from ematrace.results import Selector
>>> Selector.parse("trace_probe/transfer{representation=l0+traces}")
Selector(experiment='trace_probe', metric='transfer', where={'representation': 'l0+traces'})
"""

from ematrace.results.provenance import Provenance, checkout_root, collect_provenance
from ematrace.results.sample import Interval, Sample
from ematrace.results.schema import Cell, CellFile, Factors, Metric, ResultError, Row, read_file, write_file
from ematrace.results.select import AmbiguousSelection, Selection, Selector, Table
from ematrace.results.store import Store, StoredCell

__all__ = [
    "AmbiguousSelection",
    "Cell",
    "CellFile",
    "Factors",
    "Interval",
    "Metric",
    "Provenance",
    "ResultError",
    "Row",
    "Sample",
    "Selection",
    "Selector",
    "Store",
    "StoredCell",
    "Table",
    "checkout_root",
    "collect_provenance",
    "read_file",
    "write_file",
]
