"""The test conversation: a question, a tool call, the tool's result, an answer and one more
turn."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.config import TrainConfig
from assay.data.chat import PromptRenderer, think_switches
from assay.data.reply_form import THOUGHT_KEYS
from assay.data.rows import reply_text
from assay.data.template import TemplateFailed, render_chat
from assay.errors import ModelError, message
from assay.generate.turns.call_format import FENCED
from assay.generate.turns.toolbox import Toolbox, open_tools
from assay.types import Problem, Prompt

Messages = Sequence[Mapping[str, Any]]

SYSTEM = "You answer briefly."
QUESTION = "What is 6 * 7?"
TOOL = "calculator"
EXPRESSION = "6 * 7"
RESULT = "42"
THOUGHTS = ("The calculator knows.", "It says forty-two.", "The order does not matter.")
ANSWERS = ("The product is forty-two.", "It stays the same.")
SECOND_QUESTION = "And 7 * 6?"
# Marker that no chat template writes, which locates a message's content in a rendered text.
_MARK = "0Assay0"


@dataclass(eq=False)
class TemplateConversation:
    """The test messages for one tokenizer, and their text as its chat template renders it.

    toolbox, renderer: the objects that a run with the tool ``calculator`` would have. bare:
    renderer of a run without tools. prompt, bare_prompt: the first question, rendered with and
    without tools. has_system: whether the chat template accepts a system message. thought_key:
    message key from which the chat template reads reasoning; "" if it reads none. result_role: role
    of the message that contains a tool's result.
    """

    config: TrainConfig
    tokenizer: Any
    toolbox: Toolbox
    renderer: PromptRenderer
    bare: PromptRenderer
    prompt: Prompt
    bare_prompt: Prompt
    has_system: bool
    thought_key: str = ""
    result_role: str = "tool"

    @classmethod
    def of(cls, config: TrainConfig, tokenizer: Any) -> TemplateConversation:
        """Open renderer and tool. Raises ModelError without a chat template, and DataError if the
        chat template refuses a plain question."""
        # A calculator replaces the user's tools, which may need a network.
        # The check depends only on the format of tool calls, not on the tool.
        only = {"names": (TOOL,), "environment": None}
        toolbox = open_tools(config.tools.model_copy(update=only), tokenizer, in_chat=True)
        assert toolbox is not None
        renderer = PromptRenderer(
            tokenizer,
            config.data,
            sampling=config.sampling,
            tools=toolbox.schemas,
            introduction=toolbox.introduction,
        )
        messages = _asked(config, True)
        try:
            render_chat(tokenizer, messages, True, toolbox.schemas)
        except TemplateFailed:
            messages = _asked(config, False)
        bare = PromptRenderer(tokenizer, config.data, sampling=config.sampling)
        problem = Problem("conversation", tuple(messages), source="conversation")
        prompts = renderer.render(problem), bare.render(problem)
        made = cls(config, tokenizer, toolbox, renderer, bare, *prompts, len(messages) > 1)
        try:
            made.text([*messages, made.answer(False)])
        except TemplateFailed as error:
            found, accepted = (
                f"one that refuses a reply ({error})",
                "one that takes text as content",
            )
            raise ModelError(message("the chat template", found, accepted)) from error
        for key in THOUGHT_KEYS:
            reply = {"role": "assistant", "content": ANSWERS[0], key: THOUGHTS[0]}
            if THOUGHTS[0] in made.text([*messages, reply]):
                made.thought_key = key
                break
        # A chat template without tools refuses the role "tool", so a result gets the role "user".
        try:
            made.text(made.messages(False))
        except TemplateFailed:
            made.result_role = "user"
        return made

    @property
    def in_template(self) -> bool:
        """Whether the chat template itself writes tool calls and their results."""
        return bool(self.toolbox.schemas)

    @property
    def is_inline(self) -> bool:
        """Whether a tool's result follows the call within the same reply."""
        return self.toolbox.formatter.result is not None

    @property
    def modes(self) -> tuple[bool, ...]:
        """Variants of the test conversation: True has replies with reasoning, False has none."""
        think = self.bare_prompt.think.mode
        return (False,) if think == "empty" else (True,) if think == "opened" else (False, True)

    @property
    def reasons(self) -> bool:
        """Whether replies can have reasoning, according to the settings or the chat template."""
        return self.bare_prompt.think.thinks or bool(self.thought_key)

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The messages before the first reply: the system message and the first question."""
        return _asked(self.config, self.has_system)

    def messages(self, thinks: bool) -> list[dict[str, Any]]:
        """Return all messages of the test conversation. thinks: include each reply's reasoning."""
        thoughts = self._thoughts if thinks else ("",) * 3
        replies = [self._calling(), *({"role": "assistant", "content": one} for one in ANSWERS)]
        replies = [self._thinking(*both) for both in zip(replies, thoughts, strict=True)]
        called, first, second = replies
        again = {"role": "user", "content": SECOND_QUESTION}
        if self.is_inline:
            assert self.toolbox.formatter.result is not None
            result = self.toolbox.formatter.result.replace("{result}", RESULT)
            whole = called["content"] + result + first["content"]
            return [*self.asked, {**called, "content": whole}, again, second]
        # The call id has nine characters, because Mistral's templates accept only this length.
        names = {"name": TOOL, "tool_call_id": "call00001"} if self.result_role == "tool" else {}
        result = {"role": self.result_role, "content": RESULT, **names}
        return [*self.asked, called, result, first, again, second]

    def answer(self, thinks: bool) -> dict[str, Any]:
        """Return the first answer as a chat message. thinks: include the answer's reasoning."""
        reply = {"role": "assistant", "content": ANSWERS[0]}
        return self._thinking(reply, THOUGHTS[1]) if thinks else reply

    def text(self, messages: Messages, prompted: bool = False, tools: bool = True) -> str:
        """Render chat messages with the chat template. prompted: add the generation prompt.

        tools: whether to include the tool's schema, if the chat template writes schemas. Raises
        TemplateFailed.
        """
        switches = think_switches(self.config.data.think)
        renderer, schemas = (self.renderer, self.toolbox.schemas) if tools else (self.bare, ())
        turns = renderer.messages(messages)  # pyright: ignore[reportArgumentType]
        return render_chat(self.tokenizer, turns, prompted, schemas, **switches)

    def replies(self, thinks: bool = False) -> list[tuple[str, int]]:
        """Return (text, number of earlier messages) for each reply, with the text as the policy
        writes it.

        thinks: include the reply's reasoning.
        """
        texts = [self.call_text(), *ANSWERS]
        if thinks:
            call, *answers = [
                reply_text({"content": text, "reasoning": thought})
                for text, thought in zip(texts, self._thoughts, strict=True)
            ]
            texts = [self._call_behind_thought() or call, *answers]
        places = (0, 0, 2) if self.is_inline else (0, 2, 4)
        return [(text, len(self.asked) + n) for text, n in zip(texts, places, strict=True)]

    def call_text(self) -> str:
        """Return the tool call as the chat template writes it, or else in the configured format."""
        if not self.in_template:
            return self._calling()["content"]
        # The chat template writes the same header before content and before a tool call.
        # A call begins where rendered messages with content and with a call first differ.
        called = self.text([*self.asked, self._calling()])
        marked = self.text([*self.asked, {"role": "assistant", "content": _MARK}])
        pairs = enumerate(zip(called, marked, strict=False))
        start = next((n for n, (one, other) in pairs if one != other), len(called))
        return self._before_end(called[start:]).strip()

    def _call_behind_thought(self) -> str:
        """Return the first reply, in which the reasoning precedes the call, as the chat template
        renders it.

        Returns "" if the chat template omits the content of a message that has a call.
        """
        if not self.in_template:
            return ""
        if self.thought_key:
            thought = self._thinking(self._calling(), THOUGHTS[0])
            block = rf"{re.escape(self.prompt.think.open_tag)}\s*\Z"
            prompt = re.sub(block, "", self.prompt.text)
            return self._before_end(self.text([*self.asked, thought]).removeprefix(prompt))
        called = self.text([*self.asked, {**self._calling(), "content": _MARK}])
        _, found, behind = called.partition(_MARK)
        thought = self._thinking({"content": "", "tool_calls": []}, THOUGHTS[0])["content"]
        return thought + self._before_end(behind).rstrip() if found else ""

    def _before_end(self, text: str) -> str:
        """Return a text up to the end token of its reply."""
        end_id = self.renderer.end_id
        end = "" if end_id is None else str(self.tokenizer.convert_ids_to_tokens(end_id))
        return text.partition(end)[0] if end else text

    def _calling(self) -> dict[str, Any]:
        called = {"name": TOOL, "arguments": {"expression": EXPRESSION}}
        if self.in_template:
            one = {"type": "function", "id": "call00001", "function": called}
            return {"role": "assistant", "content": "", "tool_calls": [one]}
        pattern = self.config.tools.call or FENCED
        parts = {"tool": TOOL, "input": EXPRESSION, "call": json.dumps(called)}
        text = re.sub(r"\{(tool|input|call)\}", lambda part: parts[part[1]], pattern)
        return {"role": "assistant", "content": text}

    @property
    def _thoughts(self) -> tuple[str, str, str]:
        """The reasoning of each reply: before the call, and before each answer.

        A call within a reply and the first answer share one reply, so the first answer has the
        reasoning "".
        """
        return (THOUGHTS[0], "", THOUGHTS[2]) if self.is_inline else THOUGHTS

    def _thinking(self, reply: Mapping[str, Any], thought: str) -> dict[str, Any]:
        if not thought:
            return dict(reply)
        # A template with channels refuses reasoning in the content.
        if self.thought_key and (not self.is_inline or self.renderer.form.lead):
            return {**reply, self.thought_key: thought}
        text = reply_text({"content": reply["content"], "reasoning": thought})
        # The template itself writes a separator before calls, so trailing space is removed.
        return {**reply, "content": text.rstrip() if "tool_calls" in reply else text}


def _asked(config: TrainConfig, has_system: bool) -> list[dict[str, Any]]:
    system = {"role": "system", "content": config.data.system_prompt or SYSTEM}
    return [*([system] if has_system else []), {"role": "user", "content": QUESTION}]
