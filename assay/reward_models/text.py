"""Encode a problem and a completion as a reward model's own tokens.

Text from the policy or a data row is never encoded as a control token. For example, ``<|im_end|>``
in a completion is encoded letter by letter, not as the token that ends a turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from assay.data.template import TemplateFailed, render_chat
from assay.errors import VerifierError, message
from assay.types import PLAIN_TEMPLATE, Completion, Problem, ThinkFormat

TooLong = Literal["cut_prompt", "cut_completion", "not_judged"]

# These private-use characters enclose a number, which replaces a text in a template.
_OPEN, _CLOSE = "\ue000", "\ue001"
_HOLE = re.compile(f"{_OPEN}(\\d+){_CLOSE}")
_PROBE = "0Assay0"


@dataclass(frozen=True, slots=True)
class Encoded:
    """Tokens of a prompt with its completion.

    tokens: None if the text exceeds the token limit.
    note: description of the truncation.
    """

    tokens: list[int] | None
    note: str = ""


class ConversationEncoder:
    """Renders and tokenizes conversations for one reward model's tokenizer.

    format: ``chat`` renders with the tokenizer's chat template, as in the checkpoint's training.
        ``plain`` renders prompt and completion with ``plain_template``. The format None means
        ``chat`` if the tokenizer has a template, else ``plain``.
    step_tag: text after each step, for models that score steps.

    Raises VerifierError.
    """

    def __init__(
        self,
        tokenizer: Any,
        where: str,
        *,
        format: str | None = None,
        plain_template: str = PLAIN_TEMPLATE,
        max_tokens: int | None = None,
        too_long: TooLong = "cut_prompt",
        step_tag: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        has_template = bool(tokenizer.chat_template)
        self.format = format or ("chat" if has_template else "plain")
        if self.format == "chat" and not has_template:
            found = "a tokenizer without a chat template"
            remedy = "set format = 'plain'"
            raise VerifierError(message(f"{where}.format", found, "one that has it", remedy))
        self.plain_template = plain_template
        self.max_tokens = max_tokens
        self.too_long = too_long
        self.step_tag = step_tag
        self.tag_ids = tag_tokens(tokenizer, step_tag) if step_tag else []
        self._lead, self._trail = self._around()
        self._guards: dict[ThinkFormat, tuple[re.Pattern[str], frozenset[int]]] = {}

    def encode(self, problem: Problem, completion: Completion, reads: str = "all") -> Encoded:
        """Return the tokens of a prompt with its completion, or with the completion's answer
        only."""
        text = completion.text if reads == "all" else completion.answer_text.strip()
        return self.encode_text(problem, text, completion.think)

    def encode_text(self, problem: Problem, text: str, think: ThinkFormat) -> Encoded:
        """Return the tokens of a prompt and a reply."""
        guarded: list[str] = []
        turns = self._turns(problem, guarded, think)
        rendered = self._render(turns, self._guarded(text, guarded, think))
        tokens = [*self._lead, *self._tokens(rendered, guarded, think), *self._trail]
        if not tokens:
            return Encoded(None, "no tokens")
        return self.fit(tokens, lambda: len(self.prompt_tokens(problem, think)))

    def prompt_tokens(self, problem: Problem, think: ThinkFormat, text: str = "") -> list[int]:
        """Return the untruncated prompt tokens, followed by the tokens of ``text``, the start of
        the completion."""
        guarded: list[str] = []
        turns = self._turns(problem, guarded, think)
        before = self._render(turns, _PROBE).rpartition(_PROBE)[0]
        begun = before + self._guarded(text, guarded, think)
        return [*self._lead, *self._tokens(begun, guarded, think)]

    def encode_steps(
        self, problem: Problem, steps: Sequence[str], think: ThinkFormat, join: str
    ) -> tuple[list[int], list[int]]:
        """Return the untruncated tokens of a prompt with steps, and the index of the last token of
        each step's tag."""
        tokens, positions = list[int](), list[int]()
        for index, step in enumerate(steps):
            if index:
                tokens += self.plain_tokens(join + step, think, after=self.step_tag)
            else:
                tokens += self.prompt_tokens(problem, think, step)
            tokens += self.tag_ids
            positions.append(len(tokens) - 1)
        return tokens, positions

    def plain_tokens(self, text: str, think: ThinkFormat, after: str = "") -> list[int]:
        """Return the tokens of a text that follows the text ``after``, without control tokens.

        Some tokenizers prepend a mark to the first word of any text, so ``text`` is encoded
        together with ``after``.
        """
        guarded: list[str] = []
        held = self._guarded(text, guarded, think)
        first = _HOLE.split(held, maxsplit=1)[0]
        before, both = self._encode(after), self._encode(after + first)
        # If a token spans the border between both texts, ``text`` is encoded alone.
        if not first or both[: len(before)] != before:
            return self._tokens(held, guarded, think)
        return both[len(before) :] + self._tokens(held[len(first) :], guarded, think)

    def fit(
        self, tokens: list[int], num_prompt: Callable[[], int], *, may_cut_completion: bool = True
    ) -> Encoded:
        """Truncate tokens to the limit. The prompt is cut from the left, after a leading BOS.

        The completion is cut only if the options allow it. num_prompt: function that returns the
        number of prompt tokens, called only if a cut is needed.
        """
        extra = 0 if self.max_tokens is None else len(tokens) - self.max_tokens
        if extra <= 0:
            return Encoded(tokens)
        # Texts are cut at the front, because heads read the score at the end of the text.
        kept = int(bool(tokens) and tokens[0] == self.tokenizer.bos_token_id)
        room = num_prompt() - kept
        note = f"the first {extra} tokens of the prompt were cut"
        if extra > room:
            note = f"the prompt and the completion's first {extra - max(0, room)} tokens were cut"
        cuts_completion = may_cut_completion and self.too_long == "cut_completion"
        fits = self.too_long != "not_judged" and extra <= room
        if fits or (cuts_completion and len(tokens) - extra > kept):
            return Encoded(tokens[:kept] + tokens[kept + extra :], note)
        return Encoded(None, f"{len(tokens)} tokens; accepted: at most {self.max_tokens}")

    def _render(self, turns: Sequence[Any], text: str) -> str:
        if self.format == "plain":
            prompt = turns[0]["content"] if len(turns) == 1 else _labelled(turns)
            before, _, after = self.plain_template.partition("{completion}")
            # The completion is inserted last, because its own text may contain "{prompt}".
            return before.replace("{prompt}", prompt) + text + after
        chat = [*turns, {"role": "assistant", "content": text}]
        try:
            return render_chat(self.tokenizer, chat)
        except TemplateFailed as error:
            raise VerifierError(f"the chat template rejects the messages: {error}") from error

    def _turns(
        self, problem: Problem, guarded: list[str], think: ThinkFormat
    ) -> list[dict[str, str]]:
        prompt = problem.prompt
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return [
            {"role": turn["role"], "content": self._guarded(turn["content"], guarded, think)}
            for turn in turns
        ]

    def _guarded(self, text: str, guarded: list[str], think: ThinkFormat) -> str:
        def hole(found: re.Match[str]) -> str:
            guarded.append(found[0])
            return f"{_OPEN}{len(guarded) - 1}{_CLOSE}"

        return self._guard(think)[0].sub(hole, without_unpaired_surrogates(text))

    def _tokens(self, text: str, guarded: Sequence[str], think: ThinkFormat) -> list[int]:
        tokens: list[int] = []
        for index, piece in enumerate(_HOLE.split(text)):
            if index % 2:
                tokens += self._letters(guarded[int(piece)], self._guard(think)[1])
            elif piece:
                tokens += self._encode(piece)
        return tokens

    def _letters(self, text: str, control: frozenset[int]) -> list[int]:
        """Return tokens that spell a text, without control tokens."""
        tokens = self._encode(text, split_special_tokens=True)
        if control.isdisjoint(tokens):
            return tokens
        if len(text) == 1:
            # No other tokens can spell a control token of one letter, so it is dropped.
            return []
        # If a tokenizer ignores `split_special_tokens`, the halves of a control token's text are
        # tokenized separately, so that no control token results.
        middle = len(text) // 2
        return self._letters(text[:middle], control) + self._letters(text[middle:], control)

    def _encode(self, text: str, **options: Any) -> list[int]:
        found: Any = self.tokenizer(text, add_special_tokens=False, verbose=False, **options)
        return list(found["input_ids"])

    def _guard(self, think: ThinkFormat) -> tuple[re.Pattern[str], frozenset[int]]:
        """Return the pattern and the ids of control tokens, which are encoded as plain text if they
        occur in the text of a prompt or completion.

        Control tokens are special tokens, other added tokens that the template writes, and the step
        tag if it is one token of several letters. Think tags are excluded.
        """
        if think not in self._guards:
            skeleton = self._render([{"role": "user", "content": "x"}], "x")
            control: dict[str, int] = {}
            if len(self.tag_ids) == 1 and len(self.step_tag) > 1:
                control[self.step_tag] = self.tag_ids[0]
            added = cast("Mapping[int, Any]", self.tokenizer.added_tokens_decoder)
            for id, token in added.items():
                if token.content and (token.special or token.content in skeleton):
                    control[token.content] = id
            for tag in (think.open_tag, think.close_tag):
                control.pop(tag, None)
            # A regular expression takes the first match, so longer tokens come first.
            # While the template is rendered, `_OPEN`, a number and `_CLOSE` replace each match.
            # Both marks are in the pattern too, so that no text can imitate such a replacement.
            words = sorted(control, key=lambda word: (-len(word), word))
            pattern = "|".join(map(re.escape, [*words, _OPEN, _CLOSE]))
            self._guards[think] = re.compile(pattern), frozenset(control.values())
        return self._guards[think]

    def _around(self) -> tuple[list[int], list[int]]:
        """Return the special tokens that the tokenizer adds around plain text. A chat template
        writes its own special tokens."""
        if self.format == "chat":
            return [], []
        plain, full = self._encode("x"), list(self.tokenizer("x")["input_ids"])
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start], full[start + len(plain) :]
        return [], []


def tag_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return a tag's tokens, without the mark that some tokenizers prepend to the first word."""
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if len(ids) == 2 and not tokenizer.decode(ids[:1]).strip() and text.strip():
        return ids[1:]
    return ids


def without_unpaired_surrogates(text: str) -> str:
    """Remove unpaired surrogates, which tokenizers reject."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _labelled(turns: Sequence[Any]) -> str:
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
