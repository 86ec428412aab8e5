"""Find a completion's answer: the text outside think blocks, in any spelling of their tags.

User functions (`Completion.answer_text`), built-in verifiers, the count of think tokens and the
report share this definition. The rules are the same in every mode:

- Besides the configured tags, the tags of known models are recognized, in any case and with spaces
  (``<thinking>``, ``[THINK]``, ``◁think▷``, ``<scratchpad>``).
- If the configured tags are headers of channels (gpt-oss), the channel ``final`` is the answer, and
  the other channels are reasoning.
- Think blocks nest. A scratchpad inside a think block ends with the think block.
- Text before a close tag is reasoning, even if no tag opened the block.
- The answer is the text after the last closed block, up to the next open tag.
- All text after the open tag of a block that never closes is reasoning.
"""

from __future__ import annotations

import re
from functools import lru_cache

_THINK_NAMES = r"think|thinking|thoughts?|seed:think"
# A close tag with a name in this set does not close a think block.
_OTHER_NAMES = r"scratchpad|reflection|reasoning"
# Header of a message in a channel, as in gpt-oss: <|channel|>analysis<|message|>. The header of a
# tool call also names the tool and a type, as in <|channel|>commentary json<|message|>.
_CHANNEL_START = "<|channel|>"
_MAX_FREE, _MAX_TYPE, _MAX_SPACES = 80, 40, 8
_CHANNEL = (
    rf"<\|channel\|>(?P<channel>analysis|commentary|final)\b[^<]{{0,{_MAX_FREE}}}"
    rf"(?:<\|constrain\|>[^<]{{0,{_MAX_TYPE}}})?<\|message\|>"
)
CHANNEL_HEADER = re.compile(_CHANNEL)
# The policy itself ends a message and starts the next one, so both are part of the next header.
_NEXT_MESSAGE = rf"(?:<\|end\|>\s{{0,{_MAX_SPACES}}}<\|start\|>assistant[^<]{{0,{_MAX_FREE}}})?"
# Maximum length of a tag in bytes. One character of a free text has at most four bytes.
_LONGEST_PLAIN = 40
_LONGEST_HEADER = len(
    "<|end|><|start|>assistant<|channel|>commentary<|constrain|><|message|>"
) + 4 * (_MAX_SPACES + 2 * _MAX_FREE + _MAX_TYPE)
# Quick substring tests come first, because a text without any of these hints needs no regular
# expression.
_HINTS = ("<", "◁", "[THINK]", "[/THINK]", "&lt;")


# Rows may name tags of their own (`think_tags`), so the tags are part of the cache key.
@lru_cache(maxsize=64)
def _think_tag(open_tag: str, close_tag: str) -> re.Pattern[str]:
    """Compile the pattern of think tags, in any case and with spaces."""
    name = re.escape(open_tag.strip("<> \t"))
    # Adjacent unbounded gaps would backtrack quadratically on long runs of spaces.
    gap = r"\s{0,8}"
    # Only a format with channels has headers: other models quote them in ordinary text.
    header = (
        rf"{_NEXT_MESSAGE}{_CHANNEL}" if has_channels(open_tag, close_tag) else "(?P<channel>(?!))"
    )
    # [THINK] is a tag in capitals only: [think] occurs in ordinary text.
    return re.compile(
        rf"(?:<|&lt;){gap}(?P<close>/?){gap}(?:{_THINK_NAMES}|{name}|(?P<other>{_OTHER_NAMES}))"
        rf"{gap}/?{gap}(?:>|&gt;)"
        rf"|(?:◁{gap}|\[(?=/?(?-i:THINK)\]))(?P<slash>/?){gap}think{gap}[▷\]]"
        rf"|<\|begin_of_thought\|>|{header}"
        rf"|{re.escape(open_tag)}|(?P<end>{re.escape(close_tag)}|<\|end_of_thought\|>)",
        re.IGNORECASE,
    )


def has_channels(open_tag: str, close_tag: str) -> bool:
    """Return whether think tags are headers of channels, as in gpt-oss."""
    return _CHANNEL_START in open_tag + close_tag


def longest_tag(open_tag: str, close_tag: str) -> int:
    """Return the maximum length in bytes of a recognized think tag."""
    known = _LONGEST_HEADER if has_channels(open_tag, close_tag) else _LONGEST_PLAIN
    return max(known, len(open_tag.encode())) + len(close_tag.encode())


def _has_tags(text: str, open_tag: str, close_tag: str) -> bool:
    return any(tag in text for tag in (*_HINTS, open_tag, close_tag))


def answer_span(
    text: str, open_tag: str, close_tag: str, opened: bool = False
) -> tuple[int, int] | None:
    """Return the span of the answer, or None if the whole text is reasoning.

    The answer may be empty. opened: whether the prompt has already opened a block; a second open
    tag at the start of the text then has no effect.
    """
    if not _has_tags(text, open_tag, close_tag):
        return None if opened else (0, len(text))
    span, inside, tag = _walk(text, open_tag, close_tag, opened)
    return span if inside else _shown(text, tag[1], len(text), span)


def open_block(
    text: str, open_tag: str, close_tag: str, opened: bool = False
) -> tuple[bool, tuple[int, int]]:
    """Return whether a text ends inside a block, and the span of its last tag.

    If the text has no think tag, the span is empty.
    """
    if not _has_tags(text, open_tag, close_tag):
        return opened, (0, 0)
    _, inside, tag = _walk(text, open_tag, close_tag, opened)
    return inside, tag


def _walk(
    text: str, open_tag: str, close_tag: str, opened: bool
) -> tuple[tuple[int, int] | None, bool, tuple[int, int]]:
    """Return the answer's span before the last tag, whether a block is open, and the last tag."""
    scratch, thinking = 0, int(opened)
    last = (0, 0)
    span: tuple[int, int] | None = None
    for tag in _think_tag(open_tag, close_tag).finditer(text):
        if not thinking and not scratch:
            span = _shown(text, last[1], tag.start(), span)
        last = tag.span()
        # Channels do not nest: each header ends the message before it.
        if tag["channel"]:
            thinking, scratch = int(tag["channel"].lower() != "final"), 0
            span = span if thinking else (last[1], last[1])
            continue
        # A scratchpad inside a think block ends with the block, so its own tags have no effect.
        if tag["other"] and thinking:
            continue
        if tag["close"] or tag["slash"] or tag["end"]:
            if tag["other"]:
                scratch = max(0, scratch - 1)
            else:
                # The nesting depth stays at least 0 after a close tag without an open tag.
                thinking = max(0, thinking - 1)
            # All text before a close tag without an open tag is reasoning.
            span = (last[1], last[1])
        elif tag["other"]:
            scratch += 1
        # Some models repeat the open tag that the prompt already holds; the repeated tag opens no
        # second block.
        elif not (thinking == 1 and opened and not text[: tag.start()].strip()):
            thinking += 1
    return span, bool(thinking or scratch), last


def _shown(
    text: str, begin: int, end: int, before: tuple[int, int] | None
) -> tuple[int, int] | None:
    """Return the span (begin, end), or return ``before`` if the span holds only white space."""
    return (begin, end) if text[begin:end].strip() else before


def without_tags(text: str, open_tag: str, close_tag: str) -> str:
    """Return a text without the tags of think blocks."""
    if not _has_tags(text, open_tag, close_tag):
        return text
    return _think_tag(open_tag, close_tag).sub("", text)


def answer_header(text: str) -> str:
    """Return the header of the channel ``final`` with which a text begins or ends, or ``""``."""
    found = next((one for one in CHANNEL_HEADER.finditer(text) if one["channel"] == "final"), None)
    return found[0] if found and (found.start() == 0 or found.end() == len(text)) else ""
