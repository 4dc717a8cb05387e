"""Defects to plant, by room."""

from defects import bench, kernels, language, spcn, spen, traces, train
from defects.defect import Defect

DEFECTS: tuple[Defect, ...] = (
    *spcn.DEFECTS,
    *traces.DEFECTS,
    *kernels.DEFECTS,
    *spen.DEFECTS,
    *language.DEFECTS,
    *train.DEFECTS,
    *bench.DEFECTS,
)

__all__ = ["DEFECTS", "Defect"]
