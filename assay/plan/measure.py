"""Facts that a configuration, its data, its model and its verifier tell; no training."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.config import TrainConfig
from assay.errors import UserError, VerifierError
from assay.plan.facts import LEARNED, Facts, Reward
from assay.run.progress import SamplingWatch
from assay.verify.expression import BUILT_IN, parse_expression

if TYPE_CHECKING:
    from assay.train.assemble import Bench
    from assay.types import Group, Problem, Verdict

MEASURED_PROBLEMS = 16
MEASURED_SAMPLES = 8
MEASURED_DRAW = -2
"""The number of the draw: no curriculum's."""
SELF_TEST_ROWS = 40
MIB = 2**20
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

JUDGED = ("run:", "verdicts:")
"""How sources begin that hold judged groups (`assay.train.preference_verdicts`)."""

Say = Callable[[str], None]

_OF_VERIFIER: dict[str, Reward] = {
    "code": "tests",
    "judge": "judge",
    "reward_model": "reward_model",
    "process_reward_model": "reward_model",
}


def facts_of_config(config: TrainConfig) -> Facts:
    """Return what a configuration says itself: where the reward comes from, and how it is sampled."""
    facts = Facts(
        max_tokens=config.sampling.max_tokens,
        memory_mib=memory_mib(),
        hours=config.run.max_minutes / 60 if config.run.max_minutes else None,
    )
    if config.sft is not None:
        return replace(facts, reward="demonstrations")
    if config.preference is not None and given_pairs(config.preference.pairs):
        return replace(facts, reward="unpaired" if config.preference.method == "kto" else "pairs")
    if config.preference is not None:  # pairs are made of completions that a verifier judges
        reward, step_labels, shaped = reward_of(config.data.verifier)
        size = config.preference.group_size
        return replace(
            facts, reward=reward, step_labels=step_labels, shaped=shaped, group_size=size
        )
    if config.reward_model is not None:
        return replace(facts, reward="pairs")
    assert config.rl is not None
    reward, step_labels, shaped = reward_of(config.data.verifier)
    return replace(
        facts,
        reward=reward,
        step_labels=step_labels,
        shaped=shaped,
        group_size=config.rl.group_size,
        updates_per_batch=config.rl.epochs * config.rl.num_minibatches,
        keep_close=bool(config.algorithm.kl_weight),
    )


def reward_of(expression: str) -> tuple[Reward, bool, bool]:
    """Return where an expression's reward comes from, whether steps are judged, and whether it is shaped."""
    terms = parse_expression(expression)
    names = [name.partition("@")[0] for name in terms[0].names]
    found: list[Reward] = [_OF_VERIFIER.get(name, "answer") for name in names]
    steps = any("process_reward_model" in one for term in terms for one in term.names)
    first = min(
        range(len(found)), key=lambda n: found[n] not in LEARNED
    )  # one that is learned, if any
    return found[first], steps, len(terms) > 1


def memory_mib() -> float | None:
    """Return the machine's memory, or its container's; None where the system does not tell."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    for path in CGROUP_LIMITS:
        try:
            found = min(found, int(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return found / MIB


def given_pairs(sources: Sequence[str]) -> list[str]:
    """Return the sources that hold preferences, not judged groups to make them of."""
    return [one for one in sources if not one.startswith(JUDGED)]


def count_rows(config: TrainConfig) -> dict[str, Any]:
    """Return how many demonstrations or preferences the configured stage has."""
    on_bad_row = config.data.on_bad_row
    if config.sft is not None:
        from assay.data.traces import load_traces

        return {"num_demonstrations": len(load_traces(config.sft.traces, on_bad_row=on_bad_row))}
    sources: Sequence[str] = ()
    if config.preference is not None:
        sources = given_pairs(config.preference.pairs)
    elif config.reward_model is not None:
        sources = config.reward_model.rows
    if not sources:
        return {}
    from assay.data.pairs import Labelled, load_preferences
    from assay.data.sources import open_source

    if config.reward_model is not None and config.reward_model.kind != "preference":
        count = sum(1 for one in sources for _ in open_source(one).scan())
        return {"num_pairs": count, "reward": "unpaired"}  # each is marked by itself
    rows = load_preferences(sources, on_bad_row=on_bad_row)
    unpaired = len(rows) > 0 and isinstance(rows[0], Labelled)
    return {"num_pairs": len(rows), "reward": "unpaired" if unpaired else "pairs"}


def known_rows(config: TrainConfig) -> dict[str, Any]:
    """Do as `count_rows`; nothing where the rows are not here."""
    try:
        return count_rows(config)
    except UserError:
        return {}


class Sampled:
    """Takes in judged groups, and says what they tell."""

    def __init__(self) -> None:
        self.passes: list[tuple[int, int]] = []
        self.lengths: list[int] = []
        self.seconds: list[float] = []
        self.num_truncated = 0
        self.num_not_judged = 0

    def __call__(self, group: Group, verdicts: Sequence[Verdict]) -> None:
        """Take in one group."""
        judged = [one for one in verdicts if one.judged]
        if judged:
            self.passes.append((len(judged), sum(one.correct for one in judged)))
        self.num_not_judged += len(verdicts) - len(judged)
        self.seconds += [one.seconds for one in verdicts]
        self.lengths += [len(one.tokens) for one in group.completions]
        self.num_truncated += sum(one.truncated for one in group.completions)

    def facts(self) -> dict[str, Any]:
        """Return the facts; none of nothing."""
        if not self.lengths:
            return {}
        mean = statistics.mean(self.lengths)
        found: dict[str, Any] = {
            "mean_tokens": mean,
            "length_spread": statistics.pstdev(self.lengths) / mean if mean else 0.0,
            "truncated": self.num_truncated / len(self.lengths),
            "not_judged": self.num_not_judged / len(self.lengths),
            "verifier_seconds": statistics.mean(self.seconds),
        }
        if self.passes:
            found["passes"] = tuple(self.passes)
            found["pass_at_1"] = statistics.mean(c / n for n, c in self.passes)
            found["pass_at_k"] = statistics.mean(float(c > 0) for _, c in self.passes)
            found["num_samples"] = max(n for n, _ in self.passes)
        return found


def sample_problems(
    bench: Bench, problems: Sequence[Problem], num_problems: int, num_samples: int
) -> Sampled:
    """Sample the first problems at the training temperature, and judge what comes."""
    from assay.train.evaluate import evaluate

    sampled = Sampled()
    count = min(num_problems, len(problems))
    drawn = [replace(problems[n], draw=MEASURED_DRAW) for n in range(count)]
    evaluate(bench.generator, bench.verifiers, drawn, bench.config.sampling, num_samples, sampled)
    return sampled


def try_verifier(expression: str, config: TrainConfig) -> dict[str, Any]:
    """Return what the self-test and the red team say of a built-in verifier; nothing of a user's own."""
    name = parse_expression(expression)[0].names[0].partition("@")[0]
    if name not in BUILT_IN or _OF_VERIFIER.get(name) in ("judge", "reward_model"):
        return {}
    from assay.verify.redteam.team import red_team
    from assay.verify.selftest import labelled_rows, sampled_self_test
    from assay.verify.service import VerifierService

    found: dict[str, Any] = {}
    with VerifierService(name, num_workers=1, deadline=60.0) as service:
        wrong = {row["id"] for row in labelled_rows(name) if row["expected"] == "failed"}
        for test in sampled_self_test(service, [name], SELF_TEST_ROWS, config.run.seed):
            if test.rows and not test.skipped:
                share = len(wrong) / max(1, sum(1 for _ in labelled_rows(name)))
                num_wrong = max(1.0, share * test.rows)
                num_right = max(1.0, test.rows - num_wrong)
                found["false_accepts"] = min(1.0, len(test.false_accepts) / num_wrong)
                found["false_rejects"] = min(1.0, len(test.false_rejects) / num_right)
        try:
            team = red_team(name, service=service)
        except VerifierError:  # it has no suite
            return found
    found["attacks"] = sum(team.tried.values())
    found["attacks_accepted"] = team.num_accepted
    return found


def measure(
    config: TrainConfig, num_problems: int, num_samples: int, say: Say = lambda text: None
) -> tuple[Facts, Any]:
    """Open what a configuration names and measure it; returns the facts, and what memory and time need.

    Second: a `Measured`, or None where there is no model to open. Raises UserError for what cannot be
    opened.
    """
    from assay.plan.machine import measure_machine
    from assay.train.api import settled
    from assay.train.assemble import fit_problems, open_bench, open_verifiers, read_problems

    config = settled(config)
    facts = facts_of_config(config)
    facts = replace(facts, **count_rows(config))
    started = time.perf_counter()
    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        rows = read_problems(config, verifiers) if config.rl is not None else None
        say("loading the model")
        bench = open_bench(config, verifiers)
        bench.generator.watch = SamplingWatch(lambda how_far: say(str(how_far)))
        sampled = Sampled()
        problems: Sequence[Problem] = ()
        num_heldout = 0
        if rows is not None:
            opened = fit_problems(rows, bench)
            problems, num_heldout = opened.train, len(opened.heldout)
            facts = replace(facts, num_problems=len(problems))
            if num_problems:
                say(f"sampling {min(num_problems, len(problems))} problems x {num_samples}")
                sampled = sample_problems(bench, problems, num_problems, num_samples)
                facts = replace(facts, **sampled.facts())
                say("trying the verifier")
                facts = replace(facts, **try_verifier(config.data.verifier, config))
        measured = measure_machine(config, bench, problems, num_heldout, sampled, say)
    say(f"measured in {time.perf_counter() - started:.0f} s")
    facts = replace(
        facts,
        num_weights=measured.num_weights,
        experts=measured.experts,
        base_mib=measured.base_mib,
        reference_mib=measured.reference_mib,
        critic_mib=measured.critic_mib,
        memory_mib=measured.memory_mib or facts.memory_mib,
        seconds_per_step=measured.seconds_per_step,
    )
    return facts, measured


def exists(config: TrainConfig) -> bool:
    """Whether the configured model is a folder that is there (a hub name is not asked for)."""
    path = config.model.path
    return any(Path(one).expanduser().exists() for one in (path, path.rpartition("@")[0] or path))
