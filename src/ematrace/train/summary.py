"""The result of a run, as a value and as `summary.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ematrace.files import write_atomically
from ematrace.train.batches import Ids, Windows
from ematrace.train.metrics import sort_lines

CURVE_END = 100
FROM_CURVE = ("loss", "cross_entropy", "cross_entropy_at_end", "validation_cross_entropy", "tokens_per_second", "mfu")


@dataclass(frozen=True)
class TrainSummary:
    """The end of a training run; None where a run that was stopped has no figure.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> short = {"tokenizer": "bpe", "tokens": 256, "sequences": 2, "length": 64}
    >>> with TemporaryDirectory() as folder:
    ...     size = Path(folder, "tale.txt").write_text("the cat sees the dog " * 2000)
    ...     summary = train(TrainConfig(f"{folder}/tale.txt", out=Path(folder, "run"), **short))
    >>> summary.step, summary.tokens, summary.stopped, summary.model.name
    (2, 256, None, 'model')
    """

    out: Path
    step: int
    steps: int
    tokens: int
    parameters: int
    stopped: str | None
    """SIGTERM or SIGINT where one ended the run before its last step; the checkpoint of `step` is on disk."""
    loss: float | None
    cross_entropy: float | None
    """Of the last step's batch."""
    cross_entropy_at_end: float | None
    """Mean over the last 100 lines of metrics.jsonl."""
    validation_cross_entropy: float | None
    unigram_cross_entropy: float | None
    """Of the training tokens' frequencies, on the tokens that the validation predicts."""
    uniform_cross_entropy: float | None
    tokens_per_second: float | None
    """Median over steps."""
    mfu: float | None
    """Model FLOPs utilisation: the share of `matmul_flops_per_second` that the matmuls of the model take.

    Median over steps; None where that is above 1, because `matmul_flops_per_second` was measured too low.
    """
    flops_per_token: float
    """Forward and backward, `ematrace.models.flops`."""
    matmul_flops_per_second: float
    """Of one process, measured at the start: `ematrace.bench.matmul_rate`."""
    peak_memory_bytes: int
    seconds: float
    processes: int
    device: str
    settings: Mapping[str, Any]
    data_fingerprints: Mapping[str, str]
    provenance: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        """Of the command: 0 success, a stop by SIGTERM included; 130 after Ctrl-C."""
        return 130 if self.stopped == "SIGINT" else 0

    @property
    def model(self) -> Path:
        return self.out / "model"

    def write(self, path: Path) -> Path:
        record = asdict(self) | {"out": str(self.out)}
        return write_atomically(path, (json.dumps(record, indent=1, allow_nan=False) + "\n").encode())


def curve_figures(path: Path) -> dict[str, float | None]:
    """The end of the curve and the median speed, from metrics.jsonl, so that they cover all sessions of a run."""
    needed = ("loss", "cross_entropy", "tokens_per_second")
    lines = [values for _, values in sort_lines(path.read_bytes() if path.exists() else b"")[0]]
    lines = [line for line in lines if all(isinstance(line.get(name), int | float) for name in needed)]
    if not lines:
        return dict.fromkeys(FROM_CURVE)
    end = [line["cross_entropy"] for line in lines[-CURVE_END:]]
    return {
        "loss": lines[-1]["loss"],
        "cross_entropy": lines[-1]["cross_entropy"],
        "cross_entropy_at_end": math.fsum(end) / len(end),
        "validation_cross_entropy": lines[-1].get("validation_cross_entropy"),
        "tokens_per_second": median(line["tokens_per_second"] for line in lines),
        "mfu": _median_share([line.get("mfu") for line in lines]),
    }


def _median_share(shares: list[float | None]) -> float | None:
    """Steps without a share were above 1, so they count as the largest; None if the median is one of them."""
    middle = median(share if isinstance(share, int | float) and share <= 1 else math.inf for share in shares)
    return middle if math.isfinite(middle) else None


def simple_baselines(train: Windows | None, targets: Ids, vocab_size: int) -> dict[str, float | None]:
    """Cross-entropy of what knows no context, on the same tokens; no frequencies where the text is streamed."""
    from ematrace.baselines.language import Uniform, Unigram

    return {
        "unigram_cross_entropy": None if train is None else Unigram(train.counts()).nll(targets) / len(targets),
        "uniform_cross_entropy": Uniform(vocab_size).nll(targets) / len(targets),
    }


def provenance(seconds: float) -> dict[str, Any]:
    import msgspec

    from ematrace.results import collect_provenance

    record: dict[str, Any] = msgspec.to_builtins(collect_provenance(seconds))
    return record
