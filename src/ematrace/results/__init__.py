"""Cells: one measurement each, with what was varied, on which seed, what came out and where it came from.

A run of an experiment writes its cells to one file, whole, the moment it is done. Everything that is published is
selected from cells by their factors:

>>> from ematrace.results import Selector
>>> Selector.parse("trace_probe/transfer{representation=l0+traces}")
Selector(experiment='trace_probe', metric='transfer', where={'representation': 'l0+traces'})

From measurements to a published figure, over seeds:

>>> from ematrace.results import CellFile, Metric, Row, Store, Table, collect_provenance, write_file
>>> for seed, accuracy in enumerate([0.71, 0.74, 0.69]):
...     row = Row({"representation": "l0"}, {"transfer": Metric(accuracy, unit="accuracy", n=500)})
...     file = CellFile(2, "my_probe", "cpu", seed, {"width": 64}, {"k": 0.08}, collect_provenance(1.5), [row])
...     path = write_file(file, "my_results")
>>> path.as_posix()
'my_results/my_probe/width-64_seed-2_cpu.json'
>>> table = Table(Store.open(recorded="my_results").load())
>>> sample = table.sample("my_probe/transfer{representation=l0}")
>>> round(sample.mean, 3), [round(end, 2) for end in sample.interval]
(0.713, [0.65, 0.78])
>>> table.values_of("my_probe", "width")
(64,)
"""

from ematrace.results.provenance import Provenance, checkout_root, collect_provenance
from ematrace.results.sample import Interval, Sample, common_seeds
from ematrace.results.schema import Cell, CellFile, Factors, Metric, ResultError, Row, read_file, write_file
from ematrace.results.select import AmbiguousSelection, Selection, Selector, Table, kept_with_table
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
    "common_seeds",
    "kept_with_table",
    "read_file",
    "write_file",
]
