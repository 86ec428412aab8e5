"""Measure facts about the model, the problems and the verifier of a configuration."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from assay.config import TrainConfig
from assay.errors import VerifierError
from assay.host.startup import doing
from assay.plan.facts import LEARNED, OF_VERIFIER, Facts, count_rows, facts_of_config
from assay.run.progress import SamplingWatch
from assay.run.startup import show_startup
from assay.verify.expression import BUILT_IN, parse_expression

if TYPE_CHECKING:
    from assay.plan.measured.seconds import StepSeconds
    from assay.plan.memory import MemoryPlan
    from assay.session.assemble import Session
    from assay.session.stage import FirstLook
    from assay.types import Group, Problem, Verdict

    Judged = list[tuple[Group, Sequence[Verdict]]]

MEASURED_PROBLEMS, MEASURED_SAMPLES = 16, 8
# Sampler keys contain the number of the draw, and curricula only use numbers from 0 on.
# With a negative draw number, measured completions differ from those of all training steps.
MEASURED_DRAW = -2
SELF_TEST_ROWS = 40
# Configurations of Transformers use different names for the number of experts.
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
LOOKED_AT = 64
"""Number of prompts that are tokenized to estimate lengths."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Estimated memory and seconds per step of a configuration.

    seconds: measured seconds of a step; None for a stage that is not timed. num_steps: number of
    steps in the whole run, for a timed stage. num_evaluations: number of evaluations in the run.
    """

    memory: MemoryPlan
    seconds: StepSeconds | None
    num_steps: int | None = None
    num_evaluations: int = 0

    @property
    def minutes(self) -> float | None:
        """Minutes of all training steps of the run, without evaluations."""
        if self.seconds is None or self.num_steps is None:
            return None
        return (self.num_steps * self.seconds.total + self.seconds.once) / 60

    @property
    def evaluation_minutes(self) -> float | None:
        """Minutes of all evaluations of the run; None if evaluations were not timed."""
        if self.seconds is None or not self.seconds.evaluation:
            return None
        return self.num_evaluations * self.seconds.evaluation / 60

    def as_dict(self) -> dict[str, Any]:
        """Return the estimates as plain values for JSON."""
        return {
            "memory_mib": {**self.memory.parts, "total": self.memory.total_mib},
            "workers_mib": self.memory.workers_mib,
            "seconds": self.seconds.as_dict() if self.seconds is not None else None,
            "num_steps": self.num_steps,
            "minutes": self.minutes,
            "evaluation_minutes": self.evaluation_minutes,
        }

    def __str__(self) -> str:
        seconds = "  a step     not timed in this stage" if self.seconds is None else self.seconds
        lines = [f"{self.memory}", f"{seconds}"]
        if self.minutes is not None:
            evaluations = self.evaluation_minutes
            whole = f"  the run {self.minutes + (evaluations or 0.0):12.1f} min   "
            parts = f"{self.num_steps} steps"
            if evaluations is None:
                lines.append(f"{whole}{parts}, without evaluations")
            else:
                asked = f"{self.num_evaluations} evaluations {evaluations:.1f}"
                lines.append(f"{whole}{parts} {self.minutes:.1f}, {asked}")
        return "\n".join(lines)


def measure(
    config: TrainConfig, num_problems: int, say: Callable[[str], None]
) -> tuple[Facts, Measured]:
    """Open the model, the rows and the verifiers of a configuration, and measure facts about them.

    num_problems: number of problems to sample at the training temperature. say: receives lines of
    progress. Raises UserError if the model, the rows or a verifier cannot be opened.
    """
    from assay.session.assemble import Problems, fit_problems, open_session, open_verifiers
    from assay.training.api import kind_of, settled

    config = settled(config)
    facts = replace(facts_of_config(config), **count_rows(config))
    started = time.perf_counter()
    with ExitStack() as stack:
        taught = config.scale.teacher_actors is not None
        with show_startup():
            verifiers = open_verifiers(config, stack, actors=taught)
            kind = kind_of(config)
            with doing("checking the rows"):
                rows = kind.read(config, verifiers)
            session = open_session(config, verifiers)
            look = kind.look(config, session, rows)
        session.generator.watch = SamplingWatch(lambda how_far: say(str(how_far)))
        problems: Sequence[Problem] = ()
        evaluated, lengths = (0, 0), list[int]()
        if isinstance(rows, Problems) and config.preference is None:
            opened = fit_problems(rows, session)
            problems = opened.train
            evaluated = len(opened.heldout), len(opened.canaries)
            facts = replace(facts, num_problems=len(problems))
        count = min(num_problems, len(problems))
        if count:
            say(f"sampling {count} problems x {MEASURED_SAMPLES}")
            groups = sample_problems(session, problems, count)
            lengths = [len(one.tokens) for group, _ in groups for one in group.completions]
            say("trying the verifier")
            tried = try_verifier(config.data.verifier, config.run.seed)
            facts = replace(facts, **facts_of_groups(groups), **tried)
        found, measured = measure_machine(session, look, problems, evaluated, facts, lengths, say)
    say(f"measured in {time.perf_counter() - started:.0f} s")
    return replace(facts, **found), measured


def sample_problems(session: Session, problems: Sequence[Problem], count: int) -> Judged:
    """Sample completions of the first ``count`` problems, and judge them."""
    from assay.session.evaluate import evaluate

    groups: Judged = []
    drawn = [replace(problems[n], draw=MEASURED_DRAW) for n in range(count)]
    evaluate(
        session.generator,
        session.verifiers,
        drawn,
        session.config.sampling,
        MEASURED_SAMPLES,
        lambda group, verdicts: groups.append((group, verdicts)),
    )
    return groups


def facts_of_groups(groups: Judged) -> dict[str, Any]:
    """Compute pass rates and lengths from judged completions of the base model."""
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
    """Run the self-test and the red team on a built-in verifier, and return facts about its errors.

    For a user's verifier or a learned verifier, no facts are returned.
    """
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
                # The self-test draws a sample of labelled rows, but does not return their labels.
                share = expected.count("failed") / max(1, len(expected))
                num_wrong = max(1.0, share * test.rows)
                num_right = max(1.0, test.rows - num_wrong)
                found["false_accepts"] = min(1.0, len(test.false_accepts) / num_wrong)
                found["false_rejects"] = min(1.0, len(test.false_rejects) / num_right)
        try:
            team = red_team(name, service=service)
        # Some built-in verifiers have no suite of reward hacks.
        except VerifierError:
            return found
    return {**found, "attacks": sum(team.tried.values()), "attacks_accepted": team.num_accepted}


def measure_machine(
    session: Session,
    look: FirstLook,
    problems: Sequence[Problem],
    evaluated: tuple[int, int],
    facts: Facts,
    lengths: Sequence[int],
    say: Callable[[str], None],
) -> tuple[dict[str, Any], Measured]:
    """Measure the loaded model. Return facts about the model, and estimates of memory and seconds.

    evaluated: numbers of held-out problems and of canaries. lengths: lengths of sampled
    completions. The measurement trains the model on a few synthetic
    completions, so the model cannot be used afterwards.
    """
    import torch

    from assay.plan.measured.seconds import mean_lengths, time_given, time_pairs, time_sampled
    from assay.plan.memory import MIB, critic_bytes, plan_memory, reference_bytes
    from assay.plan.step_seconds import num_evaluations
    from assay.session.teachers import model_of

    config, model = session.config, cast("Any", session.loaded.model)
    looked_at = [problems[n] for n in range(min(LOOKED_AT, len(problems)))]
    prompts = sorted(len(session.renderer.render(one).tokens) for one in looked_at) or [64]
    # Memory is measured before any timing: an update allocates gradients and optimizer state.
    # This memory would otherwise count as memory of the libraries.
    memory = plan_memory(
        config,
        model,
        prompts[-1],
        look.has_reference,
        look.has_critic,
        model_of(look.teacher),
        num_heldout=max(evaluated),
        asked=look.asked,
        lean=look.lean,
    )
    say("timing a few products and decoding steps")
    seconds, num_steps = None, None
    given, sampled = config.sft or config.distill or config.pretrain, config.rl or config.distill
    if problems and sampled is not None:
        num_steps = sampled.steps
        typical = prompts[len(prompts) // 2]
        seconds = time_sampled(session, problems, typical, facts, lengths, look.teacher, evaluated)
    elif given is not None:
        prompt, learned = mean_lengths(session)
        seconds = time_given(session, prompt, learned, look.teacher, sum(look.asked))
        if config.pretrain is None and facts.num_demonstrations:
            tokens = given.epochs * facts.num_demonstrations * learned
            num_steps = max(1, round(tokens / given.tokens_per_step))
    elif look.work is not None and config.preference is not None:
        seconds, num_steps = time_pairs(session, look.work, look.lean), look.work.num_steps
    own = sum(memory.parts.get(name, 0.0) for name in ("reference", "critic"))
    found: dict[str, Any] = {
        "num_weights": sum(one.numel() for one in model.parameters()),
        "experts": any(getattr(model.config, name, 0) for name in EXPERTS),
        "base_mib": memory.total_mib - own,
        "reference_mib": reference_bytes(model) / MIB,
        "critic_mib": critic_bytes(config, model) / MIB,
        "seconds_per_step": seconds.total if seconds is not None else None,
    }
    if session.loaded.device.type == "cuda":
        total = torch.cuda.get_device_properties(session.loaded.device).total_memory
        found["memory_mib"] = total / MIB
    times = 0 if num_steps is None else num_evaluations(config, num_steps)
    return found, Measured(memory, seconds, num_steps, times)
