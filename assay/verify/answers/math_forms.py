"""Compare special forms of answers: times, numbers in a base, ratios, phrases, unevaluated sums.

The functions take canonical texts. Functions that compare two answers return None if neither answer
has the special form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from assay.verify.answers.latex_text import brackets_of, read_rules, split_top, squeeze
from assay.verify.answers.number_words import read_words
from assay.verify.answers.plain_numbers import read_number
from assay.verify.answers.tables import pattern, says

Equal = Callable[[str, str], bool]

_FORMS = read_rules("forms")


@lru_cache(maxsize=4096)
def plain_form(text: str) -> str:
    """Rewrite brackets and phrases of a canonical answer as LaTeX that the later parsing stages
    read."""
    # Some regular expressions of the table take quadratic time.
    if len(text) > 2000:
        return text
    for _ in range(3):
        brackets, within = brackets_of(text)
        if brackets != "()" or "," in within or ";" in within or not within:
            break
        text = within
    for form, plain in _FORMS:
        text = form.sub(plain, text)
    return text


_CLOCK = re.compile(r"(\d\d?)(?::([0-5]\d)(?::([0-5]\d))?)?\s*(?:([ap])\.?\s?m\.?|o'clock)?")
_NOON = {"noon": "12 pm", "midday": "12 pm", "midnight": "12 am"}


def same_time(gold: str, found: str) -> bool | None:
    """Compare times of day, with or without am and pm.

    Return None if one of the two answers is no time of day.
    """
    expected, answered = _time(gold), _time(found)
    if expected is None or answered is None:
        return None
    (a, marked), (b, other) = expected, answered
    if marked == other:
        return a == b
    # A time without am or pm equals that time in both halves of the day.
    # 43,200 seconds are twelve hours.
    return a % 43200 == b % 43200 and (a == b or a >= 43200 or b >= 43200)


def _time(text: str) -> tuple[int, bool] | None:
    """Return (seconds since midnight, whether the half of the day is known), or None."""
    lowered = text.lower().strip()
    match = _CLOCK.fullmatch(_NOON.get(lowered, lowered))
    # A number alone is no time.
    if match is None or match[0].isdigit():
        return None
    hour, minute, second = (int(each or 0) for each in match.groups()[:3])
    half = match[4]
    if hour > (12 if half else 24):
        return None
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    return (hour * 60 + minute) * 60 + second, bool(half) or hour > 12


_BASED = re.compile(
    r"(-?)\(?(-?)(\d[0-9A-Za-z]{0,200}|[0-9A-F]{1,200}(?=(?:\.[0-9A-F]+)?\)?_\{?16))"
    r"(?:\.([0-9A-Za-z]{1,200}))?\)?_\{?(\d\d?|[a-z]{3,8})\}?"
)
_NUMERAL_BELOW = re.compile(r"(?<![a-zA-Z_{\d])\d[\d.]*\s*\)?_|\\overline\s*\{\d+\}\s*_")


def _based(text: str) -> tuple[str, str] | None:
    """Return ("-204.1", "5") for ``-204.1_5``, or None for a text without a base."""
    match = _BASED.fullmatch(squeeze(text))
    if match is None:
        return None
    base = match[5] if match[5].isdigit() else read_words(match[5])
    digits = f"{match[1] or match[2]}{match[3]}{'.' + match[4] if match[4] else ''}"
    return None if base is None else (digits, str(base))


def same_based(gold: str, found: str) -> bool | None:
    """Compare numbers that are written in a base.

    Return None if neither of the two numbers has a base.

    A number without a base may be written in the expected base or in base ten.
    """
    pair = _based(gold), _based(found)
    if pair == (None, None):
        # The LaTeX grammar silently drops a base that it cannot parse.
        return False if _NUMERAL_BELOW.search(gold) or _NUMERAL_BELOW.search(found) else None
    (a, base_a), (b, base_b) = pair[0] or (squeeze(gold), ""), pair[1] or (squeeze(found), "")
    if a.lower() == b.lower() and base_a and base_b in (base_a, ""):
        return True
    if base_b and not base_a and a == b:
        return base_b == "10"
    values = _value_of(gold, a, base_a), _value_of(found, b, base_b)
    return values[0] is not None and values[0] == values[1]


def _value_of(text: str, digits: str, base: str) -> Fraction | None:
    """Return the value of a digit string ``digits`` in a base.

    If ``base`` is "", return the value of ``text``.

    Returns None if the digits are invalid in the base, or if the text is no plain number.
    """
    if not base:
        number = read_number(text)
        return None if number is None or number.unit or number.percent else number.value
    whole, _, fraction = digits.partition(".")
    sign = -1 if whole.startswith("-") else 1
    try:
        radix = int(base)
        below = Fraction(int(fraction or "0", radix), radix ** len(fraction))
        return sign * (abs(int(whole, radix)) + below)
    except ValueError:
        return None


def _ratio(text: str) -> list[str]:
    """Return the terms of a ratio such as ``7:32`` or ``7 to 32``, or an empty list."""
    if "=" in text:
        return []
    text = re.sub(r"(?<=\d) to (?=\d)", ":", text)
    if ":" not in text:
        return []
    terms = split_top(text, ":")
    return terms if len(terms) > 1 and sum(read_number(t) is not None for t in terms) > 1 else []


def same_ratio(gold: str, found: str, equal: Equal) -> bool | None:
    """Compare ratios up to a common factor. A ratio of two terms also equals a fraction."""
    a, b = _ratio(gold), _ratio(found)
    if not a and not b:
        return None
    if len(a) != len(b):
        single, terms = (found, a) if a else (gold, b)
        if len(terms) != 2 or ":" in single or not re.search(r"/|\\frac|\.", single):
            return False
        return equal(single, rf"\frac{{{terms[0]}}}{{{terms[1]}}}")
    numbers = [[read_number(term) for term in side] for side in (a, b)]
    if all(number is not None for side in numbers for number in side):
        x, y = ([n.value for n in side if n is not None] for side in numbers)
        pairs = zip(x, y, strict=True)
        return bool(x[0] and y[0]) and all(p * y[0] == q * x[0] for p, q in pairs)
    return all(map(equal, a, b))


_CALL = re.compile(
    r"\\(?:(?P<angle>(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?)|(?P<logarithm>log|ln|lg)"
    r"|(?P<other>gcd|lcm|max|min|sup|inf|det|arg|Re|Im|b?mod|lfloor|lceil))(?![a-zA-Z])"
    r"|(?P<rounded>[⌊⌈])|(?P<size>\|[^|<>=:]+\|)|(?P<determinant>vmatrix)"
)
_VARIABLE = re.compile(r"[a-zA-Z](?:_(?:\w|\{\w+\}))?")
_COMMAND = re.compile(r"\\[a-zA-Z]+")


def has_unevaluated_function(gold: str, text: str) -> bool:
    r"""Return whether a text contains an unevaluated function such as ``\gcd(12,18)``.

    Powers, roots, fractions, factorials and binomials are accepted as forms of a number. Another
    function is accepted only if ``gold`` has a function of the same family, such as ``\ln 2``.
    """
    head, remainder, _ = text.partition(r"\mod")
    if "=" in text or (remainder and squeeze(head) == squeeze(gold)):
        return False
    return bool(_families(text) - _families(gold))


def _families(text: str) -> set[str | None]:
    return {match.lastgroup for match in _CALL.finditer(text)}


def is_constant(text: str) -> bool:
    """Return whether an expected answer has no letters except LaTeX commands, e and i."""
    return not re.search("[a-df-hj-zA-Z]", _COMMAND.sub("", text))


_KNOWN = re.compile(r"\\[a-zA-Z]+|sqrt|pi|\b[oO]r\b|\band\b")
_TAME = re.compile(
    r"\\(?:frac|cdot|times|le|ge|ne|in|infty|pi|cup|cap|mathbb|sqrt|pm|or|and|emptyset|setminus|approx|begin|end)\b"
)
_SIDES = re.compile(r"[=<>,]|\\(?:[lgn]e|in|approx) ")
# Matches a letter or command in an exponent.
_RISING = re.compile(r"\^\s*(?:[a-zA-Z\\(]|\{[^{}]*[a-zA-Z\\(])")


def is_simple(text: str) -> bool:
    """Return whether an expected value consists of constants, such as ``5`` and ``(1, 2]``."""
    return is_constant(text) and len(text) <= 200


def has_unknown(text: str) -> bool:
    """Return whether a text has an unknown: a letter other than e, i and I."""
    return bool(re.search("[a-df-hj-zA-HJ-Z]", _KNOWN.sub("", text)))


def is_quickly_solved(text: str, gold: str = "") -> bool:
    r"""Return whether sympy can solve a relation quickly.

    Polynomials, roots and functions that occur in ``gold`` are solved quickly. On a relation such
    as ``\sin(x)^{x} = \cos(x)``, sympy does not terminate.
    """
    expected = set(_COMMAND.findall(gold))
    for side in _SIDES.split(text):
        plain = _TAME.sub("", side)
        foreign = set(_COMMAND.findall(plain)) - expected
        if has_unknown(side) and (foreign or _RISING.search(plain) or "!" in side):
            return False
    return True


_TIMES = re.compile(r"\s*(?:\\cdot|\\times|\*)(?![a-zA-Z])\s*")
_SUM = re.compile(r"(?<=[\w)}\]!°])\s*[-+](?!\s*$)")
_PRODUCT = re.compile(r"(?<=[\d)}])\*(?=[\d(\\])")
# A product with a power, factorial or binomial is a usual form of a number, as in 3 * 2^{10}.
_WRITTEN = re.compile(r"\^|!|binom|choose")


def is_unsummed(gold: str, text: str, numeral: bool) -> bool:
    """Return whether a text has more unevaluated sums or quotients than the expected constant.

    numeral: whether the constant is a number in digits, so that products must be evaluated too.
    """
    # A complex number such as 1 + 2i may be a sum.
    gold, text = (_TIMES.sub("*", each) for each in (gold, text))
    most = max(len(_SUM.findall(gold)), int(bool(re.search(r"(?<![a-zA-Z\\])i(?![a-zA-Z])", text))))
    if len(_SUM.findall(text)) > most or (r"\div" in text and r"\div" not in gold):
        return True
    return numeral and bool(_PRODUCT.search(text)) and not _WRITTEN.search(text)


_COMPARED = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>]")


def is_unsolved(text: str) -> bool:
    """Return whether an inequality in one variable is unsolved, such as ``x - 2 > 0``."""
    for piece in re.split(r"\s(?:or|and)\s|,|\\cup|\\cap", text):
        sides = [_COMMAND.sub(" ", side) for side in _COMPARED.split(piece)]
        named = [set(_VARIABLE.findall(side)) for side in sides]
        names = set[str]().union(*named)
        if len(sides) < 2 or len(names) != 1:
            continue
        holding = [side.strip() for side, found in zip(sides, named, strict=True) if found]
        if len(holding) > 1 or holding[0] not in names:
            return True
    return False


_SET_BUILT = re.compile(r"\\\{\s*(.+?)\s*[:|]\s*([a-z]\s*\\in \s*\\mathbb\{\w\}\S*)\s*\\\}")
_PARAMETER = re.compile(
    r"[\s,;(]+(?:(?:where|for|with|and)\s+)?(?:(?:any|every|all|some)\s+)?(?:"
    r"(?P<name>[a-z])\s*\\in \s*\\mathbb\{(?P<set>[A-Z])\}(?P<part>\S*?)"
    r"|(?P<named>[a-z])\s+(?:is|being)\s+(?:an?\s+|any\s+)?integers?"
    r"|integers?\s+(?P<after>[a-z]))[\s).]*$"
)


def split_parameter(text: str) -> tuple[str, str, str]:
    r"""Split ``2k\pi, k \in \mathbb{Z}`` into ("2k\pi", "k", "Z"); for any other text, return
    (text, "", "")."""
    text = _SET_BUILT.sub(r"\1, \2", text) if _SET_BUILT.fullmatch(text) else text
    match = _PARAMETER.search(text)
    if match is None:
        return text, "", ""
    letter = match["name"] or match["named"] or match["after"]
    formula = text[: match.start()]
    free = rf"(?<![a-zA-Z\\]){letter}(?![a-zA-Z])"
    if formula.strip() == letter or not re.search(free, formula):
        return text, "", ""
    return formula, letter, (match["set"] or "Z") + (match["part"] or "")


def same_parameter(gold: str, found: str) -> tuple[str, str] | None:
    """Return both answers with equal parameter names and without the parameter's set.

    An answer may omit "k is an integer" or add it. Return None if the sets of the two answers'
    parameters differ.
    """
    (a, letter_a, set_a), (b, letter_b, set_b) = split_parameter(gold), split_parameter(found)
    if not letter_a and not letter_b:
        return gold, found
    # An inequality without a stated set is an inequality over the reals.
    # A formula such as 2k without a set is over the integers.
    implied = ("", "R") if _COMPARED.search(a) else ("", "R", "Z")
    if set_a != set_b and not ("" in (set_a, set_b) and {set_a, set_b} <= {*implied}):
        return None
    if letter_a and letter_b and letter_a != letter_b:
        if re.search(rf"(?<![a-zA-Z\\]){letter_a}(?![a-zA-Z])", b):
            return None
        b = re.sub(rf"(?<![a-zA-Z\\]){letter_b}(?![a-zA-Z])", letter_a, b)
    return a, b


_FUNCTION_WORDS = {
    *["sin", "cos", "tan", "log", "exp", "sqrt", "pi", "max", "min", "mod", "gcd", "lcm"]
}
_NAME = re.compile("[A-Z][a-z]{2}")
_SHORT_WORDS = {"yes", "no", "odd", "up", "he", "she", "it", "am", "pm"}


def is_words(text: str) -> bool:
    """Return whether an answer is plain language, such as "Even" or "African wild dog"."""
    if re.search(r"[\d\\^_={}<>+*/|]", text):
        return False
    words = re.findall(r"[^\W\d_]+", text)
    if any(word.lower() in _FUNCTION_WORDS for word in words):
        return False
    if len(words) == 1 and (words[0].lower() in _SHORT_WORDS or _NAME.fullmatch(words[0])):
        return True
    return max(map(len, words), default=0) >= 4


_LEADING = ("a", "an", "the", "on", "in", "at", "it", "is", "its")


def words_of(text: str, case: bool = False) -> str:
    """Return the words of a text as one string, without a leading article or preposition."""
    text = re.sub(r"\\(?![a-zA-Z])|[{}]", "", text)
    words = re.findall(r"[^\W_]+", text if case else text.casefold())
    while len(words) > 1 and words[0].lower() in _LEADING:
        del words[0]
    return "".join(words)


_QUOTED = re.compile("(?<![A-Za-z])'+([^']+)'+(?![A-Za-z])")
_PRIME = re.compile("(?<![A-Za-z])'|(?<=[A-Z])'(?![a-z])")


def primes_in(text: str) -> int:
    """Count the primes (') of a text.

    Quotation marks and apostrophes in words do not count as primes.
    """
    return len(_PRIME.findall(_QUOTED.sub(r"\1", text))) if "'" in text else 0


_JOINED = re.compile(r" (?:and|or|to) +", re.IGNORECASE)


def is_qualified(text: str) -> bool:
    """Return whether a text has words that change a value, such as "not", "half" or "less"."""
    return any(
        not _JOINED.fullmatch(f" {m[0].strip()} ") for m in pattern("qualifiers").finditer(text)
    )


def is_altered(text: str) -> bool:
    """Return whether a text changes a value that it contains, by words, dots or a prime."""
    return bool(says("qualifiers", text) or _CONTINUED.search(text))


_CONTINUED = re.compile(r"\\[lc]?dots|\.\.\.|[\d}]'|\d_|[₀-₉]|degrees?\s*$|\\h?phantom")
