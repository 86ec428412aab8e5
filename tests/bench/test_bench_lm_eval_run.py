"""What is ours beside lm-eval: its task with local rows, and the programs that mbpp runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "peers" / "lm_eval_run.py"


@pytest.fixture
def peer() -> Any:
    """The script, which runs in an environment without Assay."""
    spec = importlib.util.spec_from_file_location("lm_eval_run", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def f(x): return x + 1\nassert f(1) == 2", True),
        ("def f(x): return x\nassert f(1) == 2", False),
        ("import sys\nsys.exit(0)\nassert False", False),
        ("import os\nos._exit(0)\nassert False", False),
        ("def f(:", False),
        ("\0", False),
    ],
)
def test_a_program_passes_where_it_comes_to_its_end(peer: Any, program: str, passed: bool) -> None:
    peer.TEST_SECONDS = 60.0
    assert peer.passes(program) == passed
    found, _ = peer.CodeEval().compute(references=[""], predictions=[[program]], k=[1])
    assert found == {"pass@1": float(passed)}


def test_a_program_that_does_not_end_fails(peer: Any) -> None:
    peer.TEST_SECONDS = 0.2
    assert not peer.passes("while True: pass")


def test_the_task_is_lm_evals_with_local_rows(
    peer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = ModuleType("lm_eval")
    shipped.__file__ = "/somewhere/lm_eval/__init__.py"
    monkeypatch.setitem(sys.modules, "lm_eval", shipped)
    rows = [{"task_id": number, "text": "x"} for number in (1, 2, 4, 11)]
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file, some in zip(files, (rows[:2], rows[2:]), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in some))
    asked = Namespace(task="mbpp", rows=files, shots=None, out=tmp_path)
    written = peer.write_rows(asked)
    assert [json.loads(line)["task_id"] for line in written.read_text().splitlines()] == [1, 11]
    task = json.loads((tmp_path / f"{peer.write_task(asked, written)}.yaml").read_text())
    assert task["include"] == "/somewhere/lm_eval/tasks/mbpp/mbpp.yaml"
    assert task["dataset_kwargs"] == {"data_files": {"test": str(written)}}
    with pytest.raises(SystemExit, match="--shots names the training rows"):
        peer.write_task(Namespace(task="gsm8k", shots=None, out=tmp_path), written)
