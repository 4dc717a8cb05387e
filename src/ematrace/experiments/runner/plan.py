"""From a request to units: which there are, which are done, and what is missing to run the others."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ematrace.experiments.base import NO_DEFAULT, Device, Experiment, Grid, Point, Scale
from ematrace.experiments.discovery import EXPERIMENTS, find_experiment, is_own, own_source
from ematrace.experiments.runner.listing import assigned, unit_lines, wrapped
from ematrace.experiments.runner.request import ROBUSTNESS, Request, change_settings, setting_names
from ematrace.experiments.runner.units import Phase, Unit, expected_seconds, phases_of, shard_of
from ematrace.names import did_you_mean, parse_assignments
from ematrace.results import read_file
from ematrace.results.schema import file_name

COMMAND = "ematrace reproduce"
CORE_FOR_GPU = 100  # times as long for small models, and more for others: an estimate


@dataclass(frozen=True)
class Plan:
    """The units of a request's shard; `there` are those whose file is there with the same settings.

    >>> from pathlib import Path
    >>> plan = make_plan(Request(("position",), seeds=3, jobs=1, out=Path("nowhere")))
    >>> print(plan.describe(["position"]))
    experiment  to run  there  seconds each
    position         3      0             1
    3 units to run, 0 already in nowhere
    expected time: about 3 s in 1 process
    missing: nothing
    <BLANKLINE>
    state   experiment  seeds
    to run  position    0-2
    """

    request: Request
    units: tuple[Unit, ...]
    there: frozenset[Unit]
    missing: Mapping[str, tuple[Need, ...]]
    """By experiment, what it needs and does not have here."""

    @property
    def to_run(self) -> tuple[Unit, ...]:
        return tuple(unit for unit in self.units if unit not in self.there)

    def without_missing(self) -> Plan:
        """Only the units that can run here; what the others miss is still known."""
        return replace(self, units=tuple(unit for unit in self.units if unit.experiment not in self.missing))

    def needs_text(self, asked: Sequence[str]) -> str:
        """One line: what is missing, then the command if there is one; `asked` are the names that were typed."""
        command = self._filled_in(asked)
        return "; ".join(self._needs()) + (f": {command}" if command else "")

    def _needs(self) -> list[str]:
        return [f"{name} needs {' and '.join(need.what for need in needs)}" for name, needs in self.missing.items()]

    def _filled_in(self, asked: Sequence[str]) -> str:
        """The command with every option that says where something missing is; nothing if that is what was typed."""
        options: dict[str, Any] = {}
        for need in (need for needs in self.missing.values() for need in needs):
            options |= need.options
        typed = replace(self.request, names=tuple(asked))
        wanted = replace(typed, **options)
        return "" if wanted == typed else shlex.join([*COMMAND.split(), *wanted.words()])

    @property
    def expected_seconds(self) -> float:
        return expected_seconds(self._phases)

    @property
    def _phases(self) -> list[Phase]:
        return phases_of(self.to_run, self.request.jobs, per_gpu=self.request.per_gpu)

    def summary(self) -> str:
        """One line: how much is there, how much is to run, and how long that takes."""
        there, to_run, out = len(self.there), len(self.to_run), self.request.out
        if not to_run:
            return f"nothing to run: {_units(there)} in {out} already (--fresh runs them again)"
        kept = f"{there} of {_units(len(self.units))} in {out} already (--fresh runs them again); " if there else ""
        return f"{kept}{_units(to_run)} to run, {self._time()}"

    def _time(self) -> str:
        most = max(min(phase.workers, len(phase.jobs)) for phase in self._phases)
        return f"about {duration(self.expected_seconds)} in {most} {'process' if most == 1 else 'processes'}"

    def describe(self, asked: Sequence[str], width: int | None = None) -> str:
        """What would run, in lines for people: how much, what is missing, then the units; `width` is a terminal's."""
        to_run = Counter(unit.experiment for unit in self.to_run)
        there = Counter(unit.experiment for unit in self.there)
        size = max((len(name) for name in (*to_run, *there)), default=0)
        lines = [f"{'experiment':{max(size, 10)}}  to run  there  seconds each"] if self.units else []
        for name in dict.fromkeys(unit.experiment for unit in self.units):
            seconds = [round(unit.seconds) for unit in self.units if unit.experiment == name]
            each = "-".join(f"{end}" for end in dict.fromkeys((min(seconds), max(seconds))))
            lines.append(f"{name:{max(size, 10)}}  {to_run[name]:6}  {there[name]:5}  {each:>12}")
        lines.append(f"{_units(len(self.to_run))} to run, {len(self.there)} already in {self.request.out}")
        if self.to_run:
            lines.append(f"expected time: {self._time()}")
        for i, what in enumerate(self._needs() or ["nothing"]):
            lines += wrapped(f"{' ' * 9 if i else 'missing: '}{what}", width, 9)
        if command := self._filled_in(asked):
            lines.append(f"command: {command}")
        own = [] if self.request.data else [unit.data for unit in self.to_run if unit.data not in (None, NO_DEFAULT)]
        for text in dict.fromkeys(own):
            lines += wrapped(f"text: {text}, by default; recorded runs may have another, which --data names", width, 6)
        units = unit_lines(self.units, self.there, width)
        return "\n".join([*lines, *([""] if units else []), *units])


@dataclass(frozen=True)
class Need:
    """Something that is not here, and the options that would say where it is."""

    what: str
    options: Mapping[str, str] = field(default_factory=dict)


def _units(count: int) -> str:
    return f"{count} unit{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """
    >>> [duration(s) for s in (42, 350, 8000)]
    ['42 s', '5 min 50 s', '2 h 13 min']
    """
    minutes, s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {s} s" if minutes else f"{s} s"


def make_plan(request: Request, wanted: Callable[[Unit], bool] = lambda unit: True) -> Plan:
    """Every unit that the request means and that is wanted, in the order of its names.

    >>> from pathlib import Path
    >>> plan = make_plan(Request(("position",), seeds=3, jobs=1, out=Path("nowhere")))
    >>> [(unit.experiment, unit.seed) for unit in plan.to_run]
    [('position', 0), ('position', 1), ('position', 2)]
    """
    request.check()
    if request.engine == "ray":
        from ematrace.experiments.runner.on_ray import load_ray

        load_ray()
    chosen = {name: find_experiment(name) for name in dict.fromkeys(request.names) if name != ROBUSTNESS}
    changes = parse_assignments(request.settings, "--settings")
    found: dict[tuple[str, str], Unit] = {}
    applied: set[str] = set()
    for name, reference, experiment, grid, seeds in _grids(request, chosen):
        settings, used = change_settings(experiment.settings, changes)
        applied |= used
        points = list(grid(experiment.scale(request.scale), seeds))
        options = [f"{key}={json.dumps(value)}" for key, value in changes.items() if key in used]
        for point in points:
            command = _command(name, experiment, point, points, seeds, request, options)
            unit = _unit(reference, experiment, point, request, settings, command)
            found.setdefault((unit.experiment, unit.file_name), unit)
    if unused := [name for name in changes if name not in applied]:
        known = [path for experiment in chosen.values() for path in setting_names(experiment.settings)]
        hint = did_you_mean(unused[0], known)
        raise ValueError(f"--settings: no experiment here has the setting '{unused[0]}'{hint}")
    experiments = {unit.experiment: find_experiment(unit.reference, unit.folder) for unit in found.values()}
    _refuse_options_without_effect(request, tuple(experiments.values()))
    units = shard_of(_only(tuple(filter(wanted, found.values())), request), *request.part)
    there = () if request.fresh else tuple(unit for unit in units if _is_there(unit, request.out))
    to_run = {unit.experiment for unit in units if unit not in there}
    missing = {n: needs for n, e in experiments.items() if n in to_run and (needs := _needs(e, request))}
    return Plan(request, units, frozenset(there), missing)


def _refuse_options_without_effect(request: Request, experiments: Sequence[Experiment]) -> None:
    on_gpu = any(experiment.scale(request.scale) == "gpu" for experiment in experiments)
    if request.data is not None and all(experiment.data is None for experiment in experiments):
        raise ValueError("--data: none of these experiments reads text")
    if request.scale == "gpu" and not on_gpu:
        raise ValueError("--scale gpu: none of these experiments runs on a GPU")
    if request.device == "cpu" and request.scale != "gpu":
        raise ValueError("--device cpu: it goes with --scale gpu; everything else runs on cores anyway")
    if request.per_gpu is not None and (not on_gpu or request.device == "cpu"):
        raise ValueError("--per-gpu: none of these experiments runs on a GPU with these options")


def _grids(request: Request, chosen: Mapping[str, Experiment]) -> list[tuple[str, str, Experiment, Grid, int]]:
    """(name asked for, how to find it, experiment, its grid, number of seeds) of everything that the names mean."""
    grids = [(name, name, e, e.grid, request.seeds or e.seeds) for name, e in chosen.items()]
    if ROBUSTNESS in request.names:
        own = {name: e for name, e in chosen.items() if is_own(name)}
        for reference, e in {**EXPERIMENTS, **own}.items():
            draws = request.seeds or e.quick_draws
            if e.robustness is not None and draws:
                grids.append((ROBUSTNESS, reference, e, e.robustness, draws))
    return grids


def _unit(
    reference: str,
    experiment: Experiment,
    point: Point,
    request: Request,
    settings: Mapping[str, Any],
    command: str,
) -> Unit:
    scale = experiment.scale(request.scale)
    device = request.device if scale == "gpu" else "cpu"
    resolved = experiment.resolve_settings(point, settings)
    data = None if experiment.data is None else request.data or experiment.data
    if data is not None:
        resolved["data"] = data
    if is_own(reference):  # its author may change it: what another `measure` found is measured again
        resolved["measure_sha256"] = hashlib.sha256(own_source(reference).encode()).hexdigest()[:16]
    own = file_name(point.factors, point.seed, scale)
    return Unit(
        experiment=experiment.name,
        reference=reference,
        folder=str(Path.cwd()),
        factors=dict(point.factors),
        seed=point.seed,
        scale=scale,
        settings=json.loads(json.dumps(resolved)),
        data=data,
        command=command,
        group=f"{experiment.group or experiment.name} {own}",
        seconds=_expected_seconds(experiment, point, resolved, scale, device, request.per_gpu or 1),
        device=device,
        alone=experiment.alone,
    )


def _expected_seconds(
    experiment: Experiment, point: Point, settings: Mapping[str, Any], scale: Scale, device: Device, per_gpu: int
) -> float:
    if scale == "gpu" and experiment.seconds_of is not None:
        return experiment.seconds_of(point, settings, device, per_gpu if device == "cuda" else 1)
    return experiment.seconds * (CORE_FOR_GPU if scale == "gpu" and device == "cpu" else 1)


def _command(
    name: str,
    experiment: Experiment,
    point: Point,
    points: Sequence[Point],
    seeds: int,
    request: Request,
    settings: Sequence[str],
) -> str:
    """What runs this point again, and no other."""
    words = [COMMAND, shlex.quote(name)]
    if experiment.scale(request.scale) == "gpu":
        words.append("--scale gpu" if request.device == "cuda" else "--scale gpu --device cpu")
    if experiment.data is not None and request.data is not None:
        words.append(f"--data {shlex.quote(request.data)}")
    if seeds != experiment.seeds or name == ROBUSTNESS:
        words.append(f"--seeds {seeds}")
    only: dict[str, Any] = {"experiment": experiment.name} if name == ROBUSTNESS else {}
    beside = [other.factors for other in points if other.seed == point.seed]
    only |= {n: v for n, v in point.factors.items() if any(factors.get(n) != v for factors in beside)}
    if any(other.seed != point.seed for other in points):
        only["seed"] = point.seed
    if only:
        words.append(f"--only {assigned(only)}")
    if settings:
        words.append(f"--settings {shlex.join(settings)}")
    return " ".join([*words, "--fresh"])


def _only(units: tuple[Unit, ...], request: Request) -> tuple[Unit, ...]:
    wanted: dict[str, list[object]] = {}
    for text in request.only:
        for name, asked in parse_assignments([text], "--only").items():
            wanted.setdefault(name, []).append(asked)

    def value(unit: Unit, name: str) -> object:
        return {"experiment": unit.experiment, "seed": unit.seed, **unit.factors}.get(name)

    for name, asked in wanted.items():
        there = [value(unit, name) for unit in units]
        if missing := [one for one in asked if one not in there]:
            known = ", ".join(dict.fromkeys(str(v) for v in there if v is not None))
            hint = f"there is {known}" if known else "no such factor"
            raise ValueError(f"--only: no unit has {name}={missing[0]}; {hint}")
        units = tuple(unit for unit, of in zip(units, there, strict=True) if of in asked)
    return units


def _is_there(unit: Unit, out: Path) -> bool:
    path = out / unit.experiment / unit.file_name
    if not path.exists():
        return False
    file = read_file(path)
    instead = unit.device == "cuda" and "gpu" not in file.provenance.hardware  # cores stood in for the GPU
    return not instead and file.settings == unit.settings and file.factors == unit.factors


def _needs(experiment: Experiment, request: Request) -> tuple[Need, ...]:
    needs = []
    if experiment.scale(request.scale) == "gpu":
        if request.device == "cpu" and experiment.needs == "gpu":
            needs.append(Need("a GPU, which it measures", {"device": "cuda"}))
        elif request.device == "cuda" and not _sees_gpu(request):
            where = "the Ray cluster has none" if request.engine == "ray" else "torch sees none here"
            needs.append(Need(f"a CUDA GPU ({where})", {"scale": "gpu"}))
        elif request.scale != "gpu":
            needs.append(Need("--scale gpu", {"scale": "gpu"}))
    if experiment.data == NO_DEFAULT and request.data is None:
        needs.append(Need("a text source", {"data": "SOURCE"}))
    elif experiment.data is not None:
        from ematrace.text import open_source

        try:
            open_source(request.data or experiment.data)
        except (OSError, ValueError) as error:
            needs.append(Need(f"readable text ({error})"))
    return tuple(needs)


def _sees_gpu(request: Request) -> bool:
    request.check()
    if request.engine == "ray":
        from ematrace.experiments.runner.on_ray import cluster_gpus

        return cluster_gpus() > 0
    import torch

    return torch.cuda.is_available()
