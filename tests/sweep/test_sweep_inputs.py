"""Bad sweep files: every fault is one line, before anything trains."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from sweep_worlds import REWARD, Sweeps

from assay.errors import UserError
from assay.sweep.check import overlap
from assay.sweep.file import read_sweep
from assay.sweep.metric import METRICS, OPEN, check_metric
from assay.sweep.trials import trials_of

ROOT = Path(__file__).resolve().parents[2]
DATA = {"train": ["train.jsonl"], "heldout": ["held.jsonl"], "verifier": REWARD}
USUAL: dict[str, Any] = {"usual": {}}


def arm(*changes: str, **more: Any) -> dict[str, Any]:
    return {"usual": {}, "other": {"set": [*changes], **more}}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"metrics": "accuracy"}, r"lengths\.toml:\d+ metrics: unknown key; did you mean metric\?"),
    ({"baseline": "usaul"}, r'lengths\.toml:2 baseline: found "usaul".*did you mean usual\?'),
    ({"baseline": None}, r"lengths\.toml baseline: "),
    ({"seeds": [1, 2, 1]}, r"lengths\.toml:\d+ seeds: found 1 twice; accepted: each seed once"),
    ({"seeds": []}, r"lengths\.toml:\d+ seeds: "),
    ({"seeds": 3}, r"lengths\.toml:\d+ seeds"),
    ({"metric": "acuracy"}, r'metric: found "acuracy".*did you mean accuracy\?'),
    ({"metric": "lenght/mean"}, r'metric: found "lenght/mean".*did you mean length/mean\?'),
    ({"arms": USUAL}, r"lengths\.toml:\d+ arms"),
    ({"arms": {"usual": {}, "a b": {"set": ["rl.steps=4"]}}}, r'arms\.a b: found "a b"'),
    ({"arms": {"usual": {}, "shared": {"set": ["rl.steps=4"]}}}, r"arms\.shared.*not shared"),
    (
        {"arms": arm("rl.step=4")},
        r"arms\.other: --set rl\.step: unknown key; did you mean rl\.steps\?",
    ),
    ({"arms": arm("rl.steps=many")}, r"arms\.other: --set rl\.steps: "),
    ({"arms": arm("rl.steps=3")}, r"arms\.other: found the settings of usual"),
    ({"arms": arm()}, r"arms\.other: found the settings of usual; .*change its set"),
    ({"arms": arm("run.seed=4")}, r"arms\.other: set run\.seed: .*none in a sweep"),
    ({"arms": arm("run.max_minutes=4")}, r"arms\.other: set run\.max_minutes"),
    ({"arms": arm("data.heldout=['train.jsonl']")}, r"arms\.other data\.heldout: found train"),
    ({"arms": arm("evaluation.temperatures=[0.5]")}, r"evaluation\.temperatures: found \[0\.5\]"),
    (
        {"arms": arm("data.verifier=think_format")},
        r"arms\.other data\.verifier, first term: found think_format; .*with weight 0",
    ),
    (
        {"arms": arm("data.verifier=recipe_worlds:even_text + nosuch:reward")},
        r"arms\.other: .*nosuch",
    ),
    ({"arms": arm("data.train=['none.jsonl']")}, r"arms\.other: .*none\.jsonl"),
    ({"arms": arm(base="none.toml")}, r"arms\.other: none\.toml: cannot be read"),
    ({"base": "nosuch"}, r'base: found "nosuch"; accepted: a run file, a recipe file'),
    ({"base": "model"}, r"base: found model, a folder"),
    ({"base": "~nouser/x.toml"}, r'base: found "~nouser/x\.toml"; accepted: a run file'),
    ({"base": f"{'a' * 5000}.toml"}, r"base: found \"aaa.*; accepted: a run file"),
    ({"scale": "small"}, r"scale: found a scale; accepted: none: the base is no recipe"),
    ({"report": {"problems": []}}, r"report\.problems"),
    ({"report": {"problems": ["none.jsonl"]}}, r"report\.problems: none\.jsonl"),
    (
        {"report": {"problems": ["held.jsonl"]}},
        r"report\.problems: found held\.jsonl:1, a question of held\.jsonl:1 \(arm usual\)",
    ),
    ({"report": {"problems": ["repeats.jsonl"]}}, r"found repeats\.jsonl:2, .* of train\.jsonl:4"),
]


@pytest.mark.parametrize(("changes", "complaint"), BAD, ids=[text for _, text in BAD])
def test_a_fault_is_one_line_and_nothing_is_written(
    sweeps: Sweeps, changes: dict[str, Any], complaint: str
) -> None:
    rows = [{"prompt": "99 + 1 =", "answer": "100"}, {"prompt": "3  + 1 =", "answer": "4"}]
    sweeps.world.rows("repeats", rows)
    sweeps.base("m", data={**DATA, "verifier": "math"})
    with pytest.raises(UserError) as raised:
        sweeps.run(sweeps.sweep(**changes))
    text = str(raised.value)
    assert re.search(complaint, text), text
    assert "\n" not in text
    assert not Path("sweeps").exists()


def test_an_empty_value_removes_the_time_limit_of_the_base(sweeps: Sweeps) -> None:
    sweeps.base(run={"threads": 1, "max_minutes": 5.0})
    with pytest.raises(
        UserError, match=r"run\.max_minutes: found a time limit; .*run\.max_minutes=$"
    ):
        sweeps.run(sweeps.sweep())
    (trial, *_) = trials_of(read_sweep(sweeps.sweep(set=["run.max_minutes="])), [0])
    assert trial.configs[-1].run.max_minutes is None


def test_the_faults_of_all_arms_are_told_at_once(sweeps: Sweeps) -> None:
    arms = {
        "usual": {},
        "one": {"set": ["rl.step=4"]},
        "two": {"set": ["sampling.temperature=hot", "optimizer.rate=1"]},
    }
    with pytest.raises(UserError) as raised:
        sweeps.run(sweeps.sweep(arms=arms))
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert [line.split(" ")[1] for line in lines] == ["arms.one:", "arms.two:", "arms.two:"]


def test_a_fault_of_the_base_is_told_once(sweeps: Sweeps) -> None:
    sweeps.base(rl={"stepz": 3})
    with pytest.raises(UserError) as raised:
        sweeps.run(sweeps.sweep())
    assert re.fullmatch(r"base\.toml:\d+ rl\.stepz: unknown key; .*", str(raised.value))
    sweeps.base(data={**DATA, "train": ["none.jsonl"]})
    with pytest.raises(UserError) as raised:
        sweeps.run(sweeps.sweep())
    assert str(raised.value).startswith("none.jsonl: ")


def test_a_training_row_of_one_seed_is_found_in_the_report_set(sweeps: Sweeps) -> None:
    """Sources may depend on the seed; every seed's are compared."""
    for seed in (0, 1):
        rows = [{"prompt": f"{seed} + {n} + 40 =", "answer": "1"} for n in range(3)]
        sweeps.world.rows(f"train{seed}", rows)
    sweeps.world.rows("report", [{"prompt": "1 + 2 + 40 =", "answer": "43"}])
    path = sweeps.sweep(
        set=["data.train=['train{seed}.jsonl']"], report={"problems": ["report.jsonl"]}
    )
    with pytest.raises(UserError, match=r"a question of train1\.jsonl:3"):
        sweeps.run(path)


def test_traces_of_a_recipe_must_not_hold_report_problems(sweeps: Sweeps) -> None:
    recipe = sweeps.world.file()
    sweeps.world.rows("report", [{"prompt": "8 + 1 =", "answer": "9"}])
    tree = sweeps.world.tree()
    tree["shared"]["data"]["train"] = []
    tree["stage"]["reason"]["data"] = {"train": ["other.jsonl"]}
    sweeps.world.rows("other", [{"prompt": f"{n} + 60 =", "answer": "1"} for n in range(4)])
    recipe.write_text(tomli_w.dumps(tree))
    path = sweeps.sweep(
        base=str(recipe),
        arms=arm("reason.rl.steps=2"),
        report={"problems": ["report.jsonl"]},
    )
    with pytest.raises(UserError, match=r"found report\.jsonl:1, a question of .*traces\.jsonl:9"):
        sweeps.run(path)


def test_problems_of_a_run_that_an_arm_learns_from_count_too(sweeps: Sweeps) -> None:
    teacher = Path("runs/teacher")
    teacher.mkdir(parents=True)
    data = {**DATA, "train": ["taught.jsonl"]}
    sweeps.base("teacher", data=data).rename(teacher / "config.toml")
    sweeps.world.rows("taught", [{"prompt": "7 + 50 =", "answer": "57"}])
    sweeps.world.rows("report", [{"prompt": "7 + 50 =", "answer": "57"}])
    tree = tomllib.loads(Path("base.toml").read_text())
    pairs = {"pairs": ["run:runs/teacher"], "steps": 1}
    del tree["rl"]
    tree["data"]["train"] = []
    base = sweeps.folder / "pairs.toml"
    base.write_text(tomli_w.dumps({**tree, "preference": pairs}))
    faster = arm("optimizer.learning_rate=1e-2")
    report = {"problems": ["report.jsonl"]}
    file = read_sweep(sweeps.sweep(base="pairs.toml", arms=faster, report=report))
    found = [*overlap(file, trials_of(file, [0]))]
    assert len(found) == 1 and "a question of taught.jsonl:1 (arm usual)" in found[0]


def test_a_parallel_sweep_needs_a_number_of_threads(sweeps: Sweeps) -> None:
    sweeps.base(run={})
    with pytest.raises(UserError, match=r"--parallel 2: found no run\.threads in usual, faster"):
        sweeps.run(sweeps.sweep(), parallel=2)


def test_metrics_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`([a-z_]+/[a-zA-Z_0-9]+)`", page))
    # No numbers, or names that continue with a name of the configuration.
    others = {"eval/by_problem", "eval/kind", "eval/stderr", "eval/pass_at_problems"}
    missing = {name for name in told - others if check_metric(name)}
    assert not missing, "add these names to METRICS in assay/sweep/metric.py"
    own = {f"{group}/{one}" for group, ones in METRICS.items() for one in ones.split()}
    undocumented = {"eval/mean_tokens", "eval/num_not_judged", "eval/truncated"}
    assert own - told == undocumented, "METRICS in assay/sweep/metric.py has names of no metric"
    assert not any(name.partition("/")[0] in OPEN for name in own)
