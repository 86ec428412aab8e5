"""`assay ablate`: a sweep file with one arm per reward term."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from sweep_worlds import REWARD, Sweeps

from assay.config import build, dump
from assay.errors import UserError
from assay.run.signature import write_config
from assay.sweep.ablate import write_ablation
from assay.sweep.check import check_sweep
from assay.sweep.file import read_sweep
from assay.sweep.trials import trials_of
from assay.verify.expression import parse_expression


def a_run(sweeps: Sweeps, verifier: str = REWARD, **data: Any) -> Path:
    """Write the configuration of a run."""
    tree = tomllib.loads(Path("base.toml").read_text())
    tree["data"] |= {"verifier": verifier, **data}
    folder = sweeps.folder / "runs" / "mine"
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder / "config.toml", dump(build(tree)))
    return folder


def test_each_term_has_an_arm_in_which_its_weight_is_zero(sweeps: Sweeps) -> None:
    path = write_ablation(a_run(sweeps))
    assert path == Path("ablate_mine.toml")
    file = read_sweep(path)
    assert file.settings.baseline == "all_terms" and file.settings.seeds == tuple(range(8))
    trials = trials_of(file, [0])
    check_sweep(file, trials, 1)
    verifiers = {trial.arm: trial.configs[-1].data.verifier for trial in trials}
    assert verifiers == {
        "all_terms": REWARD,
        "without_recipe_worlds_even_text": "recipe_worlds:even_text*0 + think_format*0.1",
        "without_think_format": "recipe_worlds:even_text*1.0 + think_format*0",
    }


@pytest.mark.parametrize(
    ("expression", "arms"),
    [
        ("math + think_format", {"math*0 + think_format", "math + think_format*0"}),
        (
            "math|exact*2 - repetition*0.5 - overlong",
            {
                "math|exact*0 + -repetition*0.5 + -overlong",
                "math|exact*2.0 + repetition*0 + -overlong",
                "math|exact*2.0 + -repetition*0.5 + overlong*0",
            },
        ),
        ("math + think_format*0 + repetition*0.1", None),
    ],
)
def test_the_other_terms_keep_their_weights(
    sweeps: Sweeps, expression: str, arms: set[str] | None
) -> None:
    file = read_sweep(write_ablation(a_run(sweeps, expression)))
    found = [one for one in trials_of(file, [0]) if one.arm != "all_terms"]
    verifiers = {trial.configs[-1].data.verifier for trial in found}
    if arms is None:  # a term of weight 0 is off already
        assert len(found) == 2
        return
    assert verifiers == arms
    before = {term.name: term for term in parse_expression(expression)}
    for text in verifiers:
        kept = [term for term in parse_expression(text) if term.weight != 0]
        assert len(kept) == len(before) - 1
        assert all(before[term.name] == term for term in kept)


def test_terms_of_verifiers_by_tag_and_of_mixtures_are_switched_off_too(sweeps: Sweeps) -> None:
    run = a_run(
        sweeps, "math + think_format*0.1", verifier_by_tag={"word": "exact + think_format*0.2"}
    )
    file = read_sweep(write_ablation(run))
    trials = {trial.arm: trial.configs[-1].data for trial in trials_of(file, [0])}
    data = trials["without_think_format"]
    assert data.verifier == "math + think_format*0"
    assert data.verifier_by_tag == {"word": "exact + think_format*0"}
    assert trials["without_exact"].verifier == "math + think_format*0.1"


def test_overrides_seeds_and_report_problems_are_written(sweeps: Sweeps) -> None:
    path = write_ablation(
        a_run(sweeps),
        num_seeds=3,
        overrides=["rl.steps=1"],
        report=["report.jsonl"],
        out=Path("own.toml"),
    )
    file = read_sweep(path)
    assert file.settings.seeds == (0, 1, 2) and file.settings.report is not None
    assert all(one.configs[-1].rl.steps == 1 for one in trials_of(file, [0, 1]))  # type: ignore[union-attr]


def test_rules_about_the_reward_only_warn(sweeps: Sweeps) -> None:
    """Only those whose metrics the run has: a configured rule without its metrics is an error."""
    run = a_run(sweeps)
    (run / "metrics.jsonl").write_text('{"step": 1, "length/mean": 3.0, "reward/mean": 0.5}\n')
    (run / "evaluations.jsonl").write_text('{"step": 0, "eval/pass_at_1": 0.5}\n')
    (trial, *_) = trials_of(read_sweep(write_ablation(run)), [0])
    assert "kl_jump" not in trial.configs[-1].guard.options
    actions = {rule.name: rule.action for rule in trial.configs[-1].watched.active()}
    assert actions["reward_against_heldout"] == actions["length"] == "note"
    assert actions["not_finite"] == actions["mismatch"] == "stop"


def test_a_reward_of_one_term_cannot_be_ablated(sweeps: Sweeps) -> None:
    with pytest.raises(UserError, match=r"data\.verifier: found math, one term; accepted: a weig"):
        write_ablation(a_run(sweeps, "math"))


def test_another_file_is_not_overwritten(sweeps: Sweeps) -> None:
    run, path = a_run(sweeps), Path("ablate_mine.toml")
    write_ablation(run)
    write_ablation(run)
    path.write_text("# mine\n")
    with pytest.raises(UserError, match=r"ablate_mine\.toml: found another file"):
        write_ablation(run)
    assert path.read_text() == "# mine\n"
    write_ablation(run, overwrite=True)
    assert "all_terms" in path.read_text()


def test_a_foreign_run_needs_consent(sweeps: Sweeps) -> None:
    run = a_run(sweeps)
    config = run / "config.toml"
    config.write_text(config.read_text() + "\n# edited\n")
    with pytest.raises(UserError, match=r"--trust-run"):
        write_ablation(run)
    write_ablation(run, trust_run=True)
