"""The runs behind results/, on a machine with many cores: every experiment with its number of seeds.

What is there already is not run again, and several machines can share the work with --shard. A tree that was copied
without its history needs EMATRACE_COMMIT. The rates of `feedforward_rules` come first:

    ematrace reproduce feedforward_rates --out results --report None; python scripts/choose_rates.py

What needs a GPU is recorded with

    python -m ematrace.experiments spen_training spen_streaming spen_prefill --scale gpu --data SOURCE --out results

python scripts/write_tables.py then brings the tables of docs/ up to date.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ematrace.experiments.grammar_task import DRAWS
from ematrace.experiments.runner import ROBUSTNESS, Request, Unit, make_plan, run

UNSUPERVISED = (
    *("controls", "dimension_control", "ablations", "position", "lag_decoding", "distances"),
    "feedforward_rules",
)
SEEDS: dict[tuple[str, ...], int] = {
    UNSUPERVISED: 20,
    ("trace_probe", "supervised", "shortcuts"): 25,  # C09 is judged on seeds 5 to 24
    ("choices",): 4,
    ("spen_model",): 3,
    ("supervised_models",): 20,
    ("supervised_epochs",): 3,
    ("networks",): 5,
    (ROBUSTNESS, "k_by_grammar"): DRAWS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these experiments (default: all)")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")
    parser.add_argument("--shard", default="1/1", help="i/n: part i of n")
    args = parser.parse_args()
    known = {name for names in SEEDS for name in names}
    if unknown := set(args.names) - known:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(sorted(known))}")
    asked = set(args.names) or known
    requests = [
        Request(wanted, seeds=seeds, out=args.out, shard=args.shard)
        for names, seeds in SEEDS.items()
        if (wanted := tuple(name for name in names if name in asked))
    ]
    units = [unit for request in requests for unit in make_plan(request).to_run]
    started, done = time.monotonic(), 0

    def written(unit: Unit, path: Path) -> None:
        nonlocal done
        done += 1
        print(f"{time.monotonic() - started:6.0f} s  {done}/{len(units)}  {path}", flush=True)

    failed = run(units, args.out, jobs=args.jobs, written=written)
    if failed:
        raise SystemExit("\n".join(f"{unit.label}: {why}" for unit, why in failed.items()))


if __name__ == "__main__":
    main()
