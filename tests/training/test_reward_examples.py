"""The examples of reward models: their rows are what they say, their configurations are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.config import load
from assay.data.labelled import load_comparisons, load_outcomes, load_steps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "reward_model"
ROWS = "examples.reward_model.rows"


@pytest.fixture(autouse=True)
def in_the_folder_that_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES.parents[1]))


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.toml")))
def test_configurations_are_read(name: str) -> None:
    config = load(EXAMPLES / name)
    assert config.reward_model is not None or config.sft is not None


def test_labels_are_those_of_the_sums() -> None:
    steps = load_steps([f"{ROWS}:steps?size=60"])
    outcomes = load_outcomes([f"{ROWS}:outcomes?size=60"])
    pairs = load_comparisons([f"{ROWS}:pairs?size=60"])
    assert any(0.0 in row.labels for row in steps)
    for row, outcome, pair in zip(steps, outcomes, pairs, strict=True):
        expression = str(row.prompt).rstrip("=")
        for number, (step, label) in enumerate(zip(row.steps, row.labels, strict=True), 1):
            truth = eval(expression[: 1 + 2 * number])
            assert (int(step.partition("=")[2].rstrip("?")) == truth) is bool(label)
        assert outcome.label == row.labels[-1] and outcome.completion == ";".join(row.steps)
        assert pair.pair.chosen.endswith(f"={eval(expression)}") and 0 < pair.margin <= 1
        assert pair.pair.rejected != pair.pair.chosen
