"""Train in a process of its own, as the command line would: `train_worker.py CONFIG [CONFIG ...]`, one run after another.

Exit codes as there: 0 well done (SIGTERM included), 130 after Ctrl-C, 2 and one line for bad input.
"""

from __future__ import annotations

import sys

import torch

from ematrace.train import train
from train_support import from_json


class Lines:
    def on_start(self, total_steps: int) -> None:
        print(f"start {total_steps}", flush=True)

    def on_step(self, metrics: object) -> None:
        print("step", flush=True)

    def on_event(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        print("closed", flush=True)


def main() -> int:
    torch.set_num_threads(1)
    code = 0
    for text in sys.argv[1:]:
        try:
            code = train(from_json(text), display=Lines()).exit_code
        except (ValueError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
