"""The curriculum: every problem once an epoch, repeatable, and exact after a resume."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from assay.data.curriculum import Curriculum
from assay.errors import ConfigError, RunError
from assay.types import Completion, Group, Problem, Prompt, Verdict

PROBLEMS = [Problem(f"p{n}", f"q{n}") for n in range(10)]


def names(problems: list[Problem]) -> list[str]:
    return [problem.group_id for problem in problems]


def group(problem: Problem, size: int) -> Group:
    completions = tuple(Completion.from_text("x") for _ in range(size))
    return Group(problem, Prompt("q", np.zeros(1, np.int32)), completions)


def test_every_epoch_holds_every_problem_once_in_another_order() -> None:
    drawn = Curriculum(PROBLEMS, seed=0).draw(30)
    epochs = [drawn[start : start + 10] for start in (0, 10, 20)]
    for number, epoch in enumerate(epochs):
        assert sorted(problem.id for problem in epoch) == sorted(p.id for p in PROBLEMS)
        assert {problem.draw for problem in epoch} == {number}
    orders = [tuple(problem.id for problem in epoch) for epoch in epochs]
    assert len(set(orders)) == 3
    assert len(set(names(drawn))) == 30, "two draws share a group's name"


def test_the_seed_fixes_the_order_and_the_size_of_a_draw_does_not_change_it() -> None:
    whole = names(Curriculum(PROBLEMS, seed=3).draw(24))
    parts = Curriculum(PROBLEMS, seed=3)
    assert [name for size in (7, 1, 0, 16) for name in names(parts.draw(size))] == whole
    assert parts.epoch == 2
    assert names(Curriculum(PROBLEMS, seed=4).draw(24)) != whole
    assert len(Curriculum(PROBLEMS, seed=-1).draw(3)) == 3


def test_a_draw_larger_than_the_set_names_distinct_groups() -> None:
    assert len(set(names(Curriculum(PROBLEMS[:2], seed=0).draw(7)))) == 7


def test_pass_rates_leave_out_what_was_not_judged() -> None:
    curriculum = Curriculum(PROBLEMS, seed=0)
    passed, failed = Verdict.of_score(1.0, "v@1"), Verdict.of_score(0.0, "v@1")
    missing = Verdict.not_judged("timeout", "v@1")
    assert curriculum.pass_rate("p1") is None
    curriculum.observe(
        [group(PROBLEMS[1], 3), group(PROBLEMS[2], 2)], [[passed, failed, missing], [missing] * 2]
    )
    assert curriculum.pass_rate("p1") == 0.5
    assert curriculum.pass_rate("p2") is None
    curriculum.observe([group(PROBLEMS[1], 2)], [[passed, passed]])
    assert curriculum.pass_rate("p1") == 0.75


@pytest.mark.parametrize("num_drawn", [0, 4, 10, 13, 20])
def test_a_resumed_curriculum_equals_one_that_never_stopped(tmp_path: Path, num_drawn: int) -> None:
    curriculum = Curriculum(PROBLEMS, seed=5)
    curriculum.draw(num_drawn)
    curriculum.observe([group(PROBLEMS[1], 1)], [[Verdict.of_score(1.0, "v@1")]])
    curriculum.save_state(tmp_path)
    resumed = Curriculum(PROBLEMS, seed=5)
    resumed.load_state(tmp_path)
    assert resumed.pass_rate("p1") == 1.0
    again = tmp_path / "again"
    again.mkdir()
    resumed.save_state(again)
    assert (again / "curriculum.json").read_bytes() == (tmp_path / "curriculum.json").read_bytes()
    assert names(resumed.draw(25)) == names(curriculum.draw(25))


def test_a_state_of_other_problems_or_another_seed_is_refused(tmp_path: Path) -> None:
    Curriculum(PROBLEMS, seed=5).save_state(tmp_path)
    others = [*PROBLEMS[:-1], Problem("p9", "a new text")]
    for problems, seed, named in (
        (PROBLEMS, 6, "seed: found 6; accepted: 5"),
        (PROBLEMS[:9], 5, "num_problems: found 9; accepted: 10"),
        (others, 5, "fingerprint: found"),
    ):
        with pytest.raises(RunError, match=named):
            Curriculum(problems, seed).load_state(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"seed": 5}'])
def test_a_state_that_cannot_be_read_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "curriculum.json").write_text(content)
    with pytest.raises(RunError, match=r"curriculum\.json"):
        Curriculum(PROBLEMS, seed=5).load_state(tmp_path)


def test_no_problems_are_refused() -> None:
    with pytest.raises(ConfigError):
        Curriculum([], seed=0)


def test_order_is_even() -> None:
    """Over many seeds each problem comes first about equally often."""
    firsts = Counter(Curriculum(PROBLEMS, seed).draw(1)[0].id for seed in range(1000))
    assert len(firsts) == 10
    assert 60 < min(firsts.values()) <= max(firsts.values()) < 145
