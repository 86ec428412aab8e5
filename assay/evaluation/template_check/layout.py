"""Tokenize and mask the test conversation with training's own code: turn controller, slots, masks.

This module has no own code to encode or mask, so a run trains on exactly the displayed tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from assay.data.traces import read_trace
from assay.evaluation.template_check.conversation import (
    ANSWERS,
    SECOND_QUESTION,
    THOUGHTS,
    TemplateConversation,
)
from assay.generate.base import TurnController, first_of
from assay.generate.finish import finished_completion
from assay.generate.slots import Slots, Waiting
from assay.generate.turns.reply_controller import ChatFormatter, ReplyController
from assay.learn.advantages import loss_masks
from assay.learn.algorithms import algorithm
from assay.learn.losses import token_weights
from assay.model.packing import Batch, pack
from assay.training.row_schedule import BAD, GOOD
from assay.training.sft import trace_groups
from assay.types import Completion, Group, Message, Problem

Kind = Literal["prompt", "sampled", "injected"]
LIMIT = 1 << 14
"""Maximum number of tokens of the conversation, which has a few hundred tokens."""


@dataclass(frozen=True)
class Token:
    """A token and its text.

    kind: origin of the token: ``prompt``, ``sampled`` by the policy, or ``injected`` by a tool or
    an environment. trained: whether the loss includes this token.
    """

    id: int
    text: str
    kind: Kind
    trained: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"id": self.id, "text": self.text, "kind": self.kind, "trained": self.trained}


@dataclass(frozen=True)
class TokenRow:
    """A row of tokens as the learner receives it. tokens: tokens of the prompt, followed by those
    of the completion.
    """

    name: str
    tokens: Sequence[Token]

    @property
    def ids(self) -> list[int]:
        """The token ids."""
        return [token.id for token in self.tokens]

    def ends(self, kind: Kind) -> list[int]:
        """Return the index after the last token of each unbroken sequence of tokens of one kind."""
        kinds = [token.kind for token in self.tokens]
        following = [*kinds[1:], ""]
        pairs = enumerate(zip(kinds, following, strict=True), 1)
        return [n for n, (one, after) in pairs if one == kind != after]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {"name": self.name, "tokens": [token.as_dict() for token in self.tokens]}


def rl_row(conversation: TemplateConversation, thinks: bool, eos_ids: Sequence[int]) -> TokenRow:
    """Build the RL row: replay the test conversation with an engine slot and fixed replies.

    thinks: whether every reply includes reasoning. An environment asks the second question after
    the turns that use the tool.
    """
    problem = Problem("conversation", tuple(conversation.asked), source="conversation")
    prompt = conversation.prompt
    tool = conversation.toolbox.make_controller(problem, prompt)
    environment = ReplyController(
        ChatFormatter(conversation.tokenizer), _SecondQuestion(), prompt.think
    )
    controller = first_of(tool, environment)
    completion = _played(conversation, problem, controller, thinks, eos_ids)
    # GRPO needs two judged completions in a group, so the group has the same completion twice.
    group = Group(problem, prompt, (completion, completion))
    batch = pack([group], [[GOOD, BAD]])
    trained_T, _ = loss_masks(batch, algorithm("grpo"))
    kinds: list[Kind] = ["sampled" if one else "injected" for one in completion.sampled]
    name = "rl, reasoning" if thinks else "rl"
    return _row(conversation, name, batch, kinds, trained_T[batch.row_T == 0].tolist())


def sft_row(conversation: TemplateConversation, thinks: bool) -> TokenRow:
    """Build the SFT row from the first question and its answer. thinks: with reasoning."""
    thought = {"reasoning_content": THOUGHTS[1]} if thinks else {}
    answer = {"role": "assistant", "content": ANSWERS[0], **thought}
    trace = read_trace({"messages": [*conversation.asked, answer]}, "conversation", "conversation")
    group = trace_groups([trace], conversation.bare)[0]
    batch = pack([group], [[GOOD]])
    weights_T = token_weights(batch.sampled_T, batch.row_T, batch.num_rows, "token_mean")
    kinds: list[Kind] = ["sampled"] * batch.num_tokens
    name = "sft, reasoning" if thinks else "sft"
    return _row(conversation, name, batch, kinds, (weights_T > 0).tolist())


class _SecondQuestion:
    """Environment that asks the second question after the first turn without a tool call."""

    def __init__(self) -> None:
        self.has_asked = False

    def is_addressed(self, said: str, ended: bool) -> bool:
        return ended and not self.has_asked

    def respond(self, said: str) -> Sequence[Message]:
        self.has_asked = True
        return [{"role": "user", "content": SECOND_QUESTION}]


def _played(
    conversation: TemplateConversation,
    problem: Problem,
    controller: TurnController,
    thinks: bool,
    eos_ids: Sequence[int],
) -> Completion:
    """Feed the tokens of the replies to an engine slot, which calls the turn controller at each
    token."""
    prompt = conversation.prompt
    group = Waiting(0, problem, prompt, LIMIT, todo=deque([0]))
    slots = Slots(1, 1, LIMIT)
    slots.take(0, group, 0, 0, controller)
    history = conversation.messages(thinks)
    lead = conversation.renderer.form.lead
    # In the mode ``opened``, a reply without reasoning first ends the channel of reasoning.
    start = prompt.think.close_tag if lead and prompt.think.mode == "opened" else lead
    header = conversation.tokenizer.encode(start, add_special_tokens=False)
    for number, (text, place) in enumerate(conversation.replies(thinks)):
        before = history[:place]
        _, (reply,) = conversation.renderer.render_replies(before, [text], "conversation")
        # After a tool's result, the same reply continues, so its channel has no second header.
        if number == 1 and conversation.is_inline and reply[: len(header)].tolist() == header:
            reply = reply[len(header) :]
        for token in reply.tolist():
            _record(slots, token)
            slots.ask(0, ends=token in eos_ids)
            if slots.waits_S[0]:
                slots.wake()
                slots.ask(0, ends=token in eos_ids)
            if slots.injected[0]:
                # The tool's result follows the call, before the rest of the reply.
                break
        while slots.injected[0]:
            # The slot replaces the passed token id by the injected token, so any id may be passed.
            _record(slots, 0)
            slots.ask(0)
    rows = slots.rows(0)
    return finished_completion(
        conversation.tokenizer,
        "conversation/0",
        prompt,
        slots.token_log[rows, 0],
        slots.behavior_log[rows, 0],
        "eos",
        begun=slots.turns[0],
        eos_ids=eos_ids,
        sampled=slots.sampled_log[rows, 0],
    )


def _record(slots: Slots, token: int) -> None:
    slots.record((np.array([token], np.int32), np.zeros(1, np.float32), np.zeros(1, np.float32)))


def _row(
    conversation: TemplateConversation,
    name: str,
    batch: Batch,
    kinds: Sequence[Kind],
    trained: Sequence[bool],
) -> TokenRow:
    """Return the first row of a batch, which begins with the prompt's tokens."""
    show: Callable[[int], str] = lambda id: str(  # noqa: E731
        conversation.tokenizer.decode([id], clean_up_tokenization_spaces=False)
    )
    asked = batch.prompts[0].tolist()
    said = batch.tokens_T[batch.row_T == 0].tolist()
    prompt = [Token(id, show(id), "prompt", False) for id in asked]
    rest = zip(said, kinds, trained, strict=True)
    return TokenRow(
        name, [*prompt, *(Token(id, show(id), kind, learned) for id, kind, learned in rest)]
    )
