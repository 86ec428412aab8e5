"""Compare symbolic answers with math-verify, with fixes for its known faults.

math-verify's own time limits (signals) are off, because the service kills a worker at its deadline.
Its comparison of numbers is replaced: it rounds to an absolute number of decimals, so 1/2004! would
equal 1/2006! and 1e-7 would equal 0. Texts reach sympy only through a LaTeX grammar, never through
`sympify`, which evaluates Python code. Their size is limited before parsing.
"""

from __future__ import annotations

import logging
import random
import re
from functools import lru_cache
from typing import Any

from assay.host.imports import slow_import
from assay.verify.answers.notation import as_names

MAX_LENGTH = 800
MAX_DEPTH = 12
MAX_CELLS = 100
MAX_DIGITS = 400
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 5_000
MAX_CONDITIONS = 12
MAX_NAMES = 30
MAX_DEGREE = 12  # of a relation that sympy solves
MAX_GROWTH = 1_000_000
PRECISION = 40  # decimal digits of numeric comparison
CLOSE = 1e-30  # relative difference between equal exact numbers
FLOAT_CLOSE = 1e-12
ROUNDED_CLOSE = 1.001e-6  # relative difference between a decimal and a number that it rounds

_EXPONENT = re.compile(r"\^\s*\{?\s*[+-]?\s*(\d+)")
_FACTORIAL = re.compile(r"(\d+)\s*!(?!\s*!)|([)\]}!])\s*!|(\\Gamma.{0,9}?(?:\^|\d{4}))")
# (2n+1)!: a letter in a short sum without a power has values small enough to compare.
_NAMED_FACTORIAL = re.compile(
    r"\((?=[^()]*[a-zA-Z])(?!\s*\d{4})[a-zA-Z\d\s]{1,9}(?:[-+]\s*[a-zA-Z\d]{1,3}\s*){0,3}\)\s*!(?!\s*!)"
)
_TOWER = re.compile(r"\^\s*\{?\s*\(?\s*\d+\s*\)?\s*\^|\^\s*\{[^{}]*\d\s*\^")
_CHAIN = re.compile(r"(?:\^\s*[^\^(){}\s+*/=,-]{0,8}\s*){4}")
_FOREIGN = re.compile(r"__|[\"`@#?]")
_RELATED = re.compile(r"[<>=]|\\(?:le|ge|ne|in) ")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_SLASH = re.compile(r"(?<![\w}.)])(\d{1,9})\s*/\s*(\d{1,9})(?=\s*(?:\\pi|\\sqrt|[a-zA-Z]))")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*°")
_BINOMIAL = re.compile(r"\\[dt]?binom\s*(\{[^{}]*\}|\d)|(\\[dt]?binom)")
_SPECIAL = re.compile(r"\\(?:zeta|Gamma|psi|Beta|operatorname)[^+=,]{0,40}?(?:\^|\d{4})")


def too_big(text: str) -> str:
    """Return the reason why a text is too large for sympy, or ""."""
    if len(text) > MAX_LENGTH:
        return f"longer than {MAX_LENGTH} characters"
    if _FOREIGN.search(text):
        return "no mathematics"
    if re.search(rf"\d{{{MAX_DIGITS}}}", text):
        return f"a number of {MAX_DIGITS} digits or more"
    if text.count("&") + text.count(r"\\") > MAX_CELLS:
        return f"a matrix of more than {MAX_CELLS} entries"
    if text.count(r"\cup") + text.count(r"\cap") > MAX_CONDITIONS or text.count("_") > MAX_NAMES:
        return "too many sets or names"
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH or text.count("\\frac") > MAX_DEPTH or text.count("\\sqrt") > MAX_DEPTH:
        return "nested too deeply"
    if any(len(e) > 9 or int(e) > MAX_EXPONENT for e in _EXPONENT.findall(text)):
        return f"an exponent above {MAX_EXPONENT}"
    if _power_depth(text) > 2 or (
        _TOWER.search(text) and any(int(e) > 6 for e in _EXPONENT.findall(text))
    ):
        return "a tower of powers"
    if _CHAIN.search(text) or text.count(r"\exp") > 2 or _growth(text) > MAX_GROWTH:
        return "powers of powers"
    text = _NAMED_FACTORIAL.sub(" ", text)
    for number, closing, gamma in _FACTORIAL.findall(text):
        if closing or gamma or len(number) > 9 or int(number) > MAX_FACTORIAL:
            return f"a factorial above {MAX_FACTORIAL}"
    if sum(int(number) for number, _, _ in _FACTORIAL.findall(text) if number) > 4 * MAX_FACTORIAL:
        return "many large factorials"
    for top, bare in _BINOMIAL.findall(text):
        if bare or re.search(r"[\^!\\]|\d{5}", top):
            return f"a binomial above {MAX_EXPONENT}"
    if _SPECIAL.search(text):
        return "a special function of a large number"
    return ""


def _is_hard(text: str) -> bool:
    """Return whether sympy needs long to solve a relation."""
    highest = max((int(each) for each in _EXPONENT.findall(text)), default=1)
    rooted = highest > 2 and "\\sqrt" in text
    return highest > MAX_DEGREE or rooted or (text.count("|") > 2 and highest > 1)


def _power_depth(text: str) -> int:
    """Return the nesting depth of exponents."""
    opened: list[bool] = []
    deepest = 0
    for position, character in enumerate(text):
        if character == "{":
            opened.append(text[:position].rstrip().endswith("^"))
            deepest = max(deepest, sum(opened))
        elif character == "}" and opened:
            opened.pop()
    return deepest


def _growth(text: str) -> int:
    """Return the largest product of nested exponents, as in ((x+1)^{99})^{99}."""
    within, closed = [1], 1
    for position, character in enumerate(text):
        if character in "([{":
            within.append(1)
        elif character in ")]}" and len(within) > 1:
            closed = within.pop()
            within[-1] = max(within[-1], closed)
        elif character == "^" and (match := _EXPONENT.match(text, position)):
            inner = closed if text[:position].rstrip()[-1:] in (")", "]", "}") else 1
            within[-1] = max(within[-1], inner * max(1, int(match[1])))
    return max(within)


def same_expression(gold: str, text: str, tolerance: float | None = None) -> bool:
    """Return whether two canonical answers denote the same mathematical object.

    tolerance: maximum relative error of a number. 0: decimals are exact.

    3/2x is read as 3/(2x) and then as (3/2)x, because people write both.
    """
    if _same_expression(gold, text, tolerance):
        return True
    other = _SLASH.sub(r"\\frac{\1}{\2}", text)
    return other != text and _same_expression(gold, other, tolerance)


def _same_expression(gold: str, text: str, tolerance: float | None) -> bool:
    if too_big(gold) or too_big(text):
        return False
    expected, found = parse_latex(gold), parse_latex(text)
    if expected is None or found is None or _is_decided(expected) or _is_decided(found):
        return False
    try:
        if tolerance == 0:
            expected, found = _digits_only(expected), _digits_only(found)
        elif tolerance and _is_near(expected, found, tolerance):
            return True
        if _same_value(expected, found) or _same_formula(expected, found):
            return True
        if _proportional(gold, text):
            return True
        if _RELATED.search(gold + text) and any(_is_hard(each) for each in (gold, text)):
            return False
        return _grader().verify(
            expected,
            found,
            timeout_seconds=None,
            allow_set_relation_comp=True,
            raise_on_error=True,
        )
    except MemoryError:
        raise  # the worker ran out of memory: not judged
    except Exception:  # sympy raises many kinds for what it cannot compare
        return False


def _digits_only(expression: Any) -> Any:
    """Replace each decimal by the exact fraction of its digits."""
    from sympy import Float, Rational

    return expression.xreplace({each: Rational(str(each)) for each in expression.atoms(Float)})


def _is_near(gold: Any, found: Any, tolerance: float) -> bool:
    """Return whether a constant is within a relative error of the expected one."""
    from sympy import Expr

    if not isinstance(gold, Expr) or not isinstance(found, Expr):
        return False
    if gold.free_symbols or found.free_symbols:
        return False
    x, y = _complex(gold), _complex(found)
    return x is not None and y is not None and bool(abs(x - y) <= tolerance * abs(x))


def _is_decided(expression: Any) -> bool:
    """Return whether a relation has no unknown: 1 = 6 would equal any other false relation."""
    from sympy.logic.boolalg import Boolean

    return isinstance(expression, Boolean) and not expression.free_symbols


_ZERO = re.compile(r"([^=<>]+)=\s*0")


def _proportional(gold: str, text: str) -> bool:
    """Return whether two equations ``... = 0`` differ only by a constant factor."""
    matches = [_ZERO.fullmatch(each.strip()) for each in (gold, text)]
    if not all(matches):
        return False
    from sympy import Expr

    a, b = (parse_latex(match[1]) if match else None for match in matches)
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.free_symbols != b.free_symbols:
        return False
    symbols = sorted(a.free_symbols, key=str)
    points = _points(symbols) if symbols else []
    values = [(_complex(a.subs(p)), _complex(b.subs(p))) for p in points]
    if len(values) < 6 or any(x is None or y is None or not x or not y for x, y in values):
        return False
    first = values[0][0] / values[0][1]
    return all(abs(x / y / first - 1) < CLOSE for x, y in values)


@lru_cache(maxsize=1024)
def parse_latex(text: str) -> Any:
    """Return the sympy object of a canonical answer, or None if it is not mathematics."""
    _grader()
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import normalize_latex

    # Units are removed earlier, because math-verify would read the variable c in 3c as a unit.
    normalization = NormalizationConfig(
        basic_latex=True,
        units=False,
        malformed_operators=True,
        nits=True,
        boxed="none",
        equations=False,
    )
    if _TRIGONOMETRIC.search(text):
        text = _DEGREES.sub(r"(\1\\pi/180)", text)
    for sign in "°%$":
        text = text.replace(sign, "")
    named = as_names(text)
    found = None if named is None else _converted(normalize_latex(named, normalization))
    return None if found is None else _without_functions(_plain_symbols(found))


def _converted(latex: str) -> Any:
    """Parse LaTeX with the grammar. If it cannot parse an equation, parse the last side."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from math_verify.parser import get_last_eq, should_treat_as_complex

    if _is_misread(latex):
        return None
    config = ConversionConfig(lowercase_symbols=False)
    for each in dict.fromkeys((latex, get_last_eq(latex))):
        try:
            return latex2sympy(
                each,
                is_real=not should_treat_as_complex(each),
                normalization_config=None,
                conversion_config=config,
            )
        except MemoryError:
            raise  # the worker ran out of memory: not judged
        except Exception:  # the grammar raises many kinds for what it cannot read
            continue
    return None


_COMMAND = re.compile(r"\\[a-zA-Z]+")


def _is_misread(latex: str) -> bool:
    r"""Return whether the grammar lacks a command. It would read ``\ln`` in ``\lnot``."""
    from antlr4 import InputStream
    from latex2sympy2_extended.antlr_parser import PSLexer

    lexer: Any = PSLexer(InputStream(latex))
    lexer.removeErrorListeners()
    spans = [(token.start, token.stop + 1) for token in lexer.getAllTokens()]
    return any(
        not any(start <= each.start() and each.end() <= end for start, end in spans)
        for each in _COMMAND.finditer(latex)
    )


def _without_functions(expression: Any) -> Any:
    """Replace undefined functions and their derivatives by symbols.

    So does a derivative of one letter by another, which sympy would evaluate to 0.
    """
    from sympy import Basic, Derivative, Integral, MatrixBase, Symbol
    from sympy.core.function import AppliedUndef

    if not isinstance(expression, Basic) or isinstance(expression, MatrixBase):
        return expression

    def is_unknown(each: Any) -> bool:
        if isinstance(each, Derivative):
            inner = each.expr.free_symbols
            return each.has(AppliedUndef) or bool(inner - {*each.variables} and each.doit() == 0)
        return isinstance(each, Integral) and each.has(AppliedUndef)

    try:
        for kind in (is_unknown, lambda each: isinstance(each, AppliedUndef)):
            for each in sorted(
                filter(kind, expression.atoms(Derivative, Integral, AppliedUndef)), key=str
            ):
                expression = expression.xreplace({each: Symbol(str(each), real=True)})
    except Exception:  # sympy raises many kinds for what it cannot rebuild
        return None
    return expression


def _plain_symbols(expression: Any) -> Any:
    """Read i as the imaginary unit, and other symbols as real instead of complex."""
    from sympy import I, Symbol

    try:
        symbols = expression.free_symbols
        if all(symbol.is_real for symbol in symbols):
            return expression
        return expression.xreplace(
            {s: I if s.name == "i" else Symbol(s.name, real=True) for s in symbols}
        )
    except Exception:  # sympy raises many kinds for what it cannot rebuild
        return expression


def same_union(gold: list[list[str]], found: list[list[str]]) -> bool:
    """Return whether two unions of conditions (intervals and inequalities) are the same set."""
    texts = [text for side in (gold, found) for piece in side for text in piece]
    if len(texts) > MAX_CONDITIONS or any(too_big(text) for text in texts):
        return False
    from sympy import Intersection, Union

    sets = [[[_as_set(text) for text in piece] for piece in side] for side in (gold, found)]
    if any(each is None for side in sets for piece in side for each in piece):
        return False
    try:
        expected, answered = (Union(*(Intersection(*piece) for piece in side)) for side in sets)
        return bool(expected.symmetric_difference(answered).is_empty)
    except Exception:  # as above
        return False


def _as_set(text: str) -> Any:
    from sympy import Expr, Set

    expression = parse_latex(text)
    try:
        if isinstance(expression, Set):
            return expression
        if isinstance(expression, Expr):
            return None  # "x > 3 or 17": the second part is not a condition
        return _grader().unwrap_fcs(expression).as_set()
    except Exception:  # as above
        return None


@lru_cache(maxsize=1)
def _grader() -> Any:
    """Import and silence math-verify, and replace its rounding comparisons by exact ones."""
    with slow_import():
        from math_verify import grader

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    grader.sympy_numeric_eq = _same_value
    grader.sympy_symbolic_eq = _same_formula
    grader.sympy_compare_symbols = _same_symbol
    return grader


def _same_value(a: Any, b: Any, float_rounding: int = 0, numeric_precision: int = 0) -> bool:
    """Compare two constants, or two matrices, by relative difference."""
    from sympy import Expr, MatrixBase, MatrixExpr

    matrices = (MatrixBase, MatrixExpr)
    if isinstance(a, matrices) or isinstance(b, matrices):
        a, b = _done(a), _done(b)
        if not (isinstance(a, MatrixBase) and isinstance(b, MatrixBase)) or a.shape != b.shape:
            return False
        pairs = zip(a.flat(), b.flat(), strict=True)
        return all(_same_value(x, y) or _same_formula(x, y) for x, y in pairs)
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.free_symbols or b.free_symbols:
        return False
    return bool(_compare_at(a, b, {}))


def _same_symbol(a: Any, b: Any) -> bool:
    """Compare names as written. math-verify's own comparison ignores case."""
    names = [_letters_of(each) for each in (a, b)]
    return bool(names[0] and names[0] == names[1])


def _letters_of(expression: Any) -> str:
    """Return the letters of a name or of a product of names. ``abc`` can be either."""
    from sympy import E, Mul, Symbol

    factors: tuple[Any, ...] = expression.args if isinstance(expression, Mul) else (expression,)
    if not all(each == E or isinstance(each, Symbol) for each in factors):
        return ""
    return "".join("e" if each == E else str(each.name) for each in factors)


def _same_formula(a: Any, b: Any) -> bool:
    """Compare two formulas: first at points, which is fast and often decides, then by algebra."""
    from sympy import Expr, MatrixBase, simplify

    if isinstance(a, MatrixBase) or isinstance(b, MatrixBase):
        return False  # compared entry by entry before
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols and _compare_at(a, b, {}) is False and not (_is_tiny(a) or _is_tiny(b)):
        return False
    outcomes = [_compare_at(a, b, point) for point in _points(symbols)] if symbols else []
    if any(outcome is False for outcome in outcomes):
        return False
    if sum(outcome is True for outcome in outcomes) >= 6:
        return True
    difference = simplify(_done(a) - _done(b))
    return bool(difference.is_zero)


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    """Return eight fixed points of mixed signs that are no exact fractions."""
    from sympy import Float

    draw = random.Random(20240607)
    signs = ((1,), (-1,), (1, -1), (1,))
    return [
        {
            symbol: Float(draw.choice(signs[n % 4]) * draw.randint(1, 997), 2 * PRECISION)
            / draw.choice((101, 211, 997))
            for symbol in symbols
        }
        for n in range(8)
    ]


def _compare_at(a: Any, b: Any, point: dict[Any, Any]) -> bool | None:
    """Compare the values at a point. Return None if either has no finite value."""
    from sympy import Float

    floats_a, floats_b = bool(a.atoms(Float)), bool(b.atoms(Float))
    if point:
        a, b = a.subs(point), b.subs(point)
    elif not (floats_a or floats_b):
        a, b = _done(a), _done(b)
    if a.is_Rational and b.is_Rational and not (floats_a or floats_b):
        return bool(a == b)
    x, y = _complex(a), _complex(b)
    if x is None or y is None:
        return None
    scale = abs(x)
    if not scale or not abs(y):
        return bool(scale == abs(y))
    difference = abs(x - y) / scale
    if floats_a and floats_b:
        return bool(difference <= FLOAT_CLOSE)
    if floats_a or floats_b:
        exact = x if floats_b else y
        return bool(difference <= (FLOAT_CLOSE if point or _terminates(exact) else ROUNDED_CLOSE))
    return bool(difference <= CLOSE)


def _terminates(value: Any) -> bool:
    """Return whether a number is an integer or a short decimal, and so was not rounded."""
    scaled = value * 10**9
    return not value.has(_imaginary()) and bool(abs(scaled - round(scaled)) < 1e-18)


def _imaginary() -> Any:
    from sympy import I

    return I


def _complex(expression: Any) -> Any:
    """Return a number with `PRECISION` digits, or None."""
    try:
        value = _done(expression).evalf(PRECISION)
        real, imaginary = value.as_real_imag()
        if not (real.is_Number and imaginary.is_Number and value.is_finite):
            return None
    except Exception:  # sympy raises many kinds for what it cannot evaluate
        return None
    return value


def _is_tiny(expression: Any) -> bool:
    """Return whether a value is so small that it may be exactly zero."""
    value = _complex(expression)
    return value is None or bool(abs(value) < CLOSE)


def _done(expression: Any) -> Any:
    try:
        return expression.doit()
    except Exception:  # sympy raises many kinds; what it cannot evaluate is compared as it is
        return expression
