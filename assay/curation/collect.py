"""Data transform ``collect``: sample completions from a model or server, and judge them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from assay.config.section import Natural, Text
from assay.curation.asking import AskingSettings, filled
from assay.curation.base import DataStage
from assay.curation.output import Output, Row
from assay.data.rows import problem_row
from assay.data.traces import Trace, load_traces
from assay.errors import ConfigError, DataError, VerifierError, message
from assay.types import Group, Problem, ThinkFormat, Verdict
from assay.verify.safety.policy import SafetyPolicy, read_policy

REFLECT = (
    "Think it through step by step, at length. After each step, ask yourself whether it is right,"
    " and try another way where it is not. Before you give the answer, verify it against the"
    " question, and correct it where it is wrong."
)
LIKE_THESE = (
    "Here are problems, each with its solution. Solve the last problem in the same way: think as"
    " long and as thoroughly, and end in the same form."
)


class CollectSettings(AskingSettings):
    """Sample completions of problems from a model or a server, and judge them.

    Each completion becomes one row (docs/data.md#collected-completions). Rows are written during
    sampling. After a kill, the rows written so far are in ``rows.jsonl.part``.
    """

    style: Literal["plain", "few_shot", "reflect"] = "plain"
    """Content of the prompt. ``plain``: the problem. ``few_shot``: `examples`, then the problem.
    ``reflect``: the problem with the instruction to think at length, to reflect on each step, and
    to verify the answer. The written rows contain only the problem, so that a model trained on the
    rows does not depend on examples or instructions."""
    examples: tuple[Text, ...] = ()
    """Sources of traces with the desired style of reasoning. The style ``few_shot`` shows the first
    `num_examples` traces."""
    num_examples: Natural = 2
    """Number of examples in a prompt of the style ``few_shot``."""
    instruction: Text | None = None
    """Instruction after the question. None: a built-in instruction for the style ``reflect``, no
    instruction for other styles. ``{policy}`` stands for the clauses of the safety policy for the
    row's ``category``. The written rows contain only the problem, so a model that is trained on the
    rows learns the policy without having it in context (context distillation)."""
    policy: Text | None = None
    """TOML file of the safety policy that ``{policy}`` shows. None: the policy that ships with
    Assay."""
    judged: bool = True
    """Whether a verifier judges the completions. false: the rows have no verdict, for problems
    without a verifier."""

    def most_written(self, num_read: int | None) -> int | None:
        """Return the number of completions, because each completion becomes one row."""
        return self.num_completions(num_read)


def collect(settings: CollectSettings, out: Output) -> None:
    """Sample completions and write one row per completion."""
    examples = _examples(settings)
    instruction = settings.instruction
    # An invalid policy is reported before a model is loaded.
    policy = read_policy(settings.policy) if "{policy}" in (instruction or "") else None
    if instruction is None and settings.style == "reflect":
        instruction = REFLECT
    # The sampler imports PyTorch, which takes seconds; settings and help do not need the sampler.
    from assay.curation.sampler import sampled

    def style(problem: Problem, template: str | None) -> Problem:
        return in_style(problem, examples, _with_policy(instruction, policy, problem), template)

    for row, (found,) in sampled(settings, out, style=style, judged=settings.judged):
        problem = problem_row(row.problem)
        for index, verdict in enumerate(found.verdicts):
            made = completion_row(found.group, index, verdict, settings, settings.style)
            out.write({**problem, **made})


def _with_policy(
    instruction: str | None, policy: SafetyPolicy | None, problem: Problem
) -> str | None:
    """Return an instruction with the clauses of the problem's category. Raises DataError."""
    if instruction is None or policy is None:
        return instruction
    try:
        category = policy.category(problem.spec.get("category"), f"{problem.place} category")
    except VerifierError as error:
        # The row is at fault, and rows with an invalid prompt raise DataError.
        raise DataError(str(error)) from error
    return filled(instruction, {"policy": str(category)})


def _examples(settings: CollectSettings) -> list[Trace]:
    if settings.style != "few_shot":
        return []
    if not settings.examples:
        accepted = 'sources of traces, with style = "few_shot"'
        raise ConfigError(message("collect examples", "none", accepted))
    return list(load_traces(settings.examples, limit=settings.num_examples))


def in_style(
    problem: Problem, examples: Sequence[Trace], instruction: str | None, template: str | None
) -> Problem:
    """Return a copy of a problem whose prompt also has examples or an instruction.

    template: template around the question for plain-text prompts; None for chats.
    """
    if not examples and instruction is None:
        return problem
    question = problem.question
    if instruction is not None:
        question = f"{question}\n\n{instruction}"
    if examples and template is not None:
        before, _, after = template.partition("{question}")
        shown = (f"{_question(one)}{after}{one.completion}" for one in examples)
        question = f"\n\n{before}".join([*shown, question])
    elif examples:
        shown = (_headed(_question(one), one.completion) for one in examples)
        question = "\n\n".join([LIKE_THESE, *shown, _headed(question, "").rstrip()])
    if isinstance(problem.prompt, str):
        return replace(problem, prompt=question)
    # In chats, all examples are in one user message and not in earlier turns.
    # Chat templates remove the reasoning of earlier assistant turns.
    turns = [dict(turn) for turn in problem.prompt]
    last = max((n for n, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    turns[last]["content"] = question
    return replace(problem, prompt=tuple(turns))


def _question(trace: Trace) -> str:
    return Problem("example", trace.prompt).question


def _headed(question: str, completion: str) -> str:
    return f"### Problem\n\n{question}\n\n### Solution\n\n{completion}"


def whole_format(prompt: str, think: ThinkFormat) -> tuple[str, ThinkFormat]:
    """Return the text to prepend to completions so that they contain their whole think block, and
    the format of the result. prompt: the rendered prompt of the completions."""
    # If the prompt opened the think block, the completion lacks the opening tag.
    if think.mode != "opened":
        return "", think
    before = think.open_tag + prompt.rpartition(think.open_tag)[2]
    return before, replace(think, mode="free")


def completion_row(
    group: Group, index: int, verdict: Verdict | None, settings: AskingSettings, style: str
) -> Row:
    """Return the keys of a completion that are added to the row of its problem."""
    completion = group.completions[index]
    before, format = whole_format(group.prompt.text, group.prompt.think)
    collected: dict[str, Any] = {
        "model": settings.model,
        "style": style,
        "temperature": settings.temperature,
        "finish_reason": completion.finish_reason,
    }
    # Some servers report no number of tokens.
    if len(completion.tokens):
        collected["tokens"] = len(completion.tokens)
    row: Row = {
        "id": completion.id,
        "problem_id": group.problem.id,
        "completion": before + completion.text,
        **format.row_keys,
        "collected": collected,
    }
    # The prepended text becomes a part of the first assistant turn.
    # The spans of later assistant turns are shifted by the length of the prepended text.
    if completion.said:
        size = len(before)
        row["said"] = [[start and start + size, end + size] for start, end in completion.said]
    if verdict is None:
        return row
    keys = ("status", "score", "reward", "reason", "extracted", "detail", "verifier")
    found = {key: getattr(verdict, key) for key in keys}
    return {**row, "verdict": {**found, "components": dict(verdict.components)}}


STAGE = DataStage(CollectSettings, collect)
