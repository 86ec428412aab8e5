"""The environment in which manifests are repaired by the verifier's messages."""

from __future__ import annotations

from typing import Any

import pytest

from assay.data.manifest_tasks import broken_manifests, repairs
from assay.errors import VerifierError
from assay.generate.turns import manifest_repair
from assay.generate.turns.manifest_repair import REPAIR, ManifestRepair, imperfect_repairs
from assay.types import Problem, ThinkFormat
from assay.verify.base import Part, as_part

BROKEN = """apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {restartPolicy: alway, containers: [{name: web, image: 'web:1', ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: wbe}, ports: [{port: 80}]}
"""
GOOD = BROKEN.replace("alway", "Always").replace("wbe", "web")
ROW = {"keep": GOOD, "original": BROKEN, "credit": "weighted", "turns": 3}
CHANGES = {**ROW, "form": "changes"}
POLICY = "Pod/web spec.restartPolicy: Always"
SELECTOR = "Service/web spec.selector.app: web"


def played(row: dict[str, Any], *replies: str) -> tuple[list[str], Part | None]:
    """Return the environment's messages, and the result if it has ended."""
    problem = Problem("p", "Repair it.", row)
    conversation = REPAIR.open_conversation(problem, ThinkFormat("free"))
    said: list[str] = []
    for reply in replies:
        answer = conversation.step(reply)
        said += [str(one["content"]) for one in answer or ()]
    return said, as_part(conversation.total(())) if conversation.is_over else None


def test_the_prompt_is_the_rows() -> None:
    problem = REPAIR.begun(Problem("p", "Repair it.", ROW))
    assert [one["content"] for one in problem.prompt if not isinstance(one, str)] == ["Repair it."]


def test_messages_list_what_is_wrong_until_nothing_is() -> None:
    said, result = played(CHANGES, POLICY, SELECTOR)
    assert said == [
        "Service/web spec.selector: no pod has the labels app=wbe\n"
        "Service/web: spec.selector.app must not change"
    ]
    assert result is not None and result.value == 1.0 and result.components["turns_left"] == 1.0


def test_whole_manifests_are_judged_anew_in_each_turn() -> None:
    half = GOOD.replace("Always", "alway")
    said, result = played(ROW, half, f"```yaml\n{GOOD}```")
    assert "did you mean Always?" in said[0] and result is not None and result.passed


def test_the_last_turn_earns_what_is_repaired() -> None:
    said, result = played({**CHANGES, "turns": 1}, POLICY)
    assert not said and result is not None and result.value is not None
    assert result.passed is False and 0.0 < result.value < 1.0


def test_a_reply_that_changes_nothing_is_named_and_costs_a_turn() -> None:
    said, result = played({**CHANGES, "turns": 3}, "Pod/wbe x: 1", POLICY, "I give up.")
    assert "0 resources are 'Pod/wbe'" in said[0] and len(said) == 2
    assert result is not None and result.value is not None and result.value > 0.0


def test_the_number_of_faults_in_a_message_is_the_rows() -> None:
    (said,), _ = played({**ROW, "faults_shown": 1}, BROKEN)
    assert "\n" not in said
    with pytest.raises(VerifierError, match=r"spec.turns: found 0"):
        played({**ROW, "turns": 0}, BROKEN)


def test_generated_problems_are_solved_in_one_turn_by_their_repairs() -> None:
    settings: dict[str, Any] = {"size": 6, "num_faults": 3}
    for problem, trace in zip(broken_manifests(**settings), repairs(**settings), strict=True):
        _, result = played(dict(problem.spec), trace.completion)
        assert result is not None and result.passed


def test_conversations_for_imitation_are_those_of_the_environment() -> None:
    rows = imperfect_repairs(size=30, num_faults=2, turns=3, right=0.6)
    lengths = set[int]()
    for trace in rows:
        assert all(trace.completion[end - 1] == "\n" for _, end in trace.said)
        assert trace.said[0][0] == 0 and trace.said[-1][1] == len(trace.completion)
        lengths.add(len(trace.said))
    assert (
        lengths == {2, 3}
        and rows[3] == imperfect_repairs(size=4, num_faults=2, turns=3, right=0.6)[3]
    )
    assert {
        len(one.said) for one in imperfect_repairs(size=9, num_faults=2, turns=3, right=1.0)
    } == {2}


def test_without_the_package_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_repair, "installed", lambda: False)
    with pytest.raises(VerifierError, match="pip install"):
        ManifestRepair().start(Problem("p", "q", ROW))
