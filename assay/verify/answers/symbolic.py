"""Compare formulas with math-verify and sympy, with fixes for math-verify's known faults.

math-verify implements its own time limits with signals. The time limits of math-verify are off,
because the service kills a worker at its deadline. math-verify compares numbers after rounding them
to a fixed number of decimals, so that 1e-7 equals 0. The module replaces math-verify's comparison
of numbers by a comparison with relative differences.

Texts reach sympy only through a LaTeX grammar, never through `sympify`, which evaluates Python
code. `too_big` limits the size of a text before it is parsed.
"""

from __future__ import annotations

import logging
import random
import re
from functools import lru_cache
from typing import Any

from assay.host.imports import slow_import
from assay.verify.answers.formula_size import MAX_CONDITIONS, is_hard, too_big
from assay.verify.answers.notation import as_names

# Number of decimal digits of a numeric comparison.
PRECISION = 40
# Maximum relative difference between two equal exact numbers, which allows rounding errors after
# ten digits.
CLOSE = 1e-30
FLOAT_CLOSE = 1e-12
# Maximum relative difference between a number and its decimal with six digits, such as 10/3 and
# 3.33333.
ROUNDED_CLOSE = 1.001e-6

_RELATED = re.compile(r"[<>=]|\\(?:le|ge|ne|in) ")
_TRIGONOMETRIC = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_SLASH = re.compile(r"(?<![\w}.)])(\d{1,9})\s*/\s*(\d{1,9})(?=\s*(?:\\pi|\\sqrt|[a-zA-Z]))")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*°")


def same_expression(gold: str, text: str, tolerance: float | None = None) -> bool:
    """Return whether two canonical answers denote the same mathematical object.

    tolerance: maximum relative error of a number. 0: decimals are exact. With the value None, a
        decimal may round a number without a finite decimal form.
    """
    # Authors write 3/2x for both 3/(2x) and (3/2)x, so the answer may mean either.
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
        if _RELATED.search(gold + text) and any(is_hard(each) for each in (gold, text)):
            return False
        return _grader().verify(
            expected,
            found,
            timeout_seconds=None,
            allow_set_relation_comp=True,
            raise_on_error=True,
        )
    # A worker that runs out of memory has not judged the answer.
    except MemoryError:
        raise
    except Exception:  # sympy raises exceptions of many classes for objects that it cannot compare.
        return False


def _digits_only(expression: Any) -> Any:
    """Replace each decimal in an expression by the exact fraction of its digits."""
    from sympy import Float, Rational

    return expression.xreplace({each: Rational(str(each)) for each in expression.atoms(Float)})


def _is_near(gold: Any, found: Any, tolerance: float) -> bool:
    """Return whether ``found`` is a constant within a relative error of the constant ``gold``."""
    from sympy import Expr

    if not isinstance(gold, Expr) or not isinstance(found, Expr):
        return False
    if gold.free_symbols or found.free_symbols:
        return False
    x, y = _complex(gold), _complex(found)
    return x is not None and y is not None and bool(abs(x - y) <= tolerance * abs(x))


def _is_decided(expression: Any) -> bool:
    """Return whether an expression is a relation without an unknown, such as 1 = 6."""
    # sympy evaluates a relation of numbers to True or False, so 1 = 6 would equal any false
    # relation.
    from sympy.logic.boolalg import Boolean

    return isinstance(expression, Boolean) and not expression.free_symbols


_ZERO = re.compile(r"([^=<>]+)=\s*0")


def _proportional(gold: str, text: str) -> bool:
    """Return whether two equations with right side 0 differ only by a constant factor."""
    matches = [_ZERO.fullmatch(each.strip()) for each in (gold, text)]
    if not all(matches):
        return False
    from sympy import Expr

    a, b = (parse_latex(match[1]) if match else None for match in matches)
    if not isinstance(a, Expr) or not isinstance(b, Expr) or a.free_symbols != b.free_symbols:
        return False
    symbols = sorted(a.free_symbols, key=str)
    points = _points(symbols) if symbols else []
    # Two equations are proportional if the quotient of their left sides is constant.
    values = [(_complex(a.subs(p)), _complex(b.subs(p))) for p in points]
    if len(values) < 6 or any(x is None or y is None or not x or not y for x, y in values):
        return False
    first = values[0][0] / values[0][1]
    return all(abs(x / y / first - 1) < CLOSE for x, y in values)


@lru_cache(maxsize=1024)
def parse_latex(text: str) -> Any:
    """Return the sympy object of a canonical answer, or None if the grammar cannot parse it."""
    _grader()
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import normalize_latex

    # Units were removed before. math-verify would remove the variable c in 3c, because it treats c
    # as a unit.
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
    """Parse LaTeX with the grammar; if the grammar cannot parse an equation, parse only its last
    side."""
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
        # A worker that runs out of memory has not judged the answer.
        except MemoryError:
            raise
        except Exception:  # The LaTeX grammar raises exceptions of many classes for invalid text.
            continue
    return None


_COMMAND = re.compile(r"\\[a-zA-Z]+")


def _is_misread(latex: str) -> bool:
    r"""Return whether the text has a LaTeX command that the grammar does not know."""
    # The LaTeX grammar's lexer would split an unknown command: \lnot becomes \ln and the letters o,
    # t.
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
    """Replace undefined functions, their derivatives and their integrals by symbols.

    A derivative of one letter by another letter becomes a symbol too, because sympy would evaluate
    it to 0.
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
        # Derivatives contain functions, so derivatives are replaced before functions.
        for kind in (is_unknown, lambda each: isinstance(each, AppliedUndef)):
            for each in sorted(
                filter(kind, expression.atoms(Derivative, Integral, AppliedUndef)), key=str
            ):
                expression = expression.xreplace({each: Symbol(str(each), real=True)})
    except Exception:  # sympy raises exceptions of many classes for some expressions.
        return None
    return expression


def _plain_symbols(expression: Any) -> Any:
    """Replace the symbol i by the imaginary unit, and complex symbols by real symbols."""
    from sympy import I, Symbol

    try:
        symbols = expression.free_symbols
        if all(symbol.is_real for symbol in symbols):
            return expression
        return expression.xreplace(
            {s: I if s.name == "i" else Symbol(s.name, real=True) for s in symbols}
        )
    except Exception:  # sympy raises exceptions of many classes for some expressions.
        return expression


def same_union(gold: list[list[str]], found: list[list[str]]) -> bool:
    """Return whether two unions of intervals and inequalities are the same set of numbers.

    gold, found: lists of alternatives. Each alternative of a condition is a list of conditions that
        hold jointly.
    """
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
    except Exception:  # sympy raises exceptions of many classes for sets that it cannot compare.
        return False


def _as_set(text: str) -> Any:
    from sympy import Expr, Set

    expression = parse_latex(text)
    try:
        if isinstance(expression, Set):
            return expression
        if isinstance(expression, Expr):
            # A value, such as 17 in "x > 3 or 17", is no condition.
            return None
        return _grader().unwrap_fcs(expression).as_set()
    except Exception:  # sympy raises exceptions of many classes for some relations.
        return None


@lru_cache(maxsize=1)
def _grader() -> Any:
    """Import math-verify without its logging, and replace its comparisons that round numbers."""
    with slow_import():
        from math_verify import grader

    # math-verify 0.9 logs a warning at each call without its own time limit.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)
    grader.sympy_numeric_eq = _same_value
    grader.sympy_symbolic_eq = _same_formula
    grader.sympy_compare_symbols = _same_symbol
    return grader


def _same_value(a: Any, b: Any, float_rounding: int = 0, numeric_precision: int = 0) -> bool:
    """Compare two constants, or the entries of two matrices, by relative difference."""
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
    """Compare two names as written. math-verify's own comparison ignores case."""
    names = [_letters_of(each) for each in (a, b)]
    return bool(names[0] and names[0] == names[1])


def _letters_of(expression: Any) -> str:
    """Return the letters of a name or of a product of names, because ``abc`` can be either."""
    from sympy import E, Mul, Symbol

    factors: tuple[Any, ...] = expression.args if isinstance(expression, Mul) else (expression,)
    if not all(each == E or isinstance(each, Symbol) for each in factors):
        return ""
    return "".join("e" if each == E else str(each.name) for each in factors)


def _same_formula(a: Any, b: Any) -> bool:
    """Compare two formulas, first by their values at eight points, then by algebra."""
    from sympy import Expr, MatrixBase, simplify

    if isinstance(a, MatrixBase) or isinstance(b, MatrixBase):
        # Matrices need no comparison here, because `_same_value` has compared them entry by entry.
        return False
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
    # Simplifying can take seconds, so it runs only if comparing values at points does not decide.
    difference = simplify(_done(a) - _done(b))
    return bool(difference.is_zero)


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    """Return eight points of mixed signs, each a mapping from symbols to numbers."""
    # A fixed seed makes verdicts reproducible.
    # The numbers are floats, because sympy would evaluate large powers of exact fractions exactly.
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
    """Compare the values of two formulas at a point. Return None if a number is not finite."""
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
    """Return whether a number has at most nine decimals, so that its decimal needs no rounding."""
    scaled = value * 10**9
    return not value.has(_imaginary()) and bool(abs(scaled - round(scaled)) < 1e-18)


def _imaginary() -> Any:
    from sympy import I

    return I


def _complex(expression: Any) -> Any:
    """Evaluate an expression to `PRECISION` digits.

    Return None if a formula has no finite value.
    """
    try:
        value = _done(expression).evalf(PRECISION)
        real, imaginary = value.as_real_imag()
        if not (real.is_Number and imaginary.is_Number and value.is_finite):
            return None
    except Exception:  # sympy raises exceptions of many classes for some expressions.
        return None
    return value


def _is_tiny(expression: Any) -> bool:
    """Return whether a value is so small that it may be exactly zero."""
    value = _complex(expression)
    return value is None or bool(abs(value) < CLOSE)


def _done(expression: Any) -> Any:
    try:
        return expression.doit()
    except Exception:  # An expression that sympy cannot evaluate is compared unevaluated.
        return expression
