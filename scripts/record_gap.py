"""The GPU runs behind docs/gap.md: tracks of stages, several tracks at a time on one GPU.

python scripts/record_gap.py units 30m --data "train-*.jsonl.xz" --settings validation=validation.jsonl.xz \\
    texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz --lanes 2 --per-gpu 4 --seconds 1500

A stage is an experiment, or the part of it that has certain factors; the stages of a track follow each other. A sweep
of learning rates goes on until `choose_rates.py` asks for no more of it, and the figures at the chosen rates come
after it. Runs that are recorded are not repeated, so that a round which ends early is continued by the next one.
After --seconds everything is stopped: what is written is whole, what was running is lost. Where NVIDIA's MPS is
installed (`nvidia-cuda-mps-control -d` starts it), more processes share the GPU well. Rates are chosen from results/.
"""

from __future__ import annotations

import argparse
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ematrace.experiments.chosen_rates import FILE

CHOOSE = Path(__file__).parent / "choose_rates.py"
MOST_ROUNDS = 6  # of a sweep: two beyond each end, then repeats
GRACE = 20  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Stage:
    experiment: str
    only: tuple[str, ...] = ()
    """Factors that its units must have; a factor named twice may have either value."""
    sweep: bool = False


def _both_gradients(size: str) -> tuple[str, ...]:
    return f"size={size}", "context=ema_error", "ffn=topk_ste", "ffn=topk_masked"


def _at(size: str, *only: str) -> tuple[Stage, ...]:
    where = only or (f"size={size}",)
    return Stage("gap_size_rates", where, sweep=True), Stage("gap_sizes", where)


# In the order of docs/analysis-plan.md: what decides comes first.
TRACKS: Mapping[str, tuple[Stage, ...]] = {
    "chain": (Stage("gap_rates", sweep=True), Stage("gap")),
    "kept": (Stage("gap_kept"),),
    "units": (Stage("gap_units"),),
    "7m-gpt2": _at("7m", "size=7m", "block=gpt2"),
    "30m": _at("30m", *_both_gradients("30m")),
    "30m-gpt2": _at("30m", "size=30m", "block=gpt2"),
    "sizes": (*_at("7m"), *_at("30m")),
    "130m": (Stage("gap_130m", ("seed=0",)),),
    "second": (Stage("gap_second"),),
    "decoding": (Stage("trace_decoding"),),
    "predictors": (
        Stage("gap_predictor_rates", ("size=2m",), sweep=True),
        Stage("gap_predictors", ("size=2m", "ffn=dense")),
        Stage("gap_predictors"),
    ),
    "sparsity": (Stage("gap_straight_through"), Stage("gap_sparsity")),
    "budgets": (Stage("gap_sizes", ("size=2m",)),),
}


@dataclass(frozen=True)
class Round:
    """How the stages are run."""

    options: Sequence[str]
    """Of `python -m ematrace.experiments`, after the experiment and its factors."""
    deadline: float
    """By `time.monotonic`."""

    def track(self, name: str) -> None:
        for stage in TRACKS[name]:
            rounds = MOST_ROUNDS if stage.sweep else 1
            while rounds and self._run(f"{name}: {stage.experiment}", self.command(stage)):
                rounds -= 1
                if stage.sweep and not self._choose(name):
                    break

    def command(self, stage: Stage) -> list[str]:
        only = ["--only", *stage.only] if stage.only else []
        return [sys.executable, "-m", "ematrace.experiments", stage.experiment, *self.options, *only]

    def _choose(self, name: str) -> bool:
        """Whether that changed what is chosen or wanted."""
        before = FILE.read_bytes()
        return self._run(f"{name}: rates", [sys.executable, str(CHOOSE)]) and FILE.read_bytes() != before

    def _run(self, label: str, command: Sequence[str]) -> bool:
        """False where time has run out or the command failed, which says why itself."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        print(f"begins: {label}", flush=True)
        with subprocess.Popen(command) as process:
            try:
                code = process.wait(left)
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                print(f"out of time: {label}", flush=True)
                return False
        print(f"ended with exit code {code}: {label}", flush=True)
        return code == 0


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracks", nargs="+", choices=TRACKS, metavar="TRACK", help=f"of {', '.join(TRACKS)}")
    parser.add_argument("--data", required=True, help="training text")
    parser.add_argument("--settings", nargs="*", default=(), metavar="NAME=VALUE", help="as of ematrace reproduce")
    parser.add_argument("--lanes", type=int, default=2, help="tracks at a time")
    parser.add_argument("--per-gpu", type=int, default=4, help="processes of each track")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which all is stopped")
    parser.add_argument("--scale", choices=("cpu", "gpu"), default="gpu", help="cpu: toys, which show that it runs")
    parser.add_argument("--out", default="results", help="folder of the result files")
    given = parser.parse_args(arguments)
    options = ["--scale", given.scale, "--data", given.data, "--out", given.out]
    options += ["--per-gpu", str(given.per_gpu)] if given.scale == "gpu" else []
    options += ["--settings", *given.settings] if given.settings else []
    run_tracks(given.tracks, Round(options, time.monotonic() + given.seconds), given.lanes)


def run_tracks(names: Sequence[str], how: Round, lanes: int) -> None:
    """In their order, as lanes become free."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)

    def work() -> None:
        while True:
            try:
                name = waiting.get_nowait()
            except queue.Empty:
                return
            how.track(name)

    threads = [threading.Thread(target=work) for _ in range(min(lanes, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
