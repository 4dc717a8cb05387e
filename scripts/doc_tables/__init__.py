"""The tables of docs/ that recorded cells decide: `TABLES` has a function for each, by the name of its markers."""

from doc_tables import (
    choices,
    decoding,
    gap,
    large,
    made_text,
    networks,
    predictors,
    readme,
    small_scale,
    straight_through,
)
from doc_tables.blocks import TABLES, changed_blocks, marked, rewrite
from doc_tables.picture import chain_picture

__all__ = [
    "TABLES",
    "chain_picture",
    "changed_blocks",
    "choices",
    "decoding",
    "gap",
    "large",
    "made_text",
    "marked",
    "networks",
    "predictors",
    "readme",
    "rewrite",
    "small_scale",
    "straight_through",
]
