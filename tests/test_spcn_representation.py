"""Names of representations: what they mean, in which order, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from ematrace.spcn import SPCN
from ematrace.spcn.representation import parse_representation

BOTH = ("forward", "backward")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("l0", ["l0.activation@forward", "l0.activation@backward"]),
        ("activation", ["l0.activation@forward", "l0.activation@backward"]),
        ("fast", ["l0.fast@forward", "l0.fast@backward"]),
        ("l0.slow@forward", ["l0.slow@forward"]),
        ("l2@backward", ["l2.activation@backward"]),
        ("traces", ["l0.fast@forward", "l0.slow@forward", "l0.fast@backward", "l0.slow@backward"]),
        ("l1.traces@forward", ["l1.fast@forward", "l1.slow@forward"]),
        ("l1.all@backward", ["l1.activation@backward", "l1.fast@backward", "l1.slow@backward"]),
        ("l1+l0.slow@forward", ["l0.slow@forward", "l1.activation@forward", "l1.activation@backward"]),
        ("slow@backward+fast@forward", ["l0.fast@forward", "l0.slow@backward"]),
        (" l0@forward + fast@forward ", ["l0.activation@forward", "l0.fast@forward"]),
        ("l0@forward+l0.activation@forward+l0.all@forward",
         ["l0.activation@forward", "l0.fast@forward", "l0.slow@forward"]),
    ],
)  # fmt: skip
def test_names(name: str, expected: list[str]) -> None:
    assert [str(block) for block in parse_representation(name, 3, BOTH)] == expected


def test_blocks_come_by_direction_then_level_then_kind() -> None:
    """Whatever the order of the name: so that one matrix holds every other one as columns."""
    names = ("l1.slow", "l0.all", "l1.fast@backward", "l1")
    orders = {parse_representation("+".join(order), 2, BOTH) for order in (names, names[::-1])}
    assert len(orders) == 1
    blocks = [(b.direction, b.level, b.kind) for b in orders.pop()]
    kinds = ("activation", "fast", "slow")
    assert blocks == sorted(blocks, key=lambda b: (BOTH.index(b[0]), b[1], kinds.index(b[2])))


def test_one_direction_is_all_there_is() -> None:
    assert [str(b) for b in parse_representation("l0", 1, ("backward",))] == ["l0.activation@backward"]


@pytest.mark.parametrize(
    ("name", "levels", "directions", "problem"),
    [
        ("", 2, BOTH, "''"),
        ("l0+", 2, BOTH, "''"),
        ("+l0", 2, BOTH, "''"),
        ("l0.speed", 2, BOTH, "'speed'"),
        ("speed", 2, BOTH, "'speed'"),
        ("l0,l1", 2, BOTH, "'l0,l1'"),
        ("l0slow", 2, BOTH, "'l0slow'"),
        ("L0", 2, BOTH, "'L0'"),
        ("l-1", 2, BOTH, "'l-1'"),
        ("l0@", 2, BOTH, "'l0@'"),
        ("l2", 2, BOTH, "level 2, the model has levels 0 to 1"),
        ("l0+l17.slow", 2, BOTH, "level 17"),
        ("l0@left", 2, BOTH, "'left'"),
        ("l0@backward", 2, ("forward",), "'backward', the model has forward"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, levels: int, directions: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match="representation") as error:
        parse_representation(name, levels, directions)
    assert problem in str(error.value)


@pytest.mark.parametrize("name", ["l0.", "@forward", "l1.@backward"])
def test_half_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="representation"):
        parse_representation(name, 2, BOTH)


@pytest.fixture(scope="module")
def model() -> SPCN:
    return SPCN(widths=(10, 6), k=0.5, vocabulary=("a", "b")).fit([["a", "b", "a"]])


@pytest.mark.parametrize("whole", ["l0.all+l1.all", "l0+traces+l1.slow", "l0+l1.slow@backward+l0.slow"])
@pytest.mark.parametrize("part", ["l0", "slow", "l1.slow@backward", "l0+l1.slow@backward", "l0@backward+slow@forward"])
def test_columns_find_a_part_in_a_whole(model: SPCN, whole: str, part: str) -> None:
    text = [["a", "b", "b"], ["b"]]
    columns = model.columns(part, whole)
    assert (model.encode(text, whole)[:, columns] == model.encode(text, part)).all()
    names = SPCN(widths=(10, 6), representation=whole).get_feature_names_out()
    assert names[columns].tolist() == SPCN(widths=(10, 6), representation=part).get_feature_names_out().tolist()


def test_columns_of_the_models_own_representation(model: SPCN) -> None:
    assert model.representation == "l0+traces"
    assert model.columns("fast@forward").tolist() == list(range(10, 20))
    assert model.columns("l0@backward").tolist() == list(range(30, 40))
    assert np.array_equal(model.columns("l0+traces"), np.arange(60))


def test_columns_of_what_is_not_there(model: SPCN) -> None:
    with pytest.raises(ValueError, match=r"l1\.fast@\w+ of 'l1\.fast' is not in 'l0\+l1'"):
        model.columns("l1.fast", "l0+l1")


def test_columns_of_what_is_not_in_the_models_own(model: SPCN) -> None:
    with pytest.raises(ValueError, match=r"is not in 'l0\+traces'"):
        model.columns("l1")


def test_different_names_give_different_signals(model: SPCN) -> None:
    """The fast trace follows the activation more closely than the slow one does."""
    text = [["a", "b"] * 4]
    x, fast, slow = (model.encode(text, f"l0.{kind}@forward") for kind in ("activation", "fast", "slow"))
    assert np.abs(x[0] - fast[0]).max() < np.abs(x[0] - slow[0]).max()
    np.testing.assert_allclose(fast[0], 0.5 * x[0], rtol=1e-6)
    np.testing.assert_allclose(slow[0], 0.075 * x[0], rtol=1e-6)
