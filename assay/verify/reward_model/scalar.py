"""Verifier ``reward_model``: the score that sequence-classification checkpoints give a completion."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier
from assay.verify.reward_model.batches import sequence_logits
from assay.verify.reward_model.checkpoint import Checkpoint, forget_checkpoints, load_checkpoint
from assay.verify.reward_model.facts import with_facts
from assay.verify.reward_model.options import (
    COMMON_FIELDS,
    Common,
    checked,
    common,
    is_number,
    one_of,
    option,
    place,
)
from assay.verify.reward_model.reference import Scale, is_normalize, scales_of
from assay.verify.reward_model.text import ConversationEncoder, Encoded

HEADS = ("scalar", "binary")
AGGREGATES = ("mean", "min", "mean_minus_std")
SQUASHES = ("none", "sigmoid")

Pairs = Sequence[tuple[Problem, Completion]]


def judge_reward_model(pairs: Pairs) -> list[Part]:
    """Return the score of each completion; every option comes from the configuration.

    ``head = "scalar"``: the one logit, as it is: any number. ``"binary"``: the probability of the
    label ``positive``, of an outcome head with two labels (one logit: its sigmoid). Each member of an
    ensemble is normalized by itself, then the members are aggregated, then ``squash``ed. A text that
    does not fit is not judged.
    """
    if not pairs:
        return []
    model = reward_model_of(pairs[0][0].spec)
    return model.judge(pairs)


def check_reward_model(options: Mapping[str, Any]) -> None:
    """Raise VerifierError where the options cannot work; loads the checkpoints, once."""
    if options.get("path") is not None:
        reward_model_of(options).load()
    else:
        common(options, "reward_model")


@dataclass(frozen=True)
class RewardModel:
    """One or several checkpoints under one set of options."""

    shared: Common
    head: str = "scalar"
    positive: int = 1
    aggregate: str = "mean"
    k: float = 1.0
    normalize: Any = None
    squash: str = "none"

    @property
    def is_probability(self) -> bool:
        """Whether the value is in [0, 1], and so the correctness as it is."""
        return self.squash == "sigmoid" or (self.head == "binary" and self.normalize is None)

    def load(self) -> None:
        """Load the checkpoints and what their scores are normalized against."""
        _ = self.scales

    @cached_property
    def members(self) -> tuple[tuple[Checkpoint, ConversationEncoder], ...]:
        """The checkpoints with what writes their input."""
        where, shared = place("reward_model"), self.shared
        found: list[tuple[Checkpoint, ConversationEncoder]] = []
        for path in shared.paths:
            checkpoint = load_checkpoint(
                path, "sequence", device=shared.device, dtype=shared.dtype, where=f"{where}.path"
            )
            self._check_labels(checkpoint, f"{where}.path {path}")
            encoder = ConversationEncoder(
                checkpoint.tokenizer,
                where,
                format=shared.format,
                plain_template=shared.plain_template,
                max_tokens=shared.max_tokens or checkpoint.max_positions,
                too_long=shared.too_long,
            )
            found.append((checkpoint, encoder))
        return tuple(found)

    @cached_property
    def scales(self) -> tuple[Scale, ...]:
        """Mean and standard deviation that each member's scores are brought to 0 and 1 with."""
        members = self.members
        if self.normalize is None:
            return (Scale(),) * len(members)
        what = (self.head, self.positive, self.shared.reads, self.shared.format)
        detail = (*what, self.shared.plain_template, self.shared.max_tokens, self.shared.too_long)
        return scales_of(self.normalize, self.shared.paths, repr(detail), self._raw_of)

    def judge(self, pairs: Pairs) -> list[Part]:
        """Return one part a pair."""
        scales = self.scales
        columns = [self._raw(member, pairs) for member in range(len(self.members))]
        parts: list[Part] = []
        for row in range(len(pairs)):
            raws = [column[row][0] for column in columns]
            note = next((column[row][1] for column in columns if column[row][1]), "")
            missing = any(raw is None for raw in raws)
            if missing:
                parts.append(Part.not_judged("unavailable", note))
            else:
                parts.append(self._part([raw for raw in raws if raw is not None], scales, note))
        return parts

    def _part(self, raws: Sequence[float], scales: Sequence[Scale], note: str) -> Part:
        if not all(map(math.isfinite, raws)):
            return Part.not_judged("error", f"the reward model's score is {raws[0]}")
        scores = [scale.of(raw) for scale, raw in zip(scales, raws, strict=True)]
        mean = math.fsum(scores) / len(scores)
        spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
        value = {
            "mean": mean,
            "min": min(scores),
            "mean_minus_std": mean - self.k * spread,
        }[self.aggregate]
        components = {"raw": raws[0]}
        if len(raws) > 1:
            components = {f"raw_{index}": raw for index, raw in enumerate(raws)}
            components["spread"] = spread
        if self.squash == "sigmoid":
            value = sigmoid(value)
        if self.is_probability:
            value = score = min(1.0, max(0.0, value))
        else:  # the reward has no bounds; of a first term the correctness is asked for too
            score = sigmoid(value)
        passed = score >= self.shared.threshold
        return Part(value, score=score, passed=passed, detail=note, components=components)

    def _raw_of(self, member: int, pairs: Pairs) -> list[float | None]:
        return [raw for raw, _ in self._raw(member, pairs)]

    def _raw(self, member: int, pairs: Pairs) -> list[tuple[float | None, str]]:
        """Return (score before any normalization, what was cut) of each pair; None: it does not fit."""
        checkpoint, encoder = self.members[member]
        encoded = [self._encoded(encoder, *pair) for pair in pairs]
        rows = [each.tokens for each in encoded if each.tokens is not None]
        logits = iter(sequence_logits(checkpoint, rows, self.shared.batch_tokens))
        return [
            (None if each.tokens is None else self._score(next(logits)), each.note)
            for each in encoded
        ]

    def _encoded(
        self, encoder: ConversationEncoder, problem: Problem, completion: Completion
    ) -> Encoded:
        try:
            return encoder.encode(problem, completion, self.shared.reads)
        except VerifierError as error:  # of this row: the others are judged all the same
            return Encoded(None, str(error))

    def _score(self, logits: Sequence[float]) -> float:
        if self.head == "scalar":
            return logits[0]
        if len(logits) == 1:
            return sigmoid(logits[0])
        return sigmoid(logits[self.positive] - logits[1 - self.positive])

    def _check_labels(self, checkpoint: Checkpoint, where: str) -> None:
        labels = checkpoint.model.config.num_labels
        accepted = (1,) if self.head == "scalar" else (1, 2)
        if labels not in accepted:
            remedy = "set head = 'binary'" if self.head == "scalar" and labels == 2 else ""
            wanted = f"{' or '.join(map(str, accepted))}, for head = {self.head!r}"
            raise VerifierError(message(f"{where}: labels", labels, wanted, remedy))


def reward_model_of(options: Mapping[str, Any]) -> RewardModel:
    """Return the reward model that the options describe; equal options give the same one."""
    known = {field.name for field in _FIELDS}
    key = repr(sorted((name, value) for name, value in options.items() if name in known))
    with _lock:
        if key not in _models:
            checked(options, _FIELDS, "reward_model")
            options = with_facts(options, _FIELDS, "reward_model")
            _models[key] = RewardModel(
                shared=common(options, "reward_model"),
                head=options.get("head") or "scalar",
                positive=options.get("positive", 1),
                aggregate=options.get("aggregate") or "mean",
                k=options.get("k", 1.0),
                normalize=options.get("normalize"),
                squash=options.get("squash") or "none",
            )
        return _models[key]


def close_reward_models() -> None:
    """Forget every loaded reward model, so that its memory is free again."""
    with _lock:
        _models.clear()
    forget_checkpoints()


def sigmoid(logit: float) -> float:
    """Return 1 / (1 + exp(-logit)), without overflow."""
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    return math.exp(logit) / (1.0 + math.exp(logit))


_models: dict[str, RewardModel] = {}
_lock = threading.Lock()

_FIELDS = (
    *COMMON_FIELDS,
    option(
        "head", "scalar: one logit; binary: an outcome head of two labels", "scalar", one_of(*HEADS)
    ),
    option("positive", "0 or 1: the label that means correct", 1, lambda value: value in (0, 1)),
    option("aggregate", f"{', '.join(AGGREGATES)}, of an ensemble", "mean", one_of(*AGGREGATES)),
    option("k", "how many standard deviations mean_minus_std subtracts", 1.0, is_number),
    option(
        "normalize",
        "{mean, std}, numbers or one for each member; or a JSON Lines file of rows with prompt and completion",
        None,
        is_normalize,
    ),
    option(
        "squash",
        "none, or sigmoid: the reward is in (0, 1) too, as the correctness always is",
        "none",
        one_of(*SQUASHES),
    ),
)

REWARD_MODEL = Verifier(
    name="reward_model",
    version=1,
    judge=judge_reward_model,
    takes="batch",
    lane="device",
    domain="what a learned reward model says of a completion",
    fields=_FIELDS,
    accepts="any text that fits the reward model's length; control tokens that it spells are read as letters",
    partial_credit="the score itself",
    weight=0.1,
    bounds=None,
    modules=(
        "assay.verify.reward_model.scalar",
        "assay.verify.reward_model.batches",
        "assay.verify.reward_model.checkpoint",
        "assay.verify.reward_model.options",
        "assay.verify.reward_model.facts",
        "assay.verify.reward_model.reference",
        "assay.verify.reward_model.text",
    ),
    packages=("transformers",),
    check_options=check_reward_model,
)

__all__ = [
    "REWARD_MODEL",
    "RewardModel",
    "check_reward_model",
    "close_reward_models",
    "judge_reward_model",
]
