"""docs/training.md: its command parses to the paper's run, and its figures are those of the result files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from ematrace.cli.parsing import parse
from ematrace.cli.train import Train
from ematrace.experiments.runner import Request, make_plan
from ematrace.results import read_file
from ematrace.text.hub import HubSource
from ematrace.train.config import resolve_recipe
from ematrace.train.distributed import World
from ematrace.train.loop import share_micro_batches

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/training.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(block.replace("\\\n", " ")) for block in re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)]


def test_the_command_is_the_papers_run() -> None:
    launcher, arguments = COMMANDS[0][: COMMANDS[0].index("-m")], COMMANDS[0][COMMANDS[0].index("train") + 1 :]
    assert launcher[0] == "torchrun"
    config = parse(Train, "ematrace train", arguments)
    recipe = resolve_recipe(config)
    assert (recipe.steps, recipe.tokens_per_step, recipe.lr, recipe.warmup) == (17_438, 458_752, 6e-4, 1000)
    source = HubSource(config.data)
    assert (source.name, source.config) == ("HuggingFaceFW/fineweb-edu", "sample-10BT")
    masked = parse(Train, "ematrace train", [*arguments, "--preset", "spen-130m-masked"])
    assert resolve_recipe(masked) == recipe


@pytest.mark.parametrize(("processes", "more"), [(1, []), (2, []), (4, []), (8, ["--micro-batch", "28"])])
def test_a_step_divides_among_the_gpus(processes: int, more: list[str]) -> None:
    arguments = COMMANDS[0][COMMANDS[0].index("train") + 1 :]
    recipe = resolve_recipe(parse(Train, "ematrace train", [*arguments, *more]))
    world = World(processes - 1, processes, torch.device("cpu"))
    assert len(share_micro_batches(recipe, world)) * processes * recipe.micro_batch == 224


def test_time_is_that_of_the_measured_steps() -> None:
    """To the digits that are written; another recording of the same speed need not change the page."""
    cells = read_file(ROOT / "results/training_gpu/seed-0_gpu.json").unpack()
    for model, name in (("spen", "`spen-130m`, `spen-130m-masked`"), ("gpt2", "`gpt2-130m`")):
        (step,) = [c.metrics["seconds"].value for c in cells if c.factors.get("contender") == model]
        row = re.search(rf"\| {name} \| ([\d.]+) h \| ([\d.]+) P \| ([\d.]+) s a step", TEXT)
        assert row is not None
        hours, prices, seconds = map(float, row.groups())
        assert seconds == pytest.approx(step, rel=0.02)
        assert hours == prices == pytest.approx(17_438 * seconds / 3600, abs=0.06)
    of_run = read_file(ROOT / "results/spen_training/preset-spen-130m_seed-0_gpu.json").unpack()[0].metrics
    loop = re.search(r"SPEN made (\d+)K \(`results/spen_training`\), which gives ([\d.]+) h", TEXT)
    assert loop is not None
    assert float(loop[1]) == pytest.approx((of_run["tokens_per_second"].value or 0) / 1e3, rel=0.02)
    assert float(loop[2]) == pytest.approx(8e9 / float(loop[1]) / 1e3 / 3600, abs=0.06)


def test_unigrams_are_those_recorded() -> None:
    floor = {
        (cell.factors["text"], cell.factors.get("first_tokens")): cell.metrics["own_counts_perplexity"]
        for cell in read_file(ROOT / "results/unigram_floor/seed-0_cpu.json").unpack()
    }
    for key, form in {("c4", None): "it has {} on our", ("wikitext2", None): "and {} on WikiText-2's"}.items():
        assert form.format(f"{floor[key].value:,.0f}") in " ".join(TEXT.split())
    for key, form in {
        ("wikitext2", 50_000): "{} on the first 50,000 tokens of WikiText",
        ("c4", 12_500): "{} on the first 12,500 of C4",
    }.items():
        assert form.format(f"{floor[key].value:,.0f}") in " ".join(TEXT.split())
    ours = {
        cell.factors["text"]: cell.metrics["unigram_perplexity"].value or 0
        for cell in read_file(ROOT / "results/spen_training/preset-gpt2-130m_seed-0_gpu.json").unpack()
        if "text" in cell.factors
    }
    assert f"has {ours['c4']:,.0f} and {ours['wikitext2']:,.0f} (`results/spen_training`)" in TEXT
    assert all(ours[text] > (floor[text, None].value or 0) > paper for text, paper in (("c4", 963), ("wikitext2", 941)))


def test_the_table_has_a_command() -> None:
    assert COMMANDS[1][:2] == ["ematrace", "reproduce"]
    plan = make_plan(
        Request(("gap_130m",), scale="gpu", seeds=1, data="builtin", settings=tuple(COMMANDS[1][-3:]), out=Path("none"))
    )
    assert {unit.settings["tokens"] for unit in plan.units if unit.factors["budget"] == "tokens"} == {104_857_600}
    assert plan.units[0].settings["texts"] == {"wikitext2": "wiki.valid.raw.xz", "c4": "c4_sample.jsonl.xz"}
