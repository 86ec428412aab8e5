"""What the manifests beside traces say of them, also damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.data.verified import verified_words

MADE: dict[str, Any] = {"stage": "select", "settings": {"keep": "verified"}, "inputs": []}


def test_the_manifest_of_a_selection_says_verified(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(MADE))
    assert verified_words([str(tmp_path)]) == "verified"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        json.dumps({**MADE, "settings": []}),
        json.dumps({**MADE, "stage": "join", "inputs": [{}]}),
        json.dumps({**MADE, "stage": "join", "inputs": 5}),
    ],
)
def test_a_damaged_manifest_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    assert verified_words([str(tmp_path)]) == "unknown origin"


def test_a_manifest_that_names_itself_as_its_input_ends(tmp_path: Path) -> None:
    made = {**MADE, "stage": "join", "inputs": [{"source": str(tmp_path)}]}
    (tmp_path / "manifest.json").write_text(json.dumps(made))
    assert verified_words([str(tmp_path)]) == "unknown origin"
