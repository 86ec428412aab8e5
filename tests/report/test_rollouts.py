"""Rollouts in a terminal, and two runs side by side."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_fakes import FakeLearner, make_config, make_rollouts

from assay import cli
from assay.config import parse
from assay.errors import RunError
from assay.report.compare_runs import compare_runs
from assay.report.loaded import LoadedRun, load_run, load_run_at
from assay.report.rollouts import Kind, Reading, read_rollouts
from assay.run.directory import Run
from assay.run.evaluations import best_step
from assay.types import Verdict


def make_run(parent: Path, num_steps: int, accuracy: float, **sections: object) -> Path:
    """Make a run; its evaluations judge two problems, the second of which it never solves."""
    with Run.create(make_config(parent, **sections), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        row = {"eval/temperature": 0.0, "eval/stderr": 0.1, "eval/num_problems": 2}
        run.record_evaluation({**row, "eval/pass_at_1": 0.0})
        for _ in range(num_steps):
            groups, verdicts = make_rollouts(run.step + 1)
            first = replace(groups[0].completions[0], text="\x1b]0;mine\x07 red")
            members = (first, *groups[0].completions[1:])
            groups[0] = replace(groups[0], completions=members)
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
        by_problem = {"a": 2 * accuracy, "b": 0.0}
        run.record_evaluation({**row, "eval/pass_at_1": accuracy, "eval/by_problem": by_problem})
        return run.folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return load_run(make_run(tmp_path_factory.mktemp("runs"), 3, 0.25))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    changes = {"rl": {"steps": 4}, "sampling": {"temperature": 0.5}}
    return load_run(make_run(tmp_path_factory.mktemp("other"), 4, 0.5, **changes))


def test_what_is_asked_for_is_shown_first(run: LoadedRun) -> None:
    every = list(run.rollouts())
    rewards = sorted(row["reward"] for row in every if row["reward"] is not None)

    def read(kind: Kind, count: int = 4) -> list[dict[str, object]]:
        return [dict(row) for row in read_rollouts(run, kind, count).rollouts]

    assert [row["reward"] for row in read("worst")] == rewards[:4]
    assert [row["reward"] for row in read("best")] == rewards[::-1][:4]
    lengths = sorted((row["num_tokens"] for row in every), reverse=True)
    assert [row["num_tokens"] for row in read("longest")] == lengths[:4]
    for kind in ("failed", "not_judged"):
        found = read_rollouts(run, kind, 100)
        assert {row["status"] for row in found.rollouts} == {kind}
        assert found.found == len(run.rollouts(status=kind)) > 0
    newest = read_rollouts(run, count=2)
    assert [row["step"] for row in newest.rollouts] == [3, 3] and newest.found == len(every)
    assert {row["step"] for row in read_rollouts(run, step=2).rollouts} == {2}
    assert {row["problem_id"] for row in read_rollouts(run, problem="p1").rollouts} == {"p1"}


def test_flipped_problems_are_shown_before_and_after(run: LoadedRun) -> None:
    rows = read_rollouts(run, "flipped", 100).rollouts
    changes: list[float] = []
    assert rows
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        assert before["problem_id"] == after["problem_id"]
        assert before["step"] == 1 and after["step"] == 3
        shares = []
        for step in (1, 3):
            judged = run.rollouts(step=step, problem=before["problem_id"])["status"]
            judged = [status for status in judged if status != "not_judged"]
            shares.append(judged.count("passed") / len(judged))
        rose = shares[1] > shares[0]
        assert [before["status"], after["status"]] == (
            ["failed", "passed"] if rose else ["passed", "failed"]
        )
        changes.append(abs(shares[1] - shares[0]))
    assert changes == sorted(changes, reverse=True) and 0 not in changes


def test_why_there_is_nothing_to_read(tmp_path: Path, output: Any) -> None:
    config = make_config(tmp_path)
    with pytest.raises(ValueError), Run.create(config, quiet=True) as died:
        raise ValueError("reward: no key 'gold'")
    said = "ended after 0 steps: ValueError: reward: no key 'gold'"
    code, text, _ = output("run", "rollouts", died.folder)
    assert code == 0 and text == f"{died.folder}: no rollouts; the run {said}\n"
    _, text, _ = output("run", "rollouts", died.folder, "--worst", "--json")
    assert json.loads(text) == {
        "rollouts": [],
        "found": 0,
        "why": read_rollouts(load_run(died.folder)).why,
    }
    with pytest.raises(
        RunError, match="of step: found 1; accepted: no step, since it recorded none; it ended"
    ):
        read_rollouts(load_run(died.folder), step=1)
    run_in = {"directory": str(tmp_path), "name": "sft"}
    tree = {"run": run_in, "model": {"path": "model"}, "sft": {"traces": ["traces.jsonl"]}}
    with Run.create(parse(tree), num_steps=1, quiet=True) as run:
        pass
    assert "a run of [sft] does not sample" in str(read_rollouts(load_run(run.folder)))


def test_why_there_is_nothing_of_a_kind(tmp_path: Path) -> None:
    groups, verdicts = make_rollouts(1)
    with Run.create(make_config(tmp_path), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        passed = [tuple(Verdict.of_score(1.0, "v@1") for _ in each) for each in verdicts]
        run.record(groups, passed)
        run.finish_step(learner.learn(groups, passed))
    loaded = load_run(run.folder)
    total = len(loaded.rollouts())
    words_of: dict[Kind, str] = {
        "failed": "has failed",
        "not_judged": "was not judged",
        "flipped": "has flipped",
    }
    for kind, words in words_of.items():
        assert str(read_rollouts(loaded, kind)) == f"none of the run's {total} rollouts {words}"


def test_a_wrong_problem_or_step_is_one_line(run: LoadedRun) -> None:
    with pytest.raises(RunError, match="--problem: found 'p9'; accepted: an id, as p0, p1, p2"):
        read_rollouts(run, problem="p9")
    with pytest.raises(RunError, match="of step: found 9; accepted: a step from 1 to 3"):
        read_rollouts(run, step=9)
    assert read_rollouts(run, "worst", problem="p0", step=2).rollouts


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


def test_the_command_shows_text_escaped(run: LoadedRun, output: Any) -> None:
    code, text, _ = output("run", "rollouts", run.folder, "--step", 2, "100")
    assert code == 0 and "\x1b" not in text and "\\u001b]0;mine" in text
    assert "=== p0 ===\nQ: 0\n--- step 2, " in text and "(12 of 12 rollouts)" in text
    code, text, _ = output("run", "rollouts", run.folder, "--worst", "2", "--json")
    (line,) = text.splitlines()
    assert code == 0 and len(json.loads(line)["rollouts"]) == 2 and json.loads(line)["found"] > 2
    code, _, said = output("run", "rollouts", run.folder, "--worst", "--not-judged")
    assert code == 2 and "found --worst and --not-judged; accepted: at most one" in said
    code, _, said = output("run", "rollouts", run.folder.parent)
    assert code == 2 and "not a run directory" in said


def test_two_runs_are_compared(run: LoadedRun, other: LoadedRun, output: Any) -> None:
    found = compare_runs([run, other])
    assert found.settings == {"rl.steps": (12, 4), "sampling.temperature": (1.0, 0.5)}
    (greedy,) = found.heldout
    value, error = greedy.difference or (0.0, None)
    assert (value, error) == (pytest.approx(0.25), pytest.approx(0.25))  # 0.5 and 0 of two problems
    assert found.metrics["reward/mean"] == (
        pytest.approx(run.metrics["reward/mean"][-1]),
        pytest.approx(other.metrics["reward/mean"][-1]),
    )
    assert not any(name.startswith(("time/", "speed/")) for name in found.metrics)
    assert found.speed["seconds a step"][0] > 0 and found.surroundings == {}
    code, text, _ = output("run", "compare", run.folder, other.folder)
    assert code == 0 and "rl.steps" in text
    assert "greedy: A 25.0% (95% interval " in text and "at step 3, B 50.0% (95% interval" in text
    gain = greedy.paired.gain
    assert gain is not None and f"B minus A {gain.points}" in text
    code, text, _ = output("run", "compare", run.folder, other.folder, "--json")
    table = json.loads(text)
    assert table["settings"]["rl.steps"] == [12, 4] and table["heldout"][0]["difference"] == 0.25


def test_a_step_of_a_run_has_the_names_of_a_checkpoint(run: LoadedRun, output: Any) -> None:
    best = best_step(list(run.evaluations))
    assert load_run_at(f"{run.folder}@best").num_steps == best
    assert load_run_at(f"{run.folder}@last").num_steps == run.num_steps
    code, text, _ = output("run", "compare", f"{run.folder}@best", f"{run.folder}@{best}")
    assert code == 0 and "B minus A" in text
    with pytest.raises(RunError, match=r"found no evaluation after step 9999; accepted: an eval"):
        load_run_at(f"{run.folder}@9999")


def test_who_approves_without_a_run_to_resume_is_told(tmp_path: Path, output: Any) -> None:
    config = tmp_path / "run.toml"
    config.write_text('[model]\npath = "m"\n[data]\ntrain = ["rows.jsonl"]\n[rl]\n')
    code, _, said = output("train", config, "--approved-by", "Ada")
    assert code == 2 and "found --approved-by; accepted: only with --resume RUN" in said


def evaluated_on(run: LoadedRun, **shares: float) -> LoadedRun:
    """The same run, whose last evaluation was on other problems."""
    *before, last = run.evaluations
    mean = sum(shares.values()) / len(shares)
    return replace(
        run, evaluations=[*before, {**last, "eval/pass_at_1": mean, "eval/by_problem": shares}]
    )


def test_runs_on_different_problems_have_no_difference(run: LoadedRun) -> None:
    found = compare_runs([run, evaluated_on(run, c=1.0, d=1.0)])
    (greedy,) = found.heldout
    assert greedy.difference is None and greedy.paired.p_value is None
    (line,) = [one for one in str(found).splitlines() if one.startswith("greedy: ")]
    assert line.endswith("; not compared: they were evaluated on different problems")
    assert greedy.as_dict()["same_problems"] is False and greedy.as_dict()["difference"] is None
    some = compare_runs([run, evaluated_on(run, a=1.0, c=1.0)])
    assert some.heldout[0].difference == (pytest.approx(0.5), None)
    assert " over the 1 in common, p 1\n" in str(some)


def test_runs_that_name_other_data_and_tell_no_problems_have_no_difference(run: LoadedRun) -> None:
    def untold(run: LoadedRun) -> LoadedRun:
        *before, last = run.evaluations
        return replace(run, evaluations=[*before, {**last, "eval/by_problem": None}])

    same = compare_runs([untold(run), untold(run)]).heldout[0]
    assert same.difference is not None
    elsewhere = run.config.model_copy(
        update={"data": run.config.data.model_copy(update={"heldout": ("other.jsonl",)})}
    )
    other = replace(untold(run), config=elsewhere)
    assert compare_runs([untold(run), other]).heldout[0].difference is None


def test_a_header_does_not_repeat_a_whole_program(run: LoadedRun) -> None:
    row = dict(read_rollouts(run, count=1).rollouts[0])
    program = "def solve(n):\n" + "    n = n + 1\n" * 50
    long, short = (
        str(Reading([{**row, "text": program, "extracted": said}], 1)) for said in (program, "42")
    )
    (header,) = [line for line in long.splitlines() if line.startswith("--- step")]
    assert "extracted 'def solve(n):" in header and "..." in header and len(header) < 300
    assert long.count("n = n + 1") < 60 and "extracted '42'" in short


def test_a_run_is_like_itself(run: LoadedRun) -> None:
    found = compare_runs([run, run])
    assert not found.settings and "=== settings that differ ===\nnone" in str(found)
    assert all(a == b for a, b in found.metrics.values())


def test_more_than_two_runs_are_compared_with_the_first(
    run: LoadedRun, other: LoadedRun, output: Any
) -> None:
    found = compare_runs([run, other, run])
    assert found.settings["rl.steps"] == (12, 4, 12)
    differences = {one.other: (one.difference or (None,))[0] for one in found.heldout}
    assert differences == {"B": pytest.approx(0.25), "C": 0.0}
    code, text, _ = output("run", "compare", run.folder, other.folder, run.folder)
    assert code == 0 and "A  B  C" in " ".join(text.split("  "))
    code, _, said = output("run", "compare", run.folder)
    assert code == 2 and "found 1 runs; accepted: 2 to 26" in said
