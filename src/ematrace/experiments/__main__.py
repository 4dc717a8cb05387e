"""Run experiments without the command line's dependencies, as on a GPU machine that has torch and little else.

    python -m ematrace.experiments spen_training --scale gpu --data "train-*.jsonl.xz" --out results

The same as `ematrace reproduce`, but for claims, ledger and page. A source tree that was copied without its history
takes the commit from EMATRACE_COMMIT.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ematrace.experiments.runner import Request, Unit, make_plan, run


def read_request(arguments: Sequence[str] | None = None) -> Request:
    parser = argparse.ArgumentParser(
        "python -m ematrace.experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = get_type_hints(Request)
    for field in fields(Request):
        kind, help = kinds[field.name], field.metadata["help"]
        option = f"--{field.name.replace('_', '-')}"
        options: dict[str, Any] = {"help": help, "default": field.default}
        if field.name == "names":
            parser.add_argument("names", nargs="+", help=help)
        elif kind is bool:
            parser.add_argument(option, action="store_true", help=help)
        elif kind == tuple[str, ...]:
            parser.add_argument(option, nargs="*", metavar="NAME=VALUE", **options)
        elif isinstance(field.default, str) and get_args(kind):
            parser.add_argument(option, choices=get_args(kind), **options)
        else:
            plain = next((part for part in get_args(kind) if part is not type(None)), kind)
            parser.add_argument(option, type=plain, metavar=plain.__name__.upper(), **options)
    found: dict[str, Any] = vars(parser.parse_args(arguments))
    for name in ("names", "only", "settings"):
        found[name] = tuple(found[name])
    return Request(**found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 success, 1 a unit failed, 2 bad input or something missing, 130 stopped by Ctrl-C."""
    request = read_request(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        raise SystemExit(reproduce(request))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def reproduce(request: Request) -> int:
    """Run what is not there yet, with a line for each unit that is done."""
    plan = make_plan(request)
    if request.dry_run:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(plan.describe(request.names, width))
        return 0
    if plan.missing:
        raise ValueError(plan.needs_text(request.names))
    started, done = time.monotonic(), 0

    def written(unit: Unit, path: Path) -> None:
        nonlocal done
        done += 1
        print(f"{time.monotonic() - started:6.0f} s  {done}/{len(plan.to_run)}  {unit.label}: {path}", flush=True)

    def lost(unit: Unit, why: str) -> None:
        print(f"lost: {unit.label}: {why}; it runs again", file=sys.stderr, flush=True)

    def failing(unit: Unit, why: str) -> None:
        print(f"failed: {unit.label}: {why}", file=sys.stderr, flush=True)

    failed = run(
        plan.to_run, request.out, engine=request.engine, jobs=request.jobs, per_gpu=request.per_gpu,
        written=written, lost=lost, failing=failing,
    )  # fmt: skip
    return 1 if failed else 0


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
