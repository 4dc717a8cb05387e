"""Does a claim's direction hold on grammars that nobody chose? Every experiment again, on grammars drawn at random.

The default grammar was chosen knowing the paper's tables, so agreement on it proves little. Each drawn condition has
its own template shares (every third with half passives), noun bias, adjective rate, share of object relatives and k.
"""

from __future__ import annotations

from typing import Any

from ematrace.experiments.workbench import Sizes, Workbench
from ematrace.grammar import draw_grammar_pair

NAME = "robustness"
TITLE = "Robustness over drawn grammars"
KS = (0.02, 0.04, 0.08, 0.16)
GRAMMARS = 24  # a full run: every k meets every kind of grammar
QUICK_GRAMMARS = 4  # the default: each k once, and only the experiments that take seconds
QUICK_EXPERIMENTS = ("trace_probe", "position", "distances")


def condition(number: int) -> dict[str, Any]:
    """What is drawn for one condition, as plain data."""
    settings = draw_grammar_pair(number)[0].settings
    return {"grammar_seed": number, "k": KS[number % len(KS)], **settings}


def workbench(number: int, sizes: Sizes) -> Workbench:
    return Workbench(number, grammars=draw_grammar_pair(number), spcn={"k": KS[number % len(KS)]}, sizes=sizes)
