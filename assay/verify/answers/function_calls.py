"""Verifier ``function_calls``: check that a reply makes the expected function calls.

The rules are those of the Berkeley Function-Calling Leaderboard (Patil et al., 2025, BFCL) for
calls that are compared without execution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, list_of, listed
from assay.types import Completion, Problem
from assay.verify.answers.call_formats import FORMATS
from assay.verify.answers.calls import (
    MAX_CALLS,
    BadCalls,
    FunctionCall,
    NoCalls,
    is_attempt,
    read_calls,
)
from assay.verify.answers.spans import best_sum
from assay.verify.base import Part, Verifier, spec_check

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "float": (float, int),
    "number": (float, int),
    "boolean": (bool,),
    "array": (list,),
    "tuple": (list, tuple),
    "dict": (dict,),
    "object": (dict,),
    # BFCL's own checker reads an argument of the type any as a string.
    "any": (str,),
    "null": (type(None),),
}
# Maximum number of functions that a problem's row may offer.
MAX_FUNCTIONS = 1000
OPTIONAL = ""
"""An accepted value which means that the call may omit the parameter."""
_PARTS: tuple[tuple[str, type, str], ...] = (
    ("properties", dict, 'an object: {NAME: {"type"}}'),
    ("required", list, "a list of names"),
)
_IGNORED = re.compile(r"[ ,./\-_*^]")

Named = Mapping[str, Any]


def judge_calls(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the reply makes exactly the expected calls, in any order, else 0.

    Reads ``function`` and ``ground_truth`` from the spec. If no call is expected, a reply without
    calls passes, unless the reply is blank or contains a possible call. Arguments must have their
    declared types, but a whole number is accepted as a float. Strings are compared without regard
    to case, spaces and the characters ``,./-_*^``. A call must omit each parameter for which the
    row accepts no value.
    """
    functions, expected = read_spec(problem)
    text = completion.answer_text
    try:
        calls = [call.typed(_properties(functions.get(call.name, {}))) for call in read_calls(text)]
    except BadCalls as error:
        return Part(0.0, detail=f"{error}")
    except NoCalls as error:
        right = bool(text.strip()) and not expected and not is_attempt(text, functions)
        return Part(float(right), detail=f"{error}")
    if not calls and not expected and is_attempt(text, functions):
        return Part(0.0, detail="a call in addition to an empty list")
    shown = ", ".join(call.name for call in calls)
    if len(calls) != len(expected):
        detail = f"{len(calls)} calls; accepted: {len(expected)}"
        return Part(0.0, extracted=shown, detail=detail)
    faults = [[fault(call, functions, one) for call in calls] for one in expected]
    fits = [[float(not said) for said in row] for row in faults]
    # Matching calls is an assignment problem: two equal expected calls need two calls in the reply.
    if best_sum(fits, len(calls)) == len(calls):
        return Part(1.0, extracted=shown)
    first = next((row for row in faults if all(row)), [""])
    return Part(0.0, extracted=shown, detail=first[0] or "two calls where one is expected twice")


def read_spec(problem: Problem) -> tuple[Named, list[tuple[str, Named]]]:
    """Return the parameters of each function, and the accepted arguments of each expected call.

    Raises VerifierError if the spec is malformed.
    """
    where = f"problem {problem.id}: spec"
    functions: dict[str, Any] = {}
    for function in FUNCTION.read(problem):
        functions[function["name"]] = parameters = function.get("parameters") or {}
        for key, kind, accepted in _PARTS:
            if not isinstance(value := parameters.get(key) or kind(), kind):
                found = f"{key} {value!r:.60} of {function['name']}"
                raise VerifierError(message(f"{where}.function", found, accepted))
        for name, parameter in _properties(parameters).items():
            if not _types(parameter):
                kind = cast("Named", parameter).get("type") if _is_table(parameter) else None
                found = f"{name} of type {kind!r:.60}"
                accepted = f"{', '.join(TYPES)}, or a list of them"
                raise VerifierError(message(f"{where}.function", found, accepted))
    expected: list[tuple[str, Named]] = []
    for call in GROUND_TRUTH.read(problem):
        ((name, accepted),) = call.items()
        if name not in functions:
            known = f"one of {', '.join(functions)}"
            raise VerifierError(message(f"{where}.ground_truth", repr(name), known))
        expected.append((name, accepted))
    return functions, expected


def fault(call: FunctionCall, functions: Named, expected: tuple[str, Named]) -> str:
    """Return the fault of a call without the expected value, or "" for a correct call."""
    name, accepted = expected
    if call.name != name:
        return f"{call.name}: another function is expected"
    parameters = functions[name]
    properties = _properties(parameters)
    for required in parameters.get("required") or ():
        if required not in call.arguments:
            return f"{name}: lacks {required}"
    for key, value in call.arguments.items():
        if key not in properties or key not in accepted:
            return f"{name}: {key} is not expected"
        if not _is_accepted(value, properties[key], accepted[key]):
            return f"{name}: {key} has another type or value"
    for key, values in accepted.items():
        if key not in call.arguments and OPTIONAL not in values:
            return f"{name}: lacks {key}"
    return ""


def _properties(parameters: Named) -> Named:
    return parameters.get("properties") or {}


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _types(parameter: Any) -> tuple[type, ...]:
    """Return the Python types that a parameter's schema allows, or () if a type is unknown."""
    kinds = listed(parameter.get("type")) if _is_table(parameter) else ()
    if not all(isinstance(kind, str) and kind in TYPES for kind in kinds):
        return ()
    return tuple(each for kind in kinds for each in TYPES[kind])


def _is_accepted(value: Any, parameter: Named, accepted: Sequence[Any]) -> bool:
    """Return whether an argument has the declared type and equals an accepted value.

    An argument without the declared type is accepted only if it equals an accepted value of its own
    type literally, such as a variable's name.
    """
    if not _has_type(value, _types(parameter)):
        return any(
            one != OPTIONAL and type(one) is type(value) and one == value for one in accepted
        )
    inner = _types(parameter.get("items"))
    if isinstance(value, list | tuple) and inner:
        each = cast("Sequence[Any]", value)
        if not all(_has_type(one, inner) for one in each):
            return False
    return any(equal(value, one) for one in accepted if one != OPTIONAL or value == OPTIONAL)


def _has_type(value: Any, types: tuple[type, ...]) -> bool:
    # `isinstance` would accept True as an integer.
    return type(value) in types


def equal(value: Any, accepted: Any) -> bool:
    """Return whether an argument's value equals an accepted value by BFCL's rules.

    Lists are compared element by element. An accepted JSON object maps each key to a list of
    accepted values.
    """
    if isinstance(value, str) and isinstance(accepted, str):
        return plain(value) == plain(accepted)
    if isinstance(value, dict) and isinstance(accepted, dict):
        given, wanted = cast("dict[str, Any]", value), cast("dict[str, Any]", accepted)
        if any(OPTIONAL not in listed(wanted[key]) for key in wanted.keys() - given.keys()):
            return False
        return given.keys() <= wanted.keys() and all(
            any(equal(one, other) for other in listed(wanted[key])) for key, one in given.items()
        )
    if isinstance(value, list | tuple) and isinstance(accepted, list | tuple):
        first, second = cast("Sequence[Any]", value), cast("Sequence[Any]", accepted)
        return len(first) == len(second) and all(map(equal, first, second))
    return isinstance(value, bool) == isinstance(accepted, bool) and value == accepted


def plain(text: str) -> str:
    """Normalize a string by BFCL's rules: "April 1, 2024" becomes "april12024"."""
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _is_function(value: Any) -> bool:
    one = cast("Named", value)
    named = isinstance(value, Mapping) and isinstance(one.get("name"), str)
    return named and isinstance(one.get("parameters") or {}, Mapping)


def _is_call(value: Any) -> bool:
    one = cast("Named", value)
    if not isinstance(value, Mapping) or len(one) != 1:
        return False
    (accepted,) = one.values()
    return isinstance(accepted, Mapping) and all(
        isinstance(each, list) for each in cast("Named", accepted).values()
    )


FUNCTION = Field(
    "function",
    'a list of {"name", "parameters": {"properties": {...}, "required": [...]}}',
    needed=True,
    check=list_of(_is_function, MAX_FUNCTIONS),
)
GROUND_TRUTH = Field(
    "ground_truth",
    "a list of expected calls, {NAME: {PARAMETER: [accepted values]}}; "
    'the value "": the parameter may be omitted',
    needed=True,
    check=list_of(_is_call, MAX_CALLS),
)
FUNCTION_CALLS = Verifier(
    name="function_calls",
    version=2,
    judge=judge_calls,
    check_spec=spec_check(read_spec),
    domain="calls of functions (tools), as in the Berkeley Function-Calling Leaderboard",
    fields=(FUNCTION, GROUND_TRUTH),
    accepts="the expected calls in any order, as `[f(a=1), g(b='x')]`, as JSON objects with `name` "
    "and `arguments`, or in the call markup of chat models "
    f"({', '.join(each.name for each in FORMATS)}). In a reply with call markup, calls outside it "
    "count too. In a reply without call markup, only the last fenced block counts if there is one. "
    "If no call is expected: a reply without anything that looks like a call",
    text_only=True,
    cached=True,
)
