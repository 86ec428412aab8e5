from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tool_worlds import QUESTIONS, teach


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the calculator once, whatever it is asked, and answers 42."""
    pieces = [("<calculator>6*7</calculator>", True), ("=42;", False), ("42", True)]
    torch.manual_seed(0)
    return teach(tmp_path_factory.mktemp("caller") / "model", pieces, QUESTIONS)
