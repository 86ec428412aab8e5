"""A few kills of `ray_killer.py` and `rank_killer.py`, whose campaigns docs/cluster.md reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KILLS = 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["local", "nodes"])
def test_what_is_killed_is_replaced_or_resumed_and_counted_once(mode: str, tmp_path: Path) -> None:
    check(campaign(tmp_path, "ray_killer.py", mode))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kinds", [["ray", "rl", "ahead"], ["ray", "sft_shard"], ["forked", "critic", "rl_shard"]]
)
def test_a_killed_or_hung_rank_is_named_and_the_run_resumes(
    kinds: list[str], tmp_path: Path
) -> None:
    check(campaign(tmp_path, "rank_killer.py", *kinds))


def campaign(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Run a campaign; return what it found."""
    pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
    command = [sys.executable, str(HERE / program), str(folder), "3", str(KILLS), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads([line for line in ended.stdout.splitlines() if line.startswith("{")][-1])


def check(facts: dict[str, Any]) -> None:
    assert facts["kills"] == KILLS and facts["wrong"] == []
    assert facts["left"] == [] and facts["memory_left"] == []
