from __future__ import annotations

from pathlib import Path

import pytest
import torch
from taught import teach
from tool_worlds import GAMES, QUESTIONS


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the calculator once, whatever it is asked, and answers 42."""
    pieces = [("<calculator>6*7</calculator>", True), ("=42;", False), ("42", True)]
    torch.manual_seed(0)
    return teach(tmp_path_factory.mktemp("caller") / "model", pieces, QUESTIONS)


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that looks for the digit 5: it finds it at its second try, or never."""
    found = [("4\n", True), ("no\n", False), ("5\n", True)]
    lost = [("4\n", True), ("no\n", False), ("3\n", True), ("no\n", False), ("2\n", True)]
    torch.manual_seed(0)
    return teach(tmp_path_factory.mktemp("player") / "model", found, GAMES, lost, lost)
