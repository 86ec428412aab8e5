"""The part of a completion that may hold an answer: all that stands outside think blocks."""

from __future__ import annotations

import re
from functools import lru_cache

from assay.types import Completion

_THINK_NAMES = r"think|thinking|thoughts?|seed:think"
_OTHER_NAMES = r"scratchpad|reflection|reasoning"  # none of them ends a block that think opened
_HINTS = ("<", "◁", "[THINK]", "[/THINK]", "&lt;")


@lru_cache(maxsize=64)
def _think_tag(open_tag: str, close_tag: str) -> re.Pattern[str]:
    """Return what finds the tags of a think block, in any case and with spaces."""
    name = re.escape(open_tag.strip("<> \t"))
    return re.compile(
        rf"(?:<|&lt;)\s{{0,8}}(?P<close>/?)\s{{0,8}}(?:{_THINK_NAMES}|{name}|(?P<other>{_OTHER_NAMES}))\s{{0,8}}/?\s{{0,8}}(?:>|&gt;)"
        rf"|(?:◁\s{{0,8}}|\[(?=/?(?-i:THINK)\]))(?P<slash>/?)\s{{0,8}}think\s{{0,8}}[▷\]]|<\|begin_of_thought\|>"
        rf"|{re.escape(open_tag)}|(?P<end>{re.escape(close_tag)}|<\|end_of_thought\|>)",
        re.IGNORECASE,
    )


def answer_text(completion: Completion) -> str:
    """Return what stands outside every think block, however its tags are spelled.

    Tags count without regard to case and spaces. Blocks nest: what an outer block that never closes
    holds is reasoning; a scratchpad inside a think block ends with it. A block that the template
    opened may be opened once more by the model.
    """
    text, think = completion.text, completion.think
    tags = (*_HINTS, think.open_tag, think.close_tag)
    if not any(tag in text for tag in tags):
        return "" if think.mode == "opened" else text
    tag = _think_tag(think.open_tag, think.close_tag)
    scratch, thinking = 0, 1 if think.mode == "opened" else 0
    start = after_last = 0
    shown: list[str] = []
    for match in tag.finditer(text):
        if not thinking and not scratch:
            shown.append(text[start : match.start()])
        if match["other"] and thinking:
            pass
        elif match["close"] or match["slash"] or match["end"]:
            if match["other"]:
                scratch = max(0, scratch - 1)
            else:
                thinking = max(0, thinking - 1)
            shown.clear()  # what came before a close tag is no answer after it
        elif match["other"]:
            scratch += 1
        elif not (thinking == 1 and think.mode == "opened" and not text[: match.start()].strip()):
            thinking += 1
        start = after_last = match.end()
    if not thinking and not scratch:
        shown.append(text[after_last:])
    elif not shown:
        return ""
    kept = [piece for piece in shown if piece.strip()]
    return "\n".join(kept)
