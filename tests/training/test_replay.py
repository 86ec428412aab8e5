"""What the rollout log holds is neither generated nor judged again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from train_worlds import CountingJudge, verdict

from assay.config import SamplingConfig, parse
from assay.errors import RunError
from assay.run.directory import Run
from assay.session.evaluate import judge_groups
from assay.session.step_log import RunGenerator, RunVerifiers
from assay.testing import ScriptedGenerator
from assay.types import Completion, Problem, Verdict

SAMPLING = SamplingConfig()
PROBLEMS = [Problem(f"p{n}", f"{n}?", {"answer": f"{n}"}) for n in range(3)]


def judge_siblings(problem: Problem, completion: Completion) -> Verdict:
    outcome = [True, False, None][int(completion.id[-1])]
    return verdict(outcome, problem.spec["answer"])


class Counted(ScriptedGenerator):
    """Counts the prompts that it is asked for."""

    num_prompts = 0

    def generate(self, problems: Any, *rest: Any) -> Any:
        self.num_prompts += len(problems)
        return super().generate(problems, *rest)


def open_run(folder: Path, resume: bool) -> Run:
    tree = {
        "run": {"directory": str(folder), "name": "run"},
        "model": {"path": "m"},
        "data": {"train": ["x"]},
        "rl": {"steps": 4},
    }
    if resume:
        return Run.resume(folder / "run", quiet=True)
    return Run.create(parse(tree), quiet=True)


def parts(run: Run) -> tuple[RunGenerator, RunVerifiers, Counted, CountingJudge]:
    generator = Counted(lambda problem, sibling: f"{problem.id} says {sibling}")
    judge = CountingJudge(judge_siblings)
    return RunGenerator(generator, run), RunVerifiers(judge, run, lambda: {}), generator, judge


def test_logged_verdicts_are_not_judged_again(tmp_path: Path) -> None:
    with open_run(tmp_path, resume=False) as run:
        run.attach()
        generator, verifiers, counted, judge = parts(run)
        groups = generator.generate(PROBLEMS, SAMPLING, 3)
        verdicts = judge_groups(verifiers, groups)
        run.record(groups, verdicts)
        assert counted.num_prompts == 3 and len(judge.seen) == 9
    with open_run(tmp_path, resume=True) as run:
        run.attach()
        generator, verifiers, counted, judge = parts(run)
        replayed = generator.generate(PROBLEMS[::-1], SAMPLING, 3)
        again = judge_groups(verifiers, replayed)
        assert counted.num_prompts == 0 and judge.seen == []
    assert [group.id for group in replayed] == ["p2#0", "p1#0", "p0#0"]
    assert [group.problem.spec for group in replayed] == [one.spec for one in PROBLEMS[::-1]]
    for old, new in zip(verdicts, again[::-1], strict=True):
        assert [one.status for one in old] == [one.status for one in new]
        assert [one.extracted for one in old] == [one.extracted for one in new]
    texts = [[one.text for one in group.completions] for group in groups]
    assert [[one.text for one in group.completions] for group in replayed] == texts[::-1]


def test_one_missing_group_means_generating_all(tmp_path: Path) -> None:
    with open_run(tmp_path, resume=False) as run:
        run.attach()
        generator, verifiers, _, _ = parts(run)
        groups = generator.generate(PROBLEMS[:2], SAMPLING, 3)
        run.record(groups, judge_groups(verifiers, groups))
    with open_run(tmp_path, resume=True) as run:
        run.attach()
        generator, verifiers, counted, judge = parts(run)
        judge_groups(verifiers, generator.generate(PROBLEMS, SAMPLING, 3))
        assert counted.num_prompts == 3
        assert judge.seen == [f"p2#0/{n}" for n in range(3)]  # the others are those of the log


def test_completions_that_are_not_those_of_the_log_are_judged(tmp_path: Path) -> None:
    """A group of the same name: sampled on, or by another policy."""
    with open_run(tmp_path, resume=False) as run:
        run.attach()
        generator, verifiers, _, _ = parts(run)
        groups = generator.generate(PROBLEMS, SAMPLING, 3)
        run.record(groups, judge_groups(verifiers, groups))
    with open_run(tmp_path, resume=True) as run:
        run.attach()
        _, verifiers, other, judge = parts(run)
        other.script = lambda problem, sibling: "something else"
        judge_groups(verifiers, other.generate(PROBLEMS, SAMPLING, 3))
        assert len(judge.seen) == 9
        judge_groups(verifiers, other.generate(PROBLEMS, SAMPLING, 2, 1))
        assert len(judge.seen) == 15


def test_seconds_of_both_phases_are_counted(tmp_path: Path) -> None:
    with open_run(tmp_path, resume=False) as run:
        run.attach()
        generator, verifiers, _, _ = parts(run)
        judge_groups(verifiers, generator.generate(PROBLEMS, SAMPLING, 3))
        assert {"generate", "verify"} <= run.clock.drain().keys()


def test_verifiers_that_rows_name_later_are_written_down(tmp_path: Path) -> None:
    known: dict[str, Any] = {"math": {"version": 1, "hash": "a"}}
    with open_run(tmp_path, resume=False) as run:
        run.attach()
        judge = RunVerifiers(CountingJudge(judge_siblings), run, lambda: known)
        judge_groups(judge, [])
        assert run.verifiers == known
        known["user:reward"] = {"version": 1, "hash": "b"}
        judge_groups(judge, [])
        assert set(run.verifiers) == {"math", "user:reward"}
        known["math"] = {"version": 1, "hash": "c"}
        with pytest.raises(RunError, match="reward has changed"):
            judge_groups(judge, [])
