"""What reasoning-gym's own scorers are not to be trusted with, and what stands in their place.

Read in version 0.1.25, where a scorer is a method of its task. Three faults are met here: it evaluates
the model's text (`EVALUATES`), it gives full marks for something that is not the answer (`STRICT`),
or a short text makes it run for minutes (`GATES`).
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, cast

from assay.verify.logic.countdown import NotArithmetic, evaluate, fault_of

Entry = Mapping[str, Any]

# Tasks whose scorer evaluates the model's text, and how it is kept from doing so.
EVALUATES: Mapping[str, str] = {
    "binary_matrix": "eval, for partial credit: only a plain Python literal reaches it",
    "n_queens": "eval, for partial credit: only a plain Python literal reaches it",
    "spiral_matrix": "eval, for partial credit: only a plain Python literal reaches it",
    "string_insertion": "eval, for partial credit: only a plain Python literal reaches it",
    "countdown": "sympy.parse_expr, which calls eval: replaced by the verifier countdown's parser",
    "puzzle24": "sympy.parse_expr, which calls eval: replaced by the verifier countdown's parser",
    "intermediate_integration": "sympy.parse_expr, which calls eval: only plain algebra reaches it",
    "polynomial_multiplication": "sympy.parse_expr, which calls eval: only plain algebra reaches it",
    "simple_integration": "sympy.parse_expr, which calls eval: only plain algebra reaches it",
}

MAX_LITERAL = 2000
MAX_ALGEBRA = 400
MAX_POWER = 60

_ALGEBRA = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z]+)|(?P<sign>\*\*|[-+*/^(),]))")  # fmt: skip
_FUNCTIONS = {"sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "Abs", "pi", "E", "C"}  # fmt: skip


def is_literal(text: str, entry: Entry) -> bool:
    """Whether a text is a Python literal, for which ``eval`` does nothing but read it."""
    if len(text) > MAX_LITERAL:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def is_algebra(text: str, entry: Entry) -> bool:
    """Whether a text is plain algebra that sympy reads and differentiates in moments.

    Numbers of at most 12 digits, single letters and known functions; a power is a whole number up
    to 60, a fraction of such, or holds a letter, and never a power of a power.
    """
    if len(text) > MAX_ALGEBRA or "\n" in text:
        return False
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _ALGEBRA.match(text, position)
        if match is None:
            return False
        name, number = match["name"], match["number"]
        if (name and len(name) > 1 and name not in _FUNCTIONS) or (number and len(number) > 12):
            return False
        tokens.append(match[0].strip())
        position = match.end()
    return _powers_are_small(tokens)


def _powers_are_small(tokens: list[str]) -> bool:
    powers = [n for n, token in enumerate(tokens) if token in ("**", "^")]
    for start in powers:
        exponent = _operand(tokens, start + 1)
        if any(token in ("**", "^", "exp") for token in exponent):
            return False
        numbers = [float(token) for token in exponent if token[0].isdigit()]
        if any(number > MAX_POWER for number in numbers) or len(numbers) > 3:
            return False
        after = start + 1 + len(exponent)
        if after < len(tokens) and tokens[after] in ("**", "^"):
            return False
        before = _closed_before(tokens, start)
        inner = sum(token in ("**", "^") for token in before)
        if inner > 1 or (inner and not any(token.isalpha() for token in before)):
            return False
    return len(powers) <= 24


def _operand(tokens: list[str], start: int) -> list[str]:
    """Return the tokens of the operand at ``start``: a sign, then an atom or a parenthesis."""
    end, depth = start, 0
    while end < len(tokens):
        token = tokens[end]
        depth += (token == "(") - (token == ")")
        end += 1
        if depth == 0 and token not in ("-", "+") and not (
            token in _FUNCTIONS and end < len(tokens) and tokens[end] == "("
        ):  # fmt: skip
            break
    return tokens[start:end]


def _closed_before(tokens: list[str], end: int) -> list[str]:
    """Return the parenthesis that closes right before ``end``, if one does."""
    if not end or tokens[end - 1] != ")":
        return tokens[max(0, end - 1) : end]
    start, depth = end, 0
    while start:
        start -= 1
        depth += (tokens[start] == ")") - (tokens[start] == "(")
        if depth == 0:
            break
    return tokens[start:end]


def _short_numbers(text: str, entry: Entry) -> bool:
    return not re.search(r"\d{3}", text)


def is_antiderivative(text: str, entry: Entry) -> bool:
    """Whether plain algebra has the right slope at a few points, so far as floats can tell.

    The library simplifies the difference of derivatives, which takes minutes for what is far from 0.
    """
    if not is_algebra(text, entry):
        return False
    import sympy

    api: Any = sympy
    metadata = cast("Mapping[str, Any]", entry["metadata"])
    x = api.Symbol(metadata["variable"])
    names = {metadata["variable"]: x, "C": api.Symbol("C")}
    try:
        slope = api.diff(api.parse_expr(text, local_dict=names), x)
        wanted = api.parse_expr(metadata["integrand"], local_dict=names)
        functions = [api.lambdify((x, names["C"]), f, modules=["cmath"]) for f in (slope, wanted)]
    except Exception:  # foreign code: sympy's reader, fed by a model
        return False
    for point in (0.731, 1.37, 2.19):
        try:
            given, expected = (complex(function(point, 0.5)) for function in functions)
        except (NameError, TypeError):
            return True  # a function that cmath lacks: the library must look
        except (ArithmeticError, ValueError):
            continue
        if not abs(given - expected) <= 1e-6 * max(1.0, abs(expected)):
            return False
    return True


def _no_letters(text: str, entry: Entry) -> bool:
    return re.search(r"[^\W\d_]", text) is None


def _moves(text: str, entry: Entry) -> bool:
    return re.fullmatch(r"[UDLRudlr\s,]*", text) is not None


def _letters_only(text: str, entry: Entry) -> bool:
    return re.fullmatch(r"[ABCabc\s,>→\[\]'\"-]*", text) is not None


def _finite(text: str, entry: Entry) -> bool:
    return re.search(r"nan|inf", text, re.IGNORECASE) is None


# A text that does not pass its gate scores 0 without the library's scorer.
GATES: Mapping[str, Callable[[str, Entry], bool]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_literal),
    **dict.fromkeys(("intermediate_integration", "simple_integration"), is_antiderivative),
    "polynomial_multiplication": is_algebra,
    "rubiks_cube": _short_numbers,  # "F999999999" is spelled out before it is turned
    "rush_hour": _short_numbers,
    "quantum_lock": _letters_only,  # it reads the letters A, B, C out of any prose
    "sokoban": _moves,  # it skips what is no move
    "kakurasu": _no_letters,  # they skip what is no number
    "survo": _no_letters,
    "number_sorting": _finite,  # NaN is within any tolerance of anything
    "complex_arithmetic": _finite,  # min(1, exp(-NaN)) is 1
}


def _countdown(text: str, entry: Entry) -> bool:
    metadata = cast("Mapping[str, Any]", entry["metadata"])
    return not fault_of(text, metadata["numbers"], metadata["target"])


def _puzzle24(text: str, entry: Entry) -> bool:
    """The library accepts any four numbers of its range; the puzzle names four."""
    numbers = Counter(int(number) for number in entry["metadata"]["numbers"])
    try:
        value, used = evaluate(text, numbers)
    except (NotArithmetic, ZeroDivisionError):
        return False
    return value == 24 and used == numbers


def _same_text(text: str, entry: Entry) -> bool:
    return " ".join(text.split()).casefold() == " ".join(str(entry["answer"]).split()).casefold()


def _same_words(text: str, entry: Entry) -> bool:
    def listed(words: str) -> list[str]:
        return [word for word in re.split(r"[\s,]+", words.strip()) if word]

    return listed(text) == listed(str(entry["answer"]))


def _one_number(text: str, entry: Entry) -> bool:
    """The library reads the first number of a text; here the text is one number."""
    number = re.fullmatch(r"[$€£]?\s*(-?\d[\d,]*(?:\.\d+)?)\s*%?\.?", text.strip())
    return number is not None and float(number[1].replace(",", "")) == float(entry["answer"])


def _same_numbers(text: str, entry: Entry) -> bool:
    """The library allows each number to be off by 1."""
    given, expected = (json.loads(each.replace("'", '"')) for each in (text, str(entry["answer"])))
    return [float(number) for number in given] == [float(number) for number in expected]


def _coin_flip(text: str, entry: Entry) -> bool:
    """The library gives full marks for the first digits of the answer alone."""
    from fractions import Fraction

    if re.search(r"[eE]", text) or len(text) > 100:
        return False
    given, expected = (Fraction(each.replace(",", "").strip()) for each in (text, entry["answer"]))
    return abs(given - expected) <= Fraction(1, 10_000)


def _new_conclusion(text: str, entry: Entry) -> bool:
    """The library accepts a premise again as a conclusion."""
    squeezed = re.sub(r"[\s()]", "", text)
    return squeezed not in {re.sub(r"[\s()]", "", p) for p in entry["metadata"]["premises"]}


def _fits_shape(text: str, entry: Entry) -> bool:
    """The library compares as many cells as the answer has, and ignores the rest."""
    given, expected = json.loads(text), json.loads(str(entry["answer"]))
    return len(given) == len(expected) and (
        not expected or not isinstance(expected[0], list) or [*map(len, given)] == [*map(len, expected)]
    )  # fmt: skip


def _interval(text: str, entry: Entry) -> bool:
    """The library reads the first number or time and ignores what follows."""
    form = r"(-?\d+ *(?:days?)?,? *)?([\d:.]+)?"
    given, expected = re.fullmatch(form, text.strip()), re.fullmatch(form, str(entry["answer"]))
    if given is None or expected is None:
        return False
    return [*map(bool, given.groups())] == [*map(bool, expected.groups())]


def _one_fraction(text: str, entry: Entry) -> bool:
    """The library reads the first fraction of a text; here the text is one fraction."""
    form = r"[\s$]*-?(?:\\[dt]?frac\s*\{-?\d+\}\s*\{-?\d+\}|\d+\s*/\s*-?\d+)[\s$.]*"
    return re.fullmatch(form, text) is not None


def _knights(text: str, entry: Entry) -> bool:
    return knights_knaves(text, entry["metadata"])


def _zebra(text: str, entry: Entry) -> bool:
    return text.strip(" \n.*!\"'").casefold() == str(entry["answer"]).strip().casefold()


# (check, whether it replaces the library's scorer): a replaced one has no partial credit; otherwise
# the library's full marks stand only where the check agrees.
STRICT: Mapping[str, tuple[Callable[[str, Entry], bool], bool]] = {
    "knights_knaves": (_knights, True),
    "zebra_puzzles": (_zebra, True),
    "countdown": (_countdown, True),
    "puzzle24": (_puzzle24, True),
    "game_of_life_halting": (_same_text, True),  # any text is true
    "coin_flip": (_coin_flip, True),
    "gsm_symbolic": (_one_number, True),
    "number_sorting": (_same_numbers, True),
    "fraction_simplification": (_one_fraction, False),
    "spell_backward": (_same_text, False),  # letters after the answer are ignored
    "figlet_font": (_same_text, False),  # ten letters right are enough
    "letter_jumble": (_same_text, False),  # words after the answer are ignored
    "word_sorting": (_same_words, False),  # so are they here
    "propositional_logic": (_new_conclusion, False),
    "game_of_life": (_fits_shape, False),
    "time_intervals": (_interval, False),
}


def knights_knaves(text: str, metadata: Mapping[str, Any]) -> bool:
    """Whether a text gives every inhabitant exactly one role, and the right one.

    "David is a knave", "David: knave", "David (knave)", "knaves: David and Ella" and "David and Ella
    are knaves" all say so; a role that belongs to no one, a denial and a second role do not.
    """
    claims = role_claims(text, metadata)
    if claims is None:
        return False
    solution = dict(zip(metadata["names"], metadata["solution"], strict=True))
    return claims == {name.casefold(): bool(truth) for name, truth in solution.items()}


def role_claims(text: str, metadata: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return who is said to be truthful, None where the text says anything twice or unclearly."""
    terms = cast("Mapping[str, str]", metadata["knight_knave_terms"])
    roles = {terms["knight"].casefold(): True, terms["knave"].casefold(): False}
    names = [str(name).casefold() for name in metadata["names"]]
    plain = re.sub(r"[*_`$|]|\\(?:text\w*|mathrm|boxed)\b|[{}\\]", " ", text.casefold())
    some = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    role = "|".join(rf"{re.escape(word)}(?:e?s)?" for word in sorted(roles, key=len, reverse=True))
    several = rf"(?:{some})(?:\s*(?:,|and|&)\s*(?:and\s+)?(?:{some}))*"
    link = r"\s*(?:\bis\b|\bare\b|\bwas\b|:|=|-+>?|→|–|—|\()?\s*(?:\bboth\b|\ball\b|\bindeed\b)?\s*(?:\b(?:an?|the)\b)?\s*"
    forms = rf"(?P<who>\b{several}\b){link}(?P<role>\b(?:{role})\b)|(?P<roles>\b(?:{role})\b)\s*[:=]\s*(?P<those>{several})\b"
    claims: dict[str, bool] = {}
    rest: list[str] = []
    position = 0
    for match in re.finditer(forms, plain):
        truth = _truth(match["role"] or match["roles"], roles)
        for name in re.findall(rf"\b(?:{some})\b", match["who"] or match["those"]):
            if claims.setdefault(name, truth) != truth:
                return None
        rest.append(plain[position : match.start()])
        position = match.end()
    rest.append(plain[position:])
    left = " ".join(rest)
    if re.search(rf"\b(?:{role}|not|neither|or|either|maybe|perhaps|alternatively)\b|n't\b", left):
        return None
    return None if re.search(rf"\b(?:{some})\b", left) else claims


def _truth(word: str, roles: Mapping[str, bool]) -> bool:
    return next(truth for role, truth in roles.items() if word in (role, f"{role}s", f"{role}es"))
