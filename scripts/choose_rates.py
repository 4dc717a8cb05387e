"""Chooses learning rates from the recorded sweeps: of the gap's arms by the rule of docs/analysis-plan.md, and of the
rules for W_ff by `ematrace.analysis.rates.best_rule_rates`.

python scripts/choose_rates.py            # writes chosen_rates.json and feedforward_rates.json, says what is left
python scripts/choose_rates.py --check    # exit code 1 if a file is not what the cells say
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path

from ematrace.analysis.rates import Sweep, best_rule_rates, sweeps_of
from ematrace.experiments.chosen_rates import FEEDFORWARD_FILE, FILE, SWEEPS, arm_key
from ematrace.files import write_atomically
from ematrace.results import Cell, read_file

RESULTS = Path(__file__).parent.parent / "results"


def cells_of(name: str) -> list[Cell]:
    return [c for path in sorted((RESULTS / name).glob("*.json")) for c in read_file(path).unpack()]


def choose_feedforward() -> str | None:
    """The text of feedforward_rates.json; None as long as there was no sweep."""
    cells = cells_of("feedforward_rates")
    return json.dumps(best_rule_rates(cells), indent=2) + "\n" if cells else None


def recorded_sweeps() -> dict[str, list[Sweep]]:
    found: dict[str, list[Sweep]] = {}
    for name in SWEEPS:
        if cells := cells_of(name):
            found[name] = sorted(sweeps_of(cells), key=lambda sweep: arm_key(sweep.factors))
    return found


def choose(sweeps: dict[str, list[Sweep]]) -> str:
    """The file's text: of every arm its best rate, null where that is not settled, and the points of its sweep."""
    table = {
        name: [
            {
                "factors": dict(sweep.factors),
                "lr": sweep.best if sweep.obstacle is None else None,
                "points": points_of(sweep),
            }
            for sweep in arms
        ]
        for name, arms in sweeps.items()
    }
    lines = [
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(arm)}" for arm in arms) + "\n  ]"
        for name, arms in table.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def points_of(sweep: Sweep) -> dict[float, list[int]]:
    """Seeds by rate: those recorded and those that are wanted."""
    recorded = [(rate, seed) for rate, seeds in sweep.curve.items() for seed in seeds]
    found: dict[float, list[int]] = {}
    for rate, seed in sorted({*recorded, *sweep.wanted}):
        found.setdefault(rate, []).append(seed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    arguments = parser.parse_args()
    sweeps = recorded_sweeps()
    texts = {FILE: choose(sweeps), FEEDFORWARD_FILE: choose_feedforward()}
    if arguments.check:
        return int(any((file.read_text() if file.is_file() else None) != text for file, text in texts.items()))
    for file, text in texts.items():
        if text is not None:
            write_atomically(file, text.encode())
    counts: dict[str, int] = defaultdict(int)
    for name, arms in sweeps.items():
        for sweep in arms:
            counts[name] += sweep.obstacle is None
            if sweep.obstacle is not None:
                print(f"{name}  {json.dumps(dict(sweep.factors))}\n    {sweep.obstacle}")
    print("\n".join(f"{name}: {counts[name]} of {len(arms)} arms have a rate" for name, arms in sweeps.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
