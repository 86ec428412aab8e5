"""`assay init`: a commented configuration for the rows and the model at hand, and what is missing.

What is there is looked at; what is not there is made: rows, a reward, and a tiny model. Everything
that was assumed is said.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from assay import config as configuration
from assay.data.problems import load_problems
from assay.errors import RunError, UserError, message
from assay.start.look import (
    LookedModel,
    LookedRows,
    fitting_verifier,
    look_at_model,
    look_at_rows,
)
from assay.start.starter import make_starter
from assay.types import Problem
from assay.verify.service import VerifierService

KINDS = ("grpo",)
MANY_ANSWERS = 40
"""Different answers of which a tiny model guesses the right one too rarely."""


@dataclass(frozen=True, slots=True)
class InitResult:
    """What `assay init` wrote, what it assumed, and the commands that come next."""

    config: str
    written: Sequence[str]
    assumed: Sequence[str]
    next: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"wrote {text}" for text in self.written]
        lines += ["", "Assumed (change it in the file):"]
        lines += [f"  - {text}" for text in self.assumed]
        lines += ["", "Next:", *(f"  {command}" for command in self.next)]
        return "\n".join(lines)


@dataclass(slots=True)
class Draft:
    """What is known of the configuration that is being written."""

    kind: str
    file: Path
    written: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def line(self, key: str, value: Any, note: str = "", name: str = "") -> None:
        """Give a key its line, with a note behind it."""
        self.values[name or key] = _line(key, value, note)

    def unset(self, key: str, value: Any, note: str) -> None:
        """Show a key that is left out, and a value that it might have."""
        self.values[key] = f"# {_line(key, value, note)}"


def init(
    kind: str,
    *,
    data: Sequence[str] = (),
    heldout: Sequence[str] = (),
    model: str | None = None,
    verifier: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> InitResult:
    """Write a commented configuration of ``kind`` into the current folder, and what it lacks.

    data: sources of rows; none: five rows are written. model: a folder, a hub name or a run; none:
    a tiny one is made. verifier: None: the one that fits the rows. Rows and rewards that are there
    stay as they are. Raises UserError for rows or a model that cannot be used, and where the
    configuration exists and ``overwrite`` is not set.
    """
    if kind not in KINDS:
        raise UserError(message("assay init", f'"{kind}"', ", ".join(KINDS)))
    draft = Draft(kind, out or Path(f"{kind}.toml"))
    if draft.file.exists() and not overwrite:
        remedy = "give --overwrite, or another --out"
        raise RunError(message(str(draft.file), "a file that exists", "a new one", remedy))
    sources = list(data) or [_write_missing(draft, "rows.jsonl", "five questions and answers")]
    rows = look_at_rows(sources, load_problems)
    held = look_at_rows(heldout, load_problems) if heldout else None
    expression = _choose_verifier(draft, rows, verifier)
    path = model if model is not None else _make_tiny(draft, rows, overwrite, say)
    looked = look_at_model(path)
    _describe_rows(draft, rows, held, expression)
    _describe_model(draft, looked)
    _describe_lengths(draft, rows, looked)
    _describe_training(draft, looked, len(rows.rows))
    draft.values["file"] = draft.file
    text = Template(_template(f"{kind}.toml")).substitute(draft.values)
    draft.file.write_text(text, encoding="utf-8")
    draft.written.append(f"{draft.file}: the configuration")
    configuration.load(draft.file)
    command = f"assay train {shlex.quote(str(draft.file))}"
    following = [f"{command} --dry-run", command]
    return InitResult(str(draft.file), draft.written, draft.assumed, following)


def _template(name: str) -> str:
    return (resources.files("assay.start") / "templates" / name).read_text(encoding="utf-8")


def _write_missing(draft: Draft, name: str, what: str) -> str:
    """Write a file of the templates where there is none of that name."""
    file = Path(name)
    if file.exists():
        draft.assumed.append(f"{name} was there, and is used as it is")
    else:
        file.write_text(_template(name), encoding="utf-8")
        draft.written.append(f"{name}: {what}")
    return name


def _choose_verifier(draft: Draft, rows: LookedRows, verifier: str | None) -> str | None:
    """Return the expression of the rows' verifier; None where each row names its own."""
    problems: Sequence[Problem] = rows.rows
    if verifier is None and all(problem.verifier for problem in problems):
        draft.assumed.append("each row names its own verifier")
        return None
    fitting = None
    if verifier is None and draft.file.stem and rows.sources != ("rows.jsonl",):
        service = VerifierService("think_format")
        try:
            fitting = fitting_verifier(problems, service)
        finally:
            service.close()
    if fitting is not None:
        draft.assumed.append(f"the verifier is {fitting}: every row has what it reads")
        return fitting
    expression = verifier or "my_reward:reward"
    if expression.startswith("my_reward:"):
        _write_missing(draft, "my_reward.py", "a reward that reads the row's answer")
    return expression


def _make_tiny(draft: Draft, rows: LookedRows, overwrite: bool, say: Callable[[str], None]) -> str:
    """Make the tiny model, and say what it is."""
    folder = Path("tiny")
    if folder.exists() and not overwrite:
        remedy = "give --overwrite to make it again, or --model tiny to use it"
        raise RunError(message(str(folder), "a folder that exists", "a new one", remedy))
    pairs = [(str(problem.prompt), str(problem.spec["answer"])) for problem in rows.rows]
    say("making a tiny model that guesses (some ten seconds on an idle machine)")
    if folder.exists():
        shutil.rmtree(folder)
    make_starter(folder, pairs)
    draft.written.append(
        f"{folder}/: a model of 0.7 million parameters that guesses among the rows' answers"
    )
    num_answers = len({answer for _, answer in pairs})
    if num_answers > MANY_ANSWERS:
        draft.assumed.append(
            f"a tiny model guesses among {num_answers} answers too rarely right to learn much: "
            "name a pretrained one with --model"
        )
    return str(folder)


def _describe_rows(
    draft: Draft, rows: LookedRows, held: LookedRows | None, expression: str | None
) -> None:
    note = f"{rows.size}; columns: {', '.join(rows.columns) or 'none'}"
    draft.line("train", list(rows.sources), note)
    draft.assumed.append(f"{', '.join(rows.sources)}: {note}")
    if held is not None:
        draft.line("heldout", list(held.sources), f"{held.size}, never trained on")
    else:
        draft.unset("heldout", ["heldout.jsonl"], "rows that are never trained on, to measure with")
        draft.assumed.append("no held-out rows: what is measured is accuracy on the training rows")
    every = (20, "steps between evaluations on the held-out rows")
    draft.line("every", *every) if held else draft.unset("every", *every)
    if expression is None:
        draft.unset("verifier", "math", "each row names its own")
    elif ":" in expression:
        module, _, function = expression.partition(":")
        draft.line("verifier", expression, f"the function {function} of {module}.py")
    else:
        draft.line("verifier", expression, "docs/verifiers.md has the others")


_TEMPLATES = {
    "chat": "the tokenizer's chat template",
    "base": "no chat template: a prompt is the question and a line break",
}


def _describe_model(draft: Draft, model: LookedModel) -> None:
    draft.line("path", model.path, "a folder, a hub name, or a run: runs/grpo@best", "model")
    template = "chat" if model.chat else "base"
    draft.line("template", template, _TEMPLATES[template])
    has = "has a chat template, which is used" if model.chat else f"has {_TEMPLATES['base']}"
    draft.assumed.append(f"the model {model.path} {has}")
    if model.think is None:
        draft.line("think", "off", '"free" lets it reason between think tags')
        draft.assumed.append("it has no think tags: the whole completion is its answer")
    else:
        opening, closing = model.think
        how = "its chat template opens the block" if model.opens else "the model opens the block"
        draft.line("think", "free", how)
        draft.assumed.append(f"it reasons between {opening} and {closing}; {how}")
        if model.think != ("<think>", "</think>"):
            draft.line("think_open", opening)
            draft.line("think_close", closing)
    names = ("template", "think", "think_open", "think_close")
    draft.values["shown"] = "\n".join(draft.values[name] for name in names if name in draft.values)


def _describe_lengths(draft: Draft, rows: LookedRows, model: LookedModel) -> None:
    """Choose the longest completion: room for an answer, or for reasoning."""
    sample: Sequence[Problem] = rows.rows[:200]
    prompt = max(model.count(str(problem.prompt)) for problem in sample)
    answer = max(model.count(str(problem.spec.get("answer", ""))) for problem in sample)
    if model.is_tiny:
        tokens, why = answer + 8, f"the longest answer has {answer} tokens"
    elif model.think is not None:
        tokens, why = 2048, "room for reasoning"
    else:
        tokens, why = max(512, 2 * answer), "room for a worked answer"
    if model.context is not None and prompt + tokens > model.context:
        tokens = max(1, model.context - prompt - 32)
        why = f"what the model's context of {model.context} leaves"
    draft.line("max_tokens", tokens, why)
    draft.assumed.append(f"an answer has at most {tokens} tokens: {why}")


def _describe_training(draft: Draft, model: LookedModel, num_rows: int) -> None:
    draft.line("steps", 100 if model.is_tiny else 200)
    draft.line("num_prompts", min(8, num_rows), "questions a step")
    draft.line("group_size", 16 if model.is_tiny else 8, "answers to each of them")
    if model.is_tiny:
        draft.line("learning_rate", 5e-4, "for a tiny model; a pretrained one takes 1e-6")
    else:
        draft.unset("learning_rate", 1e-6, "the default; ten times as much for adapters")


def _line(key: str, value: Any, note: str) -> str:
    text = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    return f"{text:<27} # {note}" if note else text
