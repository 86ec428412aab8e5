"""Data stage ``collect``: completions of problems, from a model or a server, with verdicts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assay.config.section import Natural, Text
from assay.curation.asking import REFLECT, AskingSettings, in_style
from assay.curation.base import DataStage, Manifest, Output, Row
from assay.data.rows import problem_row
from assay.data.traces import Trace, load_traces
from assay.errors import ConfigError, message
from assay.types import Problem, Verdict

if TYPE_CHECKING:
    from assay.types import Group


class CollectSettings(AskingSettings):
    """Sample completions of problems from a model or a server, and judge them.

    Each completion is a row (docs/data.md#collected-completions). Rows are written as they come: a
    stage that was killed leaves them in ``rows.jsonl.part``.
    """

    style: Literal["plain", "few_shot", "reflect"] = "plain"
    """What the model is shown. ``plain``: the problem. ``few_shot``: `examples` before it.
    ``reflect``: the problem, and the instruction to think at length, to reflect on each step, and
    to verify the answer. The rows hold the problem alone, so that a model that is trained on them
    needs no such help."""
    examples: tuple[Text, ...] = ()
    """Sources of traces, of which ``few_shot`` shows the first `num_examples`: long chains of the
    kind that is wanted."""
    num_examples: Natural = 2
    """How many examples ``few_shot`` shows."""
    instruction: Text | None = None
    """What stands below the question. None: our words
    with ``reflect``, else nothing."""
    judged: bool = True
    """Whether completions are judged. false: for problems that nothing can verify; rows have no
    verdict."""


def collect(settings: CollectSettings, folder: Path) -> Manifest:
    """Write a row for each completion."""
    examples = _examples(settings)
    instruction = settings.instruction
    if instruction is None and settings.style == "reflect":
        instruction = REFLECT
    from assay.curation.sampler import Sampler, Tally

    def style(problem: Problem, template: str | None) -> Problem:
        return in_style(problem, examples, instruction, template)

    tally = Tally()
    with ExitStack() as stack:
        out = stack.enter_context(Output("collect", settings, folder))
        sampler = Sampler(settings, stack)
        rows = sampler.read(out, settings.judged)
        for part in sampler.parts(rows):
            for asked, group, verdicts in sampler.sample(part, out, style):
                tally.add(group, verdicts)
                problem = problem_row(asked.problem)
                for index, verdict in enumerate(verdicts):
                    made = completion_row(group, index, verdict, settings, settings.style)
                    out.write({**problem, **made})
            out.flush()
        out.manifest.measured = tally.as_dict()
    return out.manifest


def _examples(settings: CollectSettings) -> list[Trace]:
    if settings.style != "few_shot":
        return []
    if not settings.examples:
        accepted = 'sources of traces, with style = "few_shot"'
        raise ConfigError(message("collect examples", "none", accepted))
    return list(load_traces(settings.examples, limit=settings.num_examples))


def completion_row(
    group: Group, index: int, verdict: Verdict | None, settings: AskingSettings, style: str
) -> Row:
    """Return the keys that a completion adds to its problem's row."""
    completion = group.completions[index]
    text, think = completion.text, group.prompt.think
    if think.mode == "opened":  # the prompt opened the block: a trace holds all of it
        text = think.open_tag + group.prompt.text.rpartition(think.open_tag)[2] + text
    collected: dict[str, Any] = {
        "model": settings.model,
        "style": style,
        "temperature": settings.temperature,
        "finish_reason": completion.finish_reason,
    }
    if len(completion.tokens):
        collected["tokens"] = len(completion.tokens)
    row: Row = {
        "id": completion.id,
        "problem_id": group.problem.id,
        "completion": text,
        "think": "free" if think.mode == "opened" else think.mode,
        "collected": collected,
    }
    if verdict is None:
        return row
    keys = ("status", "score", "reward", "reason", "extracted", "detail", "verifier")
    found = {key: getattr(verdict, key) for key in keys}
    return {**row, "verdict": {**found, "components": dict(verdict.components)}}


STAGE = DataStage("collect", CollectSettings, collect)
