"""The command `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Export:
    """Write a model as a folder to share, which loads where ematrace is not installed.

    It has the weights, the tokenizer, a model card and the model's code in plain torch. Example:
    `ematrace export run --out my-model`.
    """

    model: tyro.conf.Positional[str]
    """A run's folder, or a folder that save_pretrained wrote."""
    out: Path
    """The new folder."""


def run(command: Export, console: Console, error_console: Console) -> None:
    from ematrace.evaluation import model_folder
    from ematrace.train.export import export_model

    folder = Path(model_folder(command.model))
    if not folder.is_dir():
        raise FileNotFoundError(f"{command.model}: no such folder")
    export_model(folder, command.out)
    lines = (
        f"{command.out}: {', '.join(sorted(path.name for path in command.out.iterdir()))}",
        f'load:  AutoModelForCausalLM.from_pretrained("{command.out}", trust_remote_code=True)',
        f"share: hf upload NAME {command.out}",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
