"""The text that a chat template writes around the parts of a reply: reasoning, answer, channels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from assay.data.template import TemplateFailed, render_chat
from assay.think import CHANNEL_HEADER, answer_header
from assay.types import ThinkFormat

# Chat templates read reasoning from these keys: Qwen3 from the first, gpt-oss from the last.
THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
# `assay.data.rows.reply_text` joins a message's reasoning and content with these tags.
_JOINED = re.compile(r"<think>\n(.*?)\n</think>\n\n(.*)", re.DOTALL)
# Texts that no chat template writes, which locate a message's fields in a rendered chat.
_ANSWER, _THOUGHT = "0Assay01", "0Assay02"


@dataclass(frozen=True)
class ReplyForm:
    """Text that a chat template writes around the parts of a reply.

    lead: channel header between the generation prompt and a reply without reasoning, which the
    policy writes, as in gpt-oss; "" for a chat template without channels. opening, between: text
    before the reasoning, and between reasoning and content; "" if unknown.
    """

    lead: str = ""
    opening: str = ""
    between: str = ""

    @classmethod
    def of(cls, tokenizer: Any, think_open: str) -> ReplyForm:
        """Render sample replies with a tokenizer's chat template, and return their form.

        think_open: opening tag of a think block, which the generation prompt may contain.
        """
        turns: list[dict[str, str]] = [{"role": "user", "content": "x"}]
        reply = {"role": "assistant", "content": _ANSWER}
        try:
            prompt = render_chat(tokenizer, turns, True)
            plain = render_chat(tokenizer, [*turns, reply])
        except TemplateFailed:
            return cls()
        lead, found, _ = plain.removeprefix(prompt).partition(_ANSWER)
        lead = lead if found and plain.startswith(prompt) and answer_header(lead) == lead else ""
        # The chat template may already open the think block in the generation prompt.
        # The text before the reasoning must include the tag, so the prompt's copy is removed.
        before = re.sub(rf"{re.escape(think_open)}\s*\Z", "", prompt)
        for key in THOUGHT_KEYS:
            try:
                text = render_chat(tokenizer, [*turns, {**reply, key: _THOUGHT}])
            except TemplateFailed:
                continue
            opening, _, rest = text.removeprefix(before).partition(_THOUGHT)
            between, found, _ = rest.partition(_ANSWER)
            if found:
                return cls(lead, opening, between)
        return cls(lead)

    def reply(self, think: ThinkFormat, text: str) -> str:
        """Return a reply with its reasoning in the chat template's format, if known."""
        joined = _JOINED.fullmatch(text)
        if joined and think.open_tag in self.opening and think.close_tag in self.between:
            return f"{self.opening}{joined[1]}{self.between}{joined[2]}"
        if think.open_tag == "<think>" or not text.lstrip().startswith("<think>"):
            return text
        text = text.replace("<think>", think.open_tag, 1)
        return text.replace("</think>", think.close_tag, 1)


def channel_reply(think: ThinkFormat, text: str, lead: str) -> str:
    """Return a supervised reply in channels, as the text that follows the prompt.

    lead: header of a reply without reasoning. The policy writes every header that the prompt does
    not contain, so the reply includes these headers.
    """
    headers = [*CHANNEL_HEADER.finditer(text)]
    # White space before the first header would hide the header from the template's format.
    starts = bool(headers) and not text[: headers[0].start()].strip()
    text = text.lstrip() if starts else text
    if think.mode == "empty":
        return think.split(text)[1].lstrip() if headers else text
    if think.mode != "opened":
        # The policy writes the header of a channel, so a supervised reply must include it.
        return text if starts else lead + text
    if not headers:
        # Without the end of the reasoning, the answer would be trained as reasoning.
        return think.close_tag + text
    if not starts:
        return text
    if headers[0]["channel"] == "analysis":
        # The prompt ends with this header.
        return text[len(headers[0][0]) :]
    return think.close_tag.removesuffix(answer_header(think.close_tag)) + text
