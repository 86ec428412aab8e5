"""Parse function calls in text: Python syntax, JSON, or the markup of chat models."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from assay.verify.answers.call_formats import (
    BadCalls,
    FunctionCall,
    NoCalls,
    marked_calls,
    with_plain_tokens,
)
from assay.verify.answers.commitment import MAX_TEXT as MAX_REPLY
from assay.verify.answers.commitment import clipped
from assay.verify.answers.json_answers import BadJson, check_size, every_json

MAX_TEXT = 20_000
MAX_CALLS = 64
_FENCE = re.compile(r"```[ \t]*(?:\w+)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_CALL = re.compile(r"\[?\s*[A-Za-z_][\w.]*\s*\(")
# A call starts its line and has an argument or empty parentheses.
# Words such as "Function(s)" and "Sorry (none)" therefore do not match the pattern of a call.
_LIKE_CALL = re.compile(
    r"^[ \t]*(?:\[\s*)?[A-Za-z_][\w.]*(?:\(\s*[\"'*\[{\d-]|\s*\(\s*(?:\)|[A-Za-z_]\w*\s*=[^=]))",
    re.MULTILINE,
)
_LIKE_JSON = re.compile(r"""["']arguments["']\s*:""")
_NAMES = ("name", "function", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args", "input")


def read_calls(text: str) -> list[FunctionCall]:
    """Return the function calls of a reply.

    Accepts ``[f(a=1), g(b="x")]``, JSON objects or lists of ``{"name", "arguments"}`` or ``{NAME:
    {...}}``, and the markup in `call_formats`. If a reply has call markup, calls outside the markup
    count too. In a reply without call markup, only the last fenced block is parsed if the reply has
    one.

    Raises NoCalls if the reply contains no call, and BadCalls if a call is invalid.
    """
    text = with_plain_tokens(text) if len(text) <= MAX_REPLY else text
    if len(text) > MAX_REPLY or len(text := clipped(text)) > MAX_TEXT:
        raise BadCalls(f"more than {MAX_TEXT} characters")
    calls, outside = marked_calls(text, lambda part: calls_in(part, "an empty tag"))
    if calls:
        with suppress(NoCalls):
            calls += calls_in(outside)
    else:
        calls = calls_in((_FENCE.findall(outside)[-1:] or [outside])[0].strip())
    if len(calls) > MAX_CALLS:
        raise BadCalls(f"more than {MAX_CALLS} calls")
    return calls


def is_attempt(text: str, names: Iterable[str]) -> bool:
    """Return whether a text contains a possible call of one of the named functions."""
    text, one = clipped(with_plain_tokens(text)), "|".join(map(re.escape, names))
    called = rf"(?<![\w.])(?:{one})(?:\(|\s+\(\s*(?:\)|[\"'\[{{]|[A-Za-z_]\w*\s*=))"
    keys = "|".join(_NAMES)
    quoted = rf"""["'](?:{keys})["']\s*:\s*["'](?:{one})["']|["'](?:{one})["']\s*:\s*\{{"""
    return bool(one) and re.search(f"{called}|{quoted}", text) is not None


def calls_in(text: str, empty: str = "") -> list[FunctionCall]:
    """Return the calls in a part of a reply, such as the content of a tag.

    empty: "" if the text may lack a call, else any other string, as for the content of a tag. If a
        text has no call, the function raises NoCalls if ``empty`` is "", else BadCalls.

    Raises the same exceptions as `read_calls`.
    """
    if _CALL.match(text):
        try:
            return _of_python(text)
        except SyntaxError as error:
            if empty or text[0] == "[" or _LIKE_CALL.search(text):
                raise BadCalls("no call: it is not a Python expression") from error
    elif _LIKE_CALL.search(text):
        raise BadCalls("no call: text, or calls in another form, before it")
    try:
        values = list(every_json(text))
    except BadJson as error:
        raise BadCalls(f"no call: {error}") from error
    calls = [call for value in values for call in _of_json(value)]
    # A reply "[]" states that no call is needed.
    if calls or (values and not any(values)):
        return calls
    if empty or _LIKE_JSON.search(text):
        raise BadCalls("no call: it is not a JSON value")
    raise NoCalls("no call")


def _of_python(text: str) -> list[FunctionCall]:
    try:
        with warnings.catch_warnings():
            # Python warns about invalid backslash escapes in the reply's strings.
            warnings.simplefilter("ignore")
            node = ast.parse(text, mode="eval").body
        nodes = node.elts if isinstance(node, ast.List) else [node]
        return [_of_node(one) for one in nodes]
    # CPython's parser raises MemoryError if its stack is full.
    except (RecursionError, MemoryError, BadJson) as error:
        raise BadCalls("no call: an expression that is too large") from error
    # `BadCalls` is a ValueError too, and Python 3.11's parser raises ValueError for a null byte.
    except ValueError as error:
        raise BadCalls(f"{error}" if isinstance(error, BadCalls) else "no call") from error


def _of_node(node: ast.expr) -> FunctionCall:
    if not isinstance(node, ast.Call) or node.args:
        raise BadCalls("no call: each argument needs its name")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise BadCalls("no call: arguments behind **, or the same one twice")
        arguments[keyword.arg] = _value(keyword.value)
    check_size(arguments)
    return FunctionCall(ast.unparse(node.func), arguments)


def _value(node: ast.expr) -> Any:
    """Return a literal's value.

    For a variable or another expression as an argument, return its source text.
    """
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)


def _of_json(value: Any) -> list[FunctionCall]:
    """Return the calls in a JSON value, which is one call or a list of calls.

    Return an empty list if no object in the value resembles a function call. Raises BadCalls if
    only some of the JSON objects resemble calls.
    """
    each = cast("list[Any]", value) if isinstance(value, list) else [value]
    calls = [_of_object(one) for one in each]
    if any(calls) and not all(calls):
        raise BadCalls("no call: an object with a name and arguments is needed")
    return [call for call in calls if call]


def _of_object(value: Any) -> FunctionCall | None:
    """Return a JSON object as a call, or None for objects such as ``{"error": "no function"}``."""
    if not isinstance(value, dict):
        return None
    given = cast("dict[str, Any]", value)
    inner = given.get("function")
    # Servers with the OpenAI protocol nest a call's name and arguments under "function".
    if isinstance(inner, dict):
        given = cast("dict[str, Any]", inner)
    name = next((given[key] for key in _NAMES if isinstance(given.get(key), str)), None)
    if name is None and len(given) == 1:
        ((name, arguments),) = given.items()
        if not isinstance(arguments, dict):
            return None
    elif name is None and not any(key in given for key in (*_NAMES, *_ARGUMENTS)):
        return None
    else:
        arguments = next((given[key] for key in _ARGUMENTS if key in given), {})
    # In the OpenAI protocol, the arguments are a string that contains JSON.
    if isinstance(arguments, str):
        try:
            (arguments,) = every_json(arguments)
        except ValueError:
            arguments = None
    if name is None or not isinstance(arguments, dict):
        raise BadCalls("no call: an object with a name and arguments is needed")
    named = given.get("id")
    id = named if isinstance(named, str) else ""
    return FunctionCall(name, cast("dict[str, Any]", arguments), id)
