"""What a reader of a text sees: without comments, struck-out answers, special tokens and lead-ins in formulas."""

from __future__ import annotations

import re

_SPECIAL = re.compile(r"<\|[^|<>]{1,40}\|>|</s>|<eos>|<end_of_turn>|<｜[^｜]{1,40}｜>")
_OPENING = re.compile(
    r"(?:\s*(?:<\|[^|<>]{1,40}\|>|<s>|<bos>|<start_of_turn>|<｜[^｜]{1,40}｜>)"
    r"\s{0,4}(?:(?:assistant|model|final|user|system)\b)?)+",
    re.IGNORECASE,
)
_OTHER_ROLE = re.compile(r"\b(?:user|system)\b[^|]*$", re.IGNORECASE)
_SOLUTION = "<|begin_of_solution|>"
_COMMENT = re.compile(
    r"<!--.*?(?:-->|\Z)|\\iffalse\b.*?(?:\\fi\b|\Z)|\\begin\{comment\}.*?(?:\\end\{comment\}|\Z)"
    r"|^[ \t]*(?<!\\)%[^\n]*|^\[[^\]\n]{1,40}\]:\s?\#[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_STRUCK = re.compile(
    r"~~[^~]{1,1000}~~|<(?P<tag>del|s|strike)>[^<]{1,1000}</(?P=tag)>", re.IGNORECASE
)
_STRIKING = re.compile(
    r"\\(?:[bx]?cancel|cancelto\{[^{}]{0,40}\}|sout|xout|st|[hv]?phantom|(?:text)?color\s{0,4}\{\s{0,4}white\s{0,4}\})\s{0,4}(?=\{)"
)
_MARK = re.compile(r"box|oxed|answer|####", re.IGNORECASE)
_SPOKEN = re.compile(
    r"\\(?:text|mbox|textbf|mathrm)\s{0,4}\{(\s{0,4}(?:(?:so|thus|hence|therefore),?\s)?(?:the\s|my\s)?(?:final\s|correct\s)?"
    r"(?:answer|result)s?\s{0,4}(?:is|are|:|=)?:?\s{0,4})\}",
    re.IGNORECASE,
)

_IN_WORDS = (
    (r"([\d.,]{1,20})\s+squared", r"\1^2"),
    (r"([\d.,]{1,20})\s+cubed", r"\1^3"),
    (r"(\d{1,20})\s+factorial", r"(\1)!"),
    (r"(?:the\s+)?square\s+root\s+of\s+(\d{1,20})", r"\\sqrt{\1}"),
    (r"(?:twice|double)\s+(\d{1,20})", r"2 \\cdot \1"),
    (r"half\s+(?:of\s+)?(\d{1,20})", r"\\frac{\1}{2}"),
)
_WORD_RULES = tuple((re.compile(pattern, re.IGNORECASE), text) for pattern, text in _IN_WORDS)


def in_symbols(answer: str) -> str:
    """Return a short answer with what it says in words as a formula: 5 squared, the square root of 5."""
    said = answer.strip(" .")
    if len(said) > 60 or not said[-1:].isalnum():
        return answer
    for pattern, formula in _WORD_RULES:
        if match := pattern.fullmatch(said):
            return match.expand(formula)
    return answer


def shown_text(text: str) -> str:
    """Return a text as a reader sees it: neither comments nor what was struck out, one turn only."""
    if "<" in text:
        text = _one_turn(text)
    if (
        "%" in text
        or "<!--" in text
        or "\\iffalse" in text
        or "]: #" in text
        or "{comment}" in text
    ):
        text = _COMMENT.sub(" ", text)
    if "~~" in text or "</" in text:
        text = _STRUCK.sub(lambda m: " " if _MARK.search(m[0]) else m[0], text)
    if _STRIKING.search(text):
        text = _without_struck(text)
    return _SPOKEN.sub(r"\1", text) if "\\" in text else text


def _one_turn(text: str) -> str:
    """Return what stands between the special tokens that open a turn and the next one."""
    if _SOLUTION in text:
        text = text.rpartition(_SOLUTION)[2]
    if opening := _OPENING.match(text):
        if _OTHER_ROLE.search(opening[0]):
            return ""  # another speaker's turn
        text = text[opening.end() :]
    return _SPECIAL.split(text, maxsplit=1)[0]


def _without_struck(text: str) -> str:
    """Remove the commands that strike out or hide a mark, with what their braces hold; linear."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for match in re.finditer(r"\\[\\{}]|[{}]", text):
        if match[0] == "{":
            opened.append(match.start())
        elif match[0] == "}" and opened:
            closing[opened.pop()] = match.end()
    kept: list[str] = []
    start = 0
    for match in _STRIKING.finditer(text):
        end = closing.get(match.end(), 0)
        if match.start() < start or not end or not _MARK.search(text, match.end(), end):
            continue
        kept.append(text[start : match.start()])
        start = end
    return " ".join((*kept, text[start:]))
