"""A verifier for a tag that no row has is warned of, in a line, before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.config import TrainConfig
from assay.session.assemble import read_heldout, read_problems
from assay.verify.service import VerifierService

SFT = {"sft": {"traces": ["assay.data.tasks:imperfect_traces?size=9"]}}


def config_of(folder: Path, by_tag: dict[str, str], **data: list[str]) -> TrainConfig:
    rows = [
        {"id": f"p{n}", "question": f"{n}=", "answer": "1", "tags": [f"t{n % 20}", "sums"]}
        for n in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = {"id": "h", "question": "held", "answer": "1", "tags": ["general"]}
    (folder / "held.jsonl").write_text(json.dumps(held))
    files = {name: [str(folder / one) for one in given] for name, given in data.items()}
    return TrainConfig.model_validate(
        {
            "model": {"path": "nowhere"},
            "data": {**files, "verifier": "exact", "verifier_by_tag": by_tag},
            **({"rl": {"steps": 1}} if "train" in data else SFT),
        }
    )


def told(config: TrainConfig, capsys: pytest.CaptureFixture[str]) -> list[str]:
    by_tag = config.data.verifier_by_tag
    with VerifierService("exact", num_workers=1, by_tag=by_tag) as service:
        if config.data.train:
            read_problems(config, service)
        else:
            read_heldout(config, service)
    return [line for line in capsys.readouterr().err.splitlines() if "verifier_by_tag" in line]


def test_a_tag_of_no_row_is_told_with_those_that_rows_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tags = {"sums": "math", "genral": "exact", "general": "exact"}
    both = config_of(tmp_path, tags, train=["rows.jsonl"], heldout=["held.jsonl"])
    (line,) = told(both, capsys)
    assert line.startswith(
        "warning: data.verifier_by_tag.genral: found a tag that no row has; accepted: t0, sums, t1,"
    )
    assert line.endswith("t10, ...")
    train = config_of(tmp_path, {"general": "exact"}, train=["rows.jsonl"])
    assert len(told(train, capsys)) == 1, "no held-out row has it"
    held = config_of(tmp_path, {"sums": "math"}, heldout=["held.jsonl"])
    (line,) = told(held, capsys)
    assert line.endswith("accepted: general")
    assert not told(config_of(tmp_path, {"general": "exact"}, heldout=["held.jsonl"]), capsys)


def test_rows_that_are_not_read_are_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, {"sums": "exact", "chain_sum": "exact"}, train=["rows.jsonl"])
    data = config.data.model_copy(update={"train": ("gym:chain_sum?size=300&seed=1",)})
    (line,) = told(config.model_copy(update={"data": data}), capsys)
    assert "verifier_by_tag.sums: found a tag that no row has; accepted: " in line
