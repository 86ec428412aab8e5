"""How a data stage asks a model: its settings, and the styles of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field, field_validator, model_validator

from assay.config import check_siblings
from assay.config.section import Count, Natural, Temperature, Text
from assay.curation.base import Row, StageSettings, read_row
from assay.data.rows import problem_row, read_problem
from assay.data.traces import Trace
from assay.errors import ConfigError
from assay.toml_text import plain_tables
from assay.types import Problem
from assay.verify.judge.settings import ADDRESS, is_url

REFLECT = (
    "Think it through step by step, at length. After each step, ask yourself whether it is right,"
    " and try another way where it is not. Before you give the answer, verify it against the"
    " question, and correct it where it is wrong."
)
LIKE_THESE = (
    "Here are problems, each with its solution. Solve the last problem in the same way: think as"
    " long and as thoroughly, and end in the same form."
)


class AskingSettings(StageSettings):
    """Sources of problems, and how a model is asked for completions of them."""

    model: Text
    """A folder, a hub name, or a run (RUN, RUN@best, RUN@120), which is asked as it was trained.
    With `url`: the name by which the server knows the model."""
    url: Text | None = None
    """An OpenAI-compatible server, as ``http://localhost:8000/v1``. None: the model is loaded here,
    and the built-in engine samples from it."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """The environment variable that holds the server's key, if it wants one."""
    concurrency: Count = 16
    """Requests that the server is sent at a time."""
    num_samples: Count = 4
    """Completions of each problem."""
    temperature: Temperature = 1.0
    """0: greedy, for a single completion."""
    max_tokens: Natural | None = None
    """Longest completion. None: as the model's run had it, else 256."""
    max_problems: Natural | None = None
    """The first so many problems. None: all."""
    verifier: Text | None = None
    """Verifier of rows that name none. None: as the model's run had it, else ``math``."""
    seed: int = Field(default=0, ge=0)
    """Another seed gives other completions, and other ids."""
    device: Text | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA if there is any."""
    trust_run: bool = False
    """Import what the configuration of another's run names."""
    config: dict[str, dict[str, Any]] = Field(default={})
    """Sections and keys of a training configuration (docs/configuration.md) that say how to sample
    and to judge: ``[config.data]``, ``[config.sampling]``, ``[config.engine]``,
    ``[config.verification]``. What is left out is as the model's run had it, else the default."""

    @field_validator("config", mode="before")
    @classmethod
    def _plain_config(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        if url is not None and not is_url(url):  # not shown: it may hold a password
            raise ValueError(f"accepted: {ADDRESS}")
        return url

    @model_validator(mode="after")
    def _samples_differ(self) -> AskingSettings:
        try:
            check_siblings(self.num_samples, self.temperature)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


@dataclass(frozen=True)
class Asked:
    """A problem, and the row that it was read from."""

    row: Row
    problem: Problem


def read_asked(row: Any, where: str, default_id: str) -> Asked:
    """Return a problem with its row, which holds the problem's id; raises DataError."""
    if isinstance(row, Problem):
        problem = read_problem(row, where, default_id)
        return Asked(problem_row(problem), problem)
    kept = read_row(row, where, default_id)
    return Asked(kept, read_problem(kept, where, default_id))


def in_style(
    problem: Problem, examples: Sequence[Trace], instruction: str | None, template: str | None
) -> Problem:
    """Return a problem whose prompt also shows examples, or ends with an instruction.

    template: the text around a question where prompts are plain text; None of chats, whose
    examples all stand in the user's message: chat templates cut reasoning out of earlier turns.
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
    turns = [dict(turn) for turn in problem.prompt]
    last = max((n for n, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    turns[last]["content"] = question
    return replace(problem, prompt=tuple(turns))


def _question(trace: Trace) -> str:
    return Problem("example", trace.prompt).question


def _headed(question: str, completion: str) -> str:
    return f"### Problem\n\n{question}\n\n### Solution\n\n{completion}"
