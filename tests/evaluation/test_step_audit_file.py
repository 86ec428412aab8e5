"""The file of a run's step audit is read as what it must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.errors import RunError
from assay.evaluation.step_audit import Milestone, StepAudit, read_step_audit

MILESTONE = Milestone(4, (1, 4), 3, 2, 1, 0, 0.5, (0.1, 0.9))
AUDIT = StepAudit("math", 0.5, [MILESTONE], {"too long": 1})


def test_a_step_audit_is_read_back(tmp_path: Path) -> None:
    assert read_step_audit(tmp_path) is None
    write(tmp_path, AUDIT.as_dict())
    found = read_step_audit(tmp_path)
    assert found is not None and found.as_dict() == AUDIT.as_dict()


@pytest.mark.parametrize("change", [{"milestones": 5}, {"milestones": [{}]}, {"below": "x"}])
def test_a_damaged_step_audit_is_one_line(tmp_path: Path, change: dict[str, Any]) -> None:
    write(tmp_path, {**AUDIT.as_dict(), **change})
    with pytest.raises(RunError, match=r"steps\.json \w+.*: found .*; accepted: ") as error:
        read_step_audit(tmp_path)
    assert "\n" not in str(error.value)


def write(folder: Path, value: dict[str, Any]) -> None:
    (folder / "audit").mkdir(exist_ok=True)
    (folder / "audit" / "steps.json").write_text(json.dumps(value))
