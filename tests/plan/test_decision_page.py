"""``decision.md``: what it says, that its facts come back, whose files are overwritten, and a run's own."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.config import parse
from assay.errors import ConfigError, UserError
from assay.plan.decision import decide
from assay.plan.facts import Facts
from assay.plan.record import (
    FILE,
    PILOT_OF,
    decision_text,
    facts_of_page,
    reward_terms,
    run_decision,
    write_page,
)
from assay.run.decision import DECISION, add_outcome
from assay.run.directory import Run

FACTS = Facts(reward="answer", num_problems=700, pass_at_1=0.25, passes=((8, 2), (8, 0)), hours=2.5)


def make_config(tmp_path: Path, **sections: Any) -> Any:
    tree: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": ["t"]}, "rl": {}}
    tree["run"] = {"directory": str(tmp_path), "name": "run"}
    return parse({**tree, **sections})


def test_a_page_names_every_candidate_and_its_facts_come_back(tmp_path: Path) -> None:
    decision = decide(FACTS)
    page = tmp_path / FILE
    write_page(page, decision_text(decision, title="x"))
    text = page.read_text()
    assert facts_of_page(page) == FACTS
    for one in (decision.recommended, *decision.rejected):
        assert f"`{one.name}`" in text and one.because in text
    assert text.rstrip().endswith("## How it ended")


def test_another_file_is_not_overwritten_but_ours_is(tmp_path: Path) -> None:
    page = tmp_path / FILE
    page.write_text("my own notes")
    with pytest.raises(
        UserError, match=r"decision\.md: found a file that assay plan did not write"
    ):
        write_page(page, "new")
    assert page.read_text() == "my own notes"
    write_page(page, decision_text(decide(FACTS), title="x"), overwrite=True)
    write_page(page, decision_text(decide(replace(FACTS, pass_at_1=0.5)), title="x"))
    assert "0.5" in page.read_text()
    with pytest.raises(UserError, match=r"found that of x; accepted: a new place"):
        write_page(page, decision_text(decide(FACTS), title="y"))
    with pytest.raises(UserError, match="cannot be written"):
        write_page(tmp_path / "no" / FILE, "x")


@pytest.mark.parametrize("facts", [FACTS, Facts(reward="answer"), Facts(reward="nothing")])
def test_a_page_says_what_is_known_once(facts: Facts) -> None:
    text = decision_text(decide(facts), title="x", chosen="dr_grpo", reward="math")
    assert "?%" not in text and "? MiB" not in text and "None" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`" in line]
    reasons = [row.split(" | ")[1] for row in rows]
    assert len(reasons) == len(set(reasons))


@pytest.mark.parametrize(
    "text", ["", "# mine", "<!-- assay plan facts: {} --", "<!-- assay plan facts: [1] -->"]
)
def test_what_is_no_page_of_ours_has_no_facts(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    found = facts_of_page(tmp_path / FILE)
    assert found is None or found == Facts()
    assert facts_of_page(tmp_path / "absent.md") is None


def test_a_run_repeats_what_was_planned_beside_its_file(tmp_path: Path) -> None:
    config = make_config(tmp_path, rl={"group_size": 16}, algorithm={"name": "grpo"})
    path = tmp_path / "gsm.toml"
    assert "as the configuration says" in run_decision(config, path)
    write_page(tmp_path / FILE, decision_text(decide(FACTS), title="gsm.toml"))
    text = run_decision(config, path)
    assert "measured by `assay plan`" in text and "| group size | 16 |" in text
    assert "`grpo`, recommended was another (below); the reward: `math`" in text
    assert "as the configuration says" in run_decision(config, tmp_path / "other.toml")
    pilot = tmp_path / "pilot.toml"
    pilot.write_text(f"{PILOT_OF}gsm.toml\n")
    assert "measured by `assay plan`" in run_decision(config, pilot)
    other = make_config(tmp_path, data={"train": ["t"], "verifier": "judge"})
    assert "| reward | judge |" in run_decision(other, path)  # the plan was for another reward


def test_demonstrations_are_counted_and_sampled_pairs_are_judged(tmp_path: Path) -> None:
    rows = tmp_path / "t.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n' * 60)
    config = parse({"model": {"path": "m"}, "sft": {"traces": [str(rows)]}})
    assert "`sft`, as recommended" in run_decision(config, None)
    sampled = parse(
        {"model": {"path": "m"}, "data": {"train": ["t"]}, "preference": {"pairs": ["run:runs/a"]}}
    )
    text = run_decision(sampled, None)
    assert "| reward | answer |" in text and "`dpo`, recommended was another" in text


def test_a_cold_start_that_was_recommended_keeps_its_reasons(tmp_path: Path) -> None:
    cold = replace(FACTS, pass_at_1=0.01, passes=((8, 0),), num_demonstrations=60)
    write_page(tmp_path / FILE, decision_text(decide(cold), title="gsm.toml"))
    config = parse({"model": {"path": "m"}, "sft": {"traces": ["t"]}})
    text = run_decision(config, tmp_path / "gsm.toml")
    assert "`sft`, as recommended" in text and "pass@1 is 1.0%" in text


def test_a_run_writes_its_decision_and_how_it_ended(tmp_path: Path) -> None:
    config = make_config(tmp_path, algorithm={"name": "dr_grpo"})
    with Run.create(config, decision=run_decision(config, None), num_steps=3, quiet=True) as run:
        run.record_evaluation({"eval/pass_at_1": 0.25, "eval/by_problem": {"a": 0.0, "b": 0.5}}, 0)
        run.record_evaluation({"eval/pass_at_1": 0.5, "eval/by_problem": {"a": 0.5, "b": 0.5}}, 3)
    text = (run.folder / DECISION).read_text()
    assert "`dr_grpo`, as recommended" in text
    last = text.splitlines()[-1]
    assert "stopped early, after step 0 of 3" in last
    assert (
        "held-out accuracy 0.250 before, 0.500 after (greedy), gained +25.0% (95% interval" in last
    )


def test_an_outcome_needs_a_page_and_harms_nothing_without_one(tmp_path: Path) -> None:
    add_outcome(tmp_path, "finished", 3, 3, [])
    assert not (tmp_path / DECISION).exists()
    (tmp_path / DECISION).write_text("# x\n")
    add_outcome(tmp_path, "finished", 3, None, [{"step": 0, "eval/pass_at_1": None}])
    add_outcome(
        tmp_path,
        "max_minutes",
        5,
        None,
        [{"step": 0, "eval/pass_at_1": 0.5, "eval/temperature": 1.0}],
    )
    lines = (tmp_path / DECISION).read_text().splitlines()
    assert lines[1].endswith("finished, after step 3; no held-out problems")
    assert "max_minutes, after step 5; held-out accuracy 0.500 at step 0" in lines[2]


def test_the_documentation_lists_the_rules() -> None:
    root = Path(__file__).parents[2]
    tool = runpy.run_path(str(root / "tools" / "planning_reference.py"))
    current = (root / "docs" / "planning.md").read_text(encoding="utf-8") == tool["page"]()
    assert current, "run: python tools/planning_reference.py"
    assert "`hacks_pay` | `reward` is `answer` / `tests` /" in tool["rules"]()


def test_each_term_of_the_reward_is_asked_for_its_reason() -> None:
    told = {"need": "Answers must be right.", "gamed_by": "a guess"}
    tree = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["t"], "verifier": "math + a.b:c"}}
    config = parse({**tree, "verification": {"reasons": {"math": told}}})
    terms = reward_terms(config)
    assert terms["math"] == "Answers must be right. Gamed by: a guess"
    assert terms["a.b:c"].endswith('gamed_by into [verification.reasons."a.b:c"]')
    assert "- `math`: Answers must be right." in run_decision(config, None)
    config = parse({**tree, "verification": {"reasons": {"maths": told}}})
    with pytest.raises(ConfigError, match=r"reasons.maths: found no term .* one of math, a.b:c"):
        reward_terms(config)
