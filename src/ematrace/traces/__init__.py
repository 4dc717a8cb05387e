"""Exponential moving averages of sequences, at several rates at once."""

from ematrace.traces.module import EMATraces
from ematrace.traces.operator import ema_traces

__all__ = ["EMATraces", "ema_traces"]
