"""A prompt and a completion's steps as the tokens of a process reward model: each step, then its tag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from assay.types import Problem, ThinkFormat
from assay.verify.reward_model.steps import Step
from assay.verify.reward_model.text import ConversationEncoder


@dataclass(frozen=True, slots=True)
class StepRow:
    """positions: of each step, the last token of its tag. num_prompt: tokens before the first step."""

    tokens: list[int]
    positions: list[int]
    num_prompt: int


@dataclass(frozen=True, slots=True)
class StepWriter:
    """Writes rows for one tokenizer; training and judging use the same. tag_ids: of ``step_tag``."""

    encoder: ConversationEncoder
    step_tag: str
    step_join: str
    tag_ids: Sequence[int]

    def write(self, problem: Problem, steps: Sequence[Step], think: ThinkFormat) -> StepRow:
        """Return the row of a completion's steps."""
        tokens: list[int] = []
        positions: list[int] = []
        for index, step in enumerate(steps):
            if index:
                text = self.step_join + step.text
                tokens += self.encoder.plain_tokens(text, think, after=self.step_tag)
            else:
                tokens += self.encoder.prompt_tokens(problem, think, step.text)
            tokens += self.tag_ids
            positions.append(len(tokens) - 1)
        return StepRow(tokens, positions, len(self.encoder.prompt_tokens(problem, think)))


def tag_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return a tag's tokens; the mark that some tokenizers put before a first word is left out."""
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(ids) == 2 and not tokenizer.decode(ids[:1]).strip() and text.strip():
        return ids[1:]
    return ids


def reserved_tag(text: str, ids: Sequence[int]) -> dict[str, int]:
    """Return the tag where it is one token that a text can spell in several: such a text shall."""
    return {text: ids[0]} if len(ids) == 1 and len(text) > 1 else {}
