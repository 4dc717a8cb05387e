"""The tables of docs/ that recorded cells decide: `TABLES` has a function for each, by the name of its markers."""

from doc_tables import choices, gap, networks, small_scale
from doc_tables.blocks import TABLES, marked, rewrite

__all__ = ["TABLES", "choices", "gap", "marked", "networks", "rewrite", "small_scale"]
