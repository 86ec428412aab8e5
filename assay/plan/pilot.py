"""A narrow first run: small enough to be cheap, large enough that its result decides something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w

from assay import config as configuration
from assay.config import TrainConfig
from assay.plan.decision import Decision
from assay.plan.facts import ONLINE, Facts
from assay.plan.rules import MIN_DEMONSTRATIONS, MIN_PAIRS, MIN_PROBLEMS
from assay.plan.words import percent

STEPS, MIN_STEPS = 20, 5
NUM_PROMPTS = 8
HELD_OUT = 200
SHARE_OF_BUDGET = 0.1
MINUTES = 30.0
SLACK = 2.0
STAGES = ("rl", "sft", "preference", "reward_model")


@dataclass(frozen=True, slots=True)
class Pilot:
    """What to do first. config: of a run, as plain values; None: no run comes first, `do` says what does.

    completions, tokens, verifier_seconds: its budgets at the most. minutes: its estimated wall time; None: not known.
    stop: what ends it. promote: what its result must be to go on at full size.
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
        """Return the run's configuration file; empty where there is none."""
        return tomli_w.dumps(dict(self.config)) if self.config else ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        names = [name for name in self.__slots__ if name not in ("config",)]
        return {"config": self.config, **{name: getattr(self, name) for name in names}}

    def __str__(self) -> str:
        lines = list(self.do)
        if self.config is not None:
            wall = "not known" if self.minutes is None else f"{self.minutes:.1f} minutes"
            judge = "not known"
            if self.verifier_seconds is not None:
                judge = f"{self.verifier_seconds:.1f} s of verification"
            budget = f"{self.completions} completions, at most {self.tokens} tokens, {judge}, wall time {wall}"
            lines.append(f"budget: {budget}")
        lines += [f"ends it: {one}" for one in self.stop]
        lines += [f"promotes it: {one}" for one in self.promote]
        return "\n".join(lines)


def propose(decision: Decision, config: TrainConfig | None = None) -> Pilot:
    """Return the pilot of a decision. config: the user's, whose model, data and settings are kept."""
    name, kind = decision.name, decision.recommended.candidate.kind
    if name in ("collect_data", "harden_verifier", "allow_length"):
        return _without_a_run(decision)
    tree = _base(config)
    for stage in STAGES:
        tree.pop(stage, None)
    if name == "sft":
        return _offline(decision, tree, "sft", {"traces": _sources(config, "sft", "traces")})
    if kind == "preference" or name == "train_reward_model":
        key, rows = ("preference", "pairs") if kind == "preference" else ("reward_model", "rows")
        return _offline(decision, tree, key, {rows: _sources(config, key, rows)})
    return _online(decision, tree, config)


def detectable(facts: Facts) -> float:
    """Return the gain of accuracy on `HELD_OUT` problems that is two standard errors of a difference."""
    rate = 0.5 if facts.pass_at_1 is None else min(max(facts.pass_at_1, 0.05), 0.95)
    return 2 * (2 * rate * (1 - rate) / HELD_OUT) ** 0.5


def _online(decision: Decision, tree: dict[str, Any], config: TrainConfig | None) -> Pilot:
    facts = decision.facts
    prompts = min(NUM_PROMPTS, config.rl.num_prompts) if config and config.rl else NUM_PROMPTS
    tree["rl"] = {"num_prompts": prompts, "group_size": facts.group_size}
    if config is not None and config.rl is not None:
        kept = config.rl.model_dump(exclude_unset=True)
        tree["rl"] = kept | tree["rl"]
    tree.setdefault("algorithm", {})["name"] = decision.name
    for setting in decision.settings:
        _put(tree, setting.key, setting.value)
    rl = tree["rl"]
    rl["num_minibatches"] = min(rl.get("num_minibatches", 1), prompts)
    if rl.get("max_group_size") is not None:
        rl["max_group_size"] = max(rl["max_group_size"], rl["group_size"])
    seconds = _pilot_seconds_per_step(facts, config, prompts, rl["group_size"])
    steps = _num_steps(facts, seconds)
    rl["steps"] = steps
    tree["evaluation"] = {
        **tree.get("evaluation", {}),
        "every": max(1, steps // 2),
        "max_problems": HELD_OUT,
    }
    minutes = None if seconds is None else steps * seconds / 60
    _bound(tree, facts, minutes)
    completions = steps * prompts * rl["group_size"]
    longest = tree.get("sampling", {}).get("max_tokens", facts.max_tokens)
    judged = None if facts.verifier_seconds is None else completions * facts.verifier_seconds
    gain = detectable(facts)
    return Pilot(
        config=_checked(tree),
        do=(
            f"assay train pilot.toml: {steps} steps of {prompts} prompts x {rl['group_size']} completions",
        ),
        completions=completions,
        tokens=completions * longest,
        verifier_seconds=judged,
        minutes=minutes,
        stop=(
            f"held-out accuracy falls by {percent(gain)} (two standard errors of a difference on {HELD_OUT} problems)",
            "fewer than 5 % of groups are mixed over half of the steps (metric group/mixed)",
            "more than 10 % of completions are not judged, or the entropy halves within the pilot",
        ),
        promote=(
            f"held-out accuracy rises by {percent(gain)} or more, and reading 20 completions that passed shows no trick",
            "assay redteam finds nothing that pays, and the mean length is not what rose alone",
        ),
    )


def _offline(
    decision: Decision, tree: dict[str, Any], stage: str, section: dict[str, Any]
) -> Pilot:
    facts = decision.facts
    for setting in decision.settings:
        _put(
            section if setting.key.startswith(f"{stage}.") else tree,
            setting.key.removeprefix(f"{stage}."),
            setting.value,
        )
    tree[stage] = {**section, "epochs": 1.0}
    _bound(tree, facts, None)
    rows = facts.num_demonstrations if stage == "sft" else facts.num_pairs
    what = {
        "sft": "held-out loss/nll falls throughout, and pass@8 rises above 5 %",
        "preference": "held-out accuracy of the implicit reward is above 55 %, and the log-probability of chosen completions does not fall with that of the rejected",
        "reward_model": "held-out accuracy on pairs is 65 % or more, with a calibration error (ECE) below 0.1",
    }[stage]
    return Pilot(
        config=_checked(tree),
        do=(f"assay train pilot.toml: one pass over {rows or 'the'} rows",),
        completions=0,
        tokens=0,
        verifier_seconds=None,
        minutes=None,
        stop=("the loss is not lower after a quarter of the pass", "the gradient is not finite"),
        promote=(what,),
    )


def _without_a_run(decision: Decision) -> Pilot:
    facts = decision.facts
    if decision.name == "harden_verifier":
        do = (
            "assay redteam --verifier NAME --problems FILE: read every accepted attack",
            "assay verify --self-test --verifier NAME: read every wrong verdict",
        )
        promote = (
            "0 attacks paid, 0 labelled wrong answers passed, below 10 % not judged: plan again",
        )
    elif decision.name == "allow_length":
        do = (f"assay plan CONFIG --set sampling.max_tokens={4 * facts.max_tokens}",)
        promote = ("fewer than half of the completions are cut: follow what is then recommended",)
    else:
        need = f"{MIN_PROBLEMS} problems with answers or tests"
        if facts.reward in ("pairs", "unpaired"):
            need = f"{MIN_PAIRS} preferences"
        elif facts.reward == "demonstrations" or (
            facts.pass_at_1 is not None and facts.pass_at_1 < 0.5
        ):
            need = f"{MIN_DEMONSTRATIONS} demonstrations, or easier problems"
        elif facts.reward in ONLINE and facts.pass_at_1 is not None:
            need = "problems of which half or fewer are solved"
        do = (f"collect {need}, and as many again to hold out",)
        promote = ("plan again with them: assay plan CONFIG",)
    return Pilot(None, do, 0, 0, None, None, ("nothing is trained before that",), promote)


def _base(config: TrainConfig | None) -> dict[str, Any]:
    if config is None:
        return {
            "model": {"path": "path/to/model"},
            "data": {"train": ["problems.jsonl"], "heldout": ["heldout.jsonl"]},
        }
    tree = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    run = dict(tree.get("run", {}))
    run["name"] = f"{run.get('name', 'run')}-pilot"
    return {**tree, "run": run}


def _sources(config: TrainConfig | None, stage: str, key: str) -> list[str]:
    """Return where the rows are: those of the stage, or of the other one that learns from preferences."""
    keys = {stage: key}
    if stage != "sft":
        keys |= {"preference": "pairs", "reward_model": "rows"}
    for name, of_it in keys.items():
        section = getattr(config, name, None)
        if section is not None:
            return list(getattr(section, of_it))
    return [f"{key}.jsonl"]


def _pilot_seconds_per_step(
    facts: Facts, config: TrainConfig | None, prompts: int, group_size: int
) -> float | None:
    """Return seconds of a pilot's step, by its share of the configured step's completions."""
    if facts.seconds_per_step is None or config is None or config.rl is None:
        return None
    share = prompts * group_size / (config.rl.num_prompts * config.rl.group_size)
    return facts.seconds_per_step * share


def _num_steps(facts: Facts, seconds: float | None) -> int:
    if seconds is None or facts.hours is None:
        return STEPS
    return max(MIN_STEPS, min(STEPS, int(SHARE_OF_BUDGET * facts.hours * 3600 / seconds)))


def _bound(tree: dict[str, Any], facts: Facts, minutes: float | None) -> None:
    most = MINUTES if minutes is None else max(5.0, SLACK * minutes)
    if facts.hours is not None:
        most = min(most, max(5.0, 60 * facts.hours / 2))
    tree["run"] = {**tree.get("run", {}), "max_minutes": round(most, 1)}
    tree["guard"] = {**tree.get("guard", {}), "max_not_judged": 0.1}


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
    tree[last] = value


def _checked(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree, once the configuration's own rules have accepted it."""
    configuration.build(tree)
    return tree
