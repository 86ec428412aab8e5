"""Assay in a notebook, run by a real kernel: what its cells show, and what an error looks like."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient ipykernel")
pytest.importorskip("ipykernel", reason="needs ipykernel: pip install nbclient ipykernel")
nbformat = pytest.importorskip("nbformat")

ROOT = Path(__file__).resolve().parent.parent
ESCAPE = "\x1b"
PREPARE = """\
import assay
from assay.testing import save_tiny_model
save_tiny_model("model")
rows = '{"question": "1+1=", "answer": "2"}\\n{"question": "2+1=", "answer": "3"}\\n'
open("rows.jsonl", "w").write(rows)
data = {"train": ["rows.jsonl"], "verifier": "my_reward:reward"}
sizes = {"steps": 3, "num_prompts": 2, "group_size": 2}
config = {"model": {"path": "model"}, "data": data, "sampling": {"max_tokens": 4}, "rl": sizes}
"""
REWARD = """\
%%writefile my_reward.py
def reward(problem, completion):
    return float(len(completion.text) % 2 == int(problem.spec["{key}"]) % 2)
"""
INTERRUPT = """\
import _thread, pathlib, threading, time
def interrupt():
    while not pathlib.Path("runs/long/metrics.jsonl").exists():
        time.sleep(0.1)
    _thread.interrupt_main()
threading.Thread(target=interrupt).start()
"""

Cell = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """Run a cell of one notebook, and return its outputs."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook()
    client = nbclient.NotebookClient(
        notebook, timeout=250, allow_errors=True, resources={"metadata": {"path": str(folder)}}
    )

    def run(source: str) -> list[Any]:
        notebook.cells.append(nbformat.v4.new_code_cell(source))
        return client.execute_cell(notebook.cells[-1], len(notebook.cells) - 1).outputs

    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": paths}, cwd=str(folder)):
        run(PREPARE)
        run(REWARD.format(key="answer"))
        yield run


def test_a_run_is_shown_in_place_and_read_as_tables(cell: Cell) -> None:
    shown = cell("result = assay.train(config)\nresult")
    assert {one.output_type for one in shown} == {"display_data", "execute_result"}
    assert ESCAPE not in str(shown), "a page knows no colors of a terminal"
    *_, last, result = [one["data"] for one in shown]
    assert "3/3" in last["text/plain"] and "<pre>run" in last["text/html"]
    assert sum(" s/step " in str(one) for one in shown) == 1, (
        "each step takes the place of the last"
    )
    assert result["text/plain"].startswith("runs/run: finished after 3 steps")
    (table,) = cell("run = assay.load_run(result.run)\nrun.rollouts(step='last', worst=2)")
    assert table["data"]["text/html"].startswith("<table") and "rows.jsonl:" in str(table)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            "assay.train({**config, 'rl': {**sizes, 'stepz': 2}})",
            "ConfigError: config rl.stepz: unknown key; did you mean rl.steps?",
        ),
        ("assay.load_run('runs/nope')", "RunError: runs/nope: "),
    ],
)
def test_an_error_is_one_line(cell: Cell, source: str, line: str) -> None:
    (error,) = cell(source)
    assert error.output_type == "error"
    (shown,) = error["traceback"]
    assert shown.startswith(line) and "\n" not in shown


def test_a_changed_reward_is_read_again(cell: Cell) -> None:
    cell(REWARD.format(key="anser"))
    (error,) = cell("assay.dry_run(config)")
    assert "DataError: rows.jsonl:1: my_reward:reward cannot judge" in error["traceback"][0]
    cell(REWARD.format(key="answer"))
    shown = cell("assay.dry_run(config, quiet=True)")
    assert "=== plan ===" in shown[-1]["data"]["text/plain"]


def test_an_interrupted_run_is_saved(cell: Cell) -> None:
    assert cell(INTERRUPT) == []
    shown = cell("assay.train(config, overrides=['rl.steps=100000', 'run.name=long'])")
    assert "runs/long: interrupted after" in shown[-1]["data"]["text/plain"]
    assert "continue with: assay train --resume runs/long" in shown[-1]["data"]["text/plain"]
