"""A few kills of `ray_killer.py`; docs/cluster.md tells how many it has done, and how they ended."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KILLS = 6


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["local", "nodes"])
def test_what_is_killed_is_replaced_or_resumed_and_counted_once(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason='needs Ray: pip install "assay-rl[ray]"')
    command = [sys.executable, str(HERE / "ray_killer.py"), str(tmp_path), "3", str(KILLS), mode]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    facts = json.loads(told[-1])
    assert facts["kills"] == KILLS and facts["wrong"] == []
    assert facts["left"] == [] and facts["memory_left"] == []
