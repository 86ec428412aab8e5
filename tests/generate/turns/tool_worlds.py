"""What the tests of tools share: a model that knows one call by heart."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import assay
from assay.training.api import train

CALL = "<{tool}>{input}</{tool}>"
RESULT = "={result};"
GAMES = [f"{n}?" for n in range(10, 18)]
QUESTIONS = [f"{n} * 7 = " for n in range(10, 18)]


def rollouts_of(run: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a run's rollout log."""
    import pyarrow.parquet as pq

    shards = sorted((Path(run) / "rollouts").glob("*"))
    return [row for shard in shards for row in pq.ParquetFile(shard).read().to_pylist()]


def check_a_kill_changes_nothing(
    whole: Mapping[str, Any], killed: Mapping[str, Any], **environment: str
) -> None:
    """Train as both say, the second in a process that ends itself in its second step; resume it.

    environment: says to what is asked in the run when to end the process.
    """
    program = f"from assay.training.api import train\ntrain({killed!r}, quiet=True)"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(assay.__file__).parent.parent)])
    around = os.environ | {"PYTHONPATH": paths} | environment
    done = subprocess.run([sys.executable, "-c", program], env=around, check=False)
    run = Path(killed["run"]["directory"]) / killed["run"]["name"]
    assert done.returncode == 9 and len(rollouts_of(run)) == 8
    train(resume=run, quiet=True)
    made = rollouts_of(train(whole, quiet=True).run)
    for row, other in zip(made, rollouts_of(run), strict=True):
        assert {**row, "judge_seconds": 0} == {**other, "judge_seconds": 0}
