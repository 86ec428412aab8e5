"""docs/rollouts.md: its columns are those of the log, and its recipes run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, take_steps

from assay.run.directory import Run
from assay.run.rollout_schema import SCHEMA

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rollouts.md"
RECIPES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_page_has_every_column_with_its_type() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    kinds = {field.name: re.sub(r"(item|element): ", "", str(field.type)) for field in SCHEMA}
    kinds = {
        name: re.sub(r" \('.*?'\)|, ?keys_sorted.*?(?=>)", "", kind) for name, kind in kinds.items()
    }
    assert {name: kind for name, kind, _ in rows} == kinds
    assert [name for name, *_ in rows] == SCHEMA.names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for library in re.findall(r"^import (\w+)", recipe, re.MULTILINE):
        pytest.importorskip(library, reason=f"needs {library}: pip install {library}")
    monkeypatch.chdir(tmp_path)
    config = make_config(Path("runs"), run={"name": "first"})
    with Run.create(config, quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        take_steps(run, learner, 2)
    exec(compile(recipe, str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) >= 4, shown
