"""What can be read from a representation: ridge probes, their intervals and controls, word decoding."""

from ematrace.intervals import seed_interval, wilson_interval
from ematrace.probes.controls import control_labels, label_weights, selectivity
from ematrace.probes.decoding import PeelingDecoder, lagged_words
from ematrace.probes.projection import gaussian_projection
from ematrace.probes.ridge import GramMatrix, Readout, ReadoutBank, RidgeProbe
from ematrace.probes.scores import Scores, score_roles
from ematrace.probes.spectrum import effective_rank, participation_ratio

__all__ = [
    "GramMatrix",
    "PeelingDecoder",
    "Readout",
    "ReadoutBank",
    "RidgeProbe",
    "Scores",
    "control_labels",
    "effective_rank",
    "gaussian_projection",
    "label_weights",
    "lagged_words",
    "participation_ratio",
    "score_roles",
    "seed_interval",
    "selectivity",
    "wilson_interval",
]
