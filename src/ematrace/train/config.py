"""Settings of a training run, and the defaults of each preset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from ematrace.names import did_you_mean

Precision = Literal["float32", "bfloat16"]
Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True)
class TrainConfig:
    """Train a language model, in one process or in several under torchrun, with the same batches either way.

    Examples: `ematrace train --data mine.txt`, then `ematrace eval run --data mine.txt`;
    `ematrace train --preset spen-tiny --data builtin --out run`. A field that is None takes the preset's value, and on
    `--resume` the run's own:

        preset  tokens  sequences x length  lr    warm-up  checkpoint every
        tiny    1M      16 x 256            3e-3  20       50 steps
        7m      20M     32 x 512            1e-3  100      100 steps
        130m    8B      224 x 2048          6e-4  1000     250 steps (the paper's)

    >>> config = TrainConfig("mine.txt", preset="gpt2-tiny", lr=1e-3)
    >>> config.lr, config.length, defaults_for(config.preset).length  # None: the preset's
    (0.001, None, 256)
    """

    data: str
    """Training text: `builtin`, a path, folder or glob (.txt, .jsonl, also .xz/.gz/.zst; .conllu), or
    hf:NAME[/CONFIG]."""
    preset: str = "spen-tiny"
    """spen-130m, spen-7m, spen-tiny; spen-130m-masked, with top-k's true gradient; a transformer of the same size:
    gpt2-130m, gpt2-7m, gpt2-tiny; or any mixer: skeleton-130m, skeleton-7m, skeleton-tiny with
    `--overrides mixer=NAME`."""
    out: Path = Path("run")
    """Folder of the run: checkpoints, metrics.jsonl, summary.json and, at the end, model/."""
    validation: str | None = None
    """Validation text; None holds out a part of the training text."""
    validation_share: float | None = None
    """Share of the training text that is held out: documents, chosen by a hash of their names, or the end of each where
    there are few. None is 1% of the documents (5% of `builtin`), more of a small text."""
    tokenizer: str | None = None
    """`bpe`, trained on the training text, `gpt2`, a folder or a file; None is gpt2 where this machine has it, else bpe
    (always bpe for `builtin`)."""
    vocab_size: int | None = None
    """Vocabulary size of a BPE tokenizer trained on the training text; None is 4096, less for a small text."""
    overrides: tuple[str, ...] = ()
    """Fields of the model's config, as field=value: `k=64 ffn=dense`."""
    tokens: int | None = None
    """Tokens to train on; the run has tokens // (sequences * length) steps."""
    sequences: int | None = None
    """Sequences per step, over all processes."""
    length: int | None = None
    """Tokens per sequence."""
    micro_batch: int | None = None
    """Sequences per forward pass; None takes the largest divisor of `sequences` up to the preset's.

    The load-balance loss is computed per micro-batch, so this does not depend on the number of processes."""
    lr: float | None = None
    """Peak learning rate."""
    final_lr: float | None = None
    """Learning rate of the last step."""
    warmup: int | None = None
    """Steps of linear warm-up; at most a tenth of the run."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's betas."""
    weight_decay: float = 0.1
    """Weight decay of matrices and embeddings; norms and biases have none."""
    clip: float = 1.0
    """Maximum gradient norm."""
    seed: int = 0
    """Seed of the initial weights and of the order of the sequences."""
    precision: Precision | None = None
    """bfloat16 is autocast over float32 weights; None is bfloat16 on a GPU and float32 on a CPU."""
    compile: bool | None = None
    """torch.compile; None compiles on a GPU, except with reset_at_documents."""
    cuda_graphs: bool | None = None
    """Replay each step as one CUDA graph, which speeds up small models; None does so where it is possible: one process
    on a GPU, without reset_at_documents, and a model that does not wait for the GPU."""
    device: str = "auto"
    """cpu, cuda or cuda:N; auto is a GPU if there is one."""
    parallel: Parallel = "ddp"
    """With several processes: ddp replicates the model, fsdp shards it."""
    reset_at_documents: bool = False
    """Start every document with an empty state instead of the state after the document before it."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; there is always one at the last step."""
    keep: int = 2
    """Number of checkpoints to keep; with two or more, a run can resume even if the newest is damaged."""
    resume: str = "never"
    """never: refuse a folder that has a run in it; auto: resume from its newest intact checkpoint; or a checkpoint."""
    validate_every: int | None = None
    """Steps between validations; there is always one at the last step."""
    validation_sequences: int | None = None
    """Sequences per validation, the same ones every time."""
    log_every: int = 1
    """Steps between lines in metrics.jsonl."""
    tensorboard: bool = False
    """Also write TensorBoard files to the run's folder."""


@dataclass(frozen=True)
class Recipe:
    """Defaults of a preset; fields as in `TrainConfig`.

    >>> recipe = defaults_for("spen-130m")
    >>> recipe.tokens_per_step, recipe.steps
    (458752, 17438)
    """

    tokens: int
    sequences: int
    length: int
    micro_batch: int
    lr: float
    final_lr: float
    warmup: int
    checkpoint_every: int
    validate_every: int
    validation_sequences: int

    @property
    def tokens_per_step(self) -> int:
        return self.sequences * self.length

    @property
    def steps(self) -> int:
        return self.tokens // self.tokens_per_step


RECIPES: Mapping[str, Recipe] = {
    # Appendix "SPEN": 17,438 steps of 224 x 2048 in 4 accumulated batches of 56, 6e-4 to 6e-5, 1,000 steps of warm-up.
    "130m": Recipe(8_000_000_000, 224, 2048, 56, 6e-4, 6e-5, 1000, 250, 250, 112),
    "7m": Recipe(20_000_000, 32, 512, 8, 1e-3, 1e-4, 100, 100, 100, 64),
    "tiny": Recipe(1_000_000, 16, 256, 8, 3e-3, 3e-4, 20, 50, 50, 32),
}
FAMILIES = ("spen", "gpt2", "skeleton")
PRESETS = (*(f"{family}-{size}" for family in FAMILIES for size in RECIPES), "spen-130m-masked")

# A resumed run must have the settings that determine its loss curve. `tokens` is one of them: the cosine ends there.
# Devices, processes, logging and checkpoints may change.
FIXED_FIELDS = (
    *("preset", "overrides", "data", "validation", "validation_share", "tokenizer", "vocab_size"),
    *("tokens", "sequences", "length"),
    *("micro_batch", "lr", "final_lr", "warmup", "betas", "weight_decay", "clip", "seed", "precision"),
    "reset_at_documents",
)


def defaults_for(preset: str) -> Recipe:
    """The default settings of a preset.

    >>> defaults_for("spen-tiny").lr
    0.003
    >>> defaults_for("spen-tine")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    ValueError: preset is 'spen-tine'; it must be one of spen-130m, ...; did you mean spen-tiny?
    """
    if preset not in PRESETS:
        known = f"it must be one of {', '.join(PRESETS)}"
        raise ValueError(f"preset is {preset!r}; {known}{did_you_mean(preset, PRESETS)}")
    return RECIPES[size_of(preset)]


def size_of(preset: str) -> str:
    """
    >>> size_of("gpt2-7m"), size_of("spen-130m-masked")
    ('7m', '130m')
    """
    return preset.split("-")[1]


def resolve_recipe(config: TrainConfig) -> Recipe:
    """The preset's defaults with the fields of `config` that are set, checked. A short run has a short warm-up."""
    defaults = defaults_for(config.preset)
    values = asdict(defaults)
    values |= {name: getattr(config, name) for name in values if getattr(config, name) is not None}
    for name, value in values.items():
        least = 0 if name in ("final_lr", "warmup") else 1 if isinstance(value, int) else 1e-300
        if not value >= least:  # also catches NaN
            raise ValueError(f"{name} is {value}; it must be {'positive' if least == 1e-300 else f'at least {least}'}")
    if config.micro_batch is None:
        # As many tokens per forward pass as the preset has, whatever the length.
        most = max(1, defaults.micro_batch * defaults.length // values["length"])
        values["micro_batch"] = _largest_divisor(values["sequences"], most)
    elif values["sequences"] % config.micro_batch:
        raise ValueError(f"micro_batch is {config.micro_batch}; it must divide sequences = {values['sequences']}")
    if config.final_lr is None:
        values["final_lr"] = values["lr"] * defaults.final_lr / defaults.lr
    if values["final_lr"] > values["lr"]:
        raise ValueError(f"final_lr is {values['final_lr']}; it must not exceed lr = {values['lr']}")
    recipe = Recipe(**values)
    if recipe.steps < 1:
        step = f"{recipe.sequences} x {recipe.length} = {recipe.tokens_per_step}"
        raise ValueError(f"tokens is {recipe.tokens}; one step takes {step}")
    return Recipe(**values | {"warmup": min(recipe.warmup, recipe.steps // 10)})


def check_config(config: TrainConfig) -> None:
    """ValueError for a bad value in the fields that a preset does not set."""
    for name, kind in (("precision", Precision), ("parallel", Parallel)):
        value = getattr(config, name)
        if value not in get_args(kind) and not (name == "precision" and value is None):
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(get_args(kind))}")
    if len(config.betas) != 2 or not all(0.0 <= beta < 1.0 for beta in config.betas):
        raise ValueError(f"betas is {config.betas}; it must be two numbers in [0, 1)")
    for name, least in (("keep", 1), ("log_every", 1), ("seed", 0), ("weight_decay", 0.0), ("vocab_size", 258)):
        value = getattr(config, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    if config.vocab_size is not None and config.tokenizer not in (None, "bpe"):
        raise ValueError(f"vocab_size: the tokenizer {config.tokenizer} has its own; only bpe is trained")
    if config.validation_share is not None:
        if not 0 < config.validation_share < 1:
            raise ValueError(f"validation_share is {config.validation_share}; it must be between 0 and 1")
        if config.validation is not None:
            raise ValueError("validation_share: nothing is held out of the training text when validation is given")
    if not config.clip > 0:
        raise ValueError(f"clip is {config.clip}; it must be positive")
    if config.compile and config.reset_at_documents:
        raise ValueError("compile: with reset_at_documents every step has another shape")


def record_of(config: TrainConfig, recipe: Recipe, precision: Precision) -> dict[str, Any]:
    """The run's settings as plain JSON, defaults filled in."""
    return as_plain(config) | as_plain(recipe) | {"precision": precision}


def as_plain(settings: TrainConfig | Recipe) -> dict[str, Any]:
    """Settings as plain JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(settings), default=str))
    return plain


def adopt(config: TrainConfig, recorded: Mapping[str, Any], where: str | Path) -> TrainConfig:
    """`config` with what it leaves unset as it was recorded for a run that goes on."""
    hints = get_type_hints(TrainConfig)
    adopted = {}
    for name in FIXED_FIELDS:
        value = recorded.get(name)
        if getattr(config, name) is None and value is not None:
            try:
                adopted[name] = msgspec.convert(value, hints[name])
            except msgspec.ValidationError as error:
                raise ValueError(f"{where}: field '{name}': {error}") from None
    return replace(config, **adopted)


def refuse_contradiction(recorded: Mapping[str, Any], present: Mapping[str, Any], where: str | Path) -> None:
    """ValueError if a run would be resumed with other settings than it started with.

    Those that the command leaves unset do not count, nor does the held-out share of a run that recorded none.
    """
    for name in FIXED_FIELDS:
        if name == "validation_share" and name not in recorded:
            continue
        if present[name] is not None and recorded.get(name) != present[name]:
            raise ValueError(
                f"{where}: field '{name}': the run has {recorded.get(name)!r}, this command has {present[name]!r}"
            )


def _largest_divisor(number: int, most: int) -> int:
    return next(d for d in range(min(number, most), 0, -1) if number % d == 0)
