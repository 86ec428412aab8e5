"""Guards and additional checks for reasoning-gym's unreliable scorers.

In version 0.1.25 of reasoning-gym, a scorer is a method of its task. Some scorers evaluate the
model's text as code, and some run for minutes on a short text. `GATES` rejects unsafe texts before
the scorer runs. Some scorers of the library give full marks for wrong answers. For tasks with a
check in `STRICT`, the check must agree with the scorer, or replaces the scorer.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, cast

from assay.verify.logic.countdown import fault_of

Entry = Mapping[str, Any]

MAX_LITERAL = 2000
MAX_ALGEBRA = 400
MAX_POWER = 60

_ALGEBRA = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z]+)|\*\*|[-+*/^(),])")
_NAMES = "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs pi E C"
_FUNCTIONS = frozenset(_NAMES.split())


def is_literal(text: str, entry: Entry) -> bool:
    """Return whether a text is a Python literal, so that ``eval`` executes no code."""
    if len(text) > MAX_LITERAL:
        return False
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def is_algebra(text: str, entry: Entry) -> bool:
    """Return whether a text is plain algebra that sympy parses and differentiates quickly.

    Allowed are numbers of at most 12 digits, single letters and known functions. The function also
    checks that the numbers in an exponent are at most 60. An exponent may contain no power, and the
    base of a power at most one.
    """
    if len(text) > MAX_ALGEBRA or "\n" in text:
        return False
    text, position = text.strip(), 0
    while position < len(text):
        match = _ALGEBRA.match(text, position)
        if match is None or len(match["number"] or "") > 12:
            return False
        if len(name := match["name"] or "") > 1 and name not in _FUNCTIONS:
            return False
        position = match.end()
    try:
        tree = ast.parse(text.replace("^", "**"), mode="eval")
    except (SyntaxError, RecursionError, MemoryError):
        return False
    powers = _powers(tree)
    return len(powers) <= 24 and all(map(_is_small, powers))


def _powers(tree: ast.AST) -> list[ast.BinOp]:
    nodes = ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)]


def _is_small(power: ast.BinOp) -> bool:
    names = {each.id for each in ast.walk(power.right) if isinstance(each, ast.Name)}
    numbers: list[Any] = [e.value for e in ast.walk(power.right) if isinstance(e, ast.Constant)]
    if _powers(power.right) or "exp" in names or len(numbers) > 3:
        return False
    if any(isinstance(number, complex) or number > MAX_POWER for number in numbers):
        return False
    inner = len(_powers(power.left))
    has_name = any(isinstance(each, ast.Name) for each in ast.walk(power.left))
    return inner == 0 or (inner == 1 and has_name)


def is_antiderivative(text: str, entry: Entry) -> bool:
    """Return whether an expression has the expected derivative at three points.

    The library's scorer instead simplifies the difference of the derivatives, which takes minutes
    for wrong answers.
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
    except Exception:  # sympy's parser raises exceptions of many classes on model output.
        return False
    for point in (0.731, 1.37, 2.19):
        try:
            given, expected = (complex(function(point, 0.5)) for function in functions)
        except (NameError, TypeError):
            # The module cmath lacks the called function, so the library's scorer must decide.
            return True
        except (ArithmeticError, ValueError):
            continue
        if not abs(given - expected) <= 1e-6 * max(1.0, abs(expected)):
            return False
    return True


def _form(pattern: str) -> Callable[[str, Entry], bool]:
    """Return a score function that accepts only texts which match a pattern completely."""
    compiled = re.compile(pattern, re.DOTALL | re.IGNORECASE)
    return lambda text, entry: compiled.fullmatch(text) is not None


# Tasks whose scorer calls eval on the model's text.
# The library's scorer receives only plain Python literals.
LITERALS = ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion")
# Tasks whose scorer calls sympy.parse_expr, which calls eval.
# The library's scorer receives only plain algebra.
ALGEBRA = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
# All tasks whose library scorer evaluates the answer's text.
# For the tasks countdown and puzzle24, a check replaces the library's scorer.
EVALUATES = (*LITERALS, *ALGEBRA, "countdown", "puzzle24")

_SHORT_NUMBERS = _form(r"(?!.*\d{3}).*")
_NO_LETTERS = _form(r"[\W\d_]*")
_FINITE = _form(r"(?!.*(?:nan|inf)).*")

# A text that fails its task's gate scores 0, and the library's scorer is not called.
GATES: Mapping[str, Callable[[str, Entry], bool]] = {
    **dict.fromkeys(LITERALS, is_literal),
    "intermediate_integration": is_antiderivative,
    "simple_integration": is_antiderivative,
    "polynomial_multiplication": is_algebra,
    # The scorer expands "F999999999" before it applies the moves.
    "rubiks_cube": _SHORT_NUMBERS,
    "rush_hour": _SHORT_NUMBERS,
    # The library's scorer reads the letters A, B and C even from prose.
    "quantum_lock": _form(r"[ABC\s,>→\[\]'\"-]*"),
    # The scorer skips invalid moves.
    "sokoban": _form(r"[UDLR\s,]*"),
    # The library's scorers skip text that is not a number.
    "kakurasu": _NO_LETTERS,
    "survo": _NO_LETTERS,
    # The scorer tests whether a difference is too large, which is false for NaN.
    "number_sorting": _FINITE,
    # The scorer returns min(1, exp(-distance)), which is 1 for a distance of NaN.
    "complex_arithmetic": _FINITE,
}


def _countdown(text: str, entry: Entry) -> bool:
    return not fault_of(text, entry["metadata"]["numbers"], entry["metadata"]["target"])


def _puzzle24(text: str, entry: Entry) -> bool:
    """Check that an expression uses the puzzle's own four numbers and equals 24.

    The library's scorer accepts any four numbers in the allowed range, not only the puzzle's
    numbers.
    """
    return not fault_of(text, [int(number) for number in entry["metadata"]["numbers"]], 24)


def _same_text(text: str, entry: Entry) -> bool:
    return " ".join(text.split()).casefold() == " ".join(str(entry["answer"]).split()).casefold()


def _same_words(text: str, entry: Entry) -> bool:
    given, expected = (each.replace(",", " ").split() for each in (text, str(entry["answer"])))
    return given == expected


def _one_number(text: str, entry: Entry) -> bool:
    """Check that a text consists of a single number.

    The library's scorer reads a text's first number and ignores the rest.
    """
    number = re.fullmatch(r"[$€£]?\s*(-?\d[\d,]*(?:\.\d+)?)\s*%?\.?", text.strip())
    return number is not None and float(number[1].replace(",", "")) == float(entry["answer"])


def _same_numbers(text: str, entry: Entry) -> bool:
    """Compare numbers exactly. The library's scorer allows each number to be off by 1."""
    given, expected = (json.loads(each.replace("'", '"')) for each in (text, str(entry["answer"])))
    return [float(number) for number in given] == [float(number) for number in expected]


def _coin_flip(text: str, entry: Entry) -> bool:
    """Compare probabilities to 0.0001.

    The library's scorer wrongly accepts a text that has only the first digits of the answer.
    """
    if re.search(r"[eE]", text) or len(text) > 100:
        return False
    given, expected = (Fraction(each.replace(",", "").strip()) for each in (text, entry["answer"]))
    return abs(given - expected) <= Fraction(1, 10_000)


def _new_conclusion(text: str, entry: Entry) -> bool:
    """Reject a repeated premise.

    The library's scorer wrongly accepts a premise as a new conclusion.
    """
    squeezed = re.sub(r"[\s()]", "", text)
    return squeezed not in {re.sub(r"[\s()]", "", p) for p in entry["metadata"]["premises"]}


def _fits_shape(text: str, entry: Entry) -> bool:
    """Check that a grid has the expected size.

    The library's scorer wrongly ignores additional cells of a grid.
    """
    given, expected = json.loads(text), json.loads(str(entry["answer"]))
    is_grid = bool(expected) and isinstance(expected[0], list)
    same = len(given) == len(expected)
    return same and (not is_grid or [*map(len, given)] == [*map(len, expected)])


def _interval(text: str, entry: Entry) -> bool:
    """Check that a text consists of one number or time.

    The library's scorer wrongly ignores text after the number or time.
    """
    form = r"(-?\d+ *(?:days?)?,? *)?([\d:.]+)?"
    given, expected = re.fullmatch(form, text.strip()), re.fullmatch(form, str(entry["answer"]))
    if given is None or expected is None:
        return False
    return [*map(bool, given.groups())] == [*map(bool, expected.groups())]


def _one_fraction(text: str, entry: Entry) -> bool:
    """Check that a text consists of a single fraction.

    The library's scorer reads the first fraction and ignores the rest.
    """
    form = r"[\s$]*-?(?:\\[dt]?frac\s*\{-?\d+\}\s*\{-?\d+\}|\d+\s*/\s*-?\d+)[\s$.]*"
    return re.fullmatch(form, text) is not None


def _zebra(text: str, entry: Entry) -> bool:
    return text.strip(" \n.*!\"'").casefold() == str(entry["answer"]).strip().casefold()


def _knights_knaves(text: str, entry: Entry) -> bool:
    """Return whether a text gives every inhabitant exactly one role, and each role is correct."""
    names, solution = entry["metadata"]["names"], entry["metadata"]["solution"]
    right = {str(name).casefold(): bool(truth) for name, truth in zip(names, solution, strict=True)}
    return role_claims(text, entry["metadata"]) == right


def role_claims(text: str, metadata: Mapping[str, Any]) -> dict[str, bool] | None:
    """Return each inhabitant's role (True: knight), or None if a statement is unclear.

    Accepts "David is a knave", "David: knave", "David (knave)", "knaves: David and Ella" and "David
    and Ella are knaves". Unclear statements are a role without a name, a negation, and a second
    role of the same inhabitant.
    """
    terms = cast("Mapping[str, str]", metadata["knight_knave_terms"])
    knight, knave = (rf"{re.escape(terms[key].casefold())}(?:e?s)?" for key in ("knight", "knave"))
    names = sorted((str(name).casefold() for name in metadata["names"]), key=len, reverse=True)
    name = rf"\b(?:{'|'.join(map(re.escape, names))})\b"
    who = rf"{name}(?:\s*(?:,|and|&)\s*(?:and\s+)?{name})*"
    link = (
        r"\s*(?:\b(?:is|are|was)\b|:|=|-+>?|→|–|—|\()?\s*(?:\b(?:both|all|indeed)\b)?"
        r"\s*(?:\b(?:an?|the)\b)?\s*"
    )
    said, named = (rf"\b(?:(?P<{group}>{knight})|{knave})\b" for group in ("said", "named"))
    claim = re.compile(rf"(?P<who>{who}){link}{said}|{named}\s*[:=]\s*(?P<those>{who})")
    plain = re.sub(r"[*_`$|]|\\(?:text\w*|mathrm|boxed)\b|[{}\\]", " ", text.casefold())
    claims: dict[str, bool] = {}
    for match in claim.finditer(plain):
        truth = bool(match["said"] or match["named"])
        for each in re.findall(name, match["who"] or match["those"]):
            if claims.setdefault(each, truth) != truth:
                return None
    words = "not|neither|or|either|maybe|perhaps|alternatively"
    unclear = rf"\b(?:{knight}|{knave}|{words})\b|n't\b|{name}"
    return None if re.search(unclear, claim.sub(" ", plain)) else claims


# Each task has a check, and a flag that is true if the check replaces the library's scorer.
# A check in addition to the scorer gives no partial credit.
# If the library's scorer is kept, its full marks count only if the check agrees.
STRICT: Mapping[str, tuple[Callable[[str, Entry], bool], bool]] = {
    "knights_knaves": (_knights_knaves, True),
    "zebra_puzzles": (_zebra, True),
    "countdown": (_countdown, True),
    "puzzle24": (_puzzle24, True),
    # For this task, the library's scorer reads any text as the answer "true".
    "game_of_life_halting": (_same_text, True),
    "coin_flip": (_coin_flip, True),
    "gsm_symbolic": (_one_number, True),
    "number_sorting": (_same_numbers, True),
    "fraction_simplification": (_one_fraction, False),
    # The library's scorer ignores letters after the answer.
    "spell_backward": (_same_text, False),
    # The library's scorer accepts an answer with ten correct letters.
    "figlet_font": (_same_text, False),
    # The library's scorer ignores words after the answer.
    "letter_jumble": (_same_text, False),
    # The library's scorer ignores words after the last sorted word.
    "word_sorting": (_same_words, False),
    "propositional_logic": (_new_conclusion, False),
    "game_of_life": (_fits_shape, False),
    "time_intervals": (_interval, False),
}
