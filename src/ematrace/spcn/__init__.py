"""SPCN: a Hebbian column network whose traces are probed for grammatical roles."""

from ematrace.spcn.model import SPCN

__all__ = ["SPCN"]
