"""The runs behind results/, without the command line's dependencies, for a machine with many cores.

Same code and same output as `make record`; a tree that was copied without its history needs EMATRACE_COMMIT.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ematrace.experiments import EXPERIMENTS, robustness, runner
from ematrace.experiments.workbench import Sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: one per core)")
    parser.add_argument("--spcn-seeds", type=int, default=20)
    parser.add_argument("--bigru-seeds", type=int, default=5)
    parser.add_argument("--choice-seeds", type=int, default=3)
    parser.add_argument("--grammars", type=int, default=robustness.GRAMMARS)
    parser.add_argument(
        "--train", type=int, default=Sizes.train, help="training sentences; fewer only to try the script"
    )
    args = parser.parse_args()
    sizes = Sizes() if args.train == Sizes.train else Sizes(args.train, args.train, args.train, bigru_epochs=2)
    unsupervised = [name for name, e in EXPERIMENTS.items() if e.group in ("spcn", "rules")]
    supervised = [name for name, e in EXPERIMENTS.items() if e.group == "bigru"]
    plans = runner.plan(unsupervised, args.spcn_seeds, sizes) + runner.plan(supervised, args.bigru_seeds, sizes)
    plans += runner.plan(["choices"], args.choice_seeds, sizes) if args.choice_seeds else []
    if args.grammars:
        plans += runner.plan([robustness.NAME], args.grammars, sizes)
    started = time.monotonic()
    total = len({task for plan in plans for task in plan.tasks})
    done: set[runner.Task] = set()

    def progress(task: runner.Task, share: float) -> None:
        if share >= 1.0 and task not in done:
            done.add(task)
            print(f"{time.monotonic() - started:6.0f} s  {len(done)}/{total}  {task.label}", flush=True)

    runner.run(plans, args.out, jobs=args.jobs, progress=progress, written=lambda path: print(path, flush=True))


if __name__ == "__main__":
    main()
