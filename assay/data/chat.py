"""How a problem is shown to the policy: chat template or plain text, think block, tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from assay.config import DataConfig, SamplingConfig
from assay.data.problems import ProblemSet
from assay.data.rows import appended
from assay.data.template import TemplateFailed, render_chat
from assay.data.traces import Trace
from assay.errors import DataError, ModelError, message
from assay.types import Mask, Message, Problem, Prompt, ThinkFormat, ThinkMode, Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MARK = "0Assay0"
_SWITCH = re.compile(r"(?<![\w/<])/(no_)?think(?![\w/])")  # a path or a close tag is none
_MODES: tuple[ThinkMode, ...] = get_args(ThinkMode)


class PromptRenderer:
    """Renders problems and traces for one tokenizer.

    Under a chat template the tokens are exactly those of ``apply_chat_template``, which is how the
    model will be served: special tokens are the template's alone. Under the base template the
    tokenizer's own leading tokens (a BOS) are added, once.

    The think mode of a row is its own, else that of its switches (`data.think_switches`), else
    `data.think`. A chat template is told of it (``enable_thinking``), and what the rendered text
    says of its think block holds, whoever wrote it: where the template opens or empties the block
    itself, nothing is doubled, and `Prompt.think` says so.

    max_prompt_tokens: what is left of the model's ``context_length`` beside a completion.
    sampling: says what efforts stand for; the line of one ends the question. tools: schemas that
    the chat template shows. introduction: what is said of tools where it does not, at the end of
    the system message.

    Raises ModelError where a chat template is asked for and there is none.
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
        self._formats: dict[ThinkMode, ThinkFormat] = {
            mode: ThinkFormat(mode, data.think_open, data.think_close) for mode in _MODES
        }

    def render(self, problem: Problem) -> Prompt:
        """Return a problem's prompt; DataError where it is longer than the limit."""
        if self._begins is not None:
            problem = self._begins(problem)
        return self._render(problem.prompt, problem.place, problem.think, problem.effort)

    def render_trace(self, trace: Trace) -> tuple[Tokens, Tokens]:
        """Return the tokens of a trace's prompt and of its completion, end token included.

        The prompt is the one that `render` gives. A block that the prompt has opened already is
        not opened again; behind a prompt's empty block only the trace's answer is left. A block
        between ``<think>`` tags gets the configured ones.
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
        """Return a prompt, and the tokens of several completions, each as of `render_trace`."""
        where = source or "trace"
        rendered = self._render(prompt, where, think, effort)
        return rendered, [self._reply(rendered, text, where) for text in texts]

    def _reply(self, prompt: Prompt, text: str, where: str) -> Tokens:
        text = _with_tags(prompt.think, text)
        if prompt.think.mode == "opened":
            text = _behind_open(prompt, text)
        elif prompt.think.mode == "empty" and prompt.think.close_tag in text:
            text = prompt.think.split(text)[1].lstrip()
        tokens = self._encode_after(prompt, text)
        if not tokens:
            raise DataError(message(f"{where} completion", "no tokens", "text that has some"))
        if self.end_id is not None and tokens[-1] != self.end_id:
            tokens.append(self.end_id)
        return np.array(tokens, np.int32)

    def render_turns(self, trace: Trace) -> tuple[Prompt, Tokens, Mask]:
        """Return a trace's prompt, its completion's tokens, and which of them the policy says.

        What it says and what it is told are encoded apart, as where tools are called.
        """
        asked = (trace.source, trace.think, trace.effort)
        if not trace.said:
            prompt, (tokens,) = self.render_replies(trace.prompt, [trace.completion], *asked)
            return prompt, tokens, np.ones(len(tokens), np.bool_)
        prompt = self._render(trace.prompt, trace.source or "trace", trace.think, trace.effort)
        parts: list[list[int]] = []
        behind = 0
        for start, end in trace.said:
            told, said = trace.completion[behind:start], trace.completion[start:end]
            first = self._encode_after(prompt, said) if not start else self._encode(said)
            parts += [self._encode(told), first]
            behind = end
            if len(parts) > 2 and parts[-2][:1] == [self.end_id]:  # the policy ended its turn
                parts[-3].append(parts[-2].pop(0))
        parts.append(self._encode(trace.completion[behind:]))
        if behind == len(trace.completion) and self.end_id is not None:
            parts[-2].append(self.end_id)
        is_said = np.repeat([n % 2 == 1 for n in range(len(parts))], [*map(len, parts)])
        return prompt, np.concatenate([np.array(part, np.int32) for part in parts]), is_said

    def render_document(self, text: str, source: str = "") -> Tokens:
        """Return the tokens of a plain document, with an end token.

        It begins as a prompt does under the base template: with the tokenizer's own leading tokens,
        if it has any. Names of special tokens are plain text in a document.
        """
        end: Any = self.tokenizer.eos_token_id
        if end is None:
            found = "none in this tokenizer"
            raise ModelError(message("end token of a document", found, "one (eos_token)"))
        tokens = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if not tokens:
            raise DataError(message(f"{source or 'document'} text", "no tokens", "text with some"))
        return np.array([*self._leading_ids, *tokens, end], np.int32)

    def encode_rendered(
        self, prompt: str, completion: str, ended: bool = True
    ) -> tuple[Tokens, Tokens]:
        """Return the tokens of a prompt that is rendered already, and of a completion of it.

        ended: whether the completion came to its end, and so has the end token.
        """
        tokens = self._encode_prompt(prompt)
        rendered = Prompt(prompt, np.array(tokens, np.int32))
        reply = self._encode_after(rendered, completion)
        if ended and self.end_id is not None and (not reply or reply[-1] != self.end_id):
            reply.append(self.end_id)
        return rendered.tokens, np.array(reply, np.int32)

    @cached_property
    def end_id(self) -> int | None:
        """The token that ends a completion: the chat template's end of turn, else EOS or None."""
        own = end_of_turn(self.tokenizer) if self.template == "chat" else None
        eos: Any = self.tokenizer.eos_token_id
        return eos if own is None else own

    @cached_property
    def _longest_token(self) -> int:
        """The characters (in a byte-level vocabulary: bytes) of the longest token."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    @cached_property
    def _leading_ids(self) -> list[int]:
        """What the tokenizer puts before any text by default: a BOS, or nothing."""
        plain, full = self._encode("x"), list(self.tokenizer("x")["input_ids"])
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return full[:start]
        return []

    @cached_property
    def most_overhead(self) -> int:
        """An upper bound on the tokens that a template adds to a text of ASCII characters."""
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
        # What is far too long is not tokenized: that takes a minute for a text of 30 MB.
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
        """Return a prompt's text, and what became of its think block."""
        prompt = with_effort(prompt, self._sampling, effort, where)
        turns = chat_of(prompt, self._data.system_prompt)
        if self._introduction:
            turns = _introduced(turns, self._introduction)
        mode = think or self._switched(turns)
        text = (
            self._base_text(turns)
            if self.template == "base"
            else self._chat_text(turns, mode, where)
        )
        return with_think_block(text, self._formats[mode], self.template == "chat")

    def _switched(self, turns: Sequence[Message]) -> ThinkMode:
        """Return the think mode of a row that names none: of its last switch, if it has one."""
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
            accepted = "messages that it takes"
            raise DataError(message(f"{where} prompt", found, accepted, remedy)) from error

    def _base_text(self, turns: Sequence[Message]) -> str:
        """Plain text; the turns of a longer chat are labelled by their roles."""
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
        return tokens if tokens[: len(leading)] == leading else leading + tokens

    def _encode_after(self, prompt: Prompt, text: str) -> list[int]:
        """Return a completion's tokens as the policy would write them behind the prompt's.

        Some tokenizers treat the start of a text specially (a space is put before it), so the two
        are encoded together; where a token would span both, the completion is encoded alone.
        """
        together = self._encode_prompt(prompt.text + text)
        length = len(prompt.tokens)
        if together[:length] == prompt.tokens.tolist():
            return together[length:]
        return self._encode(text)


def think_switches(mode: ThinkMode) -> dict[str, Any]:
    """Return what a chat template is told of thinking, by the names that templates know."""
    return {} if mode == "off" else dict.fromkeys(("enable_thinking", "thinking"), mode != "empty")


def with_think_block(text: str, wanted: ThinkFormat, in_chat: bool) -> tuple[str, ThinkMode]:
    """Return a text that a reply follows, with the block that is wanted, and what became of it.

    in_chat: whether a chat template wrote it; one may close a block that nothing has opened, as
    that of DeepSeek-V3.1 does.
    """
    mode, opening, closing = wanted.mode, wanted.open_tag, wanted.close_tag
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
    """Return a prompt with the line of its effort, or of the configured one; DataError for a name
    that stands for nothing."""
    try:
        level = sampling.level(effort)
    except ValueError as error:
        raise DataError(f"{where} {error}") from error
    return appended(prompt, f"\n{level}") if isinstance(level, str) else prompt


def template_of(tokenizer: Any, data: DataConfig) -> Literal["chat", "base"]:
    """Return how prompts are rendered: as configured, else by the chat template if there is one."""
    return data.template or ("chat" if tokenizer.chat_template else "base")


def _introduced(turns: Sequence[Message], text: str) -> list[Message]:
    """Return a chat whose system message ends with a text."""
    if turns[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *turns]
    return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]


def chat_of(prompt: str | Sequence[Message], system: str | None) -> list[Message]:
    """Return a prompt as a chat, which ``system`` begins where it has no system's turn itself."""
    turns: list[Message] = (
        [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    )
    if system is not None and turns[0]["role"] not in ("system", "developer"):
        turns.insert(0, {"role": "system", "content": system})
    return turns


def keep_fitting(problems: ProblemSet, renderer: PromptRenderer, on_bad_row: str) -> ProblemSet:
    """Return the problems whose prompts are within the renderer's limit.

    A longer prompt is a bad row: DataError, or skipped with its complaint. Prompts that are short
    in characters are not rendered to know it: in ASCII a token is at least a character. An effort
    that is none is a bad row too.
    """
    limit = renderer.max_prompt_tokens
    longest = math.inf if limit is None else limit - renderer.most_overhead
    long: dict[int, str] = {}
    for index, problem in enumerate(problems):
        text = problem.prompt
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
    """Return the special token that a chat template writes behind a reply, if there is one."""
    text = finished_chat(tokenizer, _MARK)
    if text is None:
        return None
    tail = list(tokenizer.encode(text.rpartition(_MARK)[2].lstrip(), add_special_tokens=False))
    special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
    return tail[0] if tail and tail[0] in special else None


def finished_chat(tokenizer: Any, reply: str) -> str | None:
    """Return a question and its reply as the chat template writes them; None where it does not."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": reply}]
    try:
        return render_chat(tokenizer, turns)
    except TemplateFailed:  # a template that takes no finished turn says nothing of its end
        return None


def _with_tags(think: ThinkFormat, text: str) -> str:
    """Return a reply whose block stands between the usual tags with those of its think format."""
    if think.open_tag == "<think>" or not text.lstrip().startswith("<think>"):
        return text
    text = text.replace("<think>", think.open_tag, 1)
    return text.replace("</think>", think.close_tag, 1)


def _behind_open(prompt: Prompt, text: str) -> str:
    """Return a reply without the opening of its block, tag and blank, that its prompt ends with."""
    tag, stripped = prompt.think.open_tag, text.lstrip()
    if not stripped.startswith(tag):
        return text
    rest = stripped.removeprefix(tag)
    blank = prompt.text[len(prompt.text.rstrip()) :]
    return next(rest[n:] for n in range(len(blank), -1, -1) if rest.startswith(blank[:n]))
