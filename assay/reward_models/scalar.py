"""Scorer of the verifier ``reward_model``: classification checkpoints score a completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

from assay.errors import VerifierError, message
from assay.reward_models.batches import sequence_logits
from assay.reward_models.checkpoint import Checkpoint
from assay.reward_models.learned import LearnedReward, sigmoid
from assay.reward_models.reference import Scale, scales_of
from assay.reward_models.text import ConversationEncoder, Encoded
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.learned.reward_verifiers import REWARD_MODEL_FIELDS, Pairs


class RewardModel(LearnedReward):
    """One or several checkpoints whose head scores a whole sequence."""

    name = "reward_model"
    fields = REWARD_MODEL_FIELDS

    def load(self) -> None:
        """Load the checkpoints, and measure each reward scale that the configuration takes from a
        file of rows."""
        _ = self.scales

    @cached_property
    def members(self) -> tuple[tuple[Checkpoint, ConversationEncoder], ...]:
        """Each checkpoint of the ensemble, paired with the encoder of its input."""
        head, found = self.options["head"], list[tuple[Checkpoint, ConversationEncoder]]()
        accepted = (1,) if head == "scalar" else (1, 2)
        for path in self.options["path"]:
            checkpoint = self.load_checkpoint(path, "sequence")
            labels = checkpoint.model.config.num_labels
            if labels not in accepted:
                remedy = "set head = 'binary'" if head == "scalar" and labels == 2 else ""
                wanted = f"{' or '.join(map(str, accepted))}, for head = {head!r}"
                place = f"{self.where}.path {path}: labels"
                raise VerifierError(message(place, labels, wanted, remedy))
            found.append((checkpoint, self.encoder_of(checkpoint)))
        return tuple(found)

    @cached_property
    def scales(self) -> tuple[Scale, ...]:
        """The scale that normalizes the scores of each member."""
        members, normalize = self.members, self.options["normalize"]
        if normalize is None:
            return (Scale(),) * len(members)
        # These options change raw scores, so they are part of the key of cached scales.
        names = [
            "head",
            "positive",
            "reads",
            "format",
            "plain_template",
            "max_tokens",
            "too_long",
        ]
        how = repr(tuple(self.options[name] for name in names))
        return scales_of(
            normalize,
            self.options["path"],
            how,
            lambda *asked: [raw for raw, _ in self._raw(*asked)],
        )

    def judge(self, pairs: Pairs) -> list[Part]:
        """Return one part per pair."""
        scales = self.scales
        columns = [self._raw(member, pairs) for member in range(len(self.members))]
        parts: list[Part] = []
        for row in zip(*columns, strict=True):
            raws = [raw for raw, _ in row if raw is not None]
            note = next((note for _, note in row if note), "")
            # Each verdict of an ensemble needs all members, or verdicts would not be comparable.
            if len(raws) < len(row):
                parts.append(Part.not_judged("unavailable", note))
            elif not all(map(math.isfinite, raws)):
                parts.append(Part.not_judged("error", f"the reward model's score is {raws[0]}"))
            else:
                parts.append(self._part(raws, scales, note))
        return parts

    def _part(self, raws: Sequence[float], scales: Sequence[Scale], note: str) -> Part:
        scores = [scale.of(raw) for scale, raw in zip(scales, raws, strict=True)]
        mean = math.fsum(scores) / len(scores)
        spread = math.sqrt(math.fsum((score - mean) ** 2 for score in scores) / len(scores))
        value = {
            "mean": mean,
            "min": min(scores),
            "mean_minus_std": mean - self.options["k"] * spread,
        }[self.options["aggregate"]]
        components = {"raw": raws[0]}
        if len(raws) > 1:
            components = {f"raw_{index}": raw for index, raw in enumerate(raws)}
            components["spread"] = spread
        squashed = self.options["squash"] == "sigmoid"
        value = sigmoid(value) if squashed else value
        if squashed or (self.options["head"] == "binary" and self.options["normalize"] is None):
            # A probability minus k standard deviations of an ensemble may be below 0.
            value = score = min(1.0, max(0.0, value))
        # A verdict needs a score in [0, 1], even if the reward value is unbounded.
        else:
            score = sigmoid(value)
        passed = score >= self.options["threshold"]
        return Part(value, score=score, passed=passed, detail=note, components=components)

    def _raw(self, member: int, pairs: Pairs) -> list[tuple[float | None, str]]:
        """Return (raw score, note on truncation) of each pair. The raw score is None if the text
        exceeds the token limit."""
        checkpoint, encoder = self.members[member]
        encoded = [self._encoded(encoder, *pair) for pair in pairs]
        rows = [each.tokens for each in encoded if each.tokens is not None]
        logits = iter(sequence_logits(checkpoint, rows, self.options["batch_tokens"]))
        return [
            (None if each.tokens is None else self._score(next(logits)), each.note)
            for each in encoded
        ]

    def _encoded(
        self, encoder: ConversationEncoder, problem: Problem, completion: Completion
    ) -> Encoded:
        try:
            return encoder.encode(problem, completion, self.options["reads"])
        except VerifierError as error:
            # Only this row is faulty, so all other rows are still judged.
            return Encoded(None, str(error))

    def _score(self, logits: Sequence[float]) -> float:
        return logits[0] if self.options["head"] == "scalar" else self.probability(logits)
