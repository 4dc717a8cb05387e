"""How often a pair occurred in training: counted in the text that was trained on, without what was held out of it."""

from __future__ import annotations

from typing import Any

import pytest

from ematrace.experiments import gap_task
from ematrace.experiments.base import Context
from ematrace.experiments.gap_task import SPEN, measure_arm
from test_gap import TINY


def test_counts_are_those_of_the_text_that_was_trained_on(tmp_path: Any) -> None:
    """Of a single document training holds out the end, whose word must count as never seen, in other texts as well."""
    data, other = tmp_path / "text.txt", tmp_path / "other.txt"
    data.write_text("the cat sat on the mat\n" * 300 + "zq zq zq zq\n" * 40)
    other.write_text("zq " * 200)
    tokenizer = str(gap_task.tokenizer_folder(str(data), 300))
    for source in (None, str(other)):
        assert not gap_task.scored_text(str(data), "train", source, tokenizer, 16, 4).count[-1].any()
    assert gap_task.scored_text(str(data), "all", str(other), tokenizer, 16, 4).count[-1].all()


@pytest.mark.parametrize("held_out", [True, False])
def test_an_arm_counts_in_all_of_its_text_only_with_a_validation_of_its_own(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    data = tmp_path / "text.txt"
    data.write_text("the cat sat on the mat while one dog ran after it\n" * 400)
    seen, scored = [], gap_task.scored_text
    monkeypatch.setattr(gap_task, "scored_text", lambda *given: seen.append(given[1]) or scored(*given))
    texts = {"texts": {"other": str(data)}, "validation": None if held_out else str(data)}
    measure_arm(Context(seed=0, data=str(data), settings=TINY | texts), SPEN, "toy", 3e-3)
    assert seen == ["train" if held_out else "all"] * 2
