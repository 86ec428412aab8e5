"""The tool ``calculator``: arithmetic on large numbers, without access to Python."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

from assay.generate.turns.tool import Tool, ToolError

# Maximum number of characters of an expression.
MAX_TEXT = 1000
# Maximum number of bits of an intermediate result.
# Python refuses to write integers of more than 4,300 digits, which are 14,284 bits.
MAX_BITS = 13_000
# Maximum nesting depth of brackets and operators.
MAX_DEPTH = 100

Number = Fraction | float

_BINARY: Mapping[type, Callable[[Any, Any], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
}
_FUNCTIONS: Mapping[str, Callable[[Any], Number]] = {
    "abs": abs,
    "sqrt": lambda value: _root(value),
    "exp": math.exp,
    "log": math.log,
    "log10": math.log10,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
}
_NAMES: Mapping[str, Number] = {"pi": math.pi, "e": math.e}
ACCEPTED = f"numbers, + - * / // % ** and brackets, {', '.join(_FUNCTIONS)}, {', '.join(_NAMES)}"


def calculate(expression: str) -> str:
    """Return the value of an expression. Raises ToolError.

    Integers and fractions are computed exactly. Results that are not integers are written with 12
    digits.
    """
    if len(expression) > MAX_TEXT:
        raise ToolError(f"an expression of more than {MAX_TEXT} characters")
    text = expression.strip().rstrip("=").replace("^", "**").replace("\N{MULTIPLICATION SIGN}", "*")
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body, 0)
        return f"{int(value)}" if _is_whole(value) else f"{float(value):.12g}"
    except ToolError:
        raise
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ToolError(f"no expression; accepted: {ACCEPTED}") from error
    except (ValueError, TypeError, ArithmeticError) as error:
        raise ToolError(f"no result: {error}") from error


def _is_whole(value: Number) -> bool:
    return isinstance(value, Fraction) and value.denominator == 1


def _value(node: ast.expr, depth: int) -> Number:
    inner = partial(_value, depth=depth + 1)
    if depth > MAX_DEPTH:
        raise ToolError("brackets too deep")
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            # The number is read from the source text, because the float 0.1 is not exactly 1/10.
            return _small(Fraction(ast.unparse(node)) if math.isfinite(number) else number)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub()):
            return -inner(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return inner(node.operand)
        case ast.BinOp(op=ast.Pow()):
            return _power(inner(node.left), inner(node.right))
        case ast.BinOp(op=op) if type(op) in _BINARY:
            return _small(_BINARY[type(op)](inner(node.left), inner(node.right)))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _small(_FUNCTIONS[name](inner(argument)))
        case _:
            pass
    raise ToolError(f"{ast.unparse(node):.40} is not known; accepted: {ACCEPTED}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        # A power can take unlimited time and memory, so its size is checked in advance.
        if _bits(base) * abs(exponent) > MAX_BITS:
            raise ToolError("a number too large")
        return base ** int(exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise ToolError("a root of a negative number")
    return result


def _root(value: Number) -> Number:
    if _is_whole(value) and value >= 0 and math.isqrt(int(value)) ** 2 == value:
        return Fraction(math.isqrt(int(value)))
    return math.sqrt(value)


def _small(value: Number) -> Number:
    if isinstance(value, float) and not math.isfinite(value):
        raise ToolError("a number too large")
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        raise ToolError("a number too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _run(arguments: Mapping[str, Any]) -> str:
    return calculate(str(arguments["expression"]))


CALCULATOR = Tool(
    name="calculator",
    description="Returns the value of an arithmetic expression, such as 12 * (3 + 4).",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "The expression."}},
        "required": ["expression"],
    },
    open=lambda: _run,
)
