"""Quote texts as data for a judge: none can end its block, start a line, or become a token.

A quoted text is one JSON string on one line, between two lines that carry a code. The code is a
hash over everything quoted, made again until no quoted text holds it, so that a text cannot know
it; a JSON string has no line break, so that a text cannot begin a line; and what chat templates
would read as a token (``<|im_end|>``, ``[INST]``) or no reader would see (zero width, direction
marks) is written as a ``\\u`` escape. `json.loads` of the line gives back the very text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

CODE_DIGITS = 16
KEY_DIGITS = 8  # of the code, in the key of a reply: a small judge copies these without a slip

# What tokenizers of chat models take for one special token: <|im_end|>, <start_of_turn>, <s>,
# <<SYS>>, [INST], [gMASK], >>QUESTION<<. The first character is escaped, which breaks the token.
_CONTROL = re.compile(
    r"<(?=[|｜]|<?/?[A-Za-z_][\w:.-]{0,60}[>|])"
    r"|\[(?=/?\w{0,60}[A-Z]{2}\w{0,60}\])"
    r"|>(?=>[A-Z]{2,60}<<)"
)
# Blank or without width, yet printable for Python: fillers and variation selectors.
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f"
    "\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, slots=True)
class Quote:
    """A text to be quoted; name: what it is, as ``problem``; note: what is said of it."""

    name: str
    text: str
    note: str = ""


def quoted(text: str) -> str:
    """Return a text as one line of JSON that shows every character and holds no control token."""
    line = json.dumps(text, ensure_ascii=False)
    if not line.isprintable() or _HIDDEN.search(line):
        line = "".join(
            each if each.isprintable() and not _HIDDEN.match(each) else json.dumps(each)[1:-1]
            for each in line
        )
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def code_for(quotes: Sequence[Quote], *salt: object) -> str:
    """Return the code of the blocks that hold these texts; none of the texts holds it."""
    texts = [quote.text.casefold() for quote in quotes]
    number = 0
    while True:
        seed = json.dumps([number, *map(str, salt), *([q.name, q.text] for q in quotes)])
        code = hashlib.sha256(seed.encode()).hexdigest()[:CODE_DIGITS]
        if not any(code[:KEY_DIGITS] in text for text in texts):
            return code
        number += 1


def blocks(quotes: Sequence[Quote], code: str) -> str:
    """Return the texts in their blocks, one after the other."""
    found: list[str] = []
    for quote in quotes:
        note = f" ({quote.note})" if quote.note else ""
        found += [
            f"--- begin {quote.name} {code}{note} ---",
            quoted(quote.text),
            f"--- end {quote.name} {code} ---",
        ]
    return "\n".join(found)


def cut_middle(name: str, text: str, max_chars: int, note: str = "") -> Quote:
    """Return a quote of at most ``max_chars`` characters of a text: its beginning and its end.

    A longer text loses its middle, because a final answer stands at the end and the question that
    it answers is taken up at the beginning. The note, outside the block, says how much is missing
    where.
    """
    if len(text) <= max_chars:
        return Quote(name, text, note)
    head = max_chars // 2
    missing = len(text) - max_chars
    said = f"{missing} characters left out after character {head}"
    kept = text[:head] + " [...] " + text[head + missing :]
    return Quote(name, kept, f"{note}; {said}" if note else said)
