"""Run experiments over seeds on the cores there are, and keep what they measured.

One task is one group of experiments on one seed (or one drawn grammar), in one process, so that the experiments of a
seed share its networks. A result file is written when all tasks of its experiment are done; a run that is stopped
leaves the finished ones and nothing else.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ematrace.experiments import EXPERIMENTS, robustness
from ematrace.experiments.workbench import Figures, Sizes, Workbench
from ematrace.ledger import Figure, Result, collect_provenance, load_claims, write_result
from ematrace.spcn import SPCN

# Rough seconds on one core, for a progress bar that moves evenly.
EXPECTED_SECONDS = {"spcn": 90.0, "rules": 90.0, "bigru": 180.0, "choices": 240.0, "spen": 150.0}

# Results that a command of their own records: they need a GPU, and text that is not part of this package.
RUN_ELSEWHERE = {
    "spen_training": "python benchmarks/spen_training.py --data SOURCE --record results/local",
    "gpt2_training": "python benchmarks/spen_training.py --presets gpt2-130m --data SOURCE --record results/local",
    "spen_streaming": "python benchmarks/streaming_gpu.py --result results/local",
}


@dataclass(frozen=True)
class Task:
    """One group of experiments on one seed; `drawn` says that the seed draws a grammar, too."""

    group: str
    experiments: tuple[str, ...]
    seed: int
    sizes: Sizes
    drawn: bool = False

    @property
    def label(self) -> str:
        return f"{self.group}, {'grammar' if self.drawn else 'seed'} {self.seed}"


@dataclass(frozen=True)
class Outcome:
    figures: dict[str, Figures]
    seconds: float
    worker: int
    peak_memory_mb: float


@dataclass(frozen=True)
class Plan:
    """What one result file needs."""

    experiment: str
    title: str
    seeds: tuple[int, ...]
    tasks: tuple[Task, ...]
    command: str


Progress = Callable[[Task, float], None]  # a task, and the share of it that is done


def experiments_for(names: Sequence[str]) -> list[str]:
    """Names of the experiments behind a list of experiments and claims; an empty list means all that bear on claims."""
    known = [*EXPERIMENTS, robustness.NAME]
    if not names:
        return [name for name in known if name not in EXPERIMENTS or not EXPERIMENTS[name].by_name_only]
    claims = {claim.id: claim for claim in load_claims()}
    wanted: set[str] = set()
    for name in names:
        _refuse_elsewhere(name)
        if name in known:
            wanted.add(name)
        elif name.upper() in claims:
            needed = claims[name.upper()].experiments
            if not needed:
                raise ValueError(f"{name.upper()} has no experiment yet: it is open in the ledger")
            for experiment in needed:
                _refuse_elsewhere(experiment)
            wanted.update(needed)
        else:
            raise ValueError(
                f"unknown experiment or claim {name!r}; experiments: {', '.join(known)}; claims: C01 to F5"
            )
    return [name for name in known if name in wanted]


def _refuse_elsewhere(experiment: str) -> None:
    if experiment in RUN_ELSEWHERE:
        raise ValueError(f"{experiment} needs a GPU, and a command of its own: {RUN_ELSEWHERE[experiment]}")


def plan(names: Sequence[str], seeds: int | None, sizes: Sizes) -> list[Plan]:
    """The tasks behind each experiment. Experiments of one group and the same seeds share their tasks."""
    plans = []
    chosen = [EXPERIMENTS[name] for name in names if name != robustness.NAME]
    for experiment in chosen:
        count = seeds or experiment.seeds
        mates = [e for e in chosen if e.group == experiment.group and (seeds or e.seeds) == count]
        together = tuple(e.name for e in mates)
        tasks = tuple(Task(experiment.group, together, seed, sizes) for seed in range(count))
        command = f"ematrace reproduce {experiment.name} --seeds {count}"
        plans.append(Plan(experiment.name, experiment.title, tuple(range(count)), tasks, command))
    if robustness.NAME in names:
        count = seeds or robustness.QUICK_GRAMMARS
        bearing = [e for e in EXPERIMENTS.values() if not e.by_name_only and e.on_grammars]
        used = [e for e in bearing if seeds or e.name in robustness.QUICK_EXPERIMENTS]
        groups = {group: tuple(e.name for e in used if e.group == group) for group in (e.group for e in used)}
        tasks = tuple(Task(g, names, n, sizes, drawn=True) for n in range(count) for g, names in groups.items())
        command = f"ematrace reproduce {robustness.NAME}" + (f" --seeds {seeds}" if seeds else "")
        plans.append(Plan(robustness.NAME, robustness.TITLE, tuple(range(count)), tasks, command))
    return plans


def run(
    plans: Sequence[Plan],
    directory: Path,
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    written: Callable[[Path], None] | None = None,
) -> list[Path]:
    """Run all tasks, longest first, and write each result as soon as its last task is done."""
    tasks = list(dict.fromkeys(task for p in plans for task in p.tasks))
    tasks.sort(key=lambda t: (t.drawn, -EXPECTED_SECONDS.get(t.group, 60.0)))
    report = progress or (lambda task, share: None)
    waiting = list(plans)
    outcomes: dict[Task, Outcome] = {}
    paths: list[Path] = []
    context = multiprocessing.get_context("spawn")  # a fork would copy the parent's thread pools in an unknown state
    started = time.monotonic()
    with context.Manager() as manager:
        queue = manager.Queue()
        pool = ProcessPoolExecutor(
            max_workers=min(jobs or available_cores(), max(len(tasks), 1)),
            mp_context=context,
            initializer=_start_worker,
        )
        try:
            futures: dict[Future[Outcome], Task] = {pool.submit(_work, t, queue): t for t in tasks}
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                while not queue.empty():
                    report(*queue.get())
                for future in done:
                    outcomes[futures[future]] = future.result()
                    report(futures[future], 1.0)
                for ready in [p for p in waiting if all(t in outcomes for t in p.tasks)]:
                    waiting.remove(ready)
                    result = _result(ready, outcomes, time.monotonic() - started)
                    paths.append(write_result(result, directory))
                    if written:
                        written(paths[-1])
            pool.shutdown()
        except BaseException:
            # Ctrl-C or a failed task: stop the others now instead of waiting minutes for them.
            workers = list((pool._processes or {}).values())
            for process in workers:
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in workers:
                process.join(5)
                if process.is_alive():
                    process.kill()
            raise
    return paths


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start_worker() -> None:
    """One thread per process: the processes already fill the cores. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(1)
    threadpool_limits(1)


def _work(task: Task, queue: Any) -> Outcome:
    started = time.monotonic()
    bench = robustness.workbench(task.seed, task.sizes) if task.drawn else Workbench(task.seed, sizes=task.sizes)
    done = 0

    def report(share: float) -> None:
        queue.put((task, (done + share) / len(task.experiments)))

    bench.progress = report
    figures = {}
    for name in task.experiments:
        figures[name] = EXPERIMENTS[name].measure(bench)
        done += 1
        report(0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return Outcome(figures, time.monotonic() - started, os.getpid(), peak)


def _result(ready: Plan, outcomes: dict[Task, Outcome], wall_seconds: float) -> Result:
    drawn = ready.experiment == robustness.NAME
    sizes = ready.tasks[0].sizes
    rows: list[Figures] = []
    for seed in ready.seeds:
        row: Figures = {}
        for task in ready.tasks:
            if task.seed == seed:
                for name, figures in outcomes[task].figures.items():
                    if drawn:
                        row |= {f"{name}/{figure}": value for figure, value in figures.items()}
                    elif name == ready.experiment:
                        row |= figures
        rows.append(row)
    own = [outcomes[task] for task in ready.tasks]
    memory = {o.worker: max(p.peak_memory_mb for p in own if p.worker == o.worker) for o in own}
    provenance = dataclasses.replace(
        collect_provenance(min(wall_seconds, sum(o.seconds for o in own))),
        peak_memory_mb=round(sum(memory.values()), 1),
    )
    conditions = tuple(robustness.condition(seed) for seed in ready.seeds) if drawn else None
    return Result(
        experiment=ready.experiment,
        title=ready.title,
        claims=_claims_of(ready.experiment),
        scale="cpu",
        command=ready.command,
        settings=_settings(ready.experiment, sizes, drawn),
        seeds=ready.seeds,
        figures={
            name: _figure([row.get(name) for row in rows]) for name in dict.fromkeys(n for row in rows for n in row)
        },
        provenance=provenance,
        conditions=conditions,
    )


def _figure(measured: list[tuple[float, int | None] | None]) -> Figure:
    """A value per seed. Sentences differ by seed, so the tokens scored differ a little: the smallest count is given."""
    counts = [m[1] for m in measured if m is not None and m[1] is not None]
    return Figure(tuple(float("nan") if m is None else m[0] for m in measured), min(counts) if counts else None)


def _claims_of(experiment: str) -> tuple[str, ...]:
    if experiment == robustness.NAME:
        return tuple(claim.id for claim in load_claims() if claim.direction)
    return tuple(claim.id for claim in load_claims() if experiment in claim.experiments)


def _settings(experiment: str, sizes: Sizes, drawn: bool) -> dict[str, Any]:
    if not drawn and (own := EXPERIMENTS[experiment].settings) is not None:
        return {**own, "tokens": sizes.spen_tokens, "positions": sizes.spen_positions}
    spcn = {k: list(v) if isinstance(v, tuple) else v for k, v in SPCN().get_params().items()}
    for irrelevant in ("vocabulary", "random_state", "n_jobs", "representation"):
        del spcn[irrelevant]
    if drawn:
        spcn["k"] = list(robustness.KS)
    bench = Workbench(0)
    grammar = "drawn, see conditions" if drawn else bench.A.settings
    sentences = {name: getattr(sizes, name) for name in ("train", "within", "transfer", "bigru_epochs")}
    return {"sentences": sentences, "spcn": spcn, "ridge_lambda": 0.01, "grammar": grammar}
