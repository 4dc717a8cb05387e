"""Defects to plant, by room."""

from defects import language, spcn, spen, traces, train
from defects.defect import Defect

DEFECTS: tuple[Defect, ...] = (
    *spcn.DEFECTS,
    *traces.DEFECTS,
    *spen.DEFECTS,
    *language.DEFECTS,
    *train.DEFECTS,
)

__all__ = ["DEFECTS", "Defect"]
