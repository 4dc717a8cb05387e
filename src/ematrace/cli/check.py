"""The command `ematrace check`: does a mixer, yours too, keep the promises of the interface?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import track
from rich.text import Text


@dataclass(frozen=True)
class Check:
    """Check a context mechanism: the same in parallel and step by step, packed and alone, padded and not; causal.

    Runs the conformance checks that ematrace's own mixers pass, on tiny random inputs. Naming a class imports its
    module, from the working directory too. Exit code 0 if all checks pass, 1 if one fails.
    Examples: `ematrace check mypackage.mine:Mine`, `ematrace check gla --options n_heads=2`, and in the checkout
    `ematrace check examples.running_sum:RunningSum`.
    """

    mixer: tyro.conf.Positional[str]
    """A built-in mixer, or package.module:Class."""
    options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Options of the mixer, as name=value."""
    d_model: int = 16
    """Channels of the inputs."""
    device: str = "cpu"
    """cpu, cuda or cuda:N; auto is a GPU where there is one."""


def check(command: Check, console: Console, error_console: Console) -> None:
    from ematrace.mixers.conformance import CHECKS, run_check, subject_of
    from ematrace.names import parse_assignments
    from ematrace.train.distributed import choose_device

    options = parse_assignments(command.options, "--options")
    for name in options.keys() & {"d_model", "name"}:
        raise ValueError(f"--options: '{name}' is not an option of a mixer")
    subject = subject_of(command.mixer, command.d_model, str(choose_device(command.device)), options)
    subject.mixer()  # a name or an option that is wrong is found out before any check
    failed = 0
    for name in track(CHECKS, "checking", console=console, transient=True, disable=not console.is_terminal):
        result = run_check(name, subject)
        failed += not result.passed
        mark = ("passed  ", "green") if result.passed else ("FAILED  ", "red")
        console.print(Text.assemble(mark, result.name, f": {result.message}" if result.message else ""), soft_wrap=True)
    console.print(f"{len(CHECKS) - failed} of {len(CHECKS)} checks passed", highlight=False)
    if failed:
        raise SystemExit(1)
