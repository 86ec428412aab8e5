"""The part of a completion that may hold an answer: all that stands outside think blocks."""

from __future__ import annotations

import re
from functools import lru_cache

from assay.types import Completion

_THINK_NAMES = r"think|thinking|thoughts?"


@lru_cache(maxsize=64)
def _think_tag(open_tag: str, close_tag: str) -> re.Pattern[str]:
    """Return what finds the tags of a think block, in any case and with spaces."""
    name = re.escape(open_tag.strip("<> \t"))
    return re.compile(
        rf"<\s*(?P<close>/?)\s*(?:{_THINK_NAMES}|{name})\s*/?\s*>|{re.escape(open_tag)}"
        rf"|(?P<end>{re.escape(close_tag)})",
        re.IGNORECASE,
    )


def answer_text(completion: Completion) -> str:
    """Return what stands outside every think block, however its tags are spelled.

    Tags count without regard to case and spaces. Blocks nest: what an outer block that never closes
    holds is reasoning. A block that the template opened may be opened once more by the model.
    """
    text, think = completion.text, completion.think
    if "<" not in text and think.close_tag not in text and think.open_tag not in text:
        return "" if think.mode == "opened" else text
    tag = _think_tag(think.open_tag, think.close_tag)
    depth = 1 if think.mode == "opened" else 0
    start = after_last = 0
    shown: list[str] = []
    for match in tag.finditer(text):
        if not depth:
            shown.append(text[start : match.start()])
        if match["close"] or match["end"]:
            depth = max(0, depth - 1)
            shown.clear()  # what came before a close tag is no answer after it
        elif not (depth == 1 and think.mode == "opened" and not text[: match.start()].strip()):
            depth += 1
        start = after_last = match.end()
    if not depth:
        shown.append(text[after_last:])
    elif not shown:
        return ""
    kept = [piece for piece in shown if piece.strip()]
    return "\n".join(kept)
