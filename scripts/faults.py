"""Break the project on purpose and count what happens.

Kinds: `damage` (every file that is read, damaged), `kill` (SIGKILL), `disk` (full), `pipe` (closed).
Example: `python scripts/faults.py --only damage/state --trials 200`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fault_trials import campaign, material
from fault_trials.outcomes import FAILURES, GOOD, SKIPPED
from fault_trials.sandbox import run_trials

SHORT = 30
IMPORTS = (
    *("torch.distributed.fsdp", "torch.distributed.tensor", "transformers.models.gpt2.modeling_gpt2"),
    *("ematrace.cli.app", "ematrace.spen", "ematrace.spcn", "ematrace.evaluation", "ematrace.train.loop", "filelock"),
    *("ematrace.report.language", "ematrace.report.page", "ematrace.report.terminal", "ematrace.spen.decode.cpu"),
)


def prepare(root: Path, chosen: list[campaign.Share]) -> None:
    """Import everything, make the material, and see what comes out undamaged."""
    # Before torch is imported: forks must inherit no threads.
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", COLUMNS="100")
    for name in IMPORTS:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)

    (root / "expected").mkdir(parents=True)
    before = Path.cwd()
    os.chdir(root)
    material.build(root)  # here, not in a fork: every trial inherits the compiled kernels
    os.chdir(before)
    for trial, outcome in run_trials(campaign.baselines(root, chosen), root / "made", 2):
        if outcome.failed:
            raise SystemExit(f"{trial.id} fails without any fault: {outcome.detail}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=2000, metavar="N", help="about this many (default 2000)")
    parser.add_argument(
        "--short", action="store_true", help=f"about {SHORT} trials, none of them slow: what `make test` runs"
    )
    parser.add_argument("--only", default="", metavar="KIND", help="a kind, or kind/target")
    parser.add_argument("--trial", default="", metavar="ID", help="one trial alone, as it is named in the output")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at a time (default 2)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write DIR/faults/... as the benchmarks do")
    parser.add_argument("--verbose", action="store_true", help="say how each trial ended")
    options = parser.parse_args()
    started, chosen = time.monotonic(), campaign.select(options.only, options.short)
    if not chosen:
        parser.error(f"--only {options.only}: no such kind; there are {', '.join(s.name for s in campaign.shares())}")
    counts: Counter[tuple[str, str, str]] = Counter()
    n = SHORT if options.short else options.trials
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        root = Path(scratch).resolve() / "material"
        prepare(root, chosen)
        print(f"prepared in {time.monotonic() - started:.0f} s", flush=True)
        trials = (t for t in campaign.trials(root, chosen, n) if options.trial in ("", t.id))
        for trial, outcome in run_trials(trials, Path(scratch) / "trials", options.jobs):
            counts[trial.kind, trial.target, outcome.name] += 1
            if outcome.failed or options.verbose:
                print(f"{outcome.name:<10} {trial.id}  {outcome.detail}", flush=True)
    seconds = time.monotonic() - started
    show(counts, seconds)
    if options.record is not None:
        print(f"written: {record(counts, seconds, options.record)}")
    return int(any(name in FAILURES for _, _, name in counts))


def show(counts: Counter[tuple[str, str, str]], seconds: float) -> None:
    for kind, target in sorted({(kind, target) for kind, target, _ in counts}):
        row = {name: counts[kind, target, name] for name in (*GOOD, *FAILURES, SKIPPED) if counts[kind, target, name]}
        print(f"{kind}/{target}: {', '.join(f'{n} {name}' for name, n in row.items())}")
    failed, skipped = (sum(counts[key] for key in counts if key[2] in names) for names in (FAILURES, (SKIPPED,)))
    print(f"{failed} failures in {counts.total() - skipped} trials, {seconds:.0f} s")
    if skipped:
        print(f"{skipped} more could not be made on this machine")


def record(counts: Counter[tuple[str, str, str]], seconds: float, folder: Path) -> Path:
    """A cell for each kind and target: trials, failures, and how many ended in which way."""
    from ematrace.bench.script import command_line
    from ematrace.results import CellFile, Metric, Row, collect_provenance, write_file
    from ematrace.results.schema import SCHEMA

    rows = []
    for kind, target in sorted({(kind, target) for kind, target, _ in counts}):
        ended = {name: counts[kind, target, name] for name in (*GOOD, *FAILURES)}
        totals = {"trials": sum(ended.values()), "failures": sum(ended[name] for name in FAILURES)}
        skipped = {SKIPPED: counts[kind, target, SKIPPED]}
        metrics = {name: Metric(float(n), "trials") for name, n in (totals | ended | skipped).items()}
        rows.append(Row({"kind": kind, "target": target}, metrics))
    file = CellFile(
        schema=SCHEMA,
        experiment="faults",
        scale="cpu",
        seed=0,
        factors={},
        settings={"title": "Faults made on purpose, by how they ended"},
        provenance=collect_provenance(seconds, command=command_line(sys.argv), packages=("transformers", "tokenizers")),
        cells=rows,
    )
    return write_file(file, folder)


if __name__ == "__main__":
    sys.exit(main())
