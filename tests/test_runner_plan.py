"""From a request to units: grids, settings, shards, what is there, what is missing, and the command of each unit."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cells_support import make_file, make_provenance, make_row
from ematrace.experiments import EXPERIMENTS, Experiment, Point, factorial
from ematrace.experiments.__main__ import main, read_request
from ematrace.experiments.runner import Request, make_plan, worker
from ematrace.experiments.runner import plan as planning
from ematrace.experiments.runner.listing import unit_lines
from ematrace.experiments.runner.request import change_settings
from ematrace.experiments.runner.units import Unit, expected_seconds, jobs_of, phases_of
from ematrace.results import CellFile, write_file
from runner_support import working_in, write_own

QUICK = ("trace_probe", "position", "distances")


@pytest.fixture(autouse=True)
def away(tmp_path) -> Iterator[Path]:
    with working_in(tmp_path):
        yield tmp_path


def keys(units) -> list[tuple[str, str]]:
    return [(unit.experiment, unit.file_name) for unit in units]


def unit_of(name: str, group: str, seconds: float, **changes) -> Unit:
    fields = {
        "factors": {},
        "seed": 0,
        "scale": "cpu",
        "device": "cpu",
        "settings": {},
        "data": None,
        "command": "",
        "folder": ".",
    }
    return Unit(name, name, **{**fields, **changes}, group=group, seconds=seconds)


def test_commit_that_no_result_may_carry_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setenv("EMATRACE_COMMIT", "HEAD")
    with pytest.raises(ValueError, match=r"^EMATRACE_COMMIT is 'HEAD'; it must be a commit"):
        make_plan(Request(("position",)))


def test_units_are_points_times_seeds():
    write_own(Path())
    units = make_plan(Request(("./squares.py",), seeds=2)).units
    assert [(unit.factors, unit.seed) for unit in units] == [
        ({"width": 2}, 0),
        ({"width": 3}, 0),
        ({"width": 2}, 1),
        ({"width": 3}, 1),
    ]
    assert units[0].file_name == "width-2_seed-0_cpu.json"


def test_default_seeds_are_the_experiments_own():
    write_own(Path(), options="seeds=3")
    assert len(make_plan(Request(("./squares.py",))).units) == 6


def test_grammar_experiments_of_a_seed_are_one_job_and_others_are_their_own():
    units = make_plan(Request(("trace_probe", "controls", "supervised", "shortcuts"), seeds=2)).units
    jobs = {tuple((unit.experiment, unit.seed) for unit in job) for job in jobs_of(units)}
    assert jobs == {
        (("trace_probe", 0), ("controls", 0)),
        (("trace_probe", 1), ("controls", 1)),
        (("supervised", 0), ("shortcuts", 0)),
        (("supervised", 1), ("shortcuts", 1)),
    }
    write_own(Path())
    assert len(jobs_of(make_plan(Request(("./squares.py",), seeds=2)).units)) == 4


def test_robustness_is_the_quick_experiments_unless_a_number_is_given():
    quick = make_plan(Request(("robustness",))).units
    assert {unit.experiment for unit in quick} == set(QUICK)
    assert {unit.seed for unit in quick} == {0, 1, 2, 3}
    assert len({unit.settings["grammar"]["word_order"] for unit in quick}) == 4
    assert [unit.factors for unit in quick] == [{"grammar": "fully_drawn"}] * 12
    full = make_plan(Request(("robustness",), seeds=6)).units
    assert {unit.experiment for unit in full} == {n for n, e in EXPERIMENTS.items() if e.robustness is not None}
    assert {unit.seed for unit in full} == set(range(6))


def test_an_experiment_and_its_robustness_are_different_units():
    units = make_plan(Request(("position", "position", "robustness"), seeds=2)).units
    assert len(set(keys(units))) == len(units)
    of_position = [unit for unit in units if unit.experiment == "position"]
    assert [unit.factors["grammar"] for unit in of_position] == ["half_passives"] * 2 + ["fully_drawn"] * 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
def test_shards_are_an_exact_partition_and_split_no_group(count):
    names = (*QUICK, "supervised", "robustness")
    whole = make_plan(Request(names, seeds=3)).units
    shards = [make_plan(Request(names, seeds=3, shard=f"{i}/{count}")).units for i in range(1, count + 1)]
    assert sorted(keys(unit for shard in shards for unit in shard)) == sorted(keys(whole))
    assert {unit.group for shard in shards for unit in shard} == {unit.group for unit in whole}
    groups = [{unit.group for unit in shard} for shard in shards]
    assert sum(len(group) for group in groups) == len(set().union(*groups))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1


def test_a_shard_does_not_depend_on_what_is_there(away, monkeypatch):
    write_own(away, widths="list(range(2, 9))")
    asked = Request(("./squares.py",), shard="2/3")
    before = keys(make_plan(asked).units)
    monkeypatch.setattr(planning, "_is_there", lambda unit, out: unit.factors["width"] in (2, 5, 6))
    plan = make_plan(asked)
    assert keys(plan.units) == before
    assert 0 < len(plan.to_run) < len(before)


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3"])
def test_a_shard_that_means_nothing_is_refused(shard):
    with pytest.raises(ValueError, match="--shard"):
        make_plan(Request(("position",), shard=shard))


REQUESTS = [
    Request(("trace_probe",)),
    Request(("trace_probe", "controls"), seeds=3),
    Request(("robustness", "position"), seeds=5),
    Request(("position",), settings=("sentences.train=40", "spcn.widths=[64, 32]")),
    Request(("./squares.py",), seeds=2),
    Request(("squares:EXPERIMENT",), settings=("texts.a b=it's", "sleep=1")),
    Request(("spen_training", "spen_streaming"), scale="gpu", data="texts/*.txt", settings=("tokens=1e6",)),
    Request(("spen_model",), data="./a b.txt"),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_the_command_of_a_unit_means_that_unit_again(away, request_):
    write_own(away)
    for unit in make_plan(request_).units:
        words = shlex.split(unit.command)
        assert words[:2] == ["ematrace", "reproduce"]
        again = make_plan(read_request(words[2:]))
        assert keys(again.units) == keys([unit])
        (same,) = again.units
        assert (same.settings, same.data, same.factors) == (unit.settings, unit.data, unit.factors)
        assert again.request.fresh


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (("seed=1",), [(2, 1), (3, 1)]),
        (("width=3",), [(3, 0), (3, 1)]),
        (("width=3", "seed=0"), [(3, 0)]),
        (("width=3", "width=2", "seed=0"), [(2, 0), (3, 0)]),
        (("experiment=squares", "seed=0"), [(2, 0), (3, 0)]),
    ],
)
def test_only_keeps_the_units_with_these_factors(away, only, expected):
    write_own(away)
    units = make_plan(Request(("./squares.py",), seeds=2, only=only)).units
    assert [(unit.factors["width"], unit.seed) for unit in units] == expected


@pytest.mark.parametrize(("only", "hint"), [("width=7", "2, 3"), ("colour=red", "no such factor"), ("width", "=")])
def test_only_that_keeps_nothing_is_refused(away, only, hint):
    write_own(away)
    with pytest.raises(ValueError, match=rf"--only.*{hint}"):
        make_plan(Request(("./squares.py",), only=(only,)))


def test_changed_settings_keep_their_types():
    settings = {"a": 1, "b": 0.5, "c": "x", "d": [1], "e": None, "f": True, "g": {"h": 2}, "i": {}}
    changes = {"a": 2e3, "b": 1, "c": 7, "d": [2, 3], "e": "any", "f": False, "g.h": 5, "i.new": 1}
    changed, applied = change_settings(settings, changes)
    assert changed == {
        "a": 2000, "b": 1, "c": "7", "d": [2, 3], "e": "any", "f": False, "g": {"h": 5}, "i": {"new": 1},
    }  # fmt: skip
    assert isinstance(changed["a"], int)
    assert applied == set(changes)
    assert settings["g"] == {"h": 2}


@pytest.mark.parametrize("change", [{"a": 1.5}, {"a": True}, {"b": "x"}, {"d": 1}, {"f": 1}, {"g": 3}])
def test_a_setting_of_another_type_is_refused(change):
    settings = {"a": 1, "b": 0.5, "d": [1], "f": True, "g": {"h": 2}}
    with pytest.raises(ValueError, match=rf"--settings: {next(iter(change))} is .*must be like"):
        change_settings(settings, change)


@pytest.mark.parametrize("change", ["nothing=1", "spcn.nothing=1", "spcn.eta.deeper=1", "grammar.noun_bias=0.5"])
def test_a_setting_that_no_experiment_has_is_refused(change):
    with pytest.raises(ValueError, match=rf"--settings: no experiment here has the setting '{change[:4]}"):
        make_plan(Request(("position",), settings=(change,)))


def test_a_misspelt_setting_is_suggested():
    with pytest.raises(ValueError, match=r"'sentences.trian'; did you mean sentences.train\?"):
        make_plan(Request(("position",), settings=("sentences.trian=40",)))


def test_changed_settings_stand_in_the_unit():
    (unit,) = make_plan(Request(("position",), settings=("sentences.train=40", "spcn.widths=[64, 32]"))).units
    assert unit.settings["sentences"]["train"] == 40
    assert unit.settings["spcn"]["widths"] == [64, 32]
    assert EXPERIMENTS["position"].settings["sentences"]["train"] == 5000
    (drawn,) = make_plan(Request(("robustness",), only=("experiment=position", "seed=3"))).units
    assert drawn.settings["grammar"]["drawn_seed"] == 3


def test_data_stands_in_the_unit_of_an_experiment_that_reads_text(away):
    (away / "some.txt").write_text("text")
    (unit,) = make_plan(Request(("spen_model",))).units
    assert unit.data == unit.settings["data"] == "builtin"
    both = make_plan(Request(("spen_model", "position"), data="some.txt")).units
    assert {unit.experiment: unit.data for unit in both} == {"spen_model": "some.txt", "position": None}
    assert [("data" in unit.settings) for unit in both] == [True, False]
    with pytest.raises(ValueError, match="--data: none"):
        make_plan(Request(("position",), data="some.txt"))


def test_scales(monkeypatch):
    def scales(needs: str) -> list[str]:
        experiment = Experiment("x", "x", factorial(), lambda ctx: {}, needs=needs)
        return [experiment.scale(asked) for asked in ("cpu", "gpu")]

    assert scales("cpu") == ["cpu", "cpu"]
    assert scales("gpu") == ["gpu", "gpu"]
    assert scales("any") == ["cpu", "gpu"]


def test_points_of_a_scale():
    def grid(scale, seeds):
        yield Point({"size": "2m" if scale == "gpu" else "toy"})

    experiment = Experiment("x", "x", grid, lambda ctx, size: {}, needs="any")
    assert experiment.is_toy_for({"size": "2m", "slice": "all"})  # slices are rows'
    assert not experiment.is_toy_for({"size": "toy"})


def missing(monkeypatch, gpu: bool, *names: str, **options) -> str:
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: gpu)
    plan = make_plan(Request(names, **options))
    return plan.needs_text(names) if plan.missing else ""


def test_what_is_missing_is_said_with_the_command_that_has_it(monkeypatch, away):
    (away / "a.txt").write_text("text")
    assert missing(monkeypatch, False, "spen_streaming") == (
        "spen_streaming needs a CUDA GPU (torch sees none here): ematrace reproduce spen_streaming --scale gpu"
    )
    assert missing(monkeypatch, True, "spen_streaming") == (
        "spen_streaming needs --scale gpu: ematrace reproduce spen_streaming --scale gpu"
    )
    assert missing(monkeypatch, True, "spen_streaming", scale="gpu") == ""
    assert missing(monkeypatch, True, "spen_training", scale="gpu") == (
        "spen_training needs a text source: ematrace reproduce spen_training --scale gpu --data SOURCE"
    )
    assert missing(monkeypatch, True, "spen_training", scale="gpu", data="a.txt") == ""
    line = missing(monkeypatch, True, "spen_training", scale="gpu", data="nowhere.txt")
    assert line == "spen_training needs readable text (nowhere.txt: no such file or folder)"
    assert missing(monkeypatch, False, "position") == ""
    options = {"seeds": 3, "only": ("preset=spen-130m",), "settings": ("tokens=1e6",), "jobs": 2, "fresh": True}
    assert missing(monkeypatch, True, "spen_training", **options).endswith(
        "ematrace reproduce spen_training --scale gpu --seeds 3 --data SOURCE --only preset=spen-130m "
        "--settings tokens=1e6 --jobs 2 --fresh"
    )


def test_the_text_is_said_where_nobody_named_one() -> None:
    described = make_plan(Request(("gap_units",), only=("seed=0",))).describe(["gap_units"])
    assert "\ntext: builtin, by default; recorded runs may have another" in described
    named = make_plan(Request(("gap_units",), only=("seed=0",), data="builtin")).describe(["gap_units"])
    assert "text:" not in named


def test_no_command_where_it_would_be_the_one_that_was_typed(monkeypatch, away):
    (away / "a.txt").write_text("text")
    line = "spen_training needs a CUDA GPU (torch sees none here)"
    assert missing(monkeypatch, False, "spen_training", scale="gpu", data="a.txt") == line
    plan = make_plan(Request(("spen_training",), scale="gpu", data="a.txt", dry_run=True))
    assert f"missing: {line}\n\n" in plan.describe(["spen_training"])
    assert "ematrace reproduce" not in plan.describe(["spen_training"])
    two = missing(monkeypatch, False, "spen_training", "spen_streaming", scale="gpu")  # text is not said yet
    assert two.endswith(": ematrace reproduce spen_training spen_streaming --scale gpu --data SOURCE")


def test_an_option_without_effect_is_refused():
    for options in ({"scale": "gpu"}, {"per_gpu": 2}):
        with pytest.raises(ValueError, match=r"--(scale gpu|per-gpu): none of these experiments runs on a GPU"):
            make_plan(Request(("position",), **options))


def test_nothing_is_missing_for_what_is_there(monkeypatch):
    monkeypatch.setattr(planning, "_is_there", lambda unit, out: True)
    assert missing(monkeypatch, False, "spen_streaming") == ""


def test_without_missing_keeps_what_can_run(monkeypatch):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: False)
    plan = make_plan(Request(("position", "spen_streaming"))).without_missing()
    assert [unit.experiment for unit in plan.units] == ["position"]
    assert list(plan.missing) == ["spen_streaming"]
    assert "1 unit to run" in plan.describe(())
    assert "missing: spen_streaming needs" in plan.describe(())


def test_dry_run_says_counts_time_and_what_is_missing(away, capsys, monkeypatch):
    write_own(away, widths="[2, 3, 4]", options="seconds=40")
    monkeypatch.setattr(planning, "_is_there", lambda unit, out: (unit.experiment, unit.seed) == ("squares", 0))
    with pytest.raises(SystemExit) as done:
        main(["./squares.py", "--seeds", "2", "--jobs", "2", "--dry-run", "--out", "here"])
    assert done.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "experiment  to run  there  seconds each",
        "squares          3      3            40",
        "3 units to run, 3 already in here",
        "expected time: about 1 min 20 s in 2 processes",
        "missing: nothing",
        "",
        "state   experiment  seeds  factors that differ",
        *(f"to run  squares     1      width={width}" for width in (2, 3, 4)),
        *(f"there   squares     0      width={width}" for width in (2, 3, 4)),
    ]
    assert not (away / "here").exists()
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: False)
    with pytest.raises(SystemExit) as done:
        main(["spen_streaming", "--dry-run"])
    assert done.value.code == 0
    assert capsys.readouterr().out.splitlines()[4:] == [
        "missing: spen_streaming needs a CUDA GPU (torch sees none here)",
        "command: ematrace reproduce spen_streaming --scale gpu",
        "",
        "state   experiment      seeds",
        "to run  spen_streaming  0",
    ]


def listed(points: list[tuple[dict, int]], width: int | None = None) -> list[str]:
    return unit_lines([unit_of("x", "x", 1, factors=factors, seed=seed) for factors, seed in points], (), width)


def test_every_unit_is_listed_once_where_there_is_no_terminal():
    """By the factors that vary, which lead back to exactly these units."""
    request = Request(("gap_predictors", "gap"), scale="gpu", data="a.txt")
    units = make_plan(request).units
    heading, *lines = unit_lines(units, units[:2])
    assert heading.split() == ["state", "experiment", "seeds", "factors", "that", "differ"]
    found = []
    for line in lines:
        state, (experiment, seeds, *factors) = line[:6], shlex.split(line[6:])
        first, _, last = seeds.partition("-")
        for seed in range(int(first), int(last or first) + 1):
            chosen = planning._only(
                units, replace(request, only=(f"experiment={experiment}", f"seed={seed}", *factors))
            )
            assert len(chosen) == 1
            assert (chosen[0] in units[:2]) == (state == "there ")
            found += chosen
    assert Counter(found) == Counter(units)
    assert all("size=" not in line for line in lines if " gap " in line)  # which does not vary


@pytest.mark.parametrize("width", [60, 80, 120])
def test_in_a_terminal_the_list_is_a_screenful_of_lines_that_fit(width):
    units = make_plan(Request(("gap",), scale="gpu", data="a.txt")).units
    lines = unit_lines(units, (), width)
    assert max(map(len, lines)) <= width
    shown = [line for line in lines if line.startswith("to run")]
    assert len(shown) == 20
    assert lines[-1] == f"{len(units) - 20 * 5} more units: `| less` at the end shows all, --only a part"
    rows = unit_lines(units, ())
    assert len(rows) == 1 + len(units) / 5
    assert not any("more units" in row for row in rows)


def test_what_most_rows_have_is_said_once_where_they_are_too_long():
    points = [({"context": c, "norm": "algorithm1", "rate": r}, 0) for c, r in (("ema", 1), ("ema", 2), ("none", 1))]
    assert listed(points, 53) == [
        "state   experiment  seeds  factors that differ",
        "to run  x           0      context=ema rate=1",
        "to run  x           0      context=ema rate=2",
        "to run  x           0      context=none rate=1",
    ]
    assert listed(points, 45) == [
        "x, where a row says nothing else: context=ema",
        "  rate=1",
        "state   experiment  seeds  factors that",
        "                           differ",
        "to run  x           0",
        "to run  x           0      rate=2",
        "to run  x           0      context=none",
    ]


def test_what_is_usual_is_what_most_have_and_not_what_the_first_has():
    kinds = ["rare" * 20, *["usual" * 16] * 20]
    lines = listed([({"kind": kind, "n": n}, 0) for n, kind in enumerate(kinds)], 80)
    assert lines[0] == "x, where a row says nothing else:"
    assert lines[1].strip().startswith("kind=usual")
    assert sum("kind=rare" in line for line in lines) == 1
    assert lines[-1] == "1 more unit: `| less` at the end shows all, --only a part"


def test_a_factor_that_not_all_units_have_is_named_where_it_is():
    assert listed([({}, 0), ({"part": "threads"}, 0), ({"part": "threads"}, 1)])[1:] == [
        "to run  x           0",
        "to run  x           0-1    part=threads",
    ]
    assert listed([({"part": "threads"}, 0), ({}, 0)], 30)[-3:] == [
        "to run  x           0",
        "                           part=threads",
        "to run  x           0",
    ]
    assert listed([]) == []


def test_a_terminal_is_told_from_a_pipe(away, capsys, monkeypatch):
    write_own(away, widths="list(range(25))")
    for terminal, rows in ((True, 20), (False, 25)):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        with pytest.raises(SystemExit):
            main(["./squares.py", "--dry-run"])
        out = capsys.readouterr().out
        assert out.count("\nto run ") == rows
        assert ("\n5 more units: " in out) == terminal


def test_what_is_missing_ends_a_run_with_code_2(capsys, monkeypatch, away):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: False)
    with pytest.raises(SystemExit) as done:
        main(["spen_streaming"])
    assert done.value.code == 2
    assert capsys.readouterr().err.startswith("error: spen_streaming needs a CUDA GPU")
    assert list(away.iterdir()) == []


def test_cores_stand_in_for_a_gpu_only_when_asked(monkeypatch):
    """The same units, settings and files; no GPU is missing, and the command says where they ran."""
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: False)
    asked = Request(("gap_units",), scale="gpu")
    on_gpu, on_cores = make_plan(asked), make_plan(replace(asked, device="cpu"))
    assert on_gpu.missing
    assert not on_cores.missing
    assert keys(on_gpu.units) == keys(on_cores.units)
    assert [unit.settings for unit in on_gpu.units] == [unit.settings for unit in on_cores.units]
    assert {(unit.scale, unit.device) for unit in on_gpu.units} == {("gpu", "cuda")}
    assert {(unit.scale, unit.device) for unit in on_cores.units} == {("gpu", "cpu")}
    assert "--scale gpu --device cpu" in on_cores.units[0].command
    assert [phase.gpu for phase in phases_of(on_cores.units, None)] == [False]
    assert on_cores.units[0].seconds > on_gpu.units[0].seconds


GAP = [name for name in EXPERIMENTS if name.startswith("gap") or name == "trace_decoding"]
# Whose points take about the same.
AT_ONE_SPEED = {
    "gap_first_steps",
    "gap_start",
    "gap_halves",
    "gap_all_units",
    "gap_predictions",
    "gap_made_pairs",
    "gap_made_pairs_long",
}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_expected_times_follow_size_tokens_and_units(monkeypatch, device):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: True)
    plan = make_plan(Request(("gap_sizes", "gap_predictors", "gap_units"), scale="gpu", device=device))

    def seconds(**wanted):
        of = (
            {**unit.settings, **unit.factors, "experiment": unit.experiment, "s": unit.seconds} for unit in plan.units
        )
        found = {one["s"] for one in of if wanted.items() <= one.items()}
        assert len(found) == 1
        return found.pop()

    sizes = {"experiment": "gap_sizes", "vocabulary": 8192}
    whole = {**sizes, "tokens": 117440512}
    assert 60 < seconds(**whole, size="2m") < seconds(**whole, size="7m") < seconds(**whole, size="30m")
    assert seconds(**sizes, size="2m", tokens=29360128) < seconds(**whole, size="2m")
    at_130m = {"cuda": 50 + 500 * 32768 / 4e5, "cpu": 20 + 500 * 32768 / 150}[device]
    assert seconds(experiment="gap_predictors", size="130m") == pytest.approx(at_130m)
    assert seconds(experiment="gap_units", units=3072) > 1.1 * seconds(experiment="gap_units", units=512)
    by_hand = {"cuda": 50 + 29360128 / 11e6, "cpu": 20 + 29360128 / 13e3}[device]
    assert seconds(**sizes, size="2m", tokens=29360128) == pytest.approx(by_hand)


def test_processes_that_share_a_gpu_take_longer(monkeypatch):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: True)
    alone, shared = (make_plan(Request(("gap_units",), scale="gpu", per_gpu=n)).units[0].seconds for n in (None, 8))
    assert shared - 50 == pytest.approx(8 * (alone - 50))


def test_every_point_of_the_gap_has_a_time_of_its_own_and_a_toy_another(monkeypatch):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: True)
    for name in set(GAP) - AT_ONE_SPEED:
        assert EXPERIMENTS[name].seconds_of is not None, name
        assert min(unit.seconds for unit in make_plan(Request((name,), scale="gpu")).units) > 50, name
        if EXPERIMENTS[name].needs == "any":
            assert max(unit.seconds for unit in make_plan(Request((name,))).units) <= 20, name


def test_one_time_or_two_ends_are_shown(monkeypatch):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: True)
    plan = make_plan(Request(("gap_predictors",), scale="gpu"))
    ends = [round(unit.seconds) for unit in plan.units]
    assert f"  {min(ends)}-{max(ends)}\n" in plan.describe(["gap_predictors"])
    assert re.search(r"gap_predictors +2 +0 +6\n", make_plan(Request(("gap_predictors",))).describe(["gap_predictors"]))


@pytest.mark.parametrize("value", ["abc", "true", "1.5", "-3"])
def test_a_budget_that_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="--settings: tokens is a whole number, not "):
        make_plan(Request(("gap_units",), settings=(f"tokens={value}",)))


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (Request(("gap_units",), device="cpu"), "--device cpu: it goes with --scale gpu"),
        (Request(("gap_units",), scale="gpu", device="cpu", per_gpu=2), "--per-gpu: none of these"),
    ],
)
def test_cores_cannot_stand_in_for_everything(request_, why):
    with pytest.raises(ValueError, match=why):
        make_plan(request_)


def test_what_measures_a_gpu_is_left_out_on_cores(monkeypatch):
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: False)
    plan = make_plan(Request(("gap_units", "spen_streaming", "position"), scale="gpu", device="cpu"))
    assert list(plan.missing) == ["spen_streaming"]
    assert plan.needs_text(["spen_streaming"]).startswith("spen_streaming needs a GPU, which it measures: ")
    assert {unit.experiment for unit in plan.without_missing().units} == {"gap_units", "position"}
    assert {unit.device for unit in plan.units} == {"cpu"}
    on_gpu = make_plan(Request(("gap_units", "position"), scale="gpu"))
    assert {(unit.experiment, unit.device) for unit in on_gpu.units} == {("gap_units", "cuda"), ("position", "cpu")}


def test_what_cores_measured_is_there_for_cores_alone(monkeypatch, away):
    """A GPU measures it again; what a GPU measured is there for both."""
    monkeypatch.setattr(planning, "_sees_gpu", lambda request: True)
    asked = Request(("gap_units",), scale="gpu", out=away, only=("seed=0", "units=512", "ffn=topk_ste"))
    [unit] = make_plan(asked).units
    of = {"experiment": unit.experiment, "factors": unit.factors, "settings": unit.settings, "scale": "gpu"}
    for hardware, there in (({"cpu": "x"}, (False, True)), ({"cpu": "x", "gpu": "y"}, (True, True))):
        write_file(make_file(make_row({"nats": 1.0}), provenance=make_provenance(hardware=hardware), **of), away)
        found = [bool(make_plan(replace(asked, device=device)).there) for device in ("cuda", "cpu")]
        assert tuple(found) == there


def test_a_unit_runs_on_its_device_and_says_so(monkeypatch):
    """Even on a machine with a GPU, which its file must not name then."""
    monkeypatch.setattr("ematrace.results.provenance._hardware", lambda: {"cpu": "x", "gpu": "y"})
    seen = []

    def measure(ctx, **factors):
        seen.append((ctx.scale, ctx.device))
        return {"nats": 1.0}

    monkeypatch.setattr(worker, "find_experiment", lambda *at: Experiment("one", "One", factorial(), measure))
    hardware = []
    for scale, device in (("gpu", "cpu"), ("gpu", "cuda"), ("cpu", "cpu")):
        file = worker.measure_unit(unit_of("one", "g", 1, scale=scale, device=device))
        assert isinstance(file, CellFile)
        hardware.append(file.provenance.hardware.get("gpu"))
    assert seen == [("gpu", "cpu"), ("gpu", "cuda"), ("cpu", "cpu")]
    assert hardware == [None, "y", "y"]


def test_phases_keep_timings_alone_and_share_a_gpu_only_when_asked():
    units = [
        unit_of("slow", "b", 9),
        unit_of("fast", "a", 1),
        unit_of("fast too", "a", 1),
        unit_of("on gpu", "c", 5, scale="gpu", device="cuda"),
        unit_of("on gpu too", "d", 6, scale="gpu", device="cuda"),
        unit_of("timed", "e", 5, scale="gpu", device="cuda", alone=True),
    ]

    def shape(workers):
        return [
            ([[unit.experiment for unit in job] for job in phase.jobs], phase.gpu, phase.workers)
            for phase in phases_of(units, workers, default=lambda gpu: 1 if gpu else 8)
        ]

    cpu, gpu, timed = [["slow"], ["fast", "fast too"]], [["on gpu too"], ["on gpu"]], [["timed"]]
    assert shape(None) == [(cpu, False, 8), (gpu[::-1], True, 1), (timed, True, 1)]  # one process: in their order
    assert shape(3) == [(cpu, False, 3), (gpu, True, 3), (timed, True, 1)]


def test_a_seed_is_complete_before_the_next_begins():
    """Whoever stops half-way has complete seeds, whatever the times of their units."""
    of = [(1000, 1, "a"), (1000, 5, "b"), (0, 9, "a"), (0, 3, "b")]
    units = [unit_of(name, f"{name} {seed}", seconds, seed=seed) for seed, seconds, name in of]
    (phase,) = phases_of(units, 2)
    assert [(unit.seed, unit.experiment) for job in phase.jobs for unit in job] == [
        (1000, "b"), (1000, "a"), (0, "a"), (0, "b")
    ]  # fmt: skip


def test_how_many_share_a_gpu_is_not_how_many_run():
    units = [unit_of(str(i), str(i), 1, scale="gpu", device="cuda") for i in range(4)]

    def shape(jobs, per_gpu):
        (phase,) = phases_of(units, jobs, default=lambda gpu: 100, per_gpu=per_gpu)
        return phase.workers, phase.per_gpu

    assert shape(None, None) == (100, None)
    assert shape(8, 2) == (8, 2)
    assert shape(None, 2) == (200, 2)
    assert shape(8, None) == (8, None)
    (timed,) = phases_of([unit_of("timed", "t", 1, scale="gpu", device="cuda", alone=True)], 8, per_gpu=2)
    assert (timed.workers, timed.per_gpu) == (1, 1)


def test_expected_time_by_hand():
    units = [unit_of(str(i), str(i), seconds) for i, seconds in enumerate((7, 5, 4, 3))]
    assert expected_seconds(phases_of(units, 1)) == 19
    assert expected_seconds(phases_of(units, 2)) == 10  # 7 + 3 beside 5 + 4
    assert expected_seconds(phases_of(units, 9)) == 7
    assert expected_seconds(phases_of([*units, unit_of("timed", "t", 6, alone=True)], 2)) == 16
    assert expected_seconds([]) == 0


def test_ray_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'ematrace\[ray\]'"):
        make_plan(Request(("position",), engine="ray"))


@pytest.mark.parametrize(("field", "value"), [("seeds", 0), ("seeds", -1), ("jobs", 0)])
def test_a_number_below_one_is_refused(field, value):
    with pytest.raises(ValueError, match=f"--{field} is {value}"):
        make_plan(Request(("position",), **{field: value}))


def test_points_of_a_factorial_are_all_combinations():
    points = list(factorial(a=[1, 2], b=["x", "y"])("cpu", 2))
    assert points[:4] == [Point({"a": a, "b": b}, 0) for a in (1, 2) for b in ("x", "y")]
    assert len(points) == 8
    assert list(factorial()("cpu", 2)) == [Point({}, 0), Point({}, 1)]


def test_another_version_of_ones_own_file_is_another_measurement(away):
    write_own(away)
    before = make_plan(Request(("./squares.py",), seeds=1)).units
    path = away / "squares.py"
    text = path.read_text()
    path.write_text(text + "\n# another comment\n")  # as a longer grid would be
    same = make_plan(Request(("./squares.py",), seeds=1)).units
    assert [unit.settings for unit in same] == [unit.settings for unit in before]
    path.write_text(re.sub(r"(def measure\(.*\n)", r"\1    # changed\n", text))
    after = make_plan(Request(("./squares.py",), seeds=1)).units
    assert keys(before) == keys(after)
    assert all(b.settings != a.settings for b, a in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "experiment",
    [
        'arm_experiment("mine", "Mine", factorial(size=["toy"], lr=[0.004]), look=look)',
        'Experiment("mine", "Mine", grid=factorial(), measure=partial(look, text=""))',
    ],
)
def test_another_version_of_a_file_whose_measure_is_made_is_another_measurement(away, experiment):
    """By a function of the package, whose source stays the same."""
    path = away / "mine.py"
    path.write_text(
        "from functools import partial\n"
        "from ematrace.experiments import Experiment, factorial\n"
        "from ematrace.experiments.gap_task import arm_experiment\n"
        "def look(model, text):\n    return []\n"
        f"EXPERIMENT = {experiment}\n"
    )
    [before] = make_plan(Request(("mine.py",), seeds=1)).units
    [same] = make_plan(Request(("mine.py",), seeds=1)).units
    assert same.settings == before.settings
    path.write_text(path.read_text().replace("return []", "return [1]"))
    [after] = make_plan(Request(("mine.py",), seeds=1)).units
    assert after.settings != before.settings
    assert after.settings.keys() == before.settings.keys()


def test_a_setting_given_twice_is_refused(away):
    write_own(away)
    with pytest.raises(ValueError, match="given twice"):
        make_plan(Request(("./squares.py",), settings=("width=2", "width=3")))
