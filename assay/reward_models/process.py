"""Scorer of the verifier ``process_reward_model``: a checkpoint scores each reasoning step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import VerifierError, message
from assay.reward_models.batches import position_logits
from assay.reward_models.checkpoint import Checkpoint, load_tokenizer
from assay.reward_models.learned import LearnedReward, sigmoid
from assay.reward_models.steps import Places, split_steps
from assay.reward_models.text import ConversationEncoder, tag_tokens
from assay.types import Completion, Problem, StepScore
from assay.verify.base import Part
from assay.verify.learned.reward_verifiers import PROCESS_REWARD_MODEL_FIELDS, Pairs


@dataclass(frozen=True)
class _Row:
    """The checkpoint's input for one completion: the input's tokens, and the position of each
    step's score.

    ends: index of each step's last token among the completion's own tokens.
    """

    ends: list[int]
    tokens: list[int]
    positions: list[int]
    note: str = ""


class ProcessRewardModel(LearnedReward):
    """A checkpoint that scores each step."""

    name = "process_reward_model"
    fields = PROCESS_REWARD_MODEL_FIELDS

    def load(self) -> None:
        """Load the checkpoint and check that it has the configured tokens and labels."""
        # Reading these properties here raises their errors before the first completion is judged.
        _ = self.encoder, self.tag_ids, self.columns, self.policy

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The model."""
        path, *others = self.options["path"]
        if others:
            found = f"{1 + len(others)} paths"
            remedy = "ensembles are for reward_model"
            raise VerifierError(message(f"{self.where}.path", found, "one", remedy))
        return self.load_checkpoint(path, "causal" if self._is_causal else "token")

    @cached_property
    def encoder(self) -> ConversationEncoder:
        """The encoder of a prompt and its steps."""
        return self.encoder_of(self.checkpoint, self.options["step_tag"])

    @property
    def tag_ids(self) -> list[int]:
        """The tokens of the step tag."""
        if not self.encoder.tag_ids:
            tag = repr(self.options["step_tag"])
            raise VerifierError(message(f"{self.where}.step_tag", tag, "a token"))
        return self.encoder.tag_ids

    @cached_property
    def columns(self) -> tuple[int, int] | None:
        """The ids of the tokens for good and bad steps, if a language model scores; None for a
        token head."""
        if self._is_causal:
            return self._token_of("good_token"), self._token_of("bad_token")
        labels = self.checkpoint.model.config.num_labels
        if labels not in (1, 2):
            raise VerifierError(message(f"{self.where}.path: labels", labels, "1 or 2"))
        return None

    @cached_property
    def policy(self) -> Any:
        """The policy's tokenizer if configured, else the checkpoint's own."""
        named = self.options["policy_tokenizer"]
        if named is None:
            return self.checkpoint.tokenizer
        return load_tokenizer(named, f"{self.where}.policy_tokenizer")

    @property
    def _is_causal(self) -> bool:
        return self.options["style"] == "causal"

    def judge(self, pairs: Pairs) -> list[Part]:
        """Return one part per pair."""
        self.load()
        found = [self._row_or_part(*pair) for pair in pairs]
        rows = [each for each in found if isinstance(each, _Row)]
        logits = position_logits(
            self.checkpoint,
            [row.tokens for row in rows],
            [row.positions for row in rows],
            self.options["batch_tokens"],
            self.columns,
        )
        of_rows = iter(logits)
        return [
            self._part(each, next(of_rows)) if isinstance(each, _Row) else each for each in found
        ]

    def _row_or_part(self, problem: Problem, completion: Completion) -> _Row | Part:
        try:
            return self._row(problem, completion)
        except VerifierError as error:
            # The error concerns only this row, so all other rows are still judged.
            return Part.not_judged("error", str(error))

    def _row(self, problem: Problem, completion: Completion) -> _Row | Part:
        places = Places(completion, self.policy)
        if not places.known:
            text = "the completion's tokens are not those of this tokenizer; set policy_tokenizer"
            return Part.not_judged("unavailable", text)
        steps = split_steps(
            problem, completion, places, self.options["split"], self.options["reads"]
        )
        if not steps:
            # Without this verdict, the policy could avoid a bad score by an empty answer.
            return Part(0.0, score=0.0, passed=False, detail="no steps")
        texts, think = [step.text for step in steps], completion.think
        tokens, positions = self.encoder.encode_steps(
            problem, texts, think, self.options["step_join"]
        )
        fitted = self.encoder.fit(
            tokens,
            lambda: len(self.encoder.prompt_tokens(problem, think)),
            # A cut of the completion would remove steps whose scores are read.
            may_cut_completion=False,
        )
        if fitted.tokens is None:
            return Part.not_judged("unavailable", fitted.note)
        cut = len(tokens) - len(fitted.tokens)
        ends = [places.token_at(step.end - 1) for step in steps]
        return _Row(ends, fitted.tokens, [each - cut for each in positions], fitted.note)

    def _part(self, row: _Row, logits: Sequence[Sequence[float]]) -> Part:
        if self._is_causal:
            # The sigmoid of the logits' difference is the softmax over the two label tokens.
            scores = [sigmoid(good - bad) for good, bad in logits]
        else:
            scores = [self.probability(each) for each in logits]
        if not all(map(math.isfinite, scores)):
            return Part.not_judged("error", "a step's score is not a number")
        value = {
            "min": min(scores),
            "product": math.prod(scores),
            "last": scores[-1],
            "mean": math.fsum(scores) / len(scores),
        }[self.options["reduce"]]
        return Part(
            value,
            score=value,
            passed=value >= self.options["threshold"],
            detail=row.note,
            components={"steps": float(len(scores)), "min": min(scores), "last": scores[-1]},
            step_scores=tuple(StepScore(s, end) for s, end in zip(scores, row.ends, strict=True)),
        )

    def _token_of(self, name: str) -> int:
        text = self.options[name]
        ids = tag_tokens(self.checkpoint.tokenizer, text)
        if len(ids) != 1:
            found = f"{text!r}, which is {len(ids)} tokens"
            raise VerifierError(message(f"{self.where}.{name}", found, "text of one token"))
        return ids[0]
