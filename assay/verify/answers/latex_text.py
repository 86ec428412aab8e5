"""Normalize and split LaTeX answers as text.

All functions of the module are string operations and evaluate nothing. Modules other than
`latex_text` parse the numbers and formulas of an answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

from assay.verify.answers.tables import read_table

_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n")

_TEXT = re.compile(
    r"\\(?:text(?:normal|bf|it|rm|sf|tt|up)?|mbox|hbox|math(?:rm|bf|it|sf|tt)|boldsymbol|bm"
    r"|operatorname\*?|emph|underline|textnormal)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_TABLE = read_table("latex.toml")
_CHARACTERS = str.maketrans(
    {one: latex for ones, latex in _TABLE["characters"].items() for one in ones}
)


def read_rules(name: str) -> list[tuple[re.Pattern[str], str]]:
    """Return (pattern, replacement) pairs of a table in latex.toml."""
    return [(re.compile(pattern), plain) for pattern, plain in _TABLE["rules"][name]]


_STYLING, _SPELLING = read_rules("styling"), read_rules("spelling")
_DELIMITERS = re.compile(r"\\\$|\$|\\\(|\\\)|(?<!\\)\\\[|\\\]")
_ESCAPED_DOLLAR = re.compile(r"\\\$(?=\s*[+-]?\s*(?:[\d.]|\\(?:[dt]?frac|sqrt|pi)))|(?<=\d)\s*\\\$")
_LONE_DOLLAR = re.compile(r"^(?=\s*[+-]?\$\s*[+-]?[\d.])\s*([+-]?)\$|(?<=\d)\s*\$(?=[\s.]*$)")
_ENDING = re.compile(r"(?:[.,;:\s]|(?<![\d)\]}a-z!])!|(?<=[a-z]{2})!)+$")
_LOGICAL = re.compile(r"\s*\\l(and|or)(?![a-zA-Z])\s*")
# Text with a relation sign is a condition such as x < 1, and not a proposition of formal logic.
_STATES = re.compile(r"[=<>]|\\(?:le|ge|ne|in) ")
# JSON that was escaped twice has two backslashes before each command.
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z(){}\[\],;%$ ])")


@lru_cache(maxsize=8192)
def canonical(text: str) -> str:
    """Return an answer in canonical spelling, without math delimiters and styling, in ASCII."""
    if text.isalnum() and text.isascii() and text not in ("pi", "inf", "oo", "infinity"):
        return text
    if not text.isascii():
        text = _ascii_like(text)
    # In a matrix, two backslashes separate rows.
    if "\\\\" in text and "\\begin" not in text and "\\substack" not in text:
        text = _DOUBLED.sub(r"\\", text)
    if "\\" in text:
        for pattern, replacement in _STYLING:
            text = pattern.sub(replacement, text)
    if "$" in text:
        text = _keep_dollars(text)
    # Dollar signs of money are null characters here, so removing the math delimiters keeps the
    # money signs.
    text = _DELIMITERS.sub(" ", text).replace("\0", "$")
    for _ in range(3):
        text, count = _TEXT.subn(r" \1 ", text)
        if not count:
            break
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    text = _ENDING.sub("", text.strip())
    if r"\l" in text and all(map(_STATES.search, _LOGICAL.split(text)[::2])):
        text = _LOGICAL.sub(lambda m: f" {m[1]} ", text)
    while (
        text[:1] == "{"
        and text[-1:] == "}"
        and _is_wrapped(text)
        and ("," not in text or _is_tuple(text[1:-1].strip()))
    ):
        text = text[1:-1].strip()
    return text


def _is_tuple(text: str) -> bool:
    return text[:1] in ("(", "[") and brackets_of(text)[0] != ""


def _keep_dollars(text: str) -> str:
    r"""Replace dollar signs of money, such as ``\$5`` or a single ``$``, by null characters."""
    text = _ESCAPED_DOLLAR.sub("\0", text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2:
        text = _LONE_DOLLAR.sub(lambda m: (m[1] or "") + "\0", text, count=1)
    return text


def _ascii_like(text: str) -> str:
    """Replace characters outside ASCII by their LaTeX commands."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+", lambda m: f"^{{{m[0].translate(_RAISED)}}}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉ₙ]", lambda m: f"_{{{m[0].translate(_LOWERED)}}}", text)
    text = text.translate(_CHARACTERS)
    # Digits of other scripts, such as Arabic digits, become ASCII digits.
    text = re.sub(r"[^\D\x00-\x7f]", lambda m: str(unicodedata.digit(m[0])), text)
    text = re.sub(r"√\s*\(([^()]*)\)|√\s*(\w+)", lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    return unicodedata.normalize("NFKC", text)


def squeeze(text: str) -> str:
    """Remove white space, and braces around single characters, from a canonical text."""
    text = re.sub(r"(?<=[\^_])\{(\w)\}", r"\1", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _top(text: str) -> Iterator[tuple[int, str]]:
    """Yield (position, character) for each character outside all brackets."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0:
            yield position, character


def _is_wrapped(text: str) -> bool:
    """Return whether the first bracket of a text closes at the end of the text."""
    bracketed = len(text) > 1 and text[0] in "([{" and text[-1] in ")]}"
    return bracketed and next(_top(text), (0, ""))[0] == len(text) - 1


def brackets_of(text: str) -> tuple[str, str]:
    """Return (brackets, inside) of a text in one pair of brackets: ``("[)", "2,5")`` of ``[2,5)``.

    If no single pair encloses the whole text, return ("", text).
    """
    plain = f"{{{text[2:-2]}}}" if text.startswith(r"\{") and text.endswith(r"\}") else text
    return (plain[0] + plain[-1], plain[1:-1].strip()) if _is_wrapped(plain) else ("", text)


_SEPARATOR = re.compile(r"\s*[,;]?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])[\s,;]*", re.IGNORECASE)


def split_top(text: str, separators: str = ",;") -> list[str]:
    """Split a text at separators outside all brackets, and at the words "and" and "or"."""
    # In "1, 2; 3, 4" the semicolon separates two lists.
    if ";" in separators and any(found == ";" for _, found in _top(text)):
        separators = ";"
    pieces: list[str] = []
    depth = start = position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and position + 1 < len(text) and text[position + 1] not in "{}[]()":
            position += 2
            continue
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0:
            if character in separators:
                pieces.append(text[start:position])
                start = position + 1
            elif character == " " and separators != ":":
                match = _SEPARATOR.match(text, position)
                if match and match.end() > match.start() and match[0].strip():
                    pieces.append(text[start:position])
                    start = position = match.end()
                    continue
        position += 1
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


_NAME = r"(?:\\?[A-Za-z]+|\|[A-Za-z]+\|)(?:'|_\{?[\w\s:,']+\}?)*"
_LABEL = re.compile(
    rf"^(?:\\(?:angle|triangle|overline|vec)\s*\{{?\s*)?{_NAME}\}}?"
    rf"(?:\s*\([^()=]*\))?(?:\s*:\s*{_NAME})?$"
    rf"|^\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)$|^\\frac\s*\{{\s*{_NAME}\s*\}}\s*\{{\s*{_NAME}\s*\}}$"
    r"|^[A-Za-z]+(?: [A-Za-z]+){0,3}$"
)


def split_equals(text: str) -> list[str]:
    """Split a text at equals signs outside all brackets, but not at <=, >= and !=."""
    pieces: list[str] = []
    start = 0
    for position, character in _top(text) if "=" in text else ():
        if character == "=" and text[position - 1 : position] not in ("<", ">", "!"):
            pieces.append(text[start:position].strip().removesuffix(":").strip())
            start = position + 1
    return [*pieces, text[start:].strip() if pieces else text]


def is_label(text: str) -> bool:
    """Return whether a text is only a name, such as ``x``, ``f(2)``, ``S_{ABC}`` or ``(p, q)``."""
    text = text.strip()
    return len(text) <= 60 and bool(_LABEL.match(text))


_APPLIED = re.compile(r"[a-zA-Z]\([a-xz]\)")


def same_name(a: str, b: str) -> bool:
    """Return whether two labels name the same value.

    An answer may write the label y for ``f(x)``.
    """
    return (
        a == b
        or (a == "y" and bool(_APPLIED.fullmatch(b)))
        or (b == "y" and bool(_APPLIED.fullmatch(a)))
    )


def strip_label(text: str) -> tuple[str, str]:
    r"""Return (label, value) of ``x = 5``, ``5 = x`` or ``x \in S``, else ("", text)."""
    pieces = split_equals(text)
    if len(pieces) == 2 and all(pieces):
        if is_label(pieces[0]):
            return squeeze(pieces[0]), pieces[1]
        if (
            is_label(pieces[1])
            and any(c.isdigit() for c in pieces[0])
            and not re.search(r"[A-Za-z]", pieces[0])
        ):
            return squeeze(pieces[1]), pieces[0]
    if len(pieces) == 1 and r"\in " in text:
        name, _, value = text.partition(r"\in ")
        if is_label(name):
            return squeeze(name), value.strip()
    return "", text
