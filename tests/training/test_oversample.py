"""Over-sampling: nothing twice, nothing lost, the same after a kill and on actors."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from train_killer import fingerprint
from train_worlds import CountingJudge, World, rows_of, verdict

from assay.config import SamplingConfig, parse
from assay.data.curriculum import Curriculum
from assay.errors import ConfigError
from assay.evaluation.replay import replay
from assay.run.directory import Run
from assay.run.rollout_log import RolloutLog
from assay.testing import ScriptedGenerator
from assay.training.api import train
from assay.training.batch_plan import BatchPlan
from assay.training.rl import collect
from assay.types import Group, Problem

STOPS = [chr(one) for one in range(33, 70)]  # so that lengths differ
RACE: dict[str, Any] = {
    "rl": {"steps": 5, "oversample": 1, "num_prompts": 3},
    "sampling": {"max_tokens": 16, "stop": STOPS},
}
ROWS = [Problem(f"p{n}", f"p{n}", {"answer": "1"}) for n in range(12)]


class FakeRun:
    """Keeps the names of the groups of each step."""

    def __init__(self) -> None:
        self.step, self.steps = 0, list[list[str]]()

    def record(self, groups: list[Group], verdicts: Any, **facts: Any) -> None:
        self.steps.append([group.id for group in groups])
        self.step += 1


def length_of(problem: Problem) -> int:
    """Every fourth problem is long, always."""
    number = int(problem.id[1:])
    return 50 + number if number % 4 == 0 else 1 + number


def slow_and_obvious(drawn: list[Problem], num_prompts: int, more: int, steps: int) -> list[Any]:
    """What is learned from in each step, by looking at all lengths."""
    waiting, found = list[Problem](), list[list[str]]()
    for _ in range(steps):
        if len(waiting) >= num_prompts:
            taken, waiting = waiting[:num_prompts], waiting[num_prompts:]
        else:
            some = [drawn.pop(0) for _ in range(num_prompts + more)]
            order = sorted(some, key=length_of)
            taken = [one for one in some if one in order[:num_prompts]]
            waiting += [one for one in some if one not in taken]
        found.append([one.group_id for one in taken])
    return found


@pytest.mark.parametrize("max_refills", [0, 2])
@pytest.mark.parametrize(("num_prompts", "more"), [(3, 1), (4, 2), (2, 5)])
def test_what_is_put_back_is_learned_from_once(
    num_prompts: int, more: int, max_refills: int
) -> None:
    """Also with dynamic sampling, where every group here is mixed."""
    generator = ScriptedGenerator(lambda problem, sibling: "x" * length_of(problem))
    judge = CountingJudge(lambda problem, completion: verdict(completion.id.endswith("0")))
    run, curriculum = FakeRun(), Curriculum(ROWS, 7, oversample=more)
    plan = BatchPlan(num_prompts, 2, SamplingConfig(), max_refills)
    for _ in range(30):
        collect(curriculum, generator, judge, run, plan)  # pyright: ignore
    drawn = Curriculum(ROWS, 7).draw(30 * (num_prompts + more))
    names = [one.group_id for one in drawn]
    assert run.steps == slow_and_obvious(drawn, num_prompts, more, 30)
    learned = [name for step in run.steps for name in step]
    assert max(Counter(learned).values()) == 1, "nothing twice"
    waiting = curriculum.metrics()["oversample/waiting"]
    so_far = names[: len(learned) + int(waiting)]
    assert {*learned} <= {*so_far} and len({*so_far}) - len(learned) == waiting, "nothing lost"
    assert {name.partition("#")[0] for name in learned} == {row.id for row in ROWS}, "no long one"


def test_refills_are_not_over_sampled() -> None:
    """Groups that are all right are replaced by as many as are missing, and none waits for that."""
    generator = ScriptedGenerator(lambda problem, sibling: "x" * length_of(problem))
    judge = CountingJudge(lambda problem, completion: verdict(True))
    curriculum, run = Curriculum(ROWS, 7, oversample=1), FakeRun()
    collect(curriculum, generator, judge, run, BatchPlan(3, 2, SamplingConfig(), 2))  # pyright: ignore
    assert len(run.steps[0]) == 9 and curriculum.metrics()["oversample/waiting"] == 1


def test_a_curriculum_goes_on_with_those_that_wait(tmp_path: Path) -> None:
    """Those that wait come, too, once nothing is over-sampled any more."""
    states: list[Curriculum] = []
    curriculum = Curriculum(ROWS, 7, oversample=2)
    for step in range(4):
        drawn = curriculum.draw(3)
        groups = ScriptedGenerator(lambda *_: "x").generate(drawn[:3], SamplingConfig(), 1)
        curriculum.observe(groups, [[verdict(True)]] * 3)
        if step == 0:
            curriculum.save_state(tmp_path)
            for more in (2, 0):
                states.append(Curriculum(ROWS, 7, oversample=more))
                states[-1].load_state(tmp_path)
            names = [one.group_id for one in drawn]
            assert json.loads((tmp_path / "curriculum.json").read_text())["waiting"].keys() == {
                *names[3:]
            }
            again = states[0].draw(3)
            assert [one.group_id for one in states[1].draw(3)[:2]] == names[3:]
        elif step == 1:
            assert again == drawn
    Curriculum(ROWS, 7).save_state(tmp_path)
    assert "waiting" not in (tmp_path / "curriculum.json").read_text()


def run_of(world: World, name: str, **sections: Any) -> Path:
    tree = world.tree(**RACE, **sections)
    tree["run"]["name"] = name
    return Path(train(tree, quiet=True).run)


def test_a_killed_run_resumes_to_the_same_bits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once behind the rollouts of a step, and once before them."""
    whole = run_of(world, "whole")
    for name, method, at in (("behind", "finish_step", 4), ("before", "record", 3)):
        original = getattr(Run, method)

        def killed(run: Run, *rest: Any, _as_it_was: Any = original, _at: int = at, **more: Any):
            if run.step + 1 == _at:
                raise KeyboardInterrupt
            return _as_it_was(run, *rest, **more)

        with monkeypatch.context() as patch:
            patch.setattr(Run, method, killed)
            with pytest.raises(KeyboardInterrupt):
                run_of(world, name)
        train(resume=world.folder / "runs" / name, quiet=True)
        assert fingerprint(world.folder / "runs" / name) == fingerprint(whole)
    rows = rows_of(whole, "metrics")
    assert [row.get("oversample/groups") for row in rows] == [1, 1, 1, None, 1]
    assert [row["oversample/waiting"] for row in rows] == [1, 2, 3, 0, 1]
    with RolloutLogs(whole) as log:
        said = [log.put_back(step) for step in range(1, 6)]
        for one, row in zip(said, rows, strict=True):
            assert (one and one.tokens) == row.get("oversample/tokens")
        fourth = log.read(4)
        assert fourth is not None and [one.id for one in fourth.groups] == [
            name for one in said[:3] if one is not None for name in one.groups
        ]


class RolloutLogs:
    def __init__(self, run: Path) -> None:
        self.log = RolloutLog(run / "rollouts")

    def __enter__(self) -> RolloutLog:
        return self.log

    def __exit__(self, *error: object) -> None:
        self.log.close()


def test_a_step_is_replayed(world: World) -> None:
    whole = run_of(world, "whole")
    for step in (3, 4):
        again = replay(whole, step)
        assert again.agrees, str(again)


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")
def test_actors_give_the_bits_of_one_process(world: World) -> None:
    """But for the tokens of what is given up: an actor hears of it a moment later."""
    found = [fingerprint(run_of(world, "plain"))]
    found.append(fingerprint(run_of(world, "two", scale={"rollout_actors": 2})))
    for one in found:
        assert all(row.pop("oversample/tokens", 1) > 0 for row in one["metrics"])
    assert found[0].keys() == found[1].keys()
    assert [key for key in found[0] if found[0][key] != found[1][key]] == []


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"curriculum": {"group_sizes": [2, 8]}}, "0 with curriculum.group_sizes"),
        ({"sampling": {"max_tokens": 9, "min_think": 2}}, "0 with sampling.min_think"),
        (
            {"scale": {"rollout_actors": 1, "steps_ahead": 2}},
            "0 with scale.steps_ahead, which cancels",
        ),
    ],
)
def test_where_it_cannot_work_one_line_says_so(
    world: World, sections: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as told:
        parse(world.tree(rl={"oversample": 2}, **sections))
    assert f"rl.oversample: found 2; accepted: {words}" in str(told.value)
    assert "\n" not in str(told.value)
