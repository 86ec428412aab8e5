"""``assay plan``: measured from a configuration, told, or asked; and what it writes."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from assay import cli
from assay import config as configuration
from assay.errors import UserError
from assay.plan.decision import ask_all
from assay.plan.facts import Facts, parse_facts, reward_of
from assay.plan.measured import plan as planning
from assay.plan.record import facts_of_page
from assay.testing import save_tiny_model
from assay.training.api import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk."""
    return save_tiny_model(tmp_path_factory.mktemp("model"), max_positions=64)


@pytest.fixture
def tree(model: Path, tmp_path: Path) -> dict[str, Any]:
    """A small RL configuration with its problems."""
    rows = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(60)]
    for name, part in (("train", rows[:52]), ("heldout", rows[52:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (tmp_path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return {
        "run": {"threads": 1, "directory": str(tmp_path / "runs")},
        "model": {"path": str(model)},
        "data": {
            "train": [str(tmp_path / "train.jsonl")],
            "heldout": [str(tmp_path / "heldout.jsonl")],
            "verifier": "plan_rewards:even",
        },
        "sampling": {"max_tokens": 8},
        "engine": {"num_slots": 8},
        "rl": {"steps": 4, "num_prompts": 2, "group_size": 4},
        "verification": {"num_workers": 1},
    }


def write(tree: dict[str, Any], folder: Path, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return path


def test_a_configuration_is_measured_and_nothing_is_trained(
    tree: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(tree, tmp_path)
    found = planning.plan(config, num_problems=6)
    facts = found.decision.facts
    assert facts.num_problems == 52 and len(facts.passes) == 6
    assert 0 < (facts.pass_at_1 or 0) < 1 and facts.num_samples == 8
    assert facts.seconds_per_step is not None and facts.seconds_per_step > 0
    assert facts.base_mib is not None and facts.base_mib > 100 and facts.hours is None
    assert facts.truncated == 1.0  # eight tokens are few
    assert found.decision.name == "dapo" and found.chosen == "dr_grpo"
    assert not (tmp_path / "runs").exists()
    page, pilot = found.files
    assert (page, pilot) == (tmp_path / "decision.md", tmp_path / "pilot.toml")
    assert facts_of_page(page) == facts
    assert "Estimates of the configured run" in page.read_text()
    made = configuration.build(tomllib.loads(pilot.read_text()))
    assert made.rl is not None and made.algorithm.name == "dapo"
    row = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert row["recommended"] == "dapo" and row["estimates"]["memory_mib"]["total"] > 100
    assert "the configuration says dr_grpo" in str(found)
    evaluations = row["estimates"]["evaluation_minutes"]
    assert evaluations > 0 and f"4 steps {row['estimates']['minutes']:.1f}, 2 evaluations" in str(
        found
    )


def test_a_teacher_is_planned_for(tree: dict[str, Any], model: Path, tmp_path: Path) -> None:
    """On traces, on traces where it is asked once, on the student's own, and beside a reward."""
    # The last 8 of the tree's 60 problems are held out, and a trace must not repeat their prompts.
    traces = [json.dumps({"prompt": f"{n} + 1 =", "completion": f" {n + 1}"}) for n in range(52)]
    (tmp_path / "traces.jsonl").write_text("\n".join(traces))
    tree["teacher"] = {"path": str(save_tiny_model(tmp_path / "teacher", hidden_size=96))}
    given = {"traces": [str(tmp_path / "traces.jsonl")], "tokens_per_step": 60}
    once = {**given, "keep": str(tmp_path / "kept"), "keep_top": 4}
    own = {"num_prompts": 2, "group_size": 4, "steps": 3}
    stages: dict[str, dict[str, Any]] = {
        "given": {"distill": given},
        "once": {"distill": once},
        "own": {"distill": own},
        "rewarded": {"rl": tree.pop("rl"), "algorithm": {"name": "on_policy_distillation"}},
    }
    found: dict[str, Any] = {}
    for name, stage in stages.items():
        config = write(tree | stage, tmp_path, f"{name}.toml")
        planned = planning.plan(config, num_problems=2, out=tmp_path / f"{name}.md", overwrite=True)
        found[name] = planned.measured
        assert planned.decision.facts.seconds_per_step == found[name].seconds.total > 0
        pilot = planned.pilot.config
        assert pilot is None or "teacher" not in pilot  # no stage of a pilot asks it
    mib = {name: one.memory.parts for name, one in found.items()}
    assert mib["given"]["teacher"] == mib["own"]["teacher"] == mib["rewarded"]["teacher"]
    assert mib["once"]["asked"] == mib["given"]["teacher"] and "teacher" not in mib["once"]
    assert [one.seconds.teacher > 0 for one in found.values()] == [True, False, True, True]
    assert found["once"].seconds.once > 0 == found["given"].seconds.once
    assert found["given"].num_steps == found["once"].num_steps and found["own"].num_steps == 3

    train(tree | stages["once"], quiet=True)  # now the folder lacks nothing
    kept = write(tree | stages["once"], tmp_path, "kept.toml")
    after = planning.plan(kept, out=tmp_path / "kept.md", overwrite=True).measured
    assert after.seconds.once == 0 and "asking" not in after.memory.parts


def test_a_checker_that_judges_nothing_is_detected(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["data"]["verifier"] = "plan_rewards:never"
    found = planning.plan(write(tree, tmp_path), num_problems=2)
    assert found.decision.name == "harden_verifier"
    assert "100% of completions are not judged" in found.decision.recommended.because
    assert found.pilot.config is None and len(found.files) == 1


def test_a_plan_without_a_pilot_leaves_no_earlier_one(tmp_path: Path) -> None:
    page, pilot = tmp_path / "decision.md", tmp_path / "pilot.toml"
    checked = ["reward=answer", "num_problems=2000", "pass_at_1=0.3"]
    assert planning.plan(None, given=checked, out=page).files == (page, pilot) and pilot.exists()
    assert planning.plan(None, given=["reward=pairs", "num_pairs=6"], out=page).files == (page,)
    assert not pilot.exists()
    pilot.write_text("# mine\n")
    planning.plan(None, given=["reward=pairs", "num_pairs=6"], out=page)
    assert pilot.read_text() == "# mine\n"


@pytest.mark.parametrize("num_problems", [None, 0])
def test_stated_facts_replace_measured_ones(
    num_problems: int | None, tree: dict[str, Any], tmp_path: Path
) -> None:
    tree["model"]["path"] = (
        str(tmp_path / "elsewhere") if num_problems is None else tree["model"]["path"]
    )
    said: list[str] = []
    given = ["pass_at_1=0.5", "hours=3"]
    config = write(tree, tmp_path)
    found = planning.plan(config, given=given, num_problems=num_problems, say=said.append)
    assert found.decision.facts.pass_at_1 == 0.5 and found.decision.facts.hours == 3.0
    assert (found.measured is None) == (num_problems is None)
    assert any("nothing is measured" in text for text in said) == (num_problems is None)


def test_supervised_and_preference_stages(tree: dict[str, Any], tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 =", "completion": f" {n + 1}"} for n in range(60)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cold = {name: tree[name] for name in ("run", "model", "sampling", "engine", "verification")}
    cold["sft"] = {"traces": [str(tmp_path / "t.jsonl")], "tokens_per_step": 64}
    found = planning.plan(write(cold, tmp_path))
    assert found.decision.name == "sft" == found.chosen and found.measured.seconds.total > 0
    assert found.decision.facts.num_demonstrations == 60
    pairs = [{"prompt": "a", "chosen": f"b{n}", "rejected": "c"} for n in range(120)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    del cold["sft"]
    preferred = {**cold, "preference": {"pairs": [str(tmp_path / "p.jsonl")], "method": "ipo"}}
    preferred["model"] = {"path": str(tmp_path / "elsewhere")}
    found = planning.plan(write(preferred, tmp_path))
    assert found.decision.name == "dpo" and found.chosen == "ipo"
    assert found.decision.facts.num_pairs == 120 and found.measured is None


@pytest.mark.parametrize("method", ["dpo", "kto", "simpo"])
def test_given_pairs_are_timed_with_their_scoring(
    method: str, tree: dict[str, Any], tmp_path: Path
) -> None:
    row: dict[str, Any] = {"prompt": "a", "chosen": "b", "rejected": "c"}
    rows = [{**row, "prompt": f"{n}"} for n in range(40)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    names = ("run", "model", "sampling", "engine", "verification")
    settings = {"pairs": [str(tmp_path / "p.jsonl")], "method": method, "pairs_per_step": 16}
    watched = {"watch_start": False} if method == "simpo" else {}
    cold = {**{name: tree[name] for name in names}, "preference": {**settings, **watched}}
    measured = planning.plan(write(cold, tmp_path), num_problems=0).measured
    # of KTO a step takes single completions, of which there are 80
    assert measured.num_steps == (5 if method == "kto" else 3)
    assert measured.seconds.update > 0 and measured.minutes > 0
    assert (measured.seconds.once > 0) == (method != "simpo"), "only what is scored takes time"
    assert measured.memory.parts["activations"] > 0


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("math", ("answer", False, False)),
        ("code", ("tests", False, False)),
        ("math|judge", ("judge", False, False)),
        ("math*1.0 + think_format*0.1", ("answer", False, True)),
        ("math + process_reward_model*0.1", ("answer", True, True)),
        ("plan_rewards:even", ("answer", False, False)),
    ],
)
def test_where_the_reward_comes_from(expression: str, expected: tuple[Any, ...]) -> None:
    assert reward_of(expression) == expected


def test_facts_are_read_by_their_types() -> None:
    given = ["reward=judge", "pass-at-1=0.25", "num_problems=7", "step_labels=yes", "hours=2"]
    found = parse_facts(given)
    assert found == {
        "reward": "judge",
        "pass_at_1": 0.25,
        "num_problems": 7,
        "step_labels": True,
        "hours": 2.0,
    }
    assert isinstance(found["hours"], float)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("rewrd=x", "did you mean reward"),
        ("reward", "accepted: NAME=VALUE"),
        ("reward=oracle", "found 'oracle'; accepted: answer"),
        ("num_problems=many", "accepted: a whole number"),
        ("pass_at_1=x", "accepted: a number"),
        ("experts=2", "accepted: true or false"),
    ],
)
def test_wrong_facts_are_reported(given: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_facts([given])


def answering(*answers: str) -> Any:
    """Return what stands for a person: answers in turn, then whatever is proposed."""
    left = list(answers)

    def ask(question: str, default: str, err: bool) -> str:
        assert err, "questions go where results do not"
        return left.pop(0) if left else default

    return ask


def test_questions_ask_what_matters_only() -> None:
    said: list[str] = []
    found = ask_all(answering("oracle", "pairs", "400", "no"), said.append)
    assert found == Facts(reward="pairs", num_pairs=400, can_sample=False)
    assert any("found 'oracle'" in text for text in said)
    assert ask_all(answering(), said.append) == Facts(reward="answer")
    sampled = ask_all(answering("answer", "0", "900", "1.5", "0.5", "8", "0.9"), said.append)
    assert (sampled.pass_at_1, sampled.num_samples, sampled.pass_at_k) == (0.5, 8, 0.9)
    assert any("pass_at_1: found 1.5" in text for text in said)


def test_a_missing_terminal_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["assay", "plan"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: assay plan: found no CONFIG") and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_person_is_asked_and_flags_do_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(planning, "can_ask", lambda: True)
    asked = planning.plan(None, ask=answering("demonstrations", "900"), say=lambda text: None)
    assert asked.decision.name == "sft"
    monkeypatch.setattr(
        sys, "argv", ["assay", "plan", "--json", "--fact", "reward=tests", "--out", "d.md"]
    )
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    row = json.loads(capsys.readouterr().out)
    assert row["recommended"] == "dr_grpo" and row["files"] == ["d.md", "pilot.toml"]


def test_help_loads_no_torch() -> None:
    import subprocess

    code = (
        "import sys; from assay.cli import main; sys.argv = ['assay', 'plan', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "import assay.plan.measured.plan\nassert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_file_name_cannot_write_into_the_pilot(tree: dict[str, Any], tmp_path: Path) -> None:
    tree["model"]["path"] = str(tmp_path / "nowhere")
    config = tmp_path / "a\n[run]\nseed = 7\n#.toml"
    config.write_text(tomli_w.dumps(tree))
    found = planning.plan(config)
    page, pilot = found.files
    assert pilot.read_text().splitlines()[1] == ""
    made = tomllib.loads(pilot.read_text())
    assert made.get("run", {}).get("seed") != 7
    assert "\n[run]" not in page.read_text().partition("\n\n")[0]
    assert planning.plan(config).files == found.files
