r"""Quote texts for a judge so that no text can end its block, start a line, or become a token.

A quoted text is one JSON string on one line, between two lines with a code. The code is a hash over
all quoted texts, and it is regenerated until no text contains it. A text therefore cannot contain
the code of its own block. A JSON string has no line break, so a quoted text cannot start a new line
of the prompt. ``\u`` escapes replace sequences that chat templates read as tokens (``<|im_end|>``,
``[INST]``). ``\u`` escapes also replace invisible characters (zero width, direction marks).
Applied to the line, `json.loads` returns the original text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

CODE_DIGITS = 16
# Number of digits of the code in the key of a judge's reply.
# Small judge models copy 8 digits without error.
KEY_DIGITS = 8

# Control tokens of chat models: <|im_end|>, <start_of_turn>, <s>, <<SYS>>, [INST], >>QUESTION<<.
# A control token whose first character is escaped is no control token for the tokenizer.
_CONTROL = re.compile(
    r"<(?=[|｜]|<?/?[A-Za-z_][\w:.-]{0,60}[>|])"
    r"|\[(?=/?\w{0,60}[A-Z]{2}\w{0,60}\])"
    r"|>(?=>[A-Z]{2,60}<<)"
)
# Blank or zero-width characters that Python considers printable: fillers, variation selectors.
_HIDDEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f"
    "\uffa0\U000e0100-\U000e01ef]"
)


@dataclass(frozen=True, slots=True)
class Quote:
    """A text to be quoted.

    name: role of the text, such as ``problem``.
    note: remark for the judge, which precedes the quoted text on a line of its own.
    """

    name: str
    text: str
    note: str = ""


def quoted(text: str) -> str:
    """Return a text as one line of JSON with all characters visible and no control tokens."""
    line = json.dumps(text, ensure_ascii=False)
    if not line.isprintable() or _HIDDEN.search(line):
        line = "".join(
            each if each.isprintable() and not _HIDDEN.match(each) else json.dumps(each)[1:-1]
            for each in line
        )
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def code_for(quotes: Sequence[Quote], *salt: object) -> str:
    """Return a code for the blocks that quote these texts.

    The code is chosen so that no text contains the code's first digits.
    """
    texts = [quote.text.casefold() for quote in quotes]
    number = 0
    while True:
        seed = json.dumps([number, *map(str, salt), *([q.name, q.text] for q in quotes)])
        code = hashlib.sha256(seed.encode()).hexdigest()[:CODE_DIGITS]
        if not any(code[:KEY_DIGITS] in text for text in texts):
            return code
        number += 1


def blocks(quotes: Sequence[Quote], code: str) -> str:
    """Return the quoted texts, each between two lines with the code."""
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
    """Quote the beginning and the end of a text, at most ``max_chars`` characters together.

    If a quoted text is too long, its middle is removed, because the final answer is usually at the
    end and the approach at the beginning. A note in the quoted text gives the length and the
    position of the removed text.
    """
    if len(text) <= max_chars:
        return Quote(name, text, note)
    head = max_chars // 2
    missing = len(text) - max_chars
    said = f"{missing} characters left out after character {head}"
    kept = text[:head] + " [...] " + text[head + missing :]
    return Quote(name, kept, f"{note}; {said}" if note else said)
