"""What each term of a reward did, from the record alone, against a plain loop."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev

import pytest

from assay.errors import RunError
from assay.evaluation.reward_terms import _contributions, term_table
from assay.report.loaded import load_run
from assay.testing import save_tiny_model
from assay.training.api import train


def make_run(folder: Path, verifier: str) -> str:
    rows = folder / "rows.jsonl"
    keys = {"pattern": "(?s).*[a-zA-Z].*", "target_words": 2}
    lines = [json.dumps({"id": f"q{n}", "prompt": f"{n} =", **keys}) for n in range(4)]
    rows.write_text("\n".join(lines), encoding="utf-8")
    config = {
        "run": {"directory": str(folder / "runs"), "threads": 1},
        "model": {"path": str(save_tiny_model(folder / "model", max_positions=64))},
        "data": {"train": [str(rows)], "verifier": verifier},
        "sampling": {"max_tokens": 6},
        "rl": {"steps": 1, "num_prompts": 4, "group_size": 8},
        "verification": {"num_workers": 1},
    }
    return train(config, quiet=True).run


def test_shares_and_advantages_are_those_of_a_plain_loop(tmp_path: Path, one_thread: None) -> None:
    run = make_run(tmp_path, "regex + length_target*0.5")
    found = term_table(run)
    assert [one.term for one in found.terms] == ["regex", "length_target"]
    assert (found.num_completions, found.left_out) == (32, 0)
    rows = load_run(run).rollouts(columns=("group_id", "reward", "components", "advantage"))
    weights = {"regex": 1.0, "length_target": 0.5}
    groups = {id: [row for row in rows if row["group_id"] == id] for id in {*rows["group_id"]}}
    above = dict.fromkeys(weights, 0.0)
    real: list[float] = []
    without: list[float] = []
    for members in groups.values():
        rewards = [row["reward"] for row in members]
        for name, weight in weights.items():
            values = [weight * row["components"][name] for row in members]
            above[name] += sum(
                (value - fmean(values)) * (reward - fmean(rewards))
                for value, reward in zip(values, rewards, strict=True)
            )
        rest = [row["reward"] - 0.5 * row["components"]["length_target"] for row in members]
        real += [row["advantage"] for row in members]
        flat = max(rest) - min(rest) < 1e-6
        scale = 1.0 if flat else stdev(rest) + 1e-4
        without += [0.0 if flat else (one - fmean(rest)) / scale for one in rest]
    total = sum(above.values())
    for one in found.terms:
        assert one.share == pytest.approx(above[one.term] / total, abs=1e-5)
    turned = fmean(a * b < 0 for a, b in zip(real, without, strict=True))
    assert found.terms[1].turned == pytest.approx(turned) and "length_target" in str(found)


def test_weights_below_zero_and_what_is_not_explained() -> None:
    row = {"verifier": "math@4*1 + overlong@1*-0.5", "components": {"math": 1.0, "overlong": 0.4}}
    assert _contributions({**row, "reward": 0.8}) == pytest.approx({"math": 1.0, "overlong": -0.2})
    assert _contributions({**row, "reward": 1.0}) is None, "its weight has a schedule"
    assert _contributions({**row, "reward": None}) is None
    either = {"verifier": "math@4|judge@1", "components": {"math|judge": 1.0, "judge.rescued": 1.0}}
    assert _contributions({**either, "reward": 1.0}) == {"math|judge": 1.0}


def test_a_reward_of_one_term_is_refused(tmp_path: Path, one_thread: None) -> None:
    with pytest.raises(RunError, match="found 1 term; accepted: completions with a reward of sev"):
        term_table(make_run(tmp_path, "regex"))
