"""From the command to the loss: as few frames of Assay's own as the room's plan has parts."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
from train_worlds import World

import assay
from assay.cli.command import run_command
from assay.learn import policy_update

MOST_FRAMES = 7
PACKAGE = Path(assay.__file__).parent


def own_frames() -> list[str]:
    """Return the names of the functions of ours that are being called, the command's first."""
    frames = [one for one in inspect.stack() if PACKAGE in Path(one.filename).parents]
    names = [frame.function for frame in reversed(frames)]
    first = next(
        n for n, one in enumerate(reversed(frames)) if one.filename.endswith("training.py")
    )
    return names[first:]


def test_from_the_command_to_the_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    path = world.config_file(world.tree(rl={"steps": 1}))
    seen: list[list[str]] = []
    policy_loss = policy_update.policy_loss

    def watched(*rest: Any, **settings: Any) -> Any:
        seen.append([*own_frames(), policy_loss.__name__])
        return policy_loss(*rest, **settings)

    monkeypatch.setattr(policy_update, "policy_loss", watched)
    monkeypatch.setattr(sys, "argv", ["assay", "train", str(path), "--json"])
    assert run_command() == 0
    assert seen and seen[0] == seen[-1]
    assert len(seen[0]) <= MOST_FRAMES, " > ".join(seen[0])
    assert seen[0][0] == "train" and "train_step" in seen[0], "a real step, from the command"
