"""Label reasoning steps without people, by rollouts that continue from each step (Math-Shepherd).

A step's label is the success rate of the policy from that step: continuations are sampled from the
text up to the step's end and judged by their outcome (Wang et al. 2023, arXiv:2312.08935, section
3.3). The last step has the verdict of the completion itself. The output rows train a
``[reward_model]`` of kind ``process``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from assay.config import (
    SamplingConfig,
    ToolsConfig,
    TrainConfig,
    at_temperature,
    check_siblings,
    with_sampling,
)
from assay.data.chat import PromptRenderer
from assay.data.completions import Record
from assay.data.rowset import load_rows
from assay.data.traces import Trace
from assay.errors import ConfigError, DataError, RunError, VerifierError, message
from assay.generate.base import Generator
from assay.host.files import Journal, check_output
from assay.host.startup import doing
from assay.host.terminal import lined
from assay.reward_models.steps import Places, Step, split_steps
from assay.run.progress import SamplingWatch
from assay.run.rollout_log import RolloutLog
from assay.run.startup import show_startup
from assay.session.assemble import open_session, open_verifiers
from assay.session.consent import open_config
from assay.session.evaluate import Judge, judge_groups
from assay.session.recorded import recorded_groups
from assay.session.sampling import SamplingOptions, sampling_config, takes_sampling_options
from assay.types import Completion, Group, Problem, Prompt, Verdict

Estimate = Literal["hard", "soft"]
PREFIX = "step_prefix"
"""Key of a problem's spec that holds the prefix of its completions, as text or as tokens."""
COMPLETIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StepLabels:
    """Summary of a labelling. skipped: completions without steps or without verdicts."""

    out: str
    labelled: int
    labelled_before: int
    skipped: int
    steps: int
    rollouts: int
    tokens: int
    not_judged: int
    share_right: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{self.out}: {self.labelled} completions labelled, {self.steps} steps, by"
            f" {self.rollouts} rollouts of {self.tokens:,} tokens"
        ]
        if self.labelled_before:
            lines.append(f"{self.labelled_before} were labelled before")
        if self.share_right is not None:
            lines.append(f"steps that can still end well: {self.share_right:.1%}")
        if self.skipped:
            lines.append(f"{self.skipped} skipped: without a step, or nothing was judged")
        if self.not_judged:
            lines.append(f"{self.not_judged} rollouts not judged")
        return lined(lines)


@dataclass(frozen=True, slots=True)
class ToLabel:
    """A completion whose steps need labels."""

    problem: Problem
    completion: Completion


@dataclass(frozen=True)
class StepLabeller:
    """Labels steps by rollouts. generator: renders `PREFIX`, as `PrefixRenderer` does."""

    generator: Generator
    verifiers: Judge
    sampling: SamplingConfig
    num_rollouts: int = 8
    estimate: Estimate = "hard"
    split: str = "newline"

    def steps_of(self, item: ToLabel) -> list[Step]:
        """Split a completion into steps by `split`; empty if its row is invalid."""
        completion = Completion.from_text(item.completion.text, think=item.completion.think)
        problem = replace(item.problem, spec={})
        return split_steps(problem, completion, Places(completion, None), self.split, "all")

    def label(self, items: Sequence[ToLabel]) -> list[dict[str, Any] | None]:
        """Return a row for each completion; None if it has no steps or a step without verdicts.

        A step's soft label is the share of its judged rollouts that pass (eq. 4 of Math-Shepherd).
        Its hard label says whether any rollout passes (eq. 3). The last step's labels are those of
        the completion.
        """
        steps = [self.steps_of(item) for item in items]
        problems = [
            _continued(item, found, self.sampling.line(item.problem.effort))
            for item, found in zip(items, steps, strict=True)
        ]
        flat = [problem for each in problems for problem in each]
        groups = self.generator.generate(flat, self.sampling, self.num_rollouts)
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
            "rollouts": self.num_rollouts * (len(steps) - 1),
            "tokens": tokens,
            **({} if answer is None else {"answer": answer}),
        }


class PrefixRenderer:
    """Renders a problem's prompt followed by the prefix of its completion."""

    def __init__(self, renderer: PromptRenderer) -> None:
        self.renderer = renderer

    def __call__(self, problem: Problem) -> Prompt:
        """Render the prompt. Raises DataError if it is too long."""
        prompt = self.renderer.render(problem)
        prefix: Any = problem.spec.get(PREFIX)
        if prefix is None or not len(prefix):
            return prompt
        if isinstance(prefix, str):
            asked = (problem.think, problem.effort)
            trace = Trace(problem.prompt, prefix, problem.source, *asked)
            _, tokens = self.renderer.render_trace(trace)
            if self.renderer.end_id is not None:
                # A trace ends with the end token; a prefix must not.
                tokens = tokens[:-1]
        else:
            tokens, prefix = prefix, str(self.renderer.tokenizer.decode(prefix))
        return replace(
            prompt, text=prompt.text + prefix, tokens=np.concatenate([prompt.tokens, tokens])
        )


@takes_sampling_options
def label_steps(
    model: str,
    completions: Sequence[str],
    out: Path | str,
    *,
    num_rollouts: int = 8,
    estimate: Estimate = "hard",
    split: str = "newline",
    temperature: float = 1.0,
    max_completions: int | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[SamplingOptions],
) -> StepLabels:
    """Label every step of completions by rollouts of a model, and append the rows to ``out``.

    completions: JSONL files in the format of ``assay verify`` (prompt, completion and the
    verifier's fields), or run directories with recorded rollouts. Call again to continue a killed
    labelling: completions in ``out`` are skipped. say: receives the budget and the progress. The
    other parameters are those of `assay.evaluate`. Raises UserError for invalid input.
    """
    target = Path(out)
    if not split:
        raise ConfigError(message("--split", "nothing", "newline, blank_line or a text"))
    check_siblings(num_rollouts, temperature or 1.0)
    check_output(target)
    with ExitStack() as stack:
        config = sampling_config(model, ["prompt"], options)
        sampling = at_temperature(config.sampling, temperature)
        # A rollout starts after a step, so thinking controls would count its own tokens only.
        off = {"think_budget": None, "min_think": None, "effort": sampling.line(sampling.effort)}
        sampling = with_sampling(sampling, **off)
        # A rollout is one turn.
        config = config.model_copy(update={"tools": ToolsConfig()})
        settings = {
            "model": model,
            "rollouts": num_rollouts,
            "estimate": estimate,
            "split": split,
            "verifier": config.data.verifier,
            "sampling": sampling.model_dump(mode="json"),
            "seed": config.run.seed,
        }
        journal = stack.enter_context(closing(Journal(target)))
        labelled_before(journal, settings)
        with show_startup(quiet=say is None):
            verifiers = open_verifiers(config, stack)
            consent = {
                "allow": options.get("allow", ()),
                "trust_run": options.get("trust_run", False),
            }
            check = verifiers.check_problem
            with doing("checking the rows"):
                items = load_judged(completions, check, max_completions, **consent)
            session = open_session(config, verifiers)
        session.generator.render = PrefixRenderer(session.renderer)
        if say is not None:
            session.generator.watch = SamplingWatch(lambda how_far: say(str(how_far)))
        labeller = StepLabeller(
            generator=session.generator,
            verifiers=session.verifiers,
            sampling=sampling,
            num_rollouts=num_rollouts,
            estimate=estimate,
            split=split,
        )
        return append_labels(labeller, items, journal, settings, say)


def append_labels(
    labeller: StepLabeller,
    items: Sequence[ToLabel],
    journal: Journal,
    settings: dict[str, Any],
    say: Callable[[str], None] | None = None,
) -> StepLabels:
    """Label the completions that the file lacks, appending each row when it is done.

    settings: written into each row. Raises ConfigError if the file holds rows with other settings.
    """
    settings = json.loads(json.dumps(settings))
    done = labelled_before(journal, settings)
    chosen = [index for index in range(len(items)) if items[index].completion.id not in done]
    if say is not None:
        say(_budget(labeller, [items[index] for index in chosen]))
    rows: list[dict[str, Any]] = []
    for first in range(0, len(chosen), COMPLETIONS_AT_ONCE):
        part = [items[index] for index in chosen[first : first + COMPLETIONS_AT_ONCE]]
        for row in labeller.label(part):
            if row is not None:
                journal.append({**row, "labelled_by": settings})
                rows.append(row)
        if say is not None:
            say(f"{first + len(part)} of {len(chosen)} completions labelled")
    hard = [label for row in rows for label in row["hard_labels"]]
    rollouts = sum(row["rollouts"] for row in rows)
    return StepLabels(
        out=str(journal.path),
        labelled=len(rows),
        labelled_before=len(items) - len(chosen),
        skipped=len(chosen) - len(rows),
        steps=len(hard),
        rollouts=rollouts,
        tokens=sum(row["tokens"] for row in rows),
        not_judged=rollouts - sum(sum(row["judged"][:-1]) for row in rows),
        share_right=sum(hard) / len(hard) if hard else None,
    )


def labelled_before(journal: Journal, settings: dict[str, Any]) -> set[str]:
    """Return the ids of the rows in a file. Raises ConfigError if their settings differ."""
    settings = json.loads(json.dumps(settings))
    where, remedy = f"--out {journal.path}", "choose another --out"
    done: set[str] = set()
    if journal.path.exists() and not journal.path.is_file():
        raise ConfigError(message(where, "a pipe or a device", "a file", remedy))
    try:
        rows = journal.rows()
    except RunError as error:
        found = "lines that are no labelled rows"
        raise ConfigError(message(where, found, "labelled rows", remedy)) from error
    for row in rows:
        if "labelled_by" not in row or "id" not in row:
            raise ConfigError(message(where, "other rows", "labelled rows", remedy))
        if row["labelled_by"] != settings:
            found = f"rows that were labelled with {_difference(row['labelled_by'], settings)}"
            raise ConfigError(message(where, found, "rows of these settings", remedy))
        done.add(str(row["id"]))
    return done


def load_judged(
    sources: Sequence[str],
    check: Callable[[Problem], None] | None = None,
    limit: int | None = None,
    **consent: Any,
) -> Sequence[ToLabel]:
    """Open files of completions, or run directories. Raises DataError or RunError.

    consent: keyword arguments of `assay.session.consent.open_config`.
    """
    found: list[ToLabel] = []
    files: list[str] = []
    for source in sources:
        if (Path(source) / "config.toml").is_file():
            found += _recorded(Path(source), open_config(Path(source), ("data.train",), **consent))
        else:
            files.append(source)
    if files:

        def read(row: Any, where: str, default_id: str) -> ToLabel:
            record = Record.read(row, where, default_id)
            _ = record.prompt
            problem, completion = record.to_judge()
            if check is not None:
                try:
                    check(problem)
                except VerifierError as error:
                    raise DataError(f"{where} verifier: {error}") from error
            return ToLabel(problem, completion)

        found += load_rows("completions", read, files, key=lambda item: item.completion.id)
    return found if limit is None else found[:limit]


def _recorded(run: Path, config: TrainConfig) -> Iterator[ToLabel]:
    """Yield a run's recorded completions whose problems are still in its sources."""
    with closing(RolloutLog(run / "rollouts")) as log:
        for step, groups in recorded_groups(config, log):
            if groups is None:
                where, remedy = str(log.path(step)), "bring it back from a copy, or move it away"
                remedy += " to label the others"
                raise RunError(message(where, "a damaged file", "a whole one", remedy))
            for group, _ in groups:
                for completion in group.completions if group.problem.id else ():
                    yield ToLabel(group.problem, completion)


def _continued(item: ToLabel, steps: Sequence[Step], effort: str | None) -> list[Problem]:
    """Return a problem for each step but the last; its completions continue from the step's end."""
    found: list[Problem] = []
    for number, following in enumerate(steps[1:], 1):
        begun = item.completion.text[: following.end - len(following.text)]
        id = f"{item.completion.id}|step {number}"
        spec = {**item.problem.spec, PREFIX: begun}
        found.append(replace(item.problem, id=id, spec=spec, draw=0, effort=effort))
    return found


def _whole(group: Group) -> Group:
    """Prepend the prefix to the continuations of a group, so that whole completions are judged."""
    prefix = group.problem.spec[PREFIX]
    spec = {key: value for key, value in group.problem.spec.items() if key != PREFIX}
    completions = tuple(
        replace(
            Completion.from_text(prefix + one.text, one.id, one.think),
            finish_reason=one.finish_reason,
        )
        for one in group.completions
    )
    return replace(group, problem=replace(group.problem, spec=spec), completions=completions)


def _alone(item: ToLabel) -> Group:
    return Group(
        item.problem, Prompt(item.problem.question, np.zeros(1, np.int32)), (item.completion,)
    )


def _budget(labeller: StepLabeller, items: Sequence[ToLabel]) -> str:
    """Describe the cost of the rollouts, before sampling."""
    tried = sum(max(0, len(labeller.steps_of(item)) - 1) for item in items)
    rollouts = tried * labeller.num_rollouts
    most = rollouts * labeller.sampling.max_tokens
    return (
        f"{len(items)} completions, {tried} steps to continue: {rollouts} rollouts of at most"
        f" {labeller.sampling.max_tokens} tokens ({most:,} in all)"
    )


def _difference(before: Any, now: dict[str, Any]) -> str:
    before = before if isinstance(before, dict) else {}
    name = next(key for key in [*now, "nothing"] if before.get(key) != now.get(key, "nothing"))
    return f"{name} = {before.get(name)!r}, and not {now.get(name)!r}"
