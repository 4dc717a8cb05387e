"""Experiments are found by their files: the package's own, and a user's file or module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ematrace import experiments
from ematrace.experiments import EXPERIMENTS, Experiment, find_experiment
from ematrace.experiments.discovery import Catalogue, is_own
from ematrace.ledger import load_claims
from runner_support import working_in, write_own

PACKAGE = Path(experiments.__file__).parent


@pytest.fixture(autouse=True)
def away(tmp_path) -> Iterator[Path]:
    with working_in(tmp_path):
        yield tmp_path


def test_a_file_of_the_package_that_defines_one_is_an_experiment():
    defining = {
        path.stem
        for path in PACKAGE.glob("*.py")
        if any(line.startswith("EXPERIMENT = ") for line in path.read_text().splitlines())
    }
    assert set(EXPERIMENTS) == defining
    assert len(defining) >= 14
    for name, experiment in EXPERIMENTS.items():
        assert isinstance(experiment, Experiment)
        assert experiment.name == name
        assert experiment.title
        assert experiment.seconds > 0


def test_a_new_file_in_the_package_is_found_without_a_list(away, monkeypatch):
    write_own(away, "one_more")
    monkeypatch.setattr("ematrace.experiments.discovery.__file__", str(away / "discovery.py"))
    monkeypatch.setattr(experiments, "__path__", [*experiments.__path__, str(away)])
    assert list(Catalogue()) == ["one_more"]
    assert Catalogue()["one_more"].title == "Squares"


def test_every_experiment_that_a_claim_selects_is_there():
    assert {name for claim in load_claims() for name in claim.experiments} <= set(EXPERIMENTS)


@pytest.mark.parametrize("reference", ["squares.py", "./squares.py", "{folder}/squares.py", "squares:EXPERIMENT"])
def test_a_users_file_is_found(away, reference):
    write_own(away)
    assert find_experiment(reference.format(folder=away)).name == "squares"


def test_a_users_module_is_found_in_the_working_directory(away):
    (away / "mypackage").mkdir()
    write_own(away / "mypackage")
    (away / "mypackage/squares.py").write_text((away / "mypackage/squares.py").read_text() + "OTHER = EXPERIMENT\n")
    assert find_experiment("mypackage.squares").name == "squares"
    assert find_experiment("mypackage.squares:OTHER").name == "squares"


def test_a_file_that_has_changed_is_read_again(away):
    import os

    path = write_own(away)
    assert len(find_experiment("squares.py").points("cpu", 1)) == 2
    write_own(away, widths="[1, 2, 3]")
    os.utime(path, ns=(1, 1))
    assert len(find_experiment("squares.py").points("cpu", 1)) == 3


def test_built_in_names_are_no_references():
    assert not any(is_own(name) for name in (*EXPERIMENTS, "robustness", "C01", "F5"))


@pytest.mark.parametrize(
    ("reference", "content", "says"),
    [
        ("nowhere.py", None, "nowhere.py: no such file"),
        ("nowhere.at_all", None, "nowhere.at_all: no such module"),
        ("x.py", "1 +", "x.py: SyntaxError: .*line 1"),
        ("x.py", "\nimport no_such_module_at_all", r"x.py: ModuleNotFoundError: .*\(x.py, line 2\)"),
        ("x.py", "print(1 / 0)", r"x.py: ZeroDivisionError: division by zero \(x.py, line 1\)"),
        ("x.py", "y = 1", "x.py: EXPERIMENT is missing"),
        ("x.py", "EXPERIMENT = 1", "x.py: EXPERIMENT is not an Experiment"),
        ("x:GRID", "y = 1", "x: GRID is missing"),
        ("x.inner", "y = 1", "x.inner: no such module"),
        ("nope", None, "unknown experiment 'nope'; known: ablations, "),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(away, reference, content, says):
    if content is not None:
        (away / "x.py").write_text(content)
    with pytest.raises((ValueError, OSError), match=says) as error:
        find_experiment(reference)
    assert "\n" not in str(error.value)


def test_the_name_of_a_built_in_experiment_is_refused(away):
    write_own(away, "position")
    with pytest.raises(ValueError, match="the name 'position' is taken"):
        find_experiment("./position.py")
    assert find_experiment("ematrace.experiments.position") is EXPERIMENTS["position"]
