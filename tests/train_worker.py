"""Train in a process of its own, as the command line would: `train_worker.py [stop=STEP] CONFIG ...`, one by one.

`stop=STEP` sends the first process, and no other, a SIGTERM after that step of the run that follows. Exit codes as on
the command line: 0 well done (SIGTERM included), 130 after Ctrl-C, 2 and one line for bad input.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

import torch
import torch.distributed

from ematrace.train import train
from train_support import from_json


class Lines:
    """A display that only the first process has."""

    def __init__(self, stop_at: int | None) -> None:
        self.stop_at = stop_at

    def on_start(self, total_steps: int) -> None:
        print(f"start {total_steps}", flush=True)

    def on_step(self, metrics: Mapping[str, int]) -> None:
        print("step", flush=True)
        if metrics["step"] == self.stop_at:
            signal.raise_signal(signal.SIGTERM)

    def on_event(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        print("closed", flush=True)


def main() -> int:
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        torch.distributed.init_process_group("gloo")  # once for all runs
    code, stop_at = 0, None
    for argument in sys.argv[1:]:
        if argument.startswith("stop="):
            stop_at = int(argument.removeprefix("stop="))
            continue
        try:
            code = train(from_json(argument), display=Lines(stop_at)).exit_code
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        stop_at = None
    return code


if __name__ == "__main__":
    sys.exit(main())
