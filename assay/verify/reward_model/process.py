"""Verifier ``process_reward_model``: the score of each step of a completion's reasoning."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem, StepScore
from assay.verify.base import Field, Part, Verifier
from assay.verify.reward_model.batches import position_logits
from assay.verify.reward_model.checkpoint import Checkpoint, load_checkpoint, load_tokenizer
from assay.verify.reward_model.facts import with_facts
from assay.verify.reward_model.options import (
    COMMON_FIELDS,
    Common,
    checked,
    common,
    is_text,
    one_of,
    option,
    place,
)
from assay.verify.reward_model.scalar import sigmoid
from assay.verify.reward_model.step_rows import StepWriter, reserved_tag, tag_tokens
from assay.verify.reward_model.steps import Places, is_ends, split_steps
from assay.verify.reward_model.text import ConversationEncoder

NAME = "process_reward_model"
STYLES = ("causal", "classifier")
REDUCTIONS = ("min", "product", "last", "mean")
STEP_TAG = "\u043a\u0438"  # Math-Shepherd's

Pairs = Sequence[tuple[Problem, Completion]]


def judge_process_reward_model(pairs: Pairs) -> list[Part]:
    """Return the probability that the steps are right, one a step and reduced to one a completion.

    Each step is followed by ``step_tag``, at whose last token the checkpoint is read. ``style =
    "causal"``: a language model; softmax over ``good_token`` and ``bad_token`` (Math-Shepherd,
    arXiv:2312.08935). ``"classifier"``: a head over tokens, of one logit or of two labels. Steps are
    split at ``split``, or where ``step_ends`` of the row says. `StepScore.end` is the index of the
    completion's own token at which the step ends, or, of a completion without tokens, of the
    character. A completion without a step fails; one that does not fit is not judged.
    """
    if not pairs:
        return []
    return process_model_of(pairs[0][0].spec).judge(pairs)


def check_process_reward_model(options: Mapping[str, Any]) -> None:
    """Raise VerifierError where the options cannot work; loads the checkpoint, once."""
    process_model_of(options).load()


@dataclass(frozen=True)
class _Row:
    """One completion as the checkpoint reads it: its tokens, and where each step is scored.

    ends: of each step, in the completion's own tokens.
    """

    ends: list[int]
    tokens: list[int]
    positions: list[int]
    note: str = ""


@dataclass(frozen=True)
class ProcessRewardModel:
    """A checkpoint under one set of options."""

    shared: Common
    style: str
    split: str
    step_tag: str
    step_join: str
    good_token: str
    bad_token: str
    positive: int
    reduce: str
    policy_tokenizer: str | None

    def load(self) -> None:
        """Load the checkpoint and check that it has the tokens and labels that are asked for."""
        _ = self.encoder, self.tag_ids, self.columns, self.policy

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model."""
        where = f"{place(NAME)}.path"
        if len(self.shared.paths) > 1:
            found = f"{len(self.shared.paths)} paths"
            raise VerifierError(message(where, found, "one", "ensembles are for reward_model"))
        kind = "causal" if self.style == "causal" else "token"
        shared = self.shared
        return load_checkpoint(
            shared.paths[0], kind, device=shared.device, dtype=shared.dtype, where=where
        )

    @cached_property
    def encoder(self) -> ConversationEncoder:
        """What writes the prompt."""
        return ConversationEncoder(
            self.checkpoint.tokenizer,
            place(NAME),
            format=self.shared.format,
            plain_template=self.shared.plain_template,
            max_tokens=self.shared.max_tokens or self.checkpoint.max_positions,
            too_long=self.shared.too_long,
            reserved=reserved_tag(self.step_tag, self.tag_ids),
        )

    @cached_property
    def tag_ids(self) -> list[int]:
        """The tokens of the step tag."""
        ids = tag_tokens(self.checkpoint.tokenizer, self.step_tag)
        if not ids:
            raise VerifierError(message(f"{place(NAME)}.step_tag", repr(self.step_tag), "a token"))
        return ids

    @cached_property
    def columns(self) -> tuple[int, int] | None:
        """The tokens for right and wrong of a language model; None of a head over tokens."""
        if self.style == "causal":
            return self._only("good_token", self.good_token), self._only(
                "bad_token", self.bad_token
            )
        labels = self.checkpoint.model.config.num_labels
        if labels not in (1, 2):
            raise VerifierError(message(f"{place(NAME)}.path: labels", labels, "1 or 2"))
        return None

    @cached_property
    def policy(self) -> Any:
        """The policy's tokenizer, where it is named; else the checkpoint's own is tried."""
        if self.policy_tokenizer is None:
            return self.checkpoint.tokenizer
        return load_tokenizer(self.policy_tokenizer, f"{place(NAME)}.policy_tokenizer")

    def judge(self, pairs: Pairs) -> list[Part]:
        """Return one part a pair."""
        self.load()
        parts: list[Part | None] = []
        rows: list[_Row] = []
        waiting: list[int] = []
        for index, (problem, completion) in enumerate(pairs):
            try:
                row = self._row(problem, completion)
            except VerifierError as error:  # of this row: the others are judged all the same
                row = Part.not_judged("error", str(error))
            parts.append(row if isinstance(row, Part) else None)
            if isinstance(row, _Row):
                rows.append(row)
                waiting.append(index)
        logits = position_logits(
            self.checkpoint,
            [row.tokens for row in rows],
            [row.positions for row in rows],
            self.shared.batch_tokens,
            self.columns,
        )
        for index, row, each in zip(waiting, rows, logits, strict=True):
            parts[index] = self._part(row, each)
        return [part for part in parts if part is not None]

    def _row(self, problem: Problem, completion: Completion) -> _Row | Part:
        places = Places(completion, self.policy)
        if not places.known:
            text = "the completion's tokens are not those of this tokenizer; set policy_tokenizer"
            return Part.not_judged("unavailable", text)
        steps = split_steps(problem, completion, places, self.split, self.shared.reads)
        if not steps:
            return Part(0.0, score=0.0, passed=False, detail="no steps")
        written = StepWriter(self.encoder, self.step_tag, self.step_join, self.tag_ids)
        row = written.write(problem, steps, completion.think)
        tokens = row.tokens
        limit = self.encoder.max_tokens
        extra = 0 if limit is None else max(0, len(tokens) - limit)
        kept = self.encoder.num_kept(tokens)
        if extra and (self.shared.too_long == "not_judged" or extra > row.num_prompt - kept):
            found = f"{len(tokens)} tokens; accepted: at most {limit}"
            return Part.not_judged("unavailable", found)
        note = f"the first {extra} tokens of the prompt were cut" if extra else ""
        return _Row(
            ends=[places.token_at(step.end - 1) for step in steps],
            tokens=tokens[:kept] + tokens[kept + extra :],
            positions=[position - extra for position in row.positions],
            note=note,
        )

    def _part(self, row: _Row, logits: Sequence[Sequence[float]]) -> Part:
        scores = [self._probability(each) for each in logits]
        if not all(map(math.isfinite, scores)):
            return Part.not_judged("error", "a step's score is not a number")
        value = {
            "min": min(scores),
            "product": math.prod(scores),
            "last": scores[-1],
            "mean": math.fsum(scores) / len(scores),
        }[self.reduce]
        return Part(
            value,
            score=value,
            passed=value >= self.shared.threshold,
            detail=row.note,
            components={"steps": float(len(scores)), "min": min(scores), "last": scores[-1]},
            step_scores=tuple(StepScore(s, end) for s, end in zip(scores, row.ends, strict=True)),
        )

    def _probability(self, logits: Sequence[float]) -> float:
        if self.style == "causal":
            return sigmoid(logits[0] - logits[1])
        if len(logits) == 1:
            return sigmoid(logits[0])
        return sigmoid(logits[self.positive] - logits[1 - self.positive])

    def _only(self, name: str, text: str) -> int:
        ids = tag_tokens(self.checkpoint.tokenizer, text)
        if len(ids) != 1:
            found = f"{text!r}, which is {len(ids)} tokens"
            raise VerifierError(message(f"{place(NAME)}.{name}", found, "text of one token"))
        return ids[0]


def process_model_of(options: Mapping[str, Any]) -> ProcessRewardModel:
    """Return the process reward model that the options describe; equal options give the same one."""
    known = {field.name for field in _FIELDS if not field.from_row}
    key = repr(sorted((name, value) for name, value in options.items() if name in known))
    with _lock:
        if key not in _models:
            checked(options, _FIELDS, NAME)
            options = with_facts(options, _FIELDS, NAME)
            _models[key] = ProcessRewardModel(
                shared=common(options, NAME),
                style=options.get("style") or "causal",
                split=options.get("split") or "newline",
                step_tag=options.get("step_tag") or STEP_TAG,
                step_join=options.get("step_join", "\n"),
                good_token=options.get("good_token") or "+",
                bad_token=options.get("bad_token") or "-",
                positive=options.get("positive", 1),
                reduce=options.get("reduce") or "min",
                policy_tokenizer=options.get("policy_tokenizer"),
            )
        return _models[key]


def close_process_reward_models() -> None:
    """Forget every process reward model; `close_reward_models` frees the checkpoints."""
    with _lock:
        _models.clear()


_models: dict[str, ProcessRewardModel] = {}
_lock = threading.Lock()

_FIELDS = (
    *COMMON_FIELDS,
    option("style", ", ".join(STYLES), "causal", one_of(*STYLES)),
    option("split", "newline, blank_line, or the text that ends a step", "newline", is_text),
    option("step_tag", "text whose last token is scored, put behind each step", STEP_TAG, is_text),
    option(
        "step_join",
        "text between a tag and the next step",
        "\n",
        lambda value: isinstance(value, str),
    ),
    option("good_token", "text of one token, of style causal", "+", is_text),
    option("bad_token", "text of one token, of style causal", "-", is_text),
    option("positive", "0 or 1: the label that means right", 1, lambda value: value in (0, 1)),
    option("reduce", ", ".join(REDUCTIONS), "min", one_of(*REDUCTIONS)),
    option(
        "policy_tokenizer",
        "a folder or hub name; null: the checkpoint's own tokenizer is tried",
        None,
        is_text,
    ),
    Field(
        "step_ends",
        "rising whole numbers: where each step ends, in tokens (characters of a text without tokens)",
        check=is_ends,
    ),
)

PROCESS_REWARD_MODEL = Verifier(
    name=NAME,
    version=2,
    judge=judge_process_reward_model,
    takes="batch",
    lane="device",
    domain="what a learned process reward model says of each step",
    fields=_FIELDS,
    accepts="any text that fits the checkpoint's length; control tokens that it spells are read as letters",
    weight=0.1,
    partial_credit="the steps' probabilities, reduced by min, product, last or mean",
    modules=(
        "assay.verify.reward_model.process",
        "assay.verify.reward_model.steps",
        "assay.verify.reward_model.step_rows",
        "assay.verify.reward_model.facts",
        "assay.verify.reward_model.batches",
        "assay.verify.reward_model.checkpoint",
        "assay.verify.reward_model.options",
        "assay.verify.reward_model.text",
    ),
    packages=("transformers",),
    check_options=check_process_reward_model,
)
