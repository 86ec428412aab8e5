"""Judge a run's recorded completions again: ``assay verify --rescore RUN [--verifier math@4]``.

The rollout log holds no answers, so the problems are read again from the run's sources. Groups are
judged as a whole, as during training. The run's directory does not change.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from assay.config import TrainConfig
from assay.data.problems import load_problems
from assay.errors import RunError
from assay.host.files import open_output
from assay.host.records import read_step_rows
from assay.host.terminal import lined
from assay.run.rollout_log import RolloutLog, read_columns
from assay.session.consent import RULES_UNSET, TO_JUDGE, open_config
from assay.session.judging import open_service
from assay.types import Group, Problem, Verdict
from assay.verify.service import Options

Seen = Callable[[Group, int, Verdict, Verdict, int], None]
"""Called with group, completion index, recorded verdict, new verdict and step."""

Pairs = Sequence[tuple[Group, Sequence[Verdict]]]
"""Groups with their recorded verdicts."""

NUM_EXAMPLES = 3
SHOWN_TEXT = 160


@dataclass(eq=False)
class RescoreResult:
    """Changes of verdicts. flips: counts by ``before -> after``. examples: a few of each.

    missing: completions that were not judged again. unreadable: steps with a damaged shard; their
    completions count as missing if the run's metrics give their number.
    """

    run: str
    verifier: str
    recorded_verifier: str
    completions: int = 0
    unchanged: int = 0
    missing: int = 0
    unreadable: list[int] = field(default_factory=list[int])
    seconds: float = 0.0
    reward_changes: int = 0
    flips: Counter[str] = field(default_factory=Counter[str])
    before: Counter[str] = field(default_factory=Counter[str])
    after: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, Any])

    def add(self, group: Group, index: int, before: Verdict, after: Verdict, step: int) -> None:
        """Count the two verdicts of one completion."""
        self.completions += 1
        self.before[before.status] += 1
        self.after[after.status] += 1
        self.reward_changes += before.reward != after.reward
        if before.status == after.status:
            self.unchanged += 1
            return
        flip = f"{before.status} -> {after.status}"
        self.flips[flip] += 1
        examples = self.examples.setdefault(flip, [])
        if len(examples) < NUM_EXAMPLES:
            completion = group.completions[index]
            example = {"id": completion.id, "step": step, "text": completion.text[-SHOWN_TEXT:]}
            example["answer"] = group.problem.spec.get("answer")
            both = {
                key: [getattr(before, key), getattr(after, key)] for key in ("extracted", "detail")
            }
            examples.append({**example, **both})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        counts = {name: dict(getattr(self, name)) for name in ("flips", "before", "after")}
        return {**vars(self), **counts, "seconds": round(self.seconds, 3)}

    def __str__(self) -> str:
        judged = self.completions
        lines = [
            f"{self.run}: {judged} completions judged again by {self.verifier}: "
            f"{judged - self.unchanged} verdicts flipped, {self.reward_changes} rewards changed"
        ]
        if self.reward_changes and self.verifier != self.recorded_verifier:
            lines.append(f"the run's rewards were those of {self.recorded_verifier}")
        for step in self.unreadable:
            lines.append(
                f"rollouts/step-{step:06d}.parquet cannot be read: its completions are not judged "
                "again; bring it back from a copy"
            )
        if self.missing:
            why = ": their problems are no longer there, or their file cannot be read"
            lines.append(f"{self.missing} not judged again{why}")
        for flip, count in self.flips.most_common():
            lines.append(f"{flip}: {count} ({count / judged:.2%})")
            for one in self.examples[flip]:
                old, new = one["extracted"]
                why = f": {one['detail'][1]}" if flip.endswith("not_judged") else ""
                lines.append(
                    f"  {one['id']} (step {one['step']}): answer {one['answer']!r}, "
                    f"read {old!r} before, {new!r} now{why}; ...{one['text']!r}"
                )
        return lined(lines)


def rescore(
    run: Path | str,
    verifier: str | None = None,
    *,
    out: Path | str | None = None,
    num_workers: int | None = None,
    deadline: float | None = None,
    options: Options | None = None,
    allow: Sequence[str] = (),
    trust_run: bool = False,
    steps: Sequence[int] | None = None,
    take: Callable[[int, Pairs], Pairs] | None = None,
    see: Seen | None = None,
    say: Callable[[str], None] | None = None,
) -> RescoreResult:
    """Judge every recorded completion of a run again and report the changes.

    verifier: replaces the run's ``data.verifier``; rows that name a verifier keep it. options:
    replace the run's verifier options of the same name. Stored replies of a judge are reused, and
    new ones are not stored. allow: Python code that rows may name as verifiers. trust_run: import
    code that a run from another machine names. out: a JSONL file with one row per completion.
    steps: only these. take: selects or changes the groups of a step before judging. see: called
    with both verdicts of each completion.

    Raises RunError if the run holds no rollouts.
    """
    folder = Path(run)
    given = [f"verification.options.{name}=" for name in options or ()]
    given += RULES_UNSET if verifier is not None else []
    config = open_config(folder, TO_JUDGE, overrides=given, allow=allow, trust_run=trust_run)
    with ExitStack() as stack:
        log = stack.enter_context(closing(RolloutLog(folder / "rollouts")))
        if not log.steps():
            raise RunError(
                f"{folder}: holds no rollouts to judge again; name a run that has sampled"
            )
        settings = config.verification
        service = stack.enter_context(
            open_service(
                settings,
                verifier or config.data.verifier,
                num_workers=num_workers or settings.num_workers,
                deadline=deadline or settings.deadline,
                options={**settings.options, **(options or {})},
                allow=allow,
                by_tag=None if verifier else config.data.verifier_by_tag,
            )
        )
        if (replies := folder / "judge_replies.jsonl").is_file():
            from assay.verify.learned.panel import close_judges, keep_replies

            keep_replies(replies, read_only=True)
            stack.callback(close_judges)
        service.check([None])
        recorded = recorded_groups(config, log, steps)
        file = None if out is None else stack.enter_context(open_output(Path(out)))
        result = RescoreResult(str(folder), verifier or config.data.verifier, config.data.verifier)
        started = time.monotonic()
        for step, groups in recorded:
            if groups is None:
                result.unreadable.append(step)
                result.missing += num_completions(folder, step)
                continue
            known: Pairs = [one for one in groups if one[0].problem.id]
            result.missing += sum(len(judged) for group, judged in groups if not group.problem.id)
            known = known if take is None else take(step, known)
            judged_again = service.judge([group for group, _ in known])
            for (group, before), after in zip(known, judged_again, strict=True):
                for index, pair in enumerate(zip(before, after, strict=True)):
                    result.add(group, index, *pair, step)
                    if see is not None:
                        see(group, index, *pair, step)
                    if file is not None:
                        file.write(json.dumps(as_row(group, index, *pair, step)) + "\n")
            result.seconds = time.monotonic() - started
            if say is not None:
                say(
                    f"step {step}: {result.completions} completions, {result.flips.total()} flipped"
                )
    return result


def recorded_groups(
    config: TrainConfig, log: RolloutLog, steps: Sequence[int] | None = None
) -> Iterator[tuple[int, list[tuple[Group, Sequence[Verdict]]] | None]]:
    """Yield each step with its groups and verdicts; None if the shard cannot be read.

    steps: None: all. The log holds no answers, so problems come from the run's sources. A problem
    that is missing there has an empty id.
    """
    wanted: set[str] = set()
    steps = log.steps() if steps is None else steps
    for step in steps:
        wanted |= {row["problem_id"] for row in read_columns(log.path(step), ["problem_id"]) or ()}
    problems = load_problems(config.data.train, on_bad_row=config.data.on_bad_row)
    rows = (problems[number] for number in range(len(problems)))
    known = {problem.id: problem for problem in rows if problem.id in wanted}
    gone = Problem("", "")

    def read() -> Iterator[tuple[int, list[tuple[Group, Sequence[Verdict]]] | None]]:
        for step in steps:
            found = log.read(step, lambda id: known.get(id, gone))
            yield step, found and list(zip(*found, strict=True))

    return read()


def num_completions(folder: Path, step: int) -> int:
    """Return the number of completions of a step from the run's metrics; 0 if unknown."""
    for row in read_step_rows(folder / "metrics.jsonl"):
        if row.get("step") == step and row.get("length/mean"):
            return round(row["tokens/generated"] / row["length/mean"])
    return 0


def as_row(group: Group, index: int, before: Verdict, after: Verdict, step: int) -> dict[str, Any]:
    """Return both verdicts of a completion as plain values."""
    same = ("status", "score", "reward", "verifier")
    return {
        "id": group.completions[index].id,
        "step": step,
        **{key: getattr(after, key) for key in (*same, "extracted", "detail")},
        "components": dict(after.components),
        "before": {key: getattr(before, key) for key in same},
    }
