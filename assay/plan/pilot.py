"""Proposal of a pilot: a cheap first run that shows whether the full run is worth its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tomli_w

from assay import config as configuration
from assay.config import STAGES, TrainConfig
from assay.plan.decision import (
    KINDS,
    PILOTS,
    Decision,
    figures_of,
    fill,
    first_row,
    known_of,
    percent,
)
from assay.plan.facts import Facts

STEPS, MIN_STEPS = 20, 5
NUM_PROMPTS = 8
HELD_OUT = 200
SHARE_OF_BUDGET = 0.1
"""Share of the available hours that a pilot may take."""
MINUTES, MIN_MINUTES = 30.0, 5.0
"""Time limit of a pilot without an estimate, and the least time limit."""
SLACK = 2.0
"""Ratio of a pilot's time limit to its estimated time."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """The proposed pilot.

    config: configuration of the pilot run as plain values; None if the pilot's first action is not
    a run. do: instructions. completions, tokens, verifier_seconds: upper bounds on the completions,
    tokens and verifier time of the pilot. minutes: estimated elapsed time of the pilot; None if
    unknown. stop: conditions that end the pilot. promote: results of the pilot that justify the
    full run.
    """

    config: Mapping[str, Any] | None
    do: tuple[str, ...]
    completions: int
    tokens: int
    verifier_seconds: float | None
    minutes: float | None
    stop: tuple[str, ...]
    promote: tuple[str, ...]

    def toml(self) -> str:
        """Return the text of the pilot's configuration file; empty if the pilot is not a run."""
        return tomli_w.dumps(dict(self.config)) if self.config else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of a pilot as plain values for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = list(self.do)
        if self.config is not None:
            wall = "not known" if self.minutes is None else f"{self.minutes:.1f} minutes"
            judge = "not known"
            if self.verifier_seconds is not None:
                judge = f"{self.verifier_seconds:.1f} s of verification"
            tokens = f"{self.completions} completions, at most {self.tokens} tokens"
            lines.append(f"budget: {tokens}, {judge}, wall time {wall}")
        lines += [f"ends it: {one}" for one in self.stop]
        lines += [f"promotes it: {one}" for one in self.promote]
        return "\n".join(lines)


def propose(decision: Decision, config: TrainConfig | None = None) -> Pilot:
    """Propose a pilot for the recommended method.

    config: the user's configuration. The pilot keeps the model, the data and the settings of the
        full run.
    """
    facts, kind = decision.facts, KINDS[decision.name]
    if kind == "first" and decision.name != "train_reward_model":
        return _pilot(decision, None)
    tree = _base(config)
    if kind == "online" or decision.name == "rft":
        return _online(decision, tree, config)
    stage = {"supervised": "sft", "preference": "preference", "first": "reward_model"}[kind]
    tree[stage] = {STAGES[stage][1]: _sources(config, stage)}
    for setting in decision.settings:
        _put(tree, setting.key, setting.value)
    tree[stage]["epochs"] = 1.0
    _bound(tree, facts, None)
    count = facts.num_demonstrations if stage == "sft" else facts.num_pairs
    return _pilot(decision, tree, rows=str(count) if count else None)


def _pilot(
    decision: Decision,
    tree: dict[str, Any] | None,
    completions: int = 0,
    tokens: int = 0,
    minutes: float | None = None,
    **shown: str | None,
) -> Pilot:
    """Validate the configuration of a pilot, and add the texts about pilots from the table.

    tree: configuration of the pilot as plain values. shown: additional figures for the texts about
    the pilot.
    """
    facts, known = decision.facts, known_of(decision.facts)
    if tree is not None:
        # A proposed configuration that `assay train` would refuse must fail here, not later.
        configuration.build(tree)
    row = first_row(PILOTS, known, decision.name)
    figures = figures_of(known) | {"four_times": str(4 * facts.max_tokens)} | shown
    do, stop, promote = (
        tuple(fill(one, figures) for one in texts) for texts in (row.do, row.stop, row.promote)
    )
    seconds = None
    if completions and facts.verifier_seconds is not None:
        seconds = completions * facts.verifier_seconds
    return Pilot(tree, do, completions, tokens, seconds, minutes, stop, promote)


def detectable(facts: Facts) -> float:
    """Return the gain in accuracy that equals two standard errors with `HELD_OUT` problems."""
    # Both evaluations are treated as independent, which overestimates a paired standard error.
    # At a pass rate of 0 or 1, the binomial error would be 0, so the rate is clipped.
    rate = 0.5 if facts.pass_at_1 is None else min(max(facts.pass_at_1, 0.05), 0.95)
    return 2 * (2 * rate * (1 - rate) / HELD_OUT) ** 0.5


def _online(decision: Decision, tree: dict[str, Any], config: TrainConfig | None) -> Pilot:
    facts, given = decision.facts, config.rl if config is not None else None
    prompts = min(NUM_PROMPTS, given.num_prompts) if given is not None else NUM_PROMPTS
    kept = given.model_dump(exclude_unset=True) if given is not None else {}
    rl = tree["rl"] = {**kept, "num_prompts": prompts, "group_size": facts.group_size}
    for setting in decision.settings:
        _put(tree, setting.key, setting.value)
    siblings = rl["group_size"]
    rl["num_minibatches"] = min(rl.get("num_minibatches", 1), prompts)
    if rl.get("max_group_size") is not None:
        rl["max_group_size"] = max(rl["max_group_size"], siblings)
    seconds = None
    # The measured seconds are those of a training step of the full run.
    # They are scaled to the number of completions in a step of the pilot.
    if facts.seconds_per_step is not None and given is not None:
        share = prompts * siblings / (given.num_prompts * given.group_size)
        seconds = facts.seconds_per_step * share
    steps = STEPS
    if seconds and facts.hours is not None:
        steps = int(SHARE_OF_BUDGET * facts.hours * 3600 / seconds)
        steps = max(MIN_STEPS, min(STEPS, steps))
    rl["steps"] = steps
    minutes = None if seconds is None else steps * seconds / 60
    every = {"every": max(1, steps // 2), "max_problems": HELD_OUT}
    tree["evaluation"] = {**tree.get("evaluation", {}), **every}
    _bound(tree, facts, minutes)
    completions = steps * prompts * siblings
    return _pilot(
        decision,
        tree,
        completions,
        completions * tree.get("sampling", {}).get("max_tokens", facts.max_tokens),
        minutes,
        steps=str(steps),
        prompts=str(prompts),
        siblings=str(siblings),
        gain=percent(detectable(facts)),
        held_out=str(HELD_OUT),
    )


def _base(config: TrainConfig | None) -> dict[str, Any]:
    """Return the user's configuration without its training stage, as plain values, with a new run
    name.
    """
    if config is None:
        return {
            "model": {"path": "path/to/model"},
            "data": {"train": ["problems.jsonl"], "heldout": ["heldout.jsonl"]},
        }
    # The pilot may run another training stage than the configuration, so all stages are left out.
    # The teacher is left out, because no pilot stage uses a teacher.
    others = {*STAGES, "teacher"}
    tree = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, exclude=others)
    run = tree.get("run", {})
    return {**tree, "run": {**run, "name": f"{run.get('name', 'run')}-pilot"}}


def _sources(config: TrainConfig | None, stage: str) -> list[str]:
    """Return the row sources of a training stage in the user's configuration."""
    # The stages [preference] and [reward_model] train on the same type of rows.
    # The row sources of a pilot may therefore be in either of these two tables.
    for name in (stage, *(("preference", "reward_model") if stage != "sft" else ())):
        section = getattr(config, name, None)
        if section is not None:
            return list(getattr(section, STAGES[name][1]))
    return [f"{STAGES[stage][1]}.jsonl"]


def _bound(tree: dict[str, Any], facts: Facts, minutes: float | None) -> None:
    """Set a time limit and a stricter guard threshold in the configuration of a pilot."""
    most = MINUTES if minutes is None else max(MIN_MINUTES, SLACK * minutes)
    if facts.hours is not None:
        most = min(most, max(MIN_MINUTES, 60 * facts.hours / 2))
    _put(tree, "run.max_minutes", round(most, 1))
    _put(tree, "guard.max_not_judged", 0.1)


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value
