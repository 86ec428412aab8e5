"""The page: its eight names in order, and how a batch is collected."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_worlds import CountingJudge, World, verdict

from assay.config import CurriculumConfig, SamplingConfig, TrainConfig
from assay.data.curriculum import Curriculum
from assay.data.row_facts import RowFacts
from assay.errors import ConfigError
from assay.run.rollout_log import RolloutLog
from assay.session.assemble import choose_algorithm
from assay.testing import ScriptedGenerator
from assay.training import rl
from assay.training.api import train
from assay.training.batch_plan import BatchPlan, is_mixed
from assay.training.rl import Loop, collect, train_step
from assay.types import Completion, Group, Problem, Verdict
from assay.verify.service import VerifierService

NAMES = ("curriculum", "generator", "verifiers", "run", "learner", "advantages", "update", "guard")


def test_a_newcomer_meets_eight_names_in_order() -> None:
    page = inspect.getsource(train_step).split('"""')[2]
    places = [page.index(name) for name in NAMES]
    assert places == sorted(places)


def test_the_page_is_one_page() -> None:
    assert len(inspect.getsource(rl).splitlines()) <= 100
    (step,) = ast.parse(inspect.getsource(train_step)).body
    assert isinstance(step, ast.FunctionDef)
    assert len(step.body) <= 10, "each part is a single call"


class FakeRun:
    """Keeps what it is asked to record."""

    step = 0

    def __init__(self) -> None:
        self.recorded: list[str] = []

    def record(self, groups: Sequence[Group], verdicts: Sequence[Any], **facts: Any) -> None:
        assert not self.recorded, "a step is recorded once"
        assert len(groups) == len(verdicts)
        self.recorded = [group.id for group in groups]


def make_parts(
    right: Mapping[str, Sequence[bool | None]], max_refills: int = 0
) -> tuple[Curriculum, ScriptedGenerator, CountingJudge, Any, BatchPlan]:
    """Return what `collect` takes: two prompts a step, outcomes given by problem and sibling."""

    def judge(problem: Problem, completion: Completion) -> Verdict:
        return verdict(right[problem.id][int(completion.id.rpartition("/")[2])])

    rows = [Problem(name, name, {"answer": "1"}) for name in right]
    curriculum = Curriculum(rows, seed=0)
    curriculum._order = curriculum._order * 0 + range(len(rows))  # as given
    generator = ScriptedGenerator(lambda problem, sibling: problem.id)
    plan = BatchPlan(2, 2, SamplingConfig(), max_refills)
    return curriculum, generator, CountingJudge(judge), FakeRun(), plan


def ids(groups: Sequence[Group]) -> list[str]:
    return [group.problem.id for group in groups]


PASS, FAIL, MIXED = [True, True], [False, False], [True, False]


def test_without_dynamic_sampling_every_group_is_learned_from() -> None:
    curriculum, *others, run, plan = make_parts({"a": PASS, "b": FAIL, "c": MIXED})
    groups, verdicts = collect(curriculum, *others, run, plan)  # pyright: ignore
    assert ids(groups) == ["a", "b"] and [len(one) for one in verdicts] == [2, 2]
    assert run.recorded == ["a#0", "b#0"]
    assert curriculum.outcomes.judged.tolist() == [2, 2, 0]
    assert curriculum.outcomes.passed.tolist() == [2, 0, 0]


def test_groups_that_are_all_right_or_all_wrong_are_replaced() -> None:
    right = {"a": PASS, "b": MIXED, "c": FAIL, "d": MIXED, "e": MIXED}
    curriculum, generator, judge, run, plan = make_parts(right, max_refills=4)
    groups, verdicts = collect(curriculum, generator, judge, run, plan)
    assert ids(groups) == ["b", "d"]
    assert all(len({one.correct for one in row}) == 2 for row in verdicts)
    assert run.recorded == ["b#0", "d#0", "a#0", "c#0"], "passed over, and recorded all the same"
    assert judge.seen[-1] == "d#0/1", "no more is drawn than needed"


def test_refills_are_bounded() -> None:
    *parts, run, plan = make_parts(dict.fromkeys("abcdefgh", FAIL), max_refills=2)
    groups, _ = collect(*parts, run, plan)  # pyright: ignore
    assert ids(groups) == list("abcdef"), "two prompts, then two, then two; none is mixed: all kept"
    assert run.recorded == [f"{name}#0" for name in "abcdef"]


def test_a_batch_that_stays_short_is_learned_from_as_it_is() -> None:
    right = {"a": FAIL, "b": MIXED, "c": PASS, "d": FAIL}
    groups, _ = collect(*make_parts(right, max_refills=1))
    assert ids(groups) == ["b"]


def test_groups_without_success_are_sampled_on_until_something_passes() -> None:
    right = {"a": [False, False, False, True], "b": [True, False], "c": [False] * 6}
    curriculum, generator, judge, run, plan = make_parts(right)
    plan = replace(plan, num_prompts=3, max_group_size=5)
    groups, verdicts = collect(curriculum, generator, judge, run, plan)
    assert [len(group.completions) for group in groups] == [4, 2, 5]
    assert [len(one) for one in verdicts] == [4, 2, 5]
    assert [one.id for one in groups[2].completions] == [f"c#0/{n}" for n in range(5)]
    assert run.recorded == ["a#0", "b#0", "c#0"] and len(judge.seen) == 11


class RankedJudge(CountingJudge):
    """Its rewards depend on the whole group: a completion's place, over the number of siblings."""

    def compares_siblings(self, problem: Problem) -> bool:
        return problem.id != "d"

    def judge(self, groups: Sequence[Group]) -> list[tuple[Verdict, ...]]:
        return [
            tuple(
                replace(one, reward=(n + 1) / len(each)) if one.judged else one
                for n, one in enumerate(each)
            )
            for each in super().judge(groups)
        ]


def test_a_group_that_grows_is_judged_whole_where_siblings_are_compared() -> None:
    right = {"a": [False, False, False, True], "b": [True, False], "c": [False] * 6}
    right |= {"d": [False, False, True, False]}
    curriculum, generator, judge, run, plan = make_parts(right)
    plan, ranked = replace(plan, num_prompts=4, max_group_size=5), RankedJudge(judge.judge_one)
    groups, verdicts = collect(curriculum, generator, ranked, run, plan)
    assert ids(groups) == list("abcd")
    rewards = [[one.reward for one in each] for each in verdicts]
    assert rewards[:3] == [[n / size for n in range(1, size + 1)] for size in (4, 2, 5)]
    assert rewards[3] == [0.5, 1.0, 0.5, 1.0], "its verifier looks at each completion alone"
    assert [one.id for one in groups[2].completions] == [f"c#0/{n}" for n in range(5)]


def test_a_reward_of_lengths_among_siblings_counts_all_of_a_grown_group(world: World) -> None:
    """As it would be had the group been sampled at once: the run's log is judged again."""
    data = {"verifier": "constant*0.0 + kimi_length"}
    tree = world.tree(data=data, rl={"max_group_size": 12}, sampling={"max_tokens": 16})
    tree["sampling"]["stop"] = [chr(one) for one in range(33, 70)]  # so that lengths differ
    run = Path(train(tree, quiet=True).run)
    with closing(RolloutLog(run / "rollouts")) as log, VerifierService(data["verifier"]) as service:
        found = log.read(1)
        assert found is not None
        groups, verdicts = found
        assert [len(one.completions) for one in groups] == [12, 12]
        again = service.judge(groups)
    rewards = [[one.reward for one in each] for each in verdicts]
    assert rewards == [[one.reward for one in each] for each in again]
    assert any(len(set(each)) > 2 for each in rewards)


def test_groups_have_the_sizes_that_the_curriculum_says() -> None:
    """Equal sizes are sampled together, and the groups come in the order of their problems."""
    right = {"a": [True] * 4, "b": [True, False] * 2, "c": [True] * 4}
    _, generator, judge, run, plan = make_parts(right)
    rows = [Problem(name, name, {"answer": "1"}) for name in right]
    counts = np.array([[20, 1, 9], [20, 2, 20]], np.float32)
    settings = CurriculumConfig(group_sizes=(1, 4))
    curriculum = Curriculum(rows, 0, settings, RowFacts(counts=counts))
    curriculum._order = curriculum._order * 0 + range(len(rows))
    groups, verdicts = collect(curriculum, generator, judge, run, replace(plan, num_prompts=3))
    assert ids(groups) == ["a", "b", "c"] and run.recorded == ["a#0", "b#0", "c#0"]
    assert [len(group.completions) for group in groups] == [1, 2, 4] == list(map(len, verdicts))
    assert curriculum.outcomes.judged.tolist() == [21, 4, 24]


@pytest.mark.parametrize(
    ("name", "fewest", "expected"),
    [
        (
            "ppo",
            2,
            "with a critic, which weights all completions equally; accepted: groups of one",
        ),
        ("reinforce_plus_plus", 2, "with whitened advantages, which weights all completions"),
        ("rloo", 1, "curriculum.group_sizes: found [1, 16]; accepted: at least 2: rloo compares"),
        ("reinforce", 1, None),
        ("grpo", 2, None),
    ],
)
def test_sizes_that_an_algorithm_cannot_have_are_refused(
    name: str, fewest: int, expected: str | None
) -> None:
    tree = {
        "model": {"path": "nowhere"},
        "data": {"train": ["t.jsonl"]},
        "rl": {"group_size": 8},
        "algorithm": {"name": name},
        "curriculum": {"group_sizes": [fewest, 16]},
    }
    config = TrainConfig.model_validate(tree)
    if expected is None:
        assert choose_algorithm(config).name == name
        return
    with pytest.raises(ConfigError) as told:
        choose_algorithm(config)
    assert expected in str(told.value) and "\n" not in str(told.value)


def test_a_group_in_which_nothing_was_judged_does_not_grow() -> None:
    parts = make_parts({"a": [None, None], "b": [None, False, True, True]})
    plan = replace(parts[-1], max_group_size=8)
    groups, _ = collect(*parts[:-1], plan)
    assert [len(group.completions) for group in groups] == [2, 4]


def test_the_temperature_follows_its_schedule() -> None:
    plan = BatchPlan(1, 2, SamplingConfig(top_k=5), temperatures=[(0, 1.2), (10, 0.8)])
    found = [plan.sampling_at(step).temperature for step in (0, 5, 10, 99)]
    assert found == pytest.approx([1.2, 1.0, 0.8, 0.8])
    assert plan.sampling_at(5).top_k == 5
    assert BatchPlan(1, 2, SamplingConfig(temperature=0.7)).sampling_at(3).temperature == 0.7


@pytest.mark.parametrize(
    ("outcomes", "mixed"),
    [
        ([True, False], True),
        ([True, None], False),
        ([None, None], False),
        ([True, False, None], True),
    ],
)
def test_only_judged_siblings_make_a_group_mixed(outcomes: list[bool | None], mixed: bool) -> None:
    assert is_mixed([verdict(one) for one in outcomes]) is mixed


def test_the_loop_is_a_plain_value() -> None:
    assert set(Loop.__dataclass_fields__) >= {*NAMES} - {"advantages", "update"}
