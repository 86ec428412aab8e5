"""Ladders: refused inputs, compute and curves of finished runs, the page, and a resumed ladder."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from sweep_worlds import COMMAND, Sweeps, signal_later

from assay.errors import ConfigError, RunError
from assay.init.tiny_model import make_model
from assay.sweep.ladder import LadderResult, check_ladder, fit_ladder, run_ladder
from assay.sweep.ladder_page import as_markdown, draw_ladder, write_ladder
from assay.sweep.run import Interrupted, Runner

ARMS = {"small": {"set": ["model.path=model"]}, "large": {"set": ["model.path=large"]}}
SETTINGS = ["evaluation.every=1", "rl.steps=5"]
BUDGETS = (1, 2, 3, 4, 5)


def ladder_of(sweeps: Sweeps, **changes: Any) -> Path:
    if not (sweeps.folder / "large").is_dir():
        make_model(sweeps.folder / "large", seed=0, hidden_size=48)
    own = {"seeds": [0, 1, 2], "baseline": "small", "arms": ARMS, "set": SETTINGS}
    return sweeps.sweep("sizes", **{**own, **changes})


def rising(arm: str, seed: int, step: int) -> float:
    noise = 0.01 * math.sin(7 * seed + 3 * step)
    return 0.2 + (0.5 if arm == "small" else 0.6) * step / (step + 2) + 0.01 * seed + noise


def write_runs(
    path: Path, accuracy: Callable[[str, int, int], float] = rising, num_problems: int = 20
) -> Path:
    """Write the files of finished runs that a ladder reads, with given accuracies."""
    folder = path.parent / "sweeps" / path.stem
    for arm in ("small", "large"):
        for seed in range(3):
            run = folder / f"{arm}-seed{seed}"
            run.mkdir(parents=True, exist_ok=True)
            model = "model" if arm == "small" else "large"
            (run / "config.toml").write_text(tomli_w.dumps({"model": {"path": model}}))
            evaluations = [
                {
                    "step": step,
                    "eval/temperature": 1.0,
                    "eval/pass_at_1": accuracy(arm, seed, step),
                    "eval/by_problem": {
                        f"p{n}": accuracy(arm, seed, step) + (0.1 if n % 2 else -0.1)
                        for n in range(num_problems)
                    },
                }
                for step in (0, *BUDGETS)
            ]
            tokens = {"tokens/generated": 60.0, "tokens/prompt": 20.0, "tokens/trained": 50.0}
            metrics = [{"step": step, "length/mean": 7.5, **tokens} for step in BUDGETS]
            for name, rows in (("evaluations", evaluations), ("metrics", metrics)):
                text = "".join(json.dumps(row) + "\n" for row in rows)
                (run / f"{name}.jsonl").write_text(text)
    return folder


def fitted(path: Path, **how: Any) -> LadderResult:
    folder = write_runs(path, **how)
    return fit_ladder(check_ladder(path), folder)


def test_a_ladder_counts_rollouts_tokens_and_operations(sweeps: Sweeps) -> None:
    result = fitted(ladder_of(sweeps))
    small, large = result.sizes
    assert small.num_weights < large.num_weights
    last = small.budgets[-1]
    assert (last.step, last.rollouts, last.tokens) == (5, 40, 5 * 110)
    # Forward over prompts and samples, forward and backward over prompts and trained tokens.
    assert last.flop == small.num_weights * 5 * (2 * 80 + 6 * 70)
    assert last.accuracy == pytest.approx(np.mean([rising(small.arm, s, 5) for s in range(3)]))
    assert result.num_problems == 20 and result.across is None


def test_a_smooth_curve_predicts_its_largest_budget(sweeps: Sweeps) -> None:
    for size in fitted(ladder_of(sweeps)).sizes:
        (one,) = (one for one in size.fits if one.form == "sigmoid")
        assert one.prediction.is_inside and abs(one.prediction.error) < 0.03


def test_the_page_has_tables_figure_and_json(sweeps: Sweeps) -> None:
    result = fitted(ladder_of(sweeps))
    write_ladder(result, Path(result.folder))
    found = json.loads((Path(result.folder) / "ladder.json").read_text())
    assert [one["arm"] for one in found["sizes"]] == [one.arm for one in result.sizes]
    assert len(found["sizes"][0]["budgets"]) == 5
    page = as_markdown(result)
    assert page.count("| sigmoid |") == 2 and "(ladder.svg)" in page and "inside" in str(result)
    figure = draw_ladder(result)
    assert figure == draw_ladder(result) and figure.count("<polyline") == 4
    assert "nan" not in figure


def test_an_accuracy_that_never_moves_is_refused(sweeps: Sweeps) -> None:
    with pytest.raises(RunError, match=r"small: found accuracy 0\.300 before RL .* that moves"):
        fitted(ladder_of(sweeps), accuracy=lambda arm, seed, step: 0.3)


def test_heldout_sets_that_differ_are_refused(sweeps: Sweeps) -> None:
    path = ladder_of(sweeps)
    folder = write_runs(path)
    file = folder / "large-seed1" / "evaluations.jsonl"
    file.write_text(file.read_text().replace('"p3"', '"other"', 1))
    with pytest.raises(RunError, match="large-seed1: found 20 judged problems at step 0"):
        fit_ladder(check_ladder(path), folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"seeds": [0, 1]}, "seeds: found 2; accepted: at least 3"),
        ({"set": ["evaluation.every=2", "rl.steps=5"]}, "found 3 evaluations after step 0"),
        ({"set": [*SETTINGS, "optimizer.schedule=linear"]}, "schedule: found linear"),
        ({"set": [*SETTINGS, "evaluation.patience=3"]}, "patience: found a limit"),
        ({"metric": "kl/mean"}, "metric: found kl/mean; accepted: accuracy"),
        ({"set": [*SETTINGS, "data.heldout=['held{seed}.jsonl']"]}, "for every size and seed"),
    ],
)
def test_what_is_no_ladder_is_refused_in_one_line(
    sweeps: Sweeps, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as error:
        check_ladder(ladder_of(sweeps, **changes))
    assert fault in str(error.value)
    assert all(line.count("accepted:") == 1 for line in str(error.value).splitlines())


@pytest.mark.slow
def test_an_interrupted_ladder_continues_and_its_finished_runs_are_kept(sweeps: Sweeps) -> None:
    told: list[str] = []
    path, runner = ladder_of(sweeps), Runner(COMMAND, 1, told.append)
    steps, here = Path("sweeps/sizes/small-seed0/metrics.jsonl"), os.getpid()
    sender = signal_later(steps, signal.SIGTERM, lambda: here)
    with pytest.raises(Interrupted):
        run_ladder(path, runner)
    os.waitpid(sender, 0)
    assert not Path("sweeps/sizes/ladder.json").exists()
    # Five steps need not move the accuracy, so the curves of the finished runs are replaced.
    with suppress(RunError):
        run_ladder(path, runner)
    assert len(list(Path("sweeps/sizes").glob("*-seed?/metrics.jsonl"))) == 6
    write_runs(path)
    told.clear()
    result = run_ladder(path, runner)
    assert told == ["6 of 6 runs are finished and unchanged"]
    written = Path("sweeps/sizes/ladder.json").read_bytes()
    assert str(run_ladder(path, runner)) == str(result)
    assert Path("sweeps/sizes/ladder.json").read_bytes() == written
