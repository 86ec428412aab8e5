"""Answers as text: one spelling for what can be written in many ways, and splitting at the top level.

Nothing here computes: these are string operations in front of the number and symbol stages.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_CHARACTERS = {
    "−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "⁄": "/", "∕": "/", "÷": "/",
    "×": r"\times ", "✕": r"\times ", "⨯": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "∗": "*", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ",
    "⩾": r"\ge ", "≧": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "°": "°", "º": "°", "˚": "°",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "±": r"\pm ",
    "∓": r"\mp ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ",
    "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ", "…": r"\ldots ", "٫": ".", "٬": ",", "、": ",",
    "。": ".", "’": "'", "′": "'", "“": '"', "”": '"', "\u200b": "", "\ufeff": "", "\u2062": "",
}  # fmt: skip
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ", "0123456789-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙ", "0123456789n", strict=True))
_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5),
    "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8),
    "⅞": (7, 8),
}  # fmt: skip

_TEXT = re.compile(
    r"\\(?:text(?:normal|bf|it|rm|sf|tt|up)?|mbox|hbox|math(?:rm|bf|it|sf|tt)|boldsymbol|bm"
    r"|operatorname\*?|emph|underline|textnormal)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_STYLING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\\mathbf\s*\{?\s*([RZNQ])\b\s*\}?\s*$"), r"\\mathbb{\1}"),
    (re.compile(r"\\text(?:color)\s*(?:\[\w+\])?\s*\{[^{}\\]*\}\s*(?=\{)"), ""),
    (re.compile(r"\\color\s*(?:\[\w+\])?\s*\{[^{}\\]*\}"), " "),
    (re.compile(r"\\fbox\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\tag\*?\s*\{[^{}]*\}\s*$"), ""),
    (
        re.compile(
            r"\\(?:tiny|small|normalsize|[lL]arge|LARGE|[hH]uge|bf|rm|it|enspace|thinspace)(?![a-zA-Z])\s*"
        ),
        " ",
    ),
)
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"(?<!\\)\\!|(?<=\d)\\\s*$", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\s*\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|nonumber|hfill|newline)(?![a-zA-Z])", " "),
        (r"\\(?:q?quad)(?![a-zA-Z])|\\q?quad(?=[a-z](?:_|\b))|(?<!\\)\\[,;:> ]|~", " "),
        (
            r"^\s*\\begin\s*\{(?:aligned|align\*?|gathered|split|equation\*?)\}([^&]*)\\end\s*\{[a-z*]+\}\s*$",
            r"\1",
        ),
        (r"\\hspace\*?\s*\{[^{}]*\}|\\h?phantom\s*\{(?:[^{}]|\{[^{}]*\})*\}", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\binom\s*(\d)\s*(\d)", r"\\binom{\1}{\2}"),
        (r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}", r"\\binom{\1}{\2}"),
        (r"(\\sqrt\s*\[\w+\])\s*(\w)", r"\1{\2}"),
        (
            r"\\mathbb\s*([RZNQC])(?![a-zA-Z])|\\Bbb\s*\{?\s*([RZNQC])\b\s*\}?",
            r"\\mathbb{\1\2}",
        ),
        (r"\\([RZNQ])(?![a-zA-Z])", r"\\mathbb{\1}"),
        (r"\\lbrack(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\\big(cup|cap)(?![a-zA-Z])", r"\\\1 "),
        (r"(\d)\s*\{\s*\}\s*$", r"\1"),
        (r"\\cr(?![a-zA-Z])", r"\\\\ "),
        (r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm)\s*\]", r"\\\\ "),
        (r"_\{\s*\(\s*(\d+)\s*\)\s*\}", r"_{\1}"),
        (r"^\s*C_\{?(\d+)\}?\^\{?(\d+)\}?\s*$", r"\\binom{\1}{\2}"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\\[a-zA-Z]+)\s*(\w)", r"\\frac{\1}{\2}"),
        (r"(\\frac\s*\{[^{}]*\})\s*(\w)", r"\1{\2}"),
        (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
        (r"(?<!\\)\bsqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<![\\a-zA-Z])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![\\a-zA-Z])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"\\(?:le|leq|leqslant|leqq)(?![a-zA-Z])|<=|=<", r"\\le "),
        (r"\\(?:ge|geq|geqslant|geqq)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\(?:ne|neq)(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\in(?![a-zA-Z])\s*", r"\\in "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:l?dots[a-z]?|cdots)(?![a-zA-Z])|\.\.\.+", r"\\ldots "),
        (r"\\l?brace(?![a-zA-Z])|\\lbrace", r"\\{"),
        (r"\\rbrace", r"\\}"),
        (r"\\varnothing|\\\{\s*\\\}|^\s*\{\s*\}\s*$", r"\\emptyset "),
        (r"\\(?:lvert|rvert|vert|mid)(?![a-zA-Z])", "|"),
        (r"\\(?:dot|ddot)\s*\{\s*(\d)\s*\}", r"\\overline{\1}"),
        (r"(\d)\u0305", r"\\overline{\1}"),
        (r"\^\s*\{\s*(?:\\circ|°)\s*\}|\^\s*(?:\\circ|°)|\\degree(?:s)?(?![a-zA-Z])", "°"),
        (r"\\%|％", "%"),
        (r"\{\s*,\s*\}", ","),
        (r"\\(?:land|wedge)(?![a-zA-Z])", " and "),
        (r"\\(?:lor|vee)(?![a-zA-Z])", " or "),
        (r"(?<=[\w)\]])\s*\*\*\s*(?=[\w(+-])", "^"),
        (r"\*\*|__|`", ""),
        (r"\^\s*\(([^()^]*)\)", r"^{\1}"),
        (r"\^\s*(-\s*\w+|\d\d+)", r"^{\1}"),
        (r"\+\s*-", "- "),
        (r"(?<=\d)i\b", " i"),
        (r"\\n(?=\\n|\s|\\\[|\\\(|$)", " "),
        (r"\s+", " "),
    ]
)
_DELIMITERS = re.compile(r"\\\$|\$|\\\(|\\\)|(?<!\\)\\\[|\\\]")
_ESCAPED_DOLLAR = re.compile(r"\\\$(?=\s*[+-]?\s*[\d.])|(?<=\d)\s*\\\$")
_LONE_DOLLAR = re.compile(r"^(?=\s*[+-]?\$\s*[+-]?[\d.])\s*([+-]?)\$|(?<=\d)\s*\$(?=[\s.]*$)")
_ENDING = re.compile(r"(?:[.,;:\s]|(?<![\d)\]}a-z!])!|(?<=[a-z]{2})!)+$")
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z(){}\[\],;%$ ])")


@lru_cache(maxsize=8192)
def canonical(text: str) -> str:
    """Return one spelling of an answer: no delimiters, no styling, plain characters."""
    if text.isalnum() and text.isascii() and text not in ("pi", "inf", "oo", "infinity"):
        return text
    if not text.isascii():
        text = _ascii_like(text)
    if "\\\\" in text and "\\begin" not in text and "\\substack" not in text:
        text = _DOUBLED.sub(r"\\", text)
    if "\\" in text:
        for pattern, replacement in _STYLING:
            text = pattern.sub(replacement, text)
    if "$" in text:
        text = _keep_dollars(text)
    text = _DELIMITERS.sub(" ", text).replace("\0", "$")
    for _ in range(3):
        text, count = _TEXT.subn(r" \1 ", text)
        if not count:
            break
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = _ENDING.sub("", text.strip())
    while _is_wrapped(text, "{", "}") and ("," not in text or _is_tuple(text[1:-1].strip())):
        text = text[1:-1].strip()
    return text


def _is_tuple(text: str) -> bool:
    return text[:1] in ("(", "[") and brackets_of(text)[0] != ""


def _keep_dollars(text: str) -> str:
    """Mark the dollar signs that mean money: escaped ones beside a digit, and one without a partner."""
    text = _ESCAPED_DOLLAR.sub("\0", text)
    if len(re.findall(r"(?<!\\)\$", text)) % 2:
        text = _LONE_DOLLAR.sub(lambda m: (m[1] or "") + "\0", text, count=1)
    return text


def _ascii_like(text: str) -> str:
    """Replace characters outside ASCII by what LaTeX would write."""
    pieces: list[str] = []
    for position, character in enumerate(text):
        if character in _SUPERSCRIPTS:
            opened = position and text[position - 1] in _SUPERSCRIPTS
            if opened:
                pieces[-1] = pieces[-1][:-1] + _SUPERSCRIPTS[character] + "}"
            else:
                pieces.append("^{" + _SUPERSCRIPTS[character] + "}")
        elif character in _SUBSCRIPTS:
            pieces.append("_{" + _SUBSCRIPTS[character] + "}")
        elif character in _FRACTIONS:
            pieces.append(r"\frac{{{}}}{{{}}}".format(*_FRACTIONS[character]))
        elif character in _CHARACTERS:
            pieces.append(_CHARACTERS[character])
        elif character.isdigit() and not character.isascii():
            pieces.append(str(unicodedata.digit(character)))
        else:
            pieces.append(character)
    text = re.sub(
        r"√\s*\(([^()]*)\)|√\s*(\w+)", lambda m: rf"\sqrt{{{m[1] or m[2]}}}", "".join(pieces)
    )
    return unicodedata.normalize("NFKC", text)


def squeeze(text: str) -> str:
    """Return the canonical text without white space and with braces of single characters removed."""
    text = re.sub(r"(?<=[\^_])\{(\w)\}", r"\1", text)
    return re.sub(r"(?<!\d)\s+|\s+(?!\d)", "", text)


def _is_wrapped(text: str, opening: str, closing: str) -> bool:
    """Whether the first bracket of ``text`` closes at its very end."""
    if not (text.startswith(opening) and text.endswith(closing)) or len(text) < 2:
        return False
    depth = 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return position == len(text) - 1
    return False


def brackets_of(text: str) -> tuple[str, str]:
    """Return (brackets, inside) where one pair encloses the whole text, as ``("[)", "2,5")``.

    The brackets are ``()``, ``[]``, ``[)``, ``(]`` or ``{}``; empty where nothing encloses it.
    """
    if text.startswith(r"\{") and text.endswith(r"\}"):
        inner = "{" + text[2:-2] + "}"
        if _is_wrapped(inner, "{", "}"):
            return "{}", inner[1:-1].strip()
        return "", text
    if len(text) > 1 and text[0] in "([{" and text[-1] in ")]}":
        depth = 0
        for position, character in enumerate(text):
            depth += (character in "([{") - (character in ")]}")
            if depth == 0:
                if position == len(text) - 1:
                    return text[0] + text[-1], text[1:-1].strip()
                break
    return "", text


_SEPARATOR = re.compile(r"\s*[,;]?\s*(?<![a-zA-Z\\])(?:and|or)(?![a-zA-Z])[\s,;]*", re.IGNORECASE)


def split_top(text: str, separators: str = ",;") -> list[str]:
    """Split at separators that stand outside every bracket; semicolons bind weaker than commas."""
    if ";" in separators and _has_top(text, ";"):
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


def _has_top(text: str, character: str) -> bool:
    depth = 0
    for found in text:
        depth += (found in "([{") - (found in ")]}")
        if depth <= 0 and found == character:
            return True
    return False


_NAME = r"(?:\\?[A-Za-z]+|\|[A-Za-z]+\|)(?:'|_\{?[\w\s:,']+\}?)*"
_LABEL = re.compile(
    rf"^(?:\\(?:angle|triangle|overline|vec)\s*\{{?\s*)?{_NAME}\}}?(?:\s*\([^()=]*\))?(?:\s*:\s*{_NAME})?$"
    rf"|^\(\s*{_NAME}(?:\s*,\s*{_NAME})*\s*\)$|^\\frac\s*\{{\s*{_NAME}\s*\}}\s*\{{\s*{_NAME}\s*\}}$"
    r"|^[A-Za-z]+(?: [A-Za-z]+){0,3}$"
)
_EQUALS = re.compile(r"(?<![<>!\\:])=|:=")


def split_equals(text: str) -> list[str]:
    """Split at equals signs outside every bracket."""
    if "=" not in text:
        return [text]
    pieces: list[str] = []
    depth = start = 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth <= 0 and character == "=" and text[position - 1 : position] not in ("<", ">", "!"):
            pieces.append(text[start:position].strip().removesuffix(":").strip())
            start = position + 1
    pieces.append(text[start:].strip())
    return pieces


def is_label(text: str) -> bool:
    """Whether a text is only a name, as ``x``, ``f(2)``, ``S_{ABC}`` or ``(p, q)``."""
    text = text.strip()
    return len(text) <= 60 and bool(_LABEL.match(text))


def strip_label(text: str) -> tuple[str, str]:
    r"""Return (label, value) of ``x = 5``, ``5 = x`` or ``x \in S``; an empty label where there is none."""
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
