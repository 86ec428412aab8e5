"""Generated manifests: the broken ones fail, the known repairs pass, for every kind of fault."""

from __future__ import annotations

import pytest

from assay.data.manifest_tasks import (
    CONFLICTS,
    FAULTS,
    TEXT_FAULTS,
    broken_manifests,
    repairs,
)
from assay.data.small_manifests import broken
from assay.errors import DataError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.manifests.manifests import MANIFESTS, judge_manifests

FORMS = [
    (name, form)
    for name in FAULTS
    for form in ("manifests", "changes")
    if form == "manifests" or name not in TEXT_FAULTS
]


def judge(problem: Problem, text: str) -> Part:
    return judge_manifests(problem, Completion.from_text(text))


@pytest.mark.parametrize(("fault", "form"), FORMS)
def test_broken_text_fails_and_its_repair_passes(fault: str, form: str) -> None:
    settings = {"size": 4, "faults": [fault], "form": form}
    for problem, trace in zip(broken_manifests(**settings), repairs(**settings), strict=True):
        assert MANIFESTS.check_spec is not None
        MANIFESTS.check_spec(problem.spec)
        assert judge(problem, trace.completion).passed
        unchanged = problem.spec["original"] if form == "manifests" else "Pod/x y: 1"
        part = judge(problem, f"```yaml\n{unchanged}```")
        assert part.passed is False and part.value == 0.0
        assert problem.prompt == trace.prompt and problem.tags == ("manifests", fault)


def test_there_are_two_dozen_kinds_of_faults() -> None:
    assert len(FAULTS) >= 24
    assert all(pair <= FAULTS.keys() for pair in CONFLICTS)


@pytest.mark.parametrize("form", ["manifests", "changes"])
def test_several_faults_are_repaired_together(form: str) -> None:
    settings = {"size": 20, "num_faults": 4, "form": form}
    for problem, trace in zip(broken_manifests(**settings), repairs(**settings), strict=True):
        assert len(problem.tags) == 5
        assert judge(problem, trace.completion).passed, problem.tags


def test_each_repaired_fault_earns_credit() -> None:
    problem = broken_manifests(
        size=1, faults=["ingress_port", "claim_name"], num_faults=2, form="changes"
    )[0]
    trace = repairs(size=1, faults=["ingress_port", "claim_name"], num_faults=2, form="changes")[0]
    _, first, second, _ = trace.completion.split("\n")[:4]
    one, both = (judge(problem, text).value for text in (first, f"{first}\n{second}"))
    assert one is not None and 0.0 < one < 1.0 and both == 1.0


def test_splits_share_no_problem_and_rows_depend_on_their_index_alone() -> None:
    train, held = (
        {row.prompt for row in broken_manifests(size=60, split=one)} for one in ("train", "heldout")
    )
    assert not train & held and len(train) > 50
    assert broken_manifests(size=3)[2] == broken_manifests(size=60)[2]
    assert broken_manifests(size=3)[2] != broken_manifests(size=3, seed=1)[2]


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"faults": ["selector"]}, "faults: found 'selector'; accepted: service_selector"),
        ({"faults": ["tab"], "form": "changes"}, "faults: found 'tab'"),
        ({"num_faults": 0}, "num_faults: found 0; accepted: 1 to 6"),
        ({"faults": ["tab", "key_twice"], "num_faults": 2}, "faults: found key_twice and tab"),
        ({"form": "patch"}, "form: found 'patch'; accepted: manifests, changes"),
        ({"split": "test"}, "split"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(DataError, match=fault):
        broken_manifests(**settings)  # pyright: ignore[reportArgumentType]


def test_small_manifests_are_repaired_by_a_line() -> None:
    for problem in broken(size=40, num_faults=1):
        assert isinstance(problem.prompt, str) and len(problem.prompt) < 300
        shown = dict(line.split(": ") for line in problem.prompt.splitlines())
        name = next(iter(shown)).split(" ")[0].split("/")[1]
        port = shown[f"Pod/{name} spec.containers[0].ports[0].containerPort"]
        tries = [
            f"Service/{name} spec.selector.app: {name}",
            f"Service/{name} spec.ports[0].targetPort: {port}",
            *(f"Service/{name} spec.ports[0].protocol: {one}" for one in ("TCP", "UDP", "SCTP")),
        ]
        assert sum(judge(problem, text).passed is True for text in tries) == 1
    with pytest.raises(DataError, match="num_faults: found 4; accepted: 1 to 3"):
        broken(num_faults=4)
