"""docs/objections.md: its figures are those of the result files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from ematrace.results import read_file

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs/objections.md").read_text(encoding="utf-8")
SEEDS = 5


def mean(network: str, metric: str, **factors: object) -> str:
    """Over the seeds of one network with half passives, as the page writes it."""
    paths = (ROOT / "results/networks").glob(f"grammar-half_passives_network-{network}_part-frozen*.json")
    cells = [cell for path in paths for cell in read_file(path).cells if cell.factors == factors]
    assert len(cells) == SEEDS
    return f"{np.mean([cell.metrics[metric].value for cell in cells]):.3f}".removeprefix("0")


def row(start: str) -> list[str]:
    """The cells of the table's line that starts so, but for its name."""
    (line,) = [line for line in TEXT.splitlines() if line.startswith(f"| {start} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


@pytest.mark.parametrize("level", range(4))
def test_states(level: int) -> None:
    metrics = ("drive_feedforward", "input_share", "to_previous", "units_used", "precision_in_range")
    shown = row(f"L{level}")
    for metric, cell in zip(metrics, shown, strict=True):
        if level == 3 and metric == "precision_in_range":
            assert cell == "nothing predicts it"
            continue
        found = [mean(network, metric, diagnosis="forward", level=level) for network in ("locked", "described")]
        assert cell == " → ".join(found)


@pytest.mark.parametrize(
    ("name", "metrics", "factors"),
    [
        ("activation + traces, W/T/D", ("within", "transfer", "deep"), [{"variant": "full"}]),
        ("C13 forward only, W/T", ("within", "transfer"), [{"variant": "forward_only"}]),
        ("C14 no SPA, no slow traces, W", ("within",), [{"variant": "no_spa_no_slow"}]),
        ("C15 traces of L0, L1, L2, W", ("within",), [{"level": level} for level in range(3)]),
        ("C17 det_patient at position 0", ("first_word_share",), [{"role": "det_patient"}]),
        ("without SPA, W/T/D", ("within", "transfer", "deep"), [{"variant": "no_spa"}]),
        ("W_fb = 0, W/T/D", ("within", "transfer", "deep"), [{"variant": "no_feedback"}]),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_claims(name: str, metrics: tuple[str, ...], factors: list[dict[str, object]]) -> None:
    *_, locked, described = row(name)
    for network, cell in (("locked", locked), ("described", described)):
        found = [mean(network, metric, **each) for each in factors for metric in metrics]
        assert re.split(r"[/,]\s*", cell) == found
