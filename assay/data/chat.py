"""Render problems to prompts: chat template or plain text, think block, and tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from assay.config import DataConfig, SamplingConfig
from assay.data.problems import ProblemSet
from assay.data.reply_form import ReplyForm, channel_reply
from assay.data.rows import appended
from assay.data.template import TemplateFailed, render_chat
from assay.data.traces import Trace
from assay.errors import DataError, ModelError, message
from assay.think import answer_header, has_channels
from assay.types import Mask, Message, Problem, Prompt, ThinkFormat, ThinkMode, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "0Assay0"
# The lookarounds exclude paths such as a/think, and closing tags such as </think>, from the match.
_SWITCH = re.compile(r"(?<![\w/<])/(no_)?think(?![\w/])")
_MODES: tuple[ThinkMode, ...] = get_args(ThinkMode)


class PromptRenderer:
    """Renders problems and traces for one tokenizer.

    Under a chat template, the tokens equal those of ``apply_chat_template``, as in serving: the
    tokenizer adds no special tokens of its own. Under the base template, the tokenizer's leading
    special tokens (a BOS) are added once.

    The think mode of a prompt is the row's ``think``, else the mode of a switch in the text
    (`data.think_switches`), else `data.think`. If the chat template itself opens or closes the
    think block, no second think tag is added; `Prompt.think` records the resulting mode.

    max_prompt_tokens: the model's ``context_length`` minus the tokens reserved for a completion.
    sampling: defines the efforts; the text of an effort is appended to the question. tools: schemas
    of tools, for the chat template. introduction: description of the tools for chat templates
    without tool support, appended to the system message. begins: function from a problem to the
    problem with which an environment's episode starts.

    Raises ModelError if a chat template is configured and the tokenizer has none.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        max_prompt_tokens: int | None = None,
        context_length: int | None = None,
        sampling: SamplingConfig | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        introduction: str = "",
        begins: Callable[[Problem], Problem] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._sampling = sampling or SamplingConfig()
        self._tools, self._introduction, self._begins = tools, introduction, begins
        self._context_length = context_length
        limits = [limit for limit in (max_prompt_tokens, data.max_prompt_tokens) if limit]
        self.max_prompt_tokens = min(limits, default=None)
        self._data = data
        self.template = template_of(tokenizer, data)
        if self.template == "chat" and not tokenizer.chat_template:
            found = "a tokenizer without a chat template"
            remedy = "set data.template = 'base', or use an instruction-tuned model's tokenizer"
            raise ModelError(message("data.template = 'chat'", found, "one that has it", remedy))

    def render(self, problem: Problem) -> Prompt:
        """Return a problem's prompt; raises DataError if the prompt exceeds the token limit."""
        if self._begins is not None:
            problem = self._begins(problem)
        return self._render(problem.prompt, problem.place, problem.think, problem.effort)

    def render_trace(self, trace: Trace) -> tuple[Tokens, Tokens]:
        """Return the tokens of a trace's prompt and of its completion, including the end token.

        The prompt tokens of a trace equal those of `render`. If the prompt already opens the think
        block, the opening tag is removed from the completion. If the prompt ends with an empty
        think block, the completion is reduced to the answer. ``<think>`` tags are replaced by the
        configured tags.
        """
        prompt, (tokens,) = self.render_replies(
            trace.prompt, [trace.completion], trace.source, trace.think, trace.effort
        )
        return prompt.tokens, tokens

    def render_replies(
        self,
        prompt: str | Sequence[Message],
        texts: Sequence[str],
        source: str = "",
        think: ThinkMode | None = None,
        effort: str | None = None,
    ) -> tuple[Prompt, list[Tokens]]:
        """Return a prompt and the tokens of several completions, rendered as in `render_trace`."""
        where = source or "trace"
        rendered = self._render(prompt, where, think, effort)
        return rendered, [self._reply(rendered, text, where) for text in texts]

    def _reply(self, prompt: Prompt, text: str, where: str) -> Tokens:
        text = self.form.reply(prompt.think, text)
        if has_channels(prompt.think.open_tag, prompt.think.close_tag):
            text = channel_reply(prompt.think, text, self.form.lead)
        elif prompt.think.mode == "opened":
            text = _without_open_tag(prompt, text)
        elif prompt.think.mode == "empty" and prompt.think.close_tag in text:
            text = prompt.think.split(text)[1].lstrip()
        elif prompt.think.mode != "empty" and self.form.lead:
            text = channel_reply(prompt.think, text, self.form.lead)
        tokens = self._encode_after(prompt, text)
        if not tokens:
            raise DataError(message(f"{where} completion", "no tokens", "text that has some"))
        if self.end_id is not None and tokens[-1] != self.end_id:
            tokens.append(self.end_id)
        return np.array(tokens, np.int32)

    def render_turns(self, trace: Trace) -> tuple[Prompt, Tokens, Mask]:
        """Return a trace's prompt, its completion's tokens, and the mask of assistant tokens."""
        # Assistant turns and injected text are tokenized separately, as in sampling with tools.
        asked = (trace.source, trace.think, trace.effort)
        if not trace.said:
            prompt, (tokens,) = self.render_replies(trace.prompt, [trace.completion], *asked)
            return prompt, tokens, np.ones(len(tokens), np.bool_)
        prompt = self._render(trace.prompt, trace.source or "trace", trace.think, trace.effort)
        parts: list[list[int]] = []
        behind = 0
        for start, end in trace.said:
            injected, said = trace.completion[behind:start], trace.completion[start:end]
            first = self._encode_after(prompt, said) if not start else self._encode(said)
            parts += [self._encode(injected), first]
            behind = end
            # The injected text starts with the end token of the assistant turn.
            # In sampling, the policy writes the end token itself, so the loss must cover it.
            if len(parts) > 2 and parts[-2][:1] == [self.end_id]:
                parts[-3].append(parts[-2].pop(0))
        parts.append(self._encode(trace.completion[behind:]))
        if behind == len(trace.completion) and self.end_id is not None:
            parts[-2].append(self.end_id)
        is_said = np.repeat([n % 2 == 1 for n in range(len(parts))], [*map(len, parts)])
        return prompt, np.concatenate([np.array(part, np.int32) for part in parts]), is_said

    def render_document(self, text: str, source: str = "") -> Tokens:
        """Return the tokens of a plain document, including an end token.

        The tokenizer's leading special tokens (a BOS) come first, as under the base template. Names
        of special tokens in the document are encoded as plain text.
        """
        end: Any = self.tokenizer.eos_token_id
        if end is None:
            found = "none in this tokenizer"
            raise ModelError(message("end token of a document", found, "one (eos_token)"))
        # A document may contain the name of a special token, such as <|endoftext|>.
        # The name of a special token is not encoded as the token, which would end the document.
        tokens = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if not tokens:
            raise DataError(message(f"{source or 'document'} text", "no tokens", "text with some"))
        return np.array([*self._leading_ids, *tokens, end], np.int32)

    def encode_rendered(
        self, prompt: str, completion: str, ended: bool = True
    ) -> tuple[Tokens, Tokens]:
        """Return the tokens of an already rendered prompt text, and of its completion.

        ended: whether the completion is finished; only a finished completion gets an end token.
        """
        tokens = self._encode_prompt(prompt)
        rendered = Prompt(prompt, np.array(tokens, np.int32))
        reply = self._encode_after(rendered, completion)
        if ended and self.end_id is not None and (not reply or reply[-1] != self.end_id):
            reply.append(self.end_id)
        return rendered.tokens, np.array(reply, np.int32)

    @cached_property
    def end_id(self) -> int | None:
        """Token that ends a completion: the template's end-of-turn token, else EOS, else None."""
        own = end_of_turn(self.tokenizer) if self.template == "chat" else None
        eos: Any = self.tokenizer.eos_token_id
        return eos if own is None else own

    @cached_property
    def form(self) -> ReplyForm:
        """Text that the chat template writes around the parts of a reply."""
        is_base = self.template == "base"
        return ReplyForm() if is_base else ReplyForm.of(self.tokenizer, self._data.think_open)

    @cached_property
    def _formats(self) -> dict[ThinkMode, ThinkFormat]:
        """The think format of each mode.

        Without configured tags, a chat template with channels defines the tags.
        """
        tags = self._data.think_open, self._data.think_close
        is_default = ThinkFormat("off", *tags) == ThinkFormat()
        if is_default and self.template == "chat" and self.form.lead and self.form.opening:
            tags = self.form.opening, self.form.between
        return {mode: ThinkFormat(mode, *tags) for mode in _MODES}

    @cached_property
    def _longest_token(self) -> int:
        """Length of the vocabulary's longest token; in bytes for a byte-level vocabulary."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    @cached_property
    def _leading_ids(self) -> list[int]:
        """Tokens that the tokenizer by default puts before every text: a BOS, or no token."""
        plain, full = self._encode("x"), list(self.tokenizer("x")["input_ids"])
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start]
        return []

    @cached_property
    def max_overhead(self) -> int:
        """Upper bound on the number of tokens that the chat template adds to an ASCII text."""
        # A token has at least one byte, so a text has at most as many tokens as bytes.
        texts = (self._text("x", "a prompt", mode)[0] for mode in _MODES)
        return max(len(text.encode()) for text in texts) + len(self._leading_ids) + 16

    def _render(
        self,
        prompt: str | Sequence[Message],
        where: str,
        think: ThinkMode | None,
        effort: str | None,
    ) -> Prompt:
        text, mode = self._text(prompt, where, think, effort)
        limit = self.max_prompt_tokens
        # A text far over the limit is not tokenized, since tokenizing 30 MB takes a minute.
        at_least = -(-len(text) // self._longest_token) if limit is not None else 0
        too_long = limit is not None and at_least > limit
        tokens = [] if too_long else self._encode_prompt(text)
        if limit is not None and max(at_least, len(tokens)) > limit:
            change, why = "lower sampling.max_tokens", ""
            if limit == self._data.max_prompt_tokens:
                change, why = "raise data.max_prompt_tokens", ", by data.max_prompt_tokens"
            elif self._context_length is not None:
                less = f"less {self._context_length - limit} of sampling.max_tokens"
                why = f", the model's context of {self._context_length} {less}"
            remedy = f"shorten it, {change}, or set data.on_bad_row = 'skip'"
            found = f"{len(text):,} characters" if too_long else f"{len(tokens)} tokens"
            accepted = f"at most {limit} tokens{why}"
            raise DataError(message(f"{where} prompt", found, accepted, remedy))
        if not tokens:
            raise DataError(message(f"{where} prompt", "no tokens", "text that has some"))
        return Prompt(text, np.array(tokens, np.int32), self._formats[mode])

    def _text(
        self,
        prompt: str | Sequence[Message],
        where: str,
        think: ThinkMode | None,
        effort: str | None = None,
    ) -> tuple[str, ThinkMode]:
        """Return the text of a prompt and the prompt's think mode."""
        turns = self.messages(with_effort(prompt, self._sampling, effort, where))
        mode = think or self._switched(turns)
        text = (
            self._base_text(turns)
            if self.template == "base"
            else self._chat_text(turns, mode, where)
        )
        return with_think_block(text, self._formats[mode], self.template == "chat")

    def messages(self, prompt: str | Sequence[Message]) -> list[Message]:
        """Return a prompt's chat messages, with the system prompt and the tools' description."""
        turns = chat_of(prompt, self._data.system_prompt)
        if not self._introduction:
            return turns
        return _introduced(turns, self._introduction, self._takes_system)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the chat template accepts a message with the role system."""
        # The chat template of the first Gemma models raises an error for a system message.
        if self.template == "base":
            return True
        turns = [{"role": "system", "content": "x"}, {"role": "user", "content": "x"}]
        try:
            render_chat(self.tokenizer, turns, True)
        except TemplateFailed:
            return False
        return True

    def _switched(self, turns: Sequence[Message]) -> ThinkMode:
        """Return the think mode of the last switch in the messages, or else the configured mode."""
        configured = self._data.think
        if not self._data.think_switches:
            return configured
        asked = (turn["content"] for turn in turns if turn["role"] not in ("assistant", "tool"))
        found = [match for text in asked for match in _SWITCH.finditer(text)]
        if not found:
            return configured
        return "empty" if found[-1][1] else "opened" if configured == "opened" else "free"

    def _chat_text(self, turns: Sequence[Message], mode: ThinkMode, where: str) -> str:
        try:
            return render_chat(self.tokenizer, turns, True, self._tools, **think_switches(mode))
        except TemplateFailed as error:
            has_system = self._data.system_prompt is not None
            remedy = "drop data.system_prompt or the system message" if has_system else ""
            found = f"messages that the chat template refuses ({error})"
            accepted = "messages that it supports"
            raise DataError(message(f"{where} prompt", found, accepted, remedy)) from error

    def _base_text(self, turns: Sequence[Message]) -> str:
        """Return a prompt as plain text; the turns of a longer chat are labelled by role."""
        lead = ""
        if turns[0]["role"] in ("system", "developer"):
            lead, turns = f"{turns[0]['content']}\n\n", turns[1:]
        prompt = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in turns)
        if len(turns) == 1:
            prompt = turns[0]["content"]
        return lead + self._data.prompt_template.replace("{question}", prompt)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def _encode_prompt(self, text: str) -> list[int]:
        tokens = self._encode(text)
        leading = self._leading_ids if self.template == "base" else []
        # Some prompt templates already contain the BOS text.
        return tokens if tokens[: len(leading)] == leading else leading + tokens

    def _encode_after(self, prompt: Prompt, text: str) -> list[int]:
        """Return the tokens of a completion that follows the prompt.

        A completion is encoded alone if a token would span the prompt's end and its start.
        """
        # Prompt and completion are encoded as one text, as they occur in a document.
        # Encoded alone, a completion would get a leading space from some tokenizers.
        together = self._encode_prompt(prompt.text + text)
        length = len(prompt.tokens)
        if together[:length] == prompt.tokens.tolist():
            return together[length:]
        # The policy samples after the prompt's own tokens.
        # If the prompt's tokens change in the joint text, the completion is encoded alone.
        return self._encode(text)


def think_switches(mode: ThinkMode) -> dict[str, Any]:
    """Return the variables that turn thinking on or off in a chat template."""
    # Qwen3's template reads enable_thinking; DeepSeek-V3.1's template reads thinking.
    # Both variables are passed, because a template ignores variables that it does not read.
    return {} if mode == "off" else dict.fromkeys(("enable_thinking", "thinking"), mode != "empty")


def with_think_block(text: str, wanted: ThinkFormat, in_chat: bool) -> tuple[str, ThinkMode]:
    """Return a prompt's text with the wanted think block, and the prompt's think mode.

    in_chat: whether a chat template rendered the text. A chat template may close a think block
    without opening one, as DeepSeek-V3.1's template does.
    """
    mode, opening, closing = wanted.mode, wanted.open_tag, wanted.close_tag
    if mode == "empty" and (header := answer_header(closing)):
        # A template with channels has no empty block: the prompt ends with the answer's header.
        return text + header, "empty"
    if re.search(rf"{re.escape(opening)}\s*\Z", text):
        if mode == "empty":
            return f"{text.rstrip()}\n\n{closing}\n\n", "empty"
        return text, "opened"
    if mode == "opened":
        return text + opening, "opened"
    before = "" if in_chat else rf"{re.escape(opening)}\s*"
    if re.search(rf"{before}{re.escape(closing)}\s*\Z", text):
        return text, "empty"
    if mode == "empty":
        return f"{text}{opening}\n\n{closing}\n\n", "empty"
    return text, mode


def with_effort(
    prompt: str | Sequence[Message], sampling: SamplingConfig, effort: str | None, where: str
) -> str | Sequence[Message]:
    """Append the text of an effort (default: the configured effort); raises DataError if
    unknown."""
    try:
        level = sampling.level(effort)
    except ValueError as error:
        raise DataError(f"{where} {error}") from error
    return appended(prompt, f"\n{level}") if isinstance(level, str) else prompt


def template_of(tokenizer: Any, data: DataConfig) -> Literal["chat", "base"]:
    """Return the configured prompt format; default: ``chat`` if there is a chat template."""
    return data.template or ("chat" if tokenizer.chat_template else "base")


def _introduced(turns: Sequence[Message], text: str, takes_system: bool) -> list[Message]:
    """Append a text to the chat's system message.

    In a chat without a system message, the text becomes the system message; if the chat template
    rejects system messages, the text precedes the first message.
    """
    if turns[0]["role"] not in ("system", "developer"):
        if not takes_system:
            return [{**turns[0], "content": f"{text}\n\n{turns[0]['content']}"}, *turns[1:]]
        return [{"role": "system", "content": text}, *turns]
    return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]


def chat_of(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    """Return a prompt as chat messages; ``system`` becomes a missing system message."""
    turns: list[Message] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    )
    if system is not None and turns[0]["role"] not in ("system", "developer"):
        turns.insert(0, {"role": "system", "content": system})
    return turns


def keep_fitting(problems: ProblemSet, renderer: PromptRenderer, on_bad_row: str) -> ProblemSet:
    """Return the problems whose prompts are within the renderer's token limit.

    A problem with a too long prompt or an unknown effort is a bad row (``on_bad_row``).
    """
    limit = renderer.max_prompt_tokens
    longest = math.inf if limit is None else limit - renderer.max_overhead
    long: dict[int, str] = {}
    for index, problem in enumerate(problems):
        text = problem.prompt
        # A short ASCII prompt always fits, since each token has at least one character.
        # Rendering every prompt of a large set would take minutes.
        plain = isinstance(text, str) and len(text) <= longest and text.isascii()
        if plain and problem.effort is None:
            continue
        try:
            renderer.render(problem)
        except DataError as error:
            if on_bad_row == "stop":
                raise
            long[index] = str(error)
    if not long:
        return problems
    if len(long) == len(problems):
        first = f"the first: {next(iter(long.values()))}"
        raise DataError(message("data", "no prompt that fits", "at least one", first))
    kept = problems.select(index for index in range(len(problems)) if index not in long)
    return kept.with_skipped(long.values())


def end_of_turn(tokenizer: Any) -> int | None:
    """Return the special token that the chat template writes after a reply, or None."""
    text = finished_chat(tokenizer, _MARK)
    # A chat template for lists of text and image parts may ignore content that is a plain string.
    if text is None or _MARK not in text:
        return None
    # Rendering a sample reply shows which token the chat template writes after a reply.
    # A list of token names would fail: <|end|> ends a turn in one family, a segment in another.
    tail = list(tokenizer.encode(text.rpartition(_MARK)[2].lstrip(), add_special_tokens=False))
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return tail[0] if tail and tail[0] in special else None


def finished_chat(tokenizer: Any, reply: str) -> str | None:
    """Render a question and its reply with the chat template; None if the template fails."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": reply}]
    try:
        return render_chat(tokenizer, turns)
    except TemplateFailed:
        # Some chat templates reject a conversation that ends with a reply.
        # If a chat template cannot render a reply, EOS is used as the end-of-turn token.
        return None


def _without_open_tag(prompt: Prompt, text: str) -> str:
    """Remove the opening think tag from a completion, because the prompt ends with the tag."""
    tag, stripped = prompt.think.open_tag, text.lstrip()
    if not stripped.startswith(tag):
        return text
    rest = stripped.removeprefix(tag)
    blank = prompt.text[len(prompt.text.rstrip()) :]
    # White space after the think tag is removed only if the prompt ends with the same white space.
    # White space beyond the end of the prompt belongs to the reasoning.
    return next(rest[n:] for n in range(len(blank), -1, -1) if rest.startswith(blank[:n]))
