"""Facts that a configuration's model, problems and verifier tell once they are opened; no training."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.config import TrainConfig
from assay.errors import VerifierError
from assay.plan.configured import OF_VERIFIER, count_rows, facts_of_config
from assay.plan.facts import LEARNED, Facts
from assay.run.progress import SamplingWatch
from assay.verify.expression import BUILT_IN, parse_expression

if TYPE_CHECKING:
    from assay.types import Group, Problem, Verdict

MEASURED_PROBLEMS, MEASURED_SAMPLES = 16, 8
MEASURED_DRAW = -2  # the number of the draw: no curriculum's
SELF_TEST_ROWS = 40


def measure(
    config: TrainConfig, num_problems: int, say: Callable[[str], None]
) -> tuple[Facts, Any]:
    """Open what a configuration names and measure it; return the facts, and a `Measured`.

    Problems are sampled at the training temperature. Raises UserError for what cannot be opened.
    """
    from assay.plan.machine import measure_machine
    from assay.training.api import settled
    from assay.training.assemble import fit_problems, open_bench, open_verifiers, read_problems
    from assay.training.evaluate import evaluate

    config = settled(config)
    facts = replace(facts_of_config(config), **count_rows(config))
    started = time.perf_counter()
    groups: list[tuple[Group, Sequence[Verdict]]] = []

    def take(group: Group, verdicts: Sequence[Verdict]) -> None:
        groups.append((group, verdicts))

    with ExitStack() as stack:
        verifiers = open_verifiers(config, stack)
        rows = read_problems(config, verifiers) if config.rl is not None else None
        say("loading the model")
        bench = open_bench(config, verifiers)
        bench.generator.watch = SamplingWatch(lambda how_far: say(str(how_far)))
        problems: Sequence[Problem] = ()
        num_heldout = 0
        if rows is not None:
            opened = fit_problems(rows, bench)
            problems, num_heldout = opened.train, len(opened.heldout)
            facts = replace(facts, num_problems=len(problems))
        count = min(num_problems, len(problems))
        if count:
            say(f"sampling {count} problems x {MEASURED_SAMPLES}")
            drawn = [replace(problems[n], draw=MEASURED_DRAW) for n in range(count)]
            samples, sampling = MEASURED_SAMPLES, config.sampling
            evaluate(bench.generator, verifiers, drawn, sampling, samples, take)
            say("trying the verifier")
            tried = try_verifier(config.data.verifier, config.run.seed)
            facts = replace(facts, **facts_of_groups(groups), **tried)
        lengths = [len(one.tokens) for group, _ in groups for one in group.completions]
        found, measured = measure_machine(config, bench, problems, num_heldout, facts, lengths, say)
    say(f"measured in {time.perf_counter() - started:.0f} s")
    return replace(facts, **found), measured


def facts_of_groups(groups: Sequence[tuple[Group, Sequence[Verdict]]]) -> dict[str, Any]:
    """Return what judged completions of the base model tell."""
    completions = [one for group, _ in groups for one in group.completions]
    verdicts = [one for _, of_it in groups for one in of_it]
    lengths = [len(one.tokens) for one in completions]
    mean = statistics.mean(lengths)
    found: dict[str, Any] = {
        "mean_tokens": mean,
        "length_spread": statistics.pstdev(lengths) / mean if mean else 0.0,
        "truncated": sum(one.truncated for one in completions) / len(completions),
        "not_judged": sum(not one.judged for one in verdicts) / len(verdicts),
        "verifier_seconds": statistics.mean(one.seconds for one in verdicts),
    }
    judged = [[one.correct for one in of_it if one.judged] for _, of_it in groups]
    passes = tuple((len(row), sum(row)) for row in judged if row)
    if passes:
        found["passes"] = passes
        found["pass_at_1"] = statistics.mean(c / n for n, c in passes)
        found["pass_at_k"] = statistics.mean(float(c > 0) for _, c in passes)
        found["num_samples"] = max(n for n, _ in passes)
    return found


def try_verifier(expression: str, seed: int) -> dict[str, Any]:
    """Return what self-test and red team say of a built-in verifier; nothing of a user's own."""
    name = parse_expression(expression)[0].names[0].partition("@")[0]
    if name not in BUILT_IN or OF_VERIFIER.get(name) in LEARNED:
        return {}
    from assay.verify.redteam.team import red_team
    from assay.verify.selftest import labelled_rows, sampled_self_test
    from assay.verify.service import VerifierService

    found: dict[str, Any] = {}
    with VerifierService(name, num_workers=1, deadline=60.0) as service:
        expected = [row["expected"] for row in labelled_rows(name)]
        for test in sampled_self_test(service, [name], SELF_TEST_ROWS, seed):
            if test.rows and not test.skipped:
                share = expected.count("failed") / max(1, len(expected))
                num_wrong = max(1.0, share * test.rows)
                num_right = max(1.0, test.rows - num_wrong)
                found["false_accepts"] = min(1.0, len(test.false_accepts) / num_wrong)
                found["false_rejects"] = min(1.0, len(test.false_rejects) / num_right)
        try:
            team = red_team(name, service=service)
        except VerifierError:  # it has no suite
            return found
    return {**found, "attacks": sum(team.tried.values()), "attacks_accepted": team.num_accepted}
