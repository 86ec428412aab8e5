"""Let sympy parse text in the tests' process without executing code in the text.

``sympy.sympify`` and ``parse_expr`` evaluate text as Python. Tests may parse a string that the
submission returned. Code in a parsed string would run in the process with the expected values, and
could decide the verdict. Parsed text may therefore name only sympy's classes, numbers and a few
functions, and must not read attributes.

The source of this file is sent to the tests' process, so it imports no part of Assay.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from typing import Any

_FUNCTIONS = """
    sqrt cbrt root real_root diff integrate limit summation product simplify expand factor Abs
    abs max min sum pow round divmod
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
# In Python, attributes give access to any object. All other node types run code or bind names.
FORBIDDEN = (
    ast.Attribute,
    ast.Lambda,
    ast.JoinedStr,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.NamedExpr,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.Starred,
)


def check(code: str, names: dict[str, Any], basic: type) -> None:
    """Raise ValueError if code could do more than build an expression of sympy.

    code: the Python expression into which sympy translated a text.
    names: values of the names that the expression may use.
    basic: sympy's base class of expressions.
    """
    for node in ast.walk(ast.parse(code.strip(), mode="eval")):
        if isinstance(node, FORBIDDEN):
            raise ValueError(f"an expression with {type(node).__name__}, which is not evaluated")
        if isinstance(node, ast.Name) and node.id not in FUNCTIONS:
            found = names.get(node.id, getattr(builtins, node.id, None))
            is_class = isinstance(found, type) and issubclass(found, basic)
            if not is_class and not isinstance(found, (basic, bool)):
                raise ValueError(f"an expression that uses {node.id}, which is not evaluated")


def guard(parser: Any, basic: type) -> None:
    """Replace the evaluation in sympy's parser by an evaluation that first checks the code."""
    evaluate = parser.eval_expr

    def checked(code: str, local_dict: dict[str, Any], global_dict: dict[str, Any]) -> Any:
        check(code, {**global_dict, **local_dict}, basic)
        return evaluate(code, local_dict, global_dict)

    # `parse_expr`, which `sympify` calls, looks this function up in its module at each call.
    parser.eval_expr = checked


if "sympy" in sys.modules:
    guard(importlib.import_module("sympy.parsing.sympy_parser"), sys.modules["sympy"].Basic)
