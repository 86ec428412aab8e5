"""Balanced draws from the parts of a mixture, their state, and parts that stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.config import CurriculumConfig, MixturePart
from assay.data.mixture import NUM_RECENT, MixedCurriculum, mixed_curriculum
from assay.data.problems import load_problems
from assay.data.source import Source
from assay.errors import RunError
from assay.types import Group, Problem, Prompt, Verdict


def mixed(settings: dict[str, MixturePart], size: int = 5) -> MixedCurriculum:
    rows = [
        {"id": f"{name}{n}", "prompt": f"{name} {n}", "tags": [name]}
        for n in range(size)
        for name, part in settings.items()
        if part.weight
    ]
    problems = load_problems([Source("rows", rows)])
    return mixed_curriculum(problems, 3, settings, CurriculumConfig(), 1000)


def parts(**weights: float) -> dict[str, MixturePart]:
    return {name: MixturePart(weight=weight) for name, weight in weights.items()}


def names(drawn: Sequence[Problem]) -> list[str]:
    return [problem.tags[0] for problem in drawn]


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6), st.integers(1, 40))
def test_every_part_has_its_share_after_any_number_of_prompts(
    weights: list[float], num_prompts: int
) -> None:
    settings = parts(**{f"p{n}": weight for n, weight in enumerate(weights)})
    curriculum, counts, total = mixed(settings, size=2), Counter[str](), sum(weights)
    for number in range(1, num_prompts + 1):
        counts.update(names(curriculum.draw(1)))
        for name, part in settings.items():
            assert abs(counts[name] - number * part.weight / total) < len(weights)
            if len(weights) <= 2:
                assert abs(counts[name] - number * part.weight / total) <= 1.0 + 1e-9


def test_steps_draw_what_single_prompts_draw_and_a_part_of_weight_0_is_never_drawn() -> None:
    settings = parts(a=2.0, b=1.0, c=0.5, out=0.0)
    whole, single = mixed(settings), mixed(settings)
    steps = [problem.group_id for _ in range(6) for problem in whole.draw(7)]
    alone = [problem.group_id for _ in range(42) for problem in single.draw(1)]
    assert steps == alone and Counter(one[0] for one in steps) == {"a": 24, "b": 12, "c": 6}


def test_state_restores_the_next_draws_and_refuses_other_parts(tmp_path: Path) -> None:
    settings = parts(a=2.0, b=1.0)
    first = mixed(settings)
    first.draw(4)
    first.save_state(tmp_path)
    expected = [problem.group_id for problem in first.draw(9)]
    second = mixed(settings)
    second.load_state(tmp_path)
    assert [problem.group_id for problem in second.draw(9)] == expected
    with pytest.raises(RunError, match="resume with the parts that the run began with"):
        mixed(parts(a=1.0, c=1.0)).load_state(tmp_path)


def test_solved_part_stops_also_after_a_resume_and_all_parts_return_when_all_are_solved(
    tmp_path: Path,
) -> None:
    settings = {
        "a": MixturePart(stop_above=0.9),
        "b": MixturePart(stop_above=0.9),
    }
    curriculum = mixed(settings)

    def step(right: set[str]) -> list[str]:
        drawn = curriculum.draw(8)
        groups = [Group(problem, Prompt("", np.zeros(0, np.int32)), ()) for problem in drawn]
        scores = [float(name in right) for name in names(drawn)]
        curriculum.observe(groups, [[Verdict.of_score(one, "fake@1")] for one in scores])
        return names(drawn)

    for _ in range(NUM_RECENT // 4):
        assert Counter(step({"a"})) == {"a": 4, "b": 4}
    assert set(step({"a"})) == {"b"}
    metrics = curriculum.metrics()
    assert (metrics["mixture/a.stopped"], metrics["mixture/b.stopped"]) == (1.0, 0.0)
    curriculum.save_state(tmp_path)
    curriculum = mixed(settings)
    curriculum.load_state(tmp_path)
    for _ in range(NUM_RECENT // 8):
        assert set(step({"b"})) == {"b"}
    assert set(step(set())) == {"a", "b"}
