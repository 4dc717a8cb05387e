"""The GPU runs behind docs/gap-runs.md: tracks of stages, several tracks at a time on one GPU.

python scripts/record_gap.py units 30m --data "train-*.jsonl.xz" --settings validation=validation.jsonl.xz \\
    texts.wikitext2=wiki.valid.raw.xz texts.c4=c4_sample.jsonl.xz --lanes 2 --per-gpu 4 --seconds 1500

A stage is an experiment, or the part of it that has certain factors; the stages of a track follow each other. A sweep
of learning rates goes on until `choose_rates.py` asks for no more of it, and the figures at the chosen rates come
after it. Results go to this checkout's results/. Runs that are recorded are not repeated, so that a round which ends
early is continued by the next one. After --seconds, on Ctrl-C and on SIGTERM everything is stopped: what is written is
whole, what was running is lost. Where NVIDIA's MPS is installed (`nvidia-cuda-mps-control -d` starts it), more
processes share the GPU well. Exit code 1 if a stage failed or was stopped.
On cores (`--device cpu`) use `ematrace reproduce`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ematrace.experiments import EXPERIMENTS
from ematrace.experiments.chosen_rates import FILE, SWEEPS

ROOT = Path(__file__).resolve().parent.parent
CHOOSE = ROOT / "scripts" / "choose_rates.py"
MOST_SWEEPS = 6  # of one arm: beyond each end, then repeats
GRACE = 20.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Stage:
    experiment: str
    only: tuple[str, ...] = ()
    """Factors that its units must have; a factor named twice may have either value."""
    processes: int | None = None
    """At most, for what takes much of the GPU's memory."""

    @property
    def sweep(self) -> bool:
        """Whether rates are chosen from it, and it goes on until they are settled."""
        return self.experiment in SWEEPS


def _swept(*only: str) -> tuple[Stage, Stage]:
    """Decisive arms of a larger size: their rates, then their figures."""
    return Stage("gap_size_rates", only), Stage("gap_sizes", only)


DENSE = ("size=2m", "ffn=dense", "residual=ffn")  # the predictors that C30 compares in the dense block
SWITCHED = ("size=2m", "ffn=dense", "reads=inputs", "predictor=softmax")
TRACKS: Mapping[str, tuple[Stage, ...]] = {
    "chain": (Stage("gap_rates"), Stage("gap")),
    "halves": (Stage("gap_halves_2m"),),
    "units": (Stage("gap_units"),),
    "30m": _swept("size=30m", "context=ema_error", "ffn=topk_ste"),
    "30m-gpt2": _swept("size=30m", "block=gpt2"),
    "7m-others": (
        *_swept("size=7m", "block=skeleton", "ffn=dense"),
        *_swept("size=7m", "context=attention", "ffn=topk_masked"),
    ),
    "30m-others": _swept("size=30m", "block=skeleton", "ffn=dense"),
    "130m": (Stage("gap_130m", ("seed=0",)),),
    "second": (Stage("gap_second", ("context=ema_error", "seed=0", "seed=1", "seed=2")), Stage("gap_second")),
    "decoding": (
        Stage("trace_decoding", ("context=ema_error",), processes=2),  # what the claims are about
        Stage("trace_decoding", processes=2),
    ),
    "predictors": (
        Stage("gap_predictors", (*DENSE, "reads=traces_now")),
        Stage("gap_predictor_rates", (*DENSE, "reads=trace_sequence")),
        Stage("gap_predictors", (*DENSE, "reads=trace_sequence")),
    ),
    "predictors-nothing": (Stage("gap_predictors", ("size=2m", "ffn=dense", "predictor=nothing")),),
    "predictors-linear": (
        Stage("gap_predictor_rates", (*DENSE, "predictor=linear")),
        Stage("gap_predictors", (*DENSE, "predictor=linear")),
    ),
    "together": (  # traces and attention side by side, without positions: what neither recalls alone
        Stage("gap_predictor_rates", ("size=2m", "predictor=mixer")),
        Stage("gap_predictors", ("size=2m", "predictor=mixer")),
    ),
    "switches": (
        Stage("gap_predictors", ("size=2m", "predictor=static", "residual=direct")),
        Stage("gap_predictor_rates", SWITCHED),
        Stage("gap_predictors", SWITCHED),
    ),
    "predictors-topk": (
        Stage("gap_predictor_rates", ("size=2m", "ffn=topk_ste", "ffn=topk_masked")),
        Stage("gap_predictors", ("size=2m", "ffn=topk_ste", "ffn=topk_masked")),
        Stage("gap_predictors", ("size=ablation",)),
    ),
    "sparsity": (Stage("gap_straight_through"), Stage("gap_sparsity")),
    "budgets": (Stage("gap_sizes", ("size=2m",)),),
}


def _said(stages: Sequence[Stage]) -> str:
    """
    >>> _said(TRACKS["30m-gpt2"])
    'gap_size_rates (size=30m block=gpt2), gap_sizes (size=30m block=gpt2)'
    """
    return ", ".join(f"{s.experiment} ({' '.join(s.only)})" if s.only else s.experiment for s in stages)


@dataclass
class Recorder:
    """Runs tracks until they are done, fail, or are stopped."""

    options: Sequence[str]
    """Of `python -m ematrace.experiments` in every stage, after the experiment and before its factors."""
    deadline: float
    """By `time.monotonic`."""
    per_gpu: int = 4
    """Processes of a stage, unless it takes fewer."""
    _stopped: threading.Event = field(default_factory=threading.Event)
    _running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    def run(self, names: Sequence[str], lanes: int) -> bool:
        """The tracks in their order, as lanes become free; what measures speed comes last, alone. True on success."""
        alone = [name for name in names if any(EXPERIMENTS[stage.experiment].alone for stage in TRACKS[name])]
        shared = [name for name in names if name not in alone]
        done = []
        for part, at_once in ((shared, lanes), (alone, 1)):
            with ThreadPoolExecutor(at_once) as pool:
                tracks = [pool.submit(self.track, name) for name in part]
                try:
                    done += [track.result() for track in tracks]
                except BaseException:  # Ctrl-C, or a lane that broke: the others must not go on
                    self.stop()
                    raise
        return all(done)

    def stop(self) -> None:
        self._stopped.set()
        for process in list(self._running):
            process.terminate()

    def track(self, name: str) -> bool:
        done = [self._stage(name, stage) for stage in TRACKS[name]]  # all of them, also after one that failed
        return all(done)

    def _stage(self, track: str, stage: Stage) -> bool:
        for _ in range(MOST_SWEEPS if stage.sweep else 1):
            before = FILE.read_bytes()  # of before the stage: another track may choose for this one as well
            if not self._command(f"{track}: {stage.experiment}", self.command(stage)):
                return False
            if not stage.sweep:
                return True
            with self._choosing:
                if not self._command(f"{track}: rates", [sys.executable, str(CHOOSE)]):
                    return False
            if FILE.read_bytes() == before:
                return True
        return False

    def command(self, stage: Stage) -> list[str]:
        only = ["--only", *stage.only] if stage.only else []
        processes = ["--per-gpu", str(min(self.per_gpu, stage.processes or self.per_gpu))]
        return [sys.executable, "-m", "ematrace.experiments", stage.experiment, *self.options, *processes, *only]

    def _command(self, label: str, command: Sequence[str]) -> bool:
        """False where time has run out, everything was stopped, or the command failed, which says why itself."""
        if self._stopped.is_set() or time.monotonic() >= self.deadline:
            return False
        print(f"begins: {label}", flush=True)
        process = subprocess.Popen(command)
        self._running.add(process)
        try:
            if self._stopped.is_set():  # between the look above and now
                process.terminate()
            code = _wait(process, self.deadline)
        finally:
            self._running.discard(process)
        print(f"ended with exit code {code}: {label}", flush=True)
        return code == 0


def _wait(process: subprocess.Popen[bytes], deadline: float) -> int:
    """Its exit code; what still runs at the deadline is terminated, and killed if that does not end it."""
    try:
        return process.wait(None if deadline == float("inf") else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    listed = "; ".join(f"{name}: {_said(stages)}" for name, stages in TRACKS.items())
    parser.add_argument("tracks", nargs="+", choices=TRACKS, metavar="TRACK", help=listed)
    parser.add_argument("--data", required=True, help="training text")
    parser.add_argument("--settings", nargs="*", default=(), metavar="NAME=VALUE", help="as of ematrace reproduce")
    parser.add_argument(
        "--lanes", type=int, default=2, choices=range(1, 17), metavar="N", help="tracks at a time (default: 2)"
    )
    parser.add_argument("--per-gpu", type=int, default=4, metavar="N", help="processes of each track (default: 4)")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="after which everything is stopped (default: never)"
    )
    given = parser.parse_args(arguments)
    options = ["--scale", "gpu", "--data", given.data, "--out", str(ROOT / "results")]
    options += ["--settings", *given.settings] if given.settings else []
    recorder = Recorder(options, time.monotonic() + given.seconds, given.per_gpu)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        return 0 if recorder.run(list(dict.fromkeys(given.tracks)), given.lanes) else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
