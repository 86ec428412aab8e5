"""Turn controller that injects the replies of tools and environments.

When a turn ends, the tools or the environment run in another thread. A completion pauses until its
tool's or environment's reply is ready, while other completions continue.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from queue import SimpleQueue
from typing import Any, TypeGuard

from assay.data.chat import end_of_turn, think_switches, with_think_block
from assay.data.reply_form import ReplyForm
from assay.data.template import TemplateFailed, render_chat
from assay.generate.base import InjectedTokens, Promise, SoFar
from assay.generate.turns.tool import FREE, TurnEnvironment
from assay.types import Message, ThinkFormat

MAX_THREADS = 4
Asked = tuple[tuple[str, ...], ThinkFormat]
"""The roles of messages, and the think format of the next reply."""
Piece = str | tuple[int, str, bool]
"""A text of a template, or a message's field: index, field name, and whether it is inside JSON."""
_FIELDS = ("content", "name", "tool_call_id")
# Some chat templates require call identifiers of nine characters, as these placeholders have.
_REPLY = "0Assay999"
_MARK = re.compile(r'0Assay(\d{3})(\\?")?')
_numbers = itertools.count()
_here = threading.local()


class AnswerThread:
    """A daemon thread that executes the calls of tools and environments in order. Because the
    thread is a daemon, a hanging call does not block process exit."""

    def __init__(self, name: str) -> None:
        self._asked = SimpleQueue[tuple[Future[Any], Callable[[], Any]]]()
        threading.Thread(target=self._answer, name=name, daemon=True).start()

    def submit(self, asked: Callable[[], Any]) -> Future[Any]:
        """Queue a tool call and return its future."""
        promise = Future[Any]()
        self._asked.put((promise, asked))
        return promise

    def _answer(self) -> None:
        _here.thread = self
        while True:
            promise, asked = self._asked.get()
            try:
                promise.set_result(asked())
            except BaseException as error:  # future.result() raises the exception again
                promise.set_exception(error)
            # The references are dropped, so that finalizers of a finished completion can run.
            del promise, asked


@cache
def _thread(name: str) -> AnswerThread:
    """Return a named thread. All calls of one completion use the same thread and run in order."""
    return AnswerThread(f"assay-{name}")


def next_thread(kind: str = "tools") -> AnswerThread:
    """Return a thread that the next completion or call can use.

    The thread that runs a call does not affect the call's result.
    """
    return _thread(f"{kind}-{next(_numbers) % min(MAX_THREADS, os.cpu_count() or 1)}")


def this_thread() -> AnswerThread | None:
    """Return the current `AnswerThread`, or None in any other thread."""
    return getattr(_here, "thread", None)


@dataclass(eq=False)
class ChatFormatter:
    """Encodes messages to the policy as tokens.

    result: text around a message's content, with ``{result}``; None: the chat template's text
    between two replies. closes: text that ends a turn early, such as the end of a tool call; "":
    only the policy ends a turn.
    """

    tokenizer: Any
    result: str | None = None
    closes: str = ""
    _pieces: dict[Asked, list[Piece]] = field(default_factory=dict[Asked, list[Piece]])
    _closing: dict[int, bool] = field(default_factory=dict[int, bool])
    _plain: Any = field(init=False)

    def __post_init__(self) -> None:
        # Threads share a tokenizer, including its switch for parsing special tokens.
        # Contents of messages are therefore encoded with a separate copy of the tokenizer.
        self._plain = copy.deepcopy(self.tokenizer)

    @cached_property
    def special_ids(self) -> set[int]:
        """Names of special and added tokens, such as the end-of-turn token."""
        tokenizer = self.tokenizer
        return {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}

    @cached_property
    def _last_end(self) -> int | None:
        """End token of a last reply that the chat template replaces in earlier replies, or None.

        A chat template with channels does so: gpt-oss ends the last reply with <|return|>, and
        earlier replies with <|end|>.
        """
        has_channels = self.result is None and ReplyForm.of(self.tokenizer, FREE.open_tag).lead
        return end_of_turn(self.tokenizer) if has_channels else None

    def num_replaced(self, tokens: Sequence[int], newest: int) -> int:
        """Return how many of the policy's newest tokens the injected tokens replace: 0 or 1."""
        other_end = tokens[:1] != [newest] and tokens and tokens[0] in self.special_ids
        return int(bool(other_end) and newest == self._last_end)

    def may_close(self, token: int) -> bool:
        """Return whether a turn may end in this token, so that the completion's text must be
        decoded."""
        if token not in self._closing:
            # A token whose text ends within a character may end a turn too.
            ends = {self.closes[-1:], "\N{REPLACEMENT CHARACTER}"}
            text = self.text([token]) if self.closes else ""
            self._closing[token] = any(end in text for end in ends)
        return self._closing[token]

    def tokens(
        self, messages: Sequence[Message], newest: int, think: ThinkFormat = FREE
    ) -> list[int]:
        """Return the tokens to inject after the policy's newest token.

        think: the prompt's think format, which applies to every turn that the template starts. An
        end-of-turn token that the policy has sampled is not repeated. Message contents are encoded
        as plain text, so a special token's name in a content never becomes the token.
        """
        if self.result is not None:
            before, _, after = self.result.partition("{result}")
            pieces = [
                piece
                for number in range(len(messages))
                for piece in (before, _content(number), after)
            ]
        else:
            pieces = self._template_pieces((tuple(one["role"] for one in messages), think))
        tokens: list[int] = []
        for piece in _joined(pieces):
            if isinstance(piece, str):
                tokens += _encode(self.tokenizer, piece)
                continue
            number, name, in_json = piece
            text = messages[number].get(name, "")
            text = json.dumps(text, ensure_ascii=False)[1:-1] if in_json else text
            # Tokenizers reject unpaired surrogates, which a tool's output may contain.
            text = text.encode("utf-8", "replace").decode()
            # Names of special tokens in a message must stay text, or a tool could end the turn.
            tokens += _encode(self._plain, text, split_special_tokens=True)
        return tokens[1:] if tokens[:1] == [newest] and self.result is None else tokens

    def text(self, tokens: Any) -> str:
        """Decode tokens with the same options as a completion's text."""
        return str(self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False))

    def _template_pieces(self, asked: Asked) -> list[Piece]:
        """Return the text that the chat template writes between two assistant replies, around
        messages with these roles."""
        if asked not in self._pieces:
            roles, think = asked
            found = self._rendered(asked) or self._rendered((("user",) * len(roles), think))
            lines = [piece for number in range(len(roles)) for piece in ("\n", _content(number))]
            self._pieces[asked] = found or [*lines, "\n"]
        return self._pieces[asked]

    def _rendered(self, asked: Asked) -> list[Piece] | None:
        roles, think = asked
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _REPLY}]
        for number, role in enumerate(roles):
            content, *names = (f"0Assay{3 * number + each:03}" for each in range(3))
            named = dict(zip(_FIELDS[1:], names, strict=True)) if role == "tool" else {}
            turns.append({"role": role, "content": f'{content}"', **named})
        try:
            text = render_chat(self.tokenizer, turns, True, **think_switches(think.mode))
        except TemplateFailed:
            # The chat template rejects messages of these roles with an error.
            return None
        _, found, text = text.partition(_REPLY)
        pieces: list[Piece] = []
        place = 0
        for mark in _MARK.finditer(text):
            number, which = divmod(int(mark[1]), len(_FIELDS))
            pieces += [text[place : mark.start()], (number, _FIELDS[which], mark[2] == r"\"")]
            place = mark.end() if which == 0 else mark.end(1)
        contents = [number for number, name, _ in filter(_is_field, pieces) if name == "content"]
        if not found or contents != [*range(len(roles))]:
            return None
        return [*pieces, with_think_block(text[place:], think, True)[0]]


def _content(number: int) -> Piece:
    return number, "content", False


def _is_field(piece: Piece) -> TypeGuard[tuple[int, str, bool]]:
    return not isinstance(piece, str)


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Yield the pieces of a text, with adjacent plain texts joined to one piece."""
    for are_fields, some in itertools.groupby(pieces, _is_field):
        found = [*some]
        yield from found if are_fields else ["".join(map(str, found))]


def _encode(tokenizer: Any, text: str, **how: bool) -> list[int]:
    return [int(one) for one in tokenizer.encode(text, add_special_tokens=False, **how)]


@dataclass(eq=False)
class ReplyController:
    """The turn controller of one completion, backed by tools or an environment."""

    formatter: ChatFormatter
    environment: TurnEnvironment
    think: ThinkFormat = FREE
    thread: AnswerThread = field(default_factory=next_thread)
    # Index of the first token of the current turn.
    _start: int = 0
    _has_asked: bool = False

    def __call__(self, so_far: SoFar) -> Promise | None:
        """If a turn ends with the newest token, return a future of the reply; otherwise return
        None."""
        if self._has_asked and so_far.injected:
            self._start = so_far.num_tokens
        self._has_asked = False
        if so_far.newest is None or so_far.injected:
            return None
        if not so_far.ends and not self.formatter.may_close(so_far.newest):
            return None
        tokens, text = so_far.read(), self.formatter.text
        if so_far.ends and so_far.newest in self.formatter.special_ids:
            tokens = tokens[:-1]
        # The whole completion is decoded, because a token's text depends on the tokens before it.
        said = text(tokens)[len(text(tokens[: self._start])) :]
        if not self.environment.is_addressed(said, so_far.ends):
            return None
        self._has_asked = True
        return self.thread.submit(partial(self._answer, said, so_far.newest))

    def _answer(self, said: str, newest: int) -> InjectedTokens | None:
        messages = self.environment.respond(said)
        if not messages:
            return None
        tokens = self.formatter.tokens(messages, newest, self.think)
        replaced = self.formatter.num_replaced(tokens, newest)
        return InjectedTokens(tokens, replaced, begins_turn=True)
