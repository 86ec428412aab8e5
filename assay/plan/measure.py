"""Facts that a configuration's model, its problems and its verifier tell, once they are opened; no training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.config import TrainConfig
from assay.errors import VerifierError
from assay.plan.configured import OF_VERIFIER, count_rows, facts_of_config
from assay.plan.facts import Facts
from assay.plan.sampled import Sampled, sample_problems
from assay.run.progress import SamplingWatch
from assay.verify.expression import BUILT_IN, parse_expression

if TYPE_CHECKING:
    from assay.types import Problem

MEASURED_PROBLEMS = 16
MEASURED_SAMPLES = 8
SELF_TEST_ROWS = 40
Say = Callable[[str], None]


def try_verifier(expression: str, config: TrainConfig) -> dict[str, Any]:
    """Return what the self-test and the red team say of a built-in verifier; nothing of a user's own."""
    name = parse_expression(expression)[0].names[0].partition("@")[0]
    if name not in BUILT_IN or OF_VERIFIER.get(name) in ("judge", "reward_model"):
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
    from assay.training.api import settled
    from assay.training.assemble import fit_problems, open_bench, open_verifiers, read_problems

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
