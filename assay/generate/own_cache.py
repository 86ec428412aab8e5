"""Decoding with the model's own cache class, one completion at a time: slow but general.

This path serves models whose state is more than keys and values: recurrent states (Mamba,
Qwen3-Next, Falcon H1), positions in the scores (ALiBi), chunked attention. Each completion is
computed alone, with the model calls that ``generate`` of Transformers makes. The bits of a
completion therefore do not depend on other completions. A step costs one model call for each
completion.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from assay.generate.kv_cache import Extent, KeyValues, Room
from assay.model.family import unwrap


@dataclass(eq=False)
class _Row:
    """A slot's completion. start: the model's state after the prompt; later steps copy this state
    and never change it. state: the model's state after the tokens ``prompt`` and ``fed``. logits_V:
    logits after the newest token.
    """

    prompt: list[int]
    start: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    fed: list[int] = field(default_factory=list[int])
    logits_V: Tensor | None = None


class OwnCaches(KeyValues):
    """The states of all slots. Each state is an object of the model's own cache class."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[_Row | None] = []
        self._prompt: tuple[list[int], dict[str, Any]] = [], {}

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the last prompt's state, divided by the prompt's length in tokens."""
        tokens, state = self._prompt
        return -(-_num_bytes(state) // max(len(tokens), 1))

    def keep_prompt(self, tokens: list[int], state: dict[str, Any]) -> None:
        """Store the state after a prompt."""
        self._prompt = tokens, state

    def num_tokens(self, num_slots: int, room: Room) -> int:
        return num_slots * room.extent.total

    def prompt_tokens(self, room: Room) -> int:
        return room.extent.prompt

    def make_room(self, num_slots: int, room: Room) -> None:
        self.rows = [None] * num_slots
        self.num_slots = num_slots
        self.layout += 1

    def place(self, slots: Tensor) -> None:
        tokens, state = self._prompt
        for slot in slots.tolist():
            self.rows[slot] = _Row(tokens, state)

    def keep_slots(self, slots: Tensor, num_active: int) -> None:
        kept: list[int] = slots.tolist()
        self.rows = [self.rows[slot] if n < num_active else None for n, slot in enumerate(kept)]
        self.num_slots = len(kept)
        self.layout += 1

    def release(self) -> None:
        self.rows = [None] * self.num_slots

    def _stores(self) -> Iterable[Tensor]:
        return (one for row in self.rows if row is not None for one in _tensors(row.state, set()))


class OwnCacheForward:
    """Decoding through the model's own cache, as ``generate`` of Transformers uses it."""

    name = "the model's own cache"
    by_blocks = False
    reads_in_blocks = False

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.cache = OwnCaches()
        self._inner: Any = unwrap(model)
        accepts = inspect.signature(self._inner.forward).parameters
        self._options: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in accepts:
            self._options["logits_to_keep"] = 1

    def refresh(self, num_rows: int) -> None:
        """Do nothing, because this path calls the live module, which always has the newest
        weights."""

    def end_call(self) -> None:
        self.cache.release()

    def release(self) -> None:
        self.cache.release()

    def prefill(self, tokens_L: Tensor, known: int = 0) -> Tensor:
        tokens = tokens_L[None]
        state = {**self._options, "attention_mask": torch.ones_like(tokens)}
        logits_V, state = self._call(tokens, state, is_first_iteration=True)
        self.cache.keep_prompt(tokens_L.tolist(), state)
        return logits_V

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        found: dict[int, Tensor] = {}
        steps = zip(self.cache.rows, tokens_S.tolist(), positions_S.tolist(), strict=True)
        for slot, (row, token, position) in enumerate(steps):
            # An idle slot holds token 0 at position 0, and the model is not called for it.
            if row is not None and position >= len(row.prompt):
                found[slot] = self._step(row, token, position - len(row.prompt))
        like = next(iter(found.values()))
        logits_SV = like.new_zeros(len(tokens_S), len(like))
        for slot, logits_V in found.items():
            logits_SV[slot] = logits_V
        return logits_SV

    def _step(self, row: _Row, token: int, number: int) -> Tensor:
        """Feed a completion's token ``number``; return the next logits [V]."""
        if number < len(row.fed):
            # A paused slot feeds its last token again, which needs no model call.
            if number == len(row.fed) - 1 and row.fed[number] == token:
                assert row.logits_V is not None
                return row.logits_V
            # After a removal of tokens, a recurrent state must be computed again.
            row.fed, row.state = row.fed[:number], {}
        if not row.state:
            # The state is copied, because siblings share it and the model changes it in place.
            row.state, again, row.fed = copy.deepcopy(row.start), row.fed, []
            for one in again:
                self._feed(row, one)
        return self._feed(row, token)

    def _feed(self, row: _Row, token: int) -> Tensor:
        row.fed.append(token)
        device = next(self.model.parameters()).device
        tokens = torch.tensor([row.prompt + row.fed], device=device)
        row.logits_V, row.state = self._call(tokens, row.state, next_sequence_length=1)
        return row.logits_V

    def _call(
        self, tokens: Tensor, state: Mapping[str, Any], **how: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Call the model as ``generate`` does; return the last logits [V] and the next state."""
        training = self.model.training
        self.model.eval()
        try:
            # Only the model's own functions know the arguments that its cache class needs.
            inputs = self._inner.prepare_inputs_for_generation(tokens, **how, **state)
            output = self._inner(**inputs, return_dict=True)
        finally:
            self.model.train(training)
        after = self._inner._update_model_kwargs_for_generation(output, dict(state))
        return output.logits[0, -1], after


def _num_bytes(state: Any) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors(state, set()))


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors in a cache object of unknown class."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one, seen)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one, seen)
    elif type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        yield from _tensors(vars(value), seen)
