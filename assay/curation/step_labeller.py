"""Labels of reasoning steps, estimated by rollouts that continue from each step."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from assay.config import SamplingConfig, ToolsConfig, at_temperature, with_sampling
from assay.curation.asking import Estimate, StepLabelSettings
from assay.curation.output import Output, Row, is_run
from assay.curation.sampler import sampling_of
from assay.data.completions import Record
from assay.errors import ConfigError, DataError, RunError, VerifierError, message
from assay.generate.base import Generator
from assay.host.files import read_rows
from assay.host.startup import doing
from assay.host.terminal import say
from assay.reward_models.steps import Places, Step, split_steps
from assay.run.rollout_log import RolloutLog
from assay.run.startup import show_startup
from assay.session.assemble import open_verifiers, show_sampling
from assay.session.consent import open_config
from assay.session.evaluate import Judge, judge_groups
from assay.session.prefixes import PREFIX, PrefixRenderer
from assay.session.recorded import recorded_groups
from assay.session.sampling_session import check_sampling, open_sampling
from assay.types import Completion, Group, Problem, Prompt, Verdict

COMPLETIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class ToLabel:
    """A completion, with its problem, whose steps need labels."""

    problem: Problem
    completion: Completion


@dataclass(frozen=True)
class StepLabeller:
    """Labels the steps of completions by rollouts.

    generator: generator with a `PrefixRenderer`, which appends the text under the spec key `PREFIX`
    to the prompt. num_samples: number of rollouts per step.
    """

    generator: Generator
    verifiers: Judge
    sampling: SamplingConfig
    num_samples: int = 8
    estimate: Estimate = "hard"
    split: str = "newline"

    def steps_of(self, item: ToLabel) -> list[Step]:
        """Split a completion into steps, as the setting `split` configures."""
        # The spec is emptied, because the spec key ``step_ends`` would override the setting.
        completion = Completion.from_text(item.completion.text, think=item.completion.think)
        problem = replace(item.problem, spec={})
        return split_steps(problem, completion, Places(completion, None), self.split, "all")

    def label(self, items: Sequence[ToLabel]) -> list[dict[str, Any] | None]:
        """Return one row of labels per completion.

        Returns None for a completion without steps, or if a step has no rollout with a verdict. A
        step's soft label is the share of passed rollouts among the step's judged rollouts (equation
        4 of Math-Shepherd). A step's hard label is 1 if any rollout passes (equation 3). The labels
        of the last step follow from the verdict of the completion itself.
        """
        steps = [self.steps_of(item) for item in items]
        problems = [
            _continued(item, found, self.sampling.line(item.problem.effort))
            for item, found in zip(items, steps, strict=True)
        ]
        flat = [problem for each in problems for problem in each]
        groups = self.generator.generate(flat, self.sampling, self.num_samples)
        finished = [_alone(item) for item in items]
        judged = iter(judge_groups(self.verifiers, [*map(_whole, groups), *finished]))
        verdicts = {group.problem.id: next(judged) for group in groups}
        tokens = {
            group.problem.id: sum(len(one.tokens) for one in group.completions) for group in groups
        }
        rows: list[dict[str, Any] | None] = []
        for item, found, tried, own in zip(items, steps, problems, judged, strict=True):
            of_steps = [*(verdicts[problem.id] for problem in tried), own]
            num_tokens = sum(tokens[problem.id] for problem in tried)
            rows.append(self._row(item, found, of_steps, num_tokens) if found else None)
        return rows

    def _row(
        self, item: ToLabel, steps: Sequence[Step], judged: Sequence[Sequence[Verdict]], tokens: int
    ) -> dict[str, Any] | None:
        counts = [sum(one.judged for one in verdicts) for verdicts in judged]
        passed = [sum(one.correct for one in verdicts) for verdicts in judged]
        if not all(counts):
            return None
        soft = [good / count for good, count in zip(passed, counts, strict=True)]
        hard = [int(good > 0) for good in passed]
        prompt, answer = item.problem.prompt, item.problem.spec.get("answer")
        return {
            "id": item.completion.id,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "completion": item.completion.text,
            "step_ends": [step.end - 1 for step in steps],
            "labels": hard if self.estimate == "hard" else soft,
            "hard_labels": hard,
            "soft_labels": soft,
            "passed": passed,
            "judged": counts,
            "rollouts": self.num_samples * (len(steps) - 1),
            "tokens": tokens,
            **({} if answer is None else {"answer": answer}),
        }


def label_rows(settings: StepLabelSettings, out: Output) -> None:
    """Write a row of step labels for each completion of the inputs."""
    config = sampling_of(settings)
    sampling = at_temperature(config.sampling, settings.temperature)
    # A rollout starts in the middle of a completion.
    # Thinking controls would not count the completion's earlier tokens, so they are disabled.
    off = {"think_budget": None, "min_think": None, "effort": sampling.line(sampling.effort)}
    sampling = with_sampling(sampling, **off)
    # A rollout is a single assistant turn, without tools.
    config = config.model_copy(update={"tools": ToolsConfig()})
    facts = {
        "model": settings.model,
        "rollouts": settings.num_samples,
        "estimate": settings.estimate,
        "split": settings.split,
        "verifier": config.data.verifier,
        "sampling": sampling.model_dump(mode="json"),
        "seed": config.run.seed,
        **({} if config.server.url is None else {"server": config.server.url}),
    }
    # A file of labels with other settings is rejected before a model is loaded for minutes.
    earlier = labelled_before(settings.labelled, facts)
    with show_startup():
        check_sampling(config)
        verifiers = open_verifiers(config, out, actors=True)
        with doing("checking the rows"):
            items = load_judged(settings, out, verifiers.check_problem)
        session = open_sampling(config, verifiers, out)
    session.generator.render = PrefixRenderer(session.renderer)
    show_sampling(session.generator, out, quiet=False)
    labeller = StepLabeller(
        generator=session.generator,
        verifiers=session.verifiers,
        sampling=sampling,
        num_samples=settings.num_samples,
        estimate=settings.estimate,
        split=settings.split,
    )
    write_labels(labeller, items, out, facts, earlier)


def write_labels(
    labeller: StepLabeller,
    items: Sequence[ToLabel],
    out: Output,
    facts: Mapping[str, Any],
    earlier: Mapping[str, Row],
) -> None:
    """Label completions and write their rows in order.

    facts: settings that each output row records. earlier: rows of an earlier call by completion id,
    which are written again without new rollouts.
    """
    out.add_filters("not_labelled")
    say(_budget(labeller, [item for item in items if item.completion.id not in earlier]))
    rollouts, tokens, judged, labels = 0, 0, 0, list[int]()
    # Several completions are sampled as a batch, to fill the engine's slots.
    # A kill therefore loses at most the labels of the current batch.
    left = iter(items)
    while part := list(islice(left, COMPLETIONS_AT_ONCE)):
        fresh = [item for item in part if item.completion.id not in earlier]
        found = iter(labeller.label(fresh))
        for item in part:
            if (row := earlier.get(item.completion.id)) is None:
                if (made := next(found)) is None:
                    shown = {"id": item.completion.id, "completion": item.completion.text}
                    out.take("not_labelled", shown, "no step, or a step without a verdict")
                    continue
                row = {**made, "labelled_by": facts}
                rollouts += row["rollouts"]
                tokens += row["tokens"]
                judged += sum(row["judged"][:-1])
            labels += row["hard_labels"]
            out.write(row)
        out.flush()
    out.manifest.measured = {
        "labelled before": sum(item.completion.id in earlier for item in items),
        "steps": len(labels),
        "rollouts": rollouts,
        "rollouts not judged": rollouts - judged,
        "tokens": tokens,
        "steps with a passed continuation": sum(labels) / len(labels) if labels else None,
    }


def labelled_before(path: str | None, facts: Mapping[str, Any]) -> dict[str, Row]:
    """Return the labelled rows of an earlier call, by completion id.

    Raises ConfigError if the settings of the earlier call differ from the current settings.
    """
    if path is None:
        return {}
    where, accepted = f"labelled {path}", "rows that label_steps wrote with these settings"
    if not Path(path).is_file():
        raise ConfigError(message(where, "no file", accepted))
    try:
        rows = {str(row.get("id")): row for row in read_rows(Path(path))}
    except RunError as error:
        raise ConfigError(message(where, "lines that are not labelled rows", accepted)) from error
    # JSON turned the tuples of the recorded settings into lists, so ``facts`` is converted too.
    facts = json.loads(json.dumps(facts))
    for row in rows.values():
        if "labelled_by" not in row or "id" not in row:
            raise ConfigError(message(where, "other rows", accepted))
        if row["labelled_by"] != facts:
            found = f"rows that were labelled with {_difference(row['labelled_by'], facts)}"
            raise ConfigError(message(where, found, accepted, "remove it to label them again"))
    return rows


def load_judged(
    settings: StepLabelSettings, out: Output, check: Callable[[Problem], None] | None = None
) -> Sequence[ToLabel]:
    """Return the completions in files and run directories. Raises DataError or RunError."""
    found: list[ToLabel] = []
    files: list[str] = []
    for source in settings.inputs:
        if is_run(source):
            items = list(_recorded(Path(source), settings))
            out.manifest.inputs.append({"source": source, "rows": len(items)})
            found += items
        else:
            files.append(source)

    def read(record: Record) -> ToLabel:
        _ = record.prompt
        problem, completion = record.to_judge()
        if check is not None:
            try:
                check(problem)
            except VerifierError as error:
                raise DataError(f"{record.source} verifier: {error}") from error
        return ToLabel(problem, completion)

    if files:
        rows = out.open(files, read, key=lambda record: record.to_judge()[1].id)
        found += map(read, rows)
    return found[: settings.max_problems]


def _recorded(run: Path, settings: StepLabelSettings) -> Iterator[ToLabel]:
    """Yield a run's recorded completions whose problems are still in the run's sources."""
    allow = settings.config.get("verification", {}).get("allow", ())
    config = open_config(run, ("data.train",), allow=allow, trust_run=settings.trust_run)
    with closing(RolloutLog(run / "rollouts")) as log:
        for step, groups in recorded_groups(config, log):
            if groups is None:
                where, remedy = str(log.path(step)), "restore it from a copy, or move it away"
                remedy += " to label the others"
                raise RunError(message(where, "a damaged file", "a whole one", remedy))
            for group, _ in groups:
                for completion in group.completions if group.problem.id else ():
                    yield ToLabel(group.problem, completion)


def _continued(item: ToLabel, steps: Sequence[Step], effort: str | None) -> list[Problem]:
    """Return one problem per step except the last step; its prompt ends after the step."""
    found: list[Problem] = []
    for number, following in enumerate(steps[1:], 1):
        begun = item.completion.text[: following.end - len(following.text)]
        # The id is part of the sampling key, so each step gets its own random numbers.
        id = f"{item.completion.id}|step {number}"
        spec = {**item.problem.spec, PREFIX: begun}
        found.append(replace(item.problem, id=id, spec=spec, draw=0, effort=effort))
    return found


def _whole(group: Group) -> Group:
    """Return a group whose completions include the prefix, so that verifiers see whole texts."""
    prefix = group.problem.spec[PREFIX]
    spec = {key: value for key, value in group.problem.spec.items() if key != PREFIX}
    completions = tuple(
        replace(
            Completion.from_text(prefix + one.text, one.id, one.think),
            finish_reason=one.finish_reason,
            failure=one.failure,
        )
        for one in group.completions
    )
    return replace(group, problem=replace(group.problem, spec=spec), completions=completions)


def _alone(item: ToLabel) -> Group:
    return Group(
        item.problem, Prompt(item.problem.question, np.zeros(1, np.int32)), (item.completion,)
    )


def _budget(labeller: StepLabeller, items: Sequence[ToLabel]) -> str:
    """Return a line with the number of rollouts and the maximum number of tokens."""
    tried = sum(max(0, len(labeller.steps_of(item)) - 1) for item in items)
    rollouts = tried * labeller.num_samples
    most = rollouts * labeller.sampling.max_tokens
    return (
        f"{len(items)} completions, {tried} steps to continue: {rollouts} rollouts of at most"
        f" {labeller.sampling.max_tokens} tokens ({most:,} in all)"
    )


def _difference(before: Any, now: Mapping[str, Any]) -> str:
    before = before if isinstance(before, dict) else {}
    name = next(key for key in [*now, "nothing"] if before.get(key) != now.get(key, "nothing"))
    return f"{name} = {before.get(name)!r}, and not {now.get(name)!r}"
