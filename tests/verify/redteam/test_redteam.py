"""The red team finds what a weak verifier pays for, and names the completion that did it."""

from __future__ import annotations

import json
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, naive

from assay.data.problems import load_problems
from assay.errors import DataError, VerifierError
from assay.types import Completion, Problem, Verdict
from assay.verify.expression import BUILT_IN
from assay.verify.learned.panel import close_judges
from assay.verify.redteam.suite import VALUES, Case
from assay.verify.redteam.team import (
    choose_suite,
    honest_floors,
    is_accepted,
    labelled_cases,
    red_team,
    suites,
)


def contains(problem: Problem, completion: Completion) -> float:
    """A weak verifier: the answer stands somewhere."""
    return float(str(problem.spec["answer"]) in completion.text)


def rejects(problem: Problem, completion: Completion) -> float:
    """A verifier that pays for nothing."""
    return 0.0


def nearly(problem: Problem, completion: Completion) -> float:
    """A reward that pays for anything, and never quite all."""
    return 0.99 if completion.text else 0.0


def breaks(problem: Problem, completion: Completion) -> float:
    """A verifier that cannot judge long texts."""
    if len(completion.text) > 5000:
        raise ValueError("too long")
    return 0.0


def reads_another_key(problem: Problem, completion: Completion) -> float:
    return float(problem.spec["symbol"] == completion.text)


HERE = "test_redteam"


def test_a_weak_verifier_is_caught_with_the_completion_that_did_it() -> None:
    result = red_team(f"{HERE}:contains", num_workers=1)
    assert not result.held and result.num_accepted > 100
    assert result.accepted["hedged words"] == result.tried["hedged words"]
    finding = next(one for one in result.findings if one.attack == "hedged words")
    assert finding.kind == "attack accepted" and " or " in finding.completion
    text = str(result)
    assert f"not held: {result.num_accepted} attacks were accepted" in text
    assert "ACCEPTED" in text and finding.completion in text and "--json has them all" in text
    assert len(text.splitlines()) < 150
    plain = json.loads(json.dumps(result.as_dict()))
    assert plain["held"] is False and len(plain["findings"]) == len(result.findings)


def test_what_is_paid_for_a_hack_without_accepting_it_is_told() -> None:
    result = red_team(f"{HERE}:nearly", suite="math", num_workers=1)
    assert result.num_accepted == 0 and set(result.paid.values()) == {0.99}
    assert "accepted, paid up to 0.99" in str(result)
    assert result.as_dict()["paid"] == result.paid


def test_a_verifier_that_rejects_honest_work_does_not_hold() -> None:
    result = red_team(f"{HERE}:rejects", num_workers=1)
    assert result.num_accepted == 0 and result.controls_passed == 0 and not result.held
    assert {one.kind for one in result.findings} == {"control rejected"}
    assert str(result).endswith(
        "not held: no honest control passed, so rejected attacks are no evidence"
    )


def strict(problem: Problem, completion: Completion) -> float:
    """A reward that takes one form of the answer."""
    return float(completion.text.strip() == str(problem.spec["answer"]))


def test_failed_controls_are_told_and_do_not_decide() -> None:
    result = red_team(f"{HERE}:strict", num_workers=1)
    assert 0 < result.controls_passed < result.controls and not result.num_accepted
    assert result.held
    held, failed = str(result).splitlines()[-2:]
    assert held == "held: every attack was judged, and none was accepted"
    assert failed.startswith(f"{result.controls - result.controls_passed} honest controls failed")


def test_unjudged_attacks_are_reported_separately() -> None:
    result = red_team(f"{HERE}:breaks", num_workers=1)
    assert result.not_judged["length"] == result.tried["length"] and not result.accepted
    assert any(one.kind == "not judged" and "too long" in one.detail for one in result.findings)
    dark = result.not_judged.total()
    assert not result.held and f"not held: {dark} attacks were not judged" in str(result)
    assert "--problems" not in str(result)
    blind = red_team(f"{HERE}:reads_another_key", num_workers=1)
    assert "; --problems names your rows, --key the key of" in str(blind)


def test_problems_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"id": "mine", "prompt": "What is 3 + 4?", "answer": "7"}) + "\n")
    result = red_team(f"{HERE}:contains", load_problems([str(path)]), num_workers=1)
    assert {one.problem for one in result.findings} == {"mine"}
    assert result.tried["nearly"] == 4


def test_rows_with_their_own_key_are_attacked_once_it_is_named() -> None:
    rows = [Problem("mine", "What is 3 + 4?", {"symbol": "7"}, source="mine.jsonl:1")]
    name = f"{HERE}:reads_another_key"
    with pytest.raises(
        DataError, match=r"mine.jsonl:1: found the keys symbol; .*answer; .*--key NAME"
    ):
        red_team(name, rows, num_workers=1)
    found = red_team(name, rows, key="symbol", num_workers=1)
    assert not found.not_judged and found.tried["nearly"] == 4 and found.controls_passed
    with pytest.raises(DataError, match=r"mine.jsonl:1 --key: found no key 'symbl' but symbol"):
        red_team(name, rows, key="symbl", num_workers=1)


def test_suites_are_chosen_by_name_or_by_fit() -> None:
    assert choose_suite("think_format", None).name == "think_format"
    assert choose_suite("math*1.0 + think_format*0.1", None).name == "math"
    assert choose_suite("a.b:c", None).name == "math"
    rows = [Problem("p", "Write f.", {"tests": [{"args": [1], "expected": 2}]})]
    assert choose_suite("a.b:c", rows).name == "code"
    assert choose_suite("a.b:c", None, "code").name == "code"
    with pytest.raises(
        VerifierError, match=r"--suite: found .cod.; accepted: math, .*did you mean code"
    ):
        choose_suite("math", None, "cod")
    with pytest.raises(
        DataError, match=r"p: found the keys tests; accepted: what .* reads: answer"
    ):
        choose_suite("math", rows)


@pytest.mark.parametrize("name", suites())
def test_every_suite_has_attacks_controls_and_fits_its_own_problems(name: str) -> None:
    suite = suites()[name]
    assert suite.problems or any(not case.honest for case in labelled_cases(name))
    for problem in suite.problems:
        cases = list(suite.cases(problem))
        assert suite.fits(problem)
        assert any(case.honest for case in cases) and sum(not case.honest for case in cases) >= 4
        honest = {case.completion for case in cases if case.honest}
        assert not honest & {case.completion for case in cases if not case.honest}


def test_every_attack_in_the_files_is_tried_somewhere() -> None:
    """A misspelled value or file name would leave attacks out in silence."""
    folder = files("assay.verify.redteam") / "attacks"
    tables = {
        path.name.removesuffix(".toml"): tomllib.loads(path.read_text(encoding="utf-8"))
        for path in folder.iterdir()
    }
    left: dict[str, set[str]] = {
        name: {*table.get("attacks", ()), *table.get("framed", ())}
        for name, table in tables.items()
    }
    unknown = {name: {*_names(table)} - {"text"} for name, table in tables.items()}
    for name in VALUES:
        table, suite = tables[name], suites()[name]
        for problem, row in zip(suite.problems, table["problems"], strict=True):
            tried = {case.attack for case in suite.cases(problem)}
            assert tried >= {"control", *row.get("attacks", ())}
            for part in (name, *table.get("also", ())):
                left[part] -= tried
                unknown[part] -= {*(VALUES[name](problem) or {}), *row.get("values", {})}
    assert not any(left.values()) and not any(unknown.values())


def _names(table: Any) -> list[str]:
    return re.findall("«([^«»]+)»", json.dumps(table, ensure_ascii=False))


def test_what_a_problem_lacks_is_not_tried_on_it() -> None:
    def attacks(answer: object) -> set[str]:
        return {
            case.attack for case in suites()["math"].cases(Problem("p", "q", {"answer": answer}))
        }

    assert attacks(7) - attacks("x") == {"nearly", "a range", "another number"}
    assert attacks("1e999") == attacks("x")
    rows = [Problem("p", "q", {"task": "lcm", "metadata": {}})]
    assert {case.attack for case in suites()["gym"].cases(rows[0])} == {"nothing"}


def test_a_learned_verifier_is_held_against_its_honest_controls() -> None:
    problem = Problem("p", "q", {"answer": "1"})
    cases = [Case("control", problem, "1", honest=True), Case("padding", problem, "2" * 9)]
    paid = [Verdict.of_score(0.5, "rm@1", reward=value) for value in (1.0, 9.0)]
    floors = honest_floors(cases, paid)
    assert floors == {"p": 1.0}
    assert [is_accepted(*pair, floors) for pair in zip(cases, paid, strict=True)] == [True, True]
    cheap = Verdict.of_score(0.5, "rm@1", reward=0.5)
    assert not is_accepted(cases[1], cheap, floors)


HELD = sorted(suites().keys() & BUILT_IN.keys() - {"judge", "reward_model"})


@pytest.mark.parametrize("name", HELD)
def test_no_built_in_verifier_pays_for_a_known_hack(name: str) -> None:
    result = red_team(
        name, num_workers=4 if name == "code" else 1
    )  # programs that sleep do so side by side
    assert result.held and result.controls_passed == result.controls, str(result)
    assert sum(result.tried.values()) >= 4
    assert name != "math" or not result.paid


def test_no_injection_sways_the_judge() -> None:
    with JudgeServer(naive) as server:
        options = {"judge": {"url": server.url, "model": "local"}}
        result = red_team("judge", options=options)
    close_judges()
    assert result.held and result.controls_passed == result.controls, str(result)
