"""`assay init`: write a commented configuration for existing rows and an existing model.

`assay init` creates example rows, a reward and a tiny model if the user has none.
"""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from assay import config as configuration
from assay.config.toml_text import comment, key_lines, one_line, toml_line
from assay.data.labelled import LOADERS, load_comparisons
from assay.data.overlap import check_overlap
from assay.data.pairs import load_preferences
from assay.data.problems import load_problems
from assay.data.traces import load_traces
from assay.errors import DataError, RunError, UserError, did_you_mean, message
from assay.host.removal import list_written, not_ours
from assay.host.terminal import lined
from assay.init.detection import (
    MOST_ROWS,
    LookedModel,
    LookedRows,
    answer_key,
    check_verifier,
    columns_of,
    fitting_verifier,
    look_at_model,
    look_at_rows,
    verifier_of_form,
)
from assay.init.draft import Draft
from assay.init.holdout import split_rows
from assay.init.lengths import answer_lengths, given_lengths, num_rows
from assay.init.sizes import Rung, Sizes, choose_sizes
from assay.init.starter import make_fresh, make_starter
from assay.types import Problem
from assay.verify.service import VerifierService


@dataclass(frozen=True, slots=True)
class InitKind:
    """Template and default values for one kind of configuration.

    template: name of the configuration template. rows: file of example rows. what: description of
    the example rows. load: function that loads the rows; for ``reward_model``, the rows' columns
    select the function. verifier: verifier expression; None: the rows determine the verifier.
    solution: column of answers for the tiny model's cold start; if None, the tiny model has random
    weights.
    """

    template: str
    rows: str
    what: str
    load: Callable[..., Sequence[Any]]
    verifier: str | None = None
    solution: str | None = None


_QUESTIONS = ("rows.jsonl", "five questions and answers")
_PAIRS = ("pairs.jsonl", "five questions, each with a better and a worse answer")
_PROGRAMS = ("programs.jsonl", "five programs to write, each with its tests")
KINDS = {
    "grpo": InitKind("grpo", *_QUESTIONS, load_problems, solution="answer"),
    "code": InitKind("grpo", *_PROGRAMS, load_problems, "code", solution="solution"),
    "judge": InitKind("grpo", *_QUESTIONS, load_problems, "judge", solution="answer"),
    "dpo": InitKind("dpo", *_PAIRS, load_preferences),
    "reward_model": InitKind("reward_model", *_PAIRS, load_comparisons),
    "sft": InitKind("sft", "traces.jsonl", "five questions with their answers", load_traces),
}
NO_DISTILL = (
    "assay init distill: found no template for [distill]; start from the configuration in "
    "docs/distillation.md, or collect the teacher's completions (`assay data collect`) and run "
    "`assay init sft --data FILE`"
)
MANY_ANSWERS = 40
"""Limit of distinct answers. With more answers, the tiny model's guesses are rarely correct."""


@dataclass(frozen=True, slots=True)
class InitResult:
    """Result of `assay init`: written files, assumptions, and the next commands."""

    config: str
    written: Sequence[str]
    assumed: Sequence[str]
    next: Sequence[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict of JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"wrote {text}" for text in self.written]
        lines += ["", "Assumed (change it in the file):"]
        lines += [f"  - {text}" for text in self.assumed]
        lines += ["", "Next:", *(f"  {command}" for command in self.next)]
        return lined(lines)


def init(
    kind: str,
    *,
    data: Sequence[str] = (),
    heldout: Sequence[str] = (),
    heldout_share: float | None = None,
    model: str | None = None,
    verifier: str | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> InitResult:
    """Write a commented configuration of ``kind`` and all missing files into the current folder.

    data: sources of rows; empty: example rows are written. heldout_share: see `split_rows`. model:
    a folder, a hub name or a run; None: a tiny model. Existing rows and rewards are kept. Raises
    UserError for unusable rows or models, and for an existing file without ``overwrite``.
    """
    if kind == "distill":
        raise UserError(NO_DISTILL)
    if kind not in KINDS:
        meant = did_you_mean(kind, KINDS)
        raise UserError(message("assay init", f'"{kind}"', ", ".join(KINDS), meant))
    draft, made = Draft(kind, out or Path(f"{kind}.toml")), KINDS[kind]
    if draft.file.exists() and not overwrite:
        remedy = "give --overwrite, or another --out"
        raise RunError(message(str(draft.file), "a file that exists", "a new one", remedy))
    if heldout_share is not None and (heldout or kind == "sft" or not 0 < heldout_share < 1):
        found = f"{heldout_share:g}{' beside --heldout' * bool(heldout)} for {kind}"
        accepted = "a share between 0 and 1, without --heldout, of any kind but sft"
        remedy = "name problems that the model is to solve with --heldout" * (kind == "sft")
        raise UserError(message("assay init --heldout-share", found, accepted, remedy))
    with draft:
        sources = list(data) or [_write_missing(draft, made.rows, made.what)]
        labels = _kind_of_labels(columns_of(sources[0])) if kind == "reward_model" else ""
        load = LOADERS.get(labels, made.load)
        rows = look_at_rows(sources, load)
        if heldout_share is not None:
            sources, heldout = _hold_out(draft, sources, heldout_share, overwrite)
            rows = replace(look_at_rows(sources, load), columns=rows.columns)
        # A supervised run trains on traces, but its evaluations need problems with a verifier.
        load_held = load_problems if kind == "sft" else load
        held = look_at_rows(heldout, load_held) if heldout else None
        _check_heldout(sources, held if load is load_problems else None)
        is_rl = made.template == "grpo"
        key = made.solution and answer_key(rows.rows, made.solution)
        if key is None and is_rl and model is None and Path("my_reward.py").exists():
            texts = (name for name, value in rows.rows[0].spec.items() if isinstance(value, str))
            key = next(texts, None)
        expression = None
        if is_rl:
            expression = _choose_verifier(draft, rows, verifier or made.verifier, key)
        elif kind == "sft" and held is not None:
            expression = _choose_verifier(draft, held, verifier, answer_key(held.rows))
        path = model if model is not None else _make_tiny(draft, rows, key, overwrite, say)
        looked = look_at_model(path)
        draft.values |= {"kind": kind, "file": one_line(str(draft.file))}
        draft.values["verification"] = _judge_keys(made)
        _describe_rows(draft, rows, held, heldout_share)
        _describe_model(draft, looked)
        evaluated = num_rows(held) if held is not None else 0
        if is_rl:
            _describe_verifier(draft, expression)
            sizes = _size_of_samples(draft, rows, looked, key, evaluated, say)
        else:
            draft.line("kind", labels, "the unit that the labels refer to", "labels")
            stage = _describe_epochs(draft, looked, rows)
            _describe_verifier(draft, expression)
            lengths, work = given_lengths(rows, looked, stage)
            base = {"model": {"path": path}, **stage}
            asked = evaluated if kind == "sft" else 0
            sizes = choose_sizes(base, looked, lengths, asked, work, say)
        _describe_sizes(draft, sizes)
        text = Template(_template(f"{made.template}.toml")).substitute(draft.values)

        configuration.parse(tomllib.loads(text), str(draft.file), key_lines(text))
        draft.write(draft.file, text, "the configuration")
    command = f"assay train {shlex.quote(str(draft.file))}"
    following = [f"{command} --dry-run", command]
    return InitResult(str(draft.file), draft.written, draft.assumed, following)


_MEASURED = {"dpo": "loss and accuracy", "reward_model": "loss and accuracy"}
_ROWS_KEYS = {"sft": "traces", "dpo": "pairs", "reward_model": "rows"}


def _kind_of_labels(columns: Sequence[str]) -> str:
    """Return the kind of reward model that rows with these columns can train."""
    if "labels" in columns:
        return "process"
    return "outcome" if {"label", "correct", "score"} & {*columns} else "preference"


def _judge_keys(made: InitKind) -> str:
    if made.verifier != "judge":
        return ""
    lines = [
        "",
        "[verification.options.judge]",
        toml_line("url", "http://localhost:8000/v1", "any OpenAI-compatible endpoint"),
        toml_line("model", "judge", "the judge's name there; its key is in ASSAY_JUDGE_KEY"),
    ]
    return lined(lines) + "\n"


def _check_heldout(sources: Sequence[str], held: LookedRows | None) -> None:
    """Raise DataError if a held-out question is also in the training rows."""
    if held is not None:
        check_overlap(load_problems(sources, limit=MOST_ROWS), held.rows, near="ignore")


def _template(name: str) -> str:
    return (resources.files("assay.init") / "templates" / name).read_text(encoding="utf-8")


def _write_missing(draft: Draft, name: str, what: str, text: str = "") -> str:
    """Write a template file, or ``text``, unless the file exists; return the name."""
    file = Path(name)
    if file.exists():
        draft.assume(f"{name} existed and is used unchanged")
    else:
        draft.write(file, text or _template(name), what)
    return name


def _hold_out(
    draft: Draft, sources: Sequence[str], share: float, overwrite: bool
) -> tuple[list[str], list[str]]:
    """Split the rows, and return the sources of the training rows and of the held-out rows."""
    train, heldout = (draft.file.with_suffix(f".{part}.jsonl") for part in ("train", "heldout"))
    for file in (train, heldout):
        if same := next(
            (one for one in sources if os.path.realpath(one) == os.path.realpath(file)), ""
        ):
            found = f"{same}, which the split would be written over"
            raise RunError(message("--data", found, "another file", "give another --out"))
        if file.exists() and not overwrite:
            remedy = "give --overwrite, or another --out"
            raise RunError(message(str(file), "a file that exists", "a new one", remedy))
        if file.is_dir():
            raise RunError(message(str(file), "a folder", "a file", "give another --out"))
    draft.new += [file for file in (train, heldout) if not file.exists()]
    split_rows(sources, share, train, heldout)
    draft.written.append(f"{train} and {heldout}: the rows of {', '.join(sources)}")
    return [str(train)], [str(heldout)]


def _choose_verifier(
    draft: Draft, rows: LookedRows, verifier: str | None, key: str | None
) -> str | None:
    """Return the verifier expression for the rows; None if every row names a verifier."""
    problems: Sequence[Problem] = rows.rows
    if verifier is None and all(problem.verifier for problem in problems):
        draft.assume("each row names its own verifier")
        return None
    fitting = None
    # The example rows are meant for a reward of the user's own, so no built-in verifier is chosen.
    if verifier is None and draft.file.stem and rows.sources != ("rows.jsonl",):
        service = VerifierService("think_format")
        try:
            fitting = fitting_verifier(problems, service, verifier_of_form(rows.sources[0]))
        finally:
            service.close()
    if fitting is not None:
        draft.assume(f"the verifier is {fitting}: every row has the keys that it reads")
        return fitting
    expression = verifier or "my_reward:reward"
    check_verifier(expression, problems)
    if expression.startswith("my_reward:"):
        _write_reward(draft, rows, key)
    return expression


def _write_reward(draft: Draft, rows: LookedRows, key: str | None) -> None:
    """Write a reward function, unless one exists; ``key`` is the column of the answers or None."""
    name = "my_reward.py"
    if key is None and not Path(name).exists():
        keys = ", ".join(rows.columns)
        found = f"the rows have no answer (their keys: {keys})"
        draft.assume(f"{found}: my_reward.py pays for five words, as an example")
    if key is None:
        what, open_ended = "an example: edit it to reward your goal", _template("my_reward_open.py")
        _write_missing(draft, name, what, open_ended)
        return
    text = _template(name).replace('spec["answer"]', f"spec[{json.dumps(key, ensure_ascii=False)}]")
    _write_missing(draft, name, f"a reward that reads the row's {key}", text)
    if without := [one.source for one in rows.rows if one.spec.get(key) is None]:
        draft.assume(
            f"{len(without)} rows have no {key}, the first is {without[0]}: a reward that reads it"
            " fails on them, and they are not judged"
        )


def _make_tiny(
    draft: Draft, rows: LookedRows, key: str | None, overwrite: bool, say: Callable[[str], None]
) -> str:
    """Create the tiny model, cold-started on the column ``key``, and return the model's folder."""
    folder = Path("tiny" if draft.kind == "grpo" else f"tiny-{draft.kind}")
    if folder.exists() and not overwrite:
        remedy = f"give --overwrite to make it again, or --model {folder} to use it"
        raise RunError(message(str(folder), "a folder that exists", "a new one", remedy))
    # --overwrite must not delete a user's folder that has the name of the tiny model's folder.
    if folder.exists() and (why := not_ours(folder)):
        remedy = f"move it away, or use it with --model {folder}"
        accepted = "an unchanged folder that assay init wrote"
        raise RunError(message(f"{folder} with --overwrite", why, accepted, remedy))
    pairs = _prompts_and_answers(rows, key)
    say("making a tiny model (about ten seconds on an idle machine)")
    draft.make_room(folder)
    if draft.kind in ("sft", "reward_model"):
        make_fresh(folder, pairs)
        list_written(folder)
        draft.written.append(f"{folder}/: a model of 0.7 million parameters without training")
        return str(folder)
    make_starter(folder, pairs)
    list_written(folder)
    draft.written.append(
        f"{folder}/: a model of 0.7 million parameters that guesses among the rows' "
        f"{key or 'answer'}s"
    )
    num_answers = len({answer for _, answer in pairs})
    if num_answers > MANY_ANSWERS:
        draft.assume(
            f"a tiny model guesses among {num_answers} answers too rarely right to learn much: "
            "name a pretrained one with --model"
        )
    return str(folder)


def _prompts_and_answers(rows: LookedRows, key: str | None) -> list[tuple[str, str]]:
    """Return (prompt, answer) for every reference answer or completion in the rows."""
    pairs: list[tuple[str, str]] = []
    for row in rows.rows:
        pair = getattr(row, "pair", row)
        if isinstance(row, Problem):
            answers = [row.spec.get(key)] if key else []
        else:
            names = ("chosen", "rejected", "completion")
            answers = [getattr(pair, name) for name in names if hasattr(pair, name)]
        pairs += [(str(pair.prompt), str(answer)) for answer in answers if answer]
    if not pairs:
        found = f"no answer in its rows (their keys: {', '.join(rows.columns)})"
        accepted = 'rows with "answer", for the tiny model that is made where none is named'
        remedy = "name your own model with --model"
        raise DataError(message(", ".join(rows.sources), found, accepted, remedy))
    return pairs


def _describe_rows(
    draft: Draft, rows: LookedRows, held: LookedRows | None, share: float | None
) -> None:
    key = _ROWS_KEYS.get(KINDS[draft.kind].template, "train")
    note = f"{rows.size}; columns: {', '.join(rows.columns) or 'none'}"
    draft.line(key, list(rows.sources), note, "train")
    draft.assume(f"{', '.join(rows.sources)}: {note}")
    if held is not None:
        note = f"{held.size}, never trained on"
        if share is not None:
            note += ", chosen by a hash of their question"
            draft.assume(f"{', '.join(held.sources)}: {note}")
        draft.line("heldout", list(held.sources), note)
    elif draft.kind == "sft":
        draft.unset("heldout", ["problems.jsonl"], "problems with answers, to measure with")
        draft.assume(
            "no held-out problems: what is measured is the loss on the training rows"
            " (--heldout names problems that the model is to solve)"
        )
    else:
        draft.unset("heldout", ["heldout.jsonl"], "rows that are never trained on, to measure with")
        draft.assume(
            f"no held-out rows: what is measured is {_MEASURED.get(draft.kind, 'accuracy')} on the"
            " training rows (--heldout-share 0.1 holds a tenth of them out)"
        )
    every = (20, "steps between evaluations on the held-out rows")
    draft.line("every", *every) if held else draft.unset("every", *every)


def _describe_verifier(draft: Draft, expression: str | None) -> None:
    if expression is None:
        draft.unset("verifier", "math", "of rows that name none")
    elif ":" in expression:
        module, _, function = expression.partition(":")
        draft.line("verifier", expression, f"the function {function} of {module}.py")
    else:
        draft.line("verifier", expression, "docs/verifiers.md has the others")


def _describe_epochs(
    draft: Draft, model: LookedModel, rows: LookedRows
) -> dict[str, dict[str, Any]]:
    """Choose epochs and rows per step, and return the stage's section of the configuration."""

    epochs = 100.0 if model.is_tiny else 1.0
    draft.line("epochs", epochs, "passes over the rows")
    tokens, count = 32 if model.is_tiny else 4096, min(32, len(rows.rows))
    draft.line("tokens_per_step", tokens, "that are learned from")
    for key in ("pairs_per_step", "rows_per_step"):
        draft.line(key, count)
    rate = {"sft": 1e-5, "dpo": 5e-7, "reward_model": 1e-5}[KINDS[draft.kind].template]
    if model.is_tiny:
        tiny_rate = 5e-4 if draft.kind == "dpo" else 2e-3
        draft.line("learning_rate", tiny_rate, f"for a tiny model; a pretrained one takes {rate:g}")
    else:
        draft.unset("learning_rate", rate, "the default; ten times as much for adapters")
    template = KINDS[draft.kind].template
    stage, per_step = _STAGES[template]
    size = tokens if template == "sft" else count
    return {stage: {_ROWS_KEYS[template]: list(rows.sources), "epochs": epochs, per_step: size}}


_STAGES = {
    "sft": ("sft", "tokens_per_step"),
    "dpo": ("preference", "pairs_per_step"),
    "reward_model": ("reward_model", "rows_per_step"),
}
_TEMPLATES = {
    "chat": "the tokenizer's chat template",
    "base": "no chat template: a prompt is the question and a line break",
}


def _describe_model(draft: Draft, model: LookedModel) -> None:
    draft.line("path", model.path, "a folder, a hub name, or a run: runs/grpo@best", "model")
    template = "chat" if model.chat else "base"
    draft.line("template", template, _TEMPLATES[template])
    has = "has a chat template, which is used" if model.chat else f"has {_TEMPLATES['base']}"
    draft.assume(f"the model {model.path} {has}")
    if model.think is None:
        draft.line("think", "off", '"free" lets it reason between think tags')
        draft.assume("it has no think tags: the whole completion is its answer")
    else:
        opening, closing = model.think
        how = "its chat template opens the block" if model.opens else "the model opens the block"
        draft.line("think", "free", how)
        draft.assume(f"it reasons between {opening} and {closing}; {how}")
        if model.think != ("<think>", "</think>"):
            draft.line("think_open", opening)
            draft.line("think_close", closing)
    names = ("template", "think", "think_open", "think_close")
    draft.values["shown"] = "\n".join(draft.values[name] for name in names if name in draft.values)


def _describe_sizes(draft: Draft, sizes: Sizes) -> None:
    """Add the chosen sizes and the estimated time and memory to the draft."""
    command = f"assay plan {shlex.quote(str(draft.file))}"
    header = sizes.header(command)
    draft.values["expected"] = lined(map(comment, header))
    draft.assume(" ".join(header[: len(header) - len(sizes.warnings)]))
    for note in sizes.notes:
        draft.assume(note)
    dtype, recomputed = sizes.model.get("dtype"), sizes.model.get("activation_checkpointing")
    note = "of the forward and backward pass: the faster one here"
    draft.line("dtype", dtype, note) if dtype else draft.unset("dtype", "bfloat16", "if it is fast")
    lines = ["", toml_line("activation_checkpointing", True, "memory is short")] * bool(recomputed)
    if "lora" in sizes.model:
        lines += ["", "", "[model.lora]", toml_line("rank", 16, "all weights would not fit")]
    draft.values["adapters"] = lined(lines)
    most = (sizes.max_problems or 200, "the first held-out rows, to save time")
    draft.line("max_problems", *most) if sizes.max_problems else draft.unset("max_problems", *most)


def _size_of_samples(
    draft: Draft,
    rows: LookedRows,
    looked: LookedModel,
    key: str | None,
    num_heldout: int,
    say: Callable[[str], None],
) -> Sizes:
    """Choose the number of completions and their maximum length, and add both to the draft."""
    lengths, why = answer_lengths(rows, looked, key)
    base = {"model": {"path": looked.path}, "data": {"train": list(rows.sources)}}
    sizes = choose_sizes(base, looked, lengths, num_heldout, say=say)
    whole = sizes.rung.whole
    tokens = lengths.whole if whole else lengths.cut
    draft.line("max_tokens", tokens, why[whole])
    draft.assume(f"an answer has at most {tokens} tokens: {why[whole]}")
    _describe_training(draft, looked, sizes.rung, len(rows.rows))
    return sizes


def _describe_training(draft: Draft, model: LookedModel, rung: Rung, num_rows: int) -> None:
    draft.line("steps", rung.steps)
    draft.line("num_prompts", min(rung.num_prompts, num_rows), "questions a step")
    draft.line("group_size", rung.group_size, "answers to each of them")
    if model.is_tiny:
        draft.line("learning_rate", 5e-4, "for a tiny model; a pretrained one takes 1e-6")
    else:
        draft.unset("learning_rate", 1e-6, "the default; ten times as much for adapters")
