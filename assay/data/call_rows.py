"""Convert rows of xLAM and ToolACE: a user request, the schemas of available functions, and the
right calls.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from assay.data.benchmark_rows import ask_for_calls
from assay.errors import DataError, message

# The keys are type names in the two data sets, and the values are the verifier's types.
_TYPES = {
    "str": "string",
    "string": "string",
    "int": "integer",
    "integer": "integer",
    "float": "float",
    "number": "number",
    "bool": "boolean",
    "boolean": "boolean",
    "list": "array",
    "array": "array",
    "set": "array",
    "tuple": "tuple",
    "dict": "dict",
    "object": "dict",
}
# A type without an entry in the table, such as Union[str, int], accepts every value.
_ANY = ["string", "integer", "float", "boolean", "array", "dict", "null"]
_OPTIONAL = ""
"""An accepted value which means that the call may omit the parameter."""


def read_xlam(row: dict[str, Any], where: str) -> None:
    """Convert an xLAM row, whose tools and answers are JSON texts."""
    tools = _listed(row.pop("tools"), f"{where} tools")
    answers = _listed(row.pop("answers"), f"{where} answers")
    try:
        row["function"] = [_xlam_function(tool) for tool in tools]
        calls = [(call["name"], call["arguments"]) for call in answers]
    except (TypeError, KeyError, AttributeError) as error:
        accepted = 'tools {"name", "parameters"} and answers {"name", "arguments"}'
        raise DataError(message(f"{where} tools", f"{tools!r:.80}", accepted)) from error
    row["ground_truth"] = _expected(calls, row["function"], f"{where} answers")
    ask_for_calls(row, [{"role": "user", "content": row.pop("query")}])


def read_toolace(row: dict[str, Any], where: str) -> None:
    """Convert the first exchange of a ToolACE row.

    A new system message shows the same functions and requests calls as JSON, because ToolACE's own
    call syntax does not allow function names with spaces. A first reply without a function call
    means that no call is right.
    """
    system, turns = str(row.pop("system")), row.pop("conversations")
    place = f"{where} conversations"
    try:
        said = [(one["from"], str(one["value"])) for one in turns]
    except (TypeError, KeyError) as error:
        raise DataError(message(place, f"{turns!r:.80}", '{"from", "value"}')) from error
    if len(said) < 2 or (said[0][0], said[1][0]) != ("user", "assistant"):
        found = ", ".join(role for role, _ in said[:3]) or "no message"
        raise DataError(message(place, found, "a user's request and the assistant's reply"))
    functions = _functions_in(system, f"{where} system")
    row["function"] = [_json_function(one) for one in functions]
    names = [one["name"] for one in row["function"]]
    row["ground_truth"] = _expected(_calls_in(said[1][1], names, place), row["function"], place)
    ask_for_calls(row, [{"role": "user", "content": said[0][1]}])


def _listed(value: Any, place: str) -> list[Any]:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise DataError(message(place, f"{value!r:.80}", "a list, or JSON text of a list"))
    return found


def _type(name: Any) -> Any:
    base = re.split(r"[\[,( ]", str(name).strip().lower())[0]
    return _TYPES.get(base, _ANY)


def _xlam_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return an xLAM tool as a JSON schema.

    In a function's signature, a parameter with a default is optional.
    """
    if isinstance((tool.get("parameters") or {}).get("properties"), Mapping):
        return _json_function(tool)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, given in (tool.get("parameters") or {}).items():
        shown = {
            key: given[key] for key in ("description", "default") if given.get(key) is not None
        }
        properties[name] = {"type": _type(given.get("type")), **shown}
        if "optional" not in str(given.get("type")) and "default" not in given:
            required.append(name)
    parameters = {"type": "dict", "properties": properties, "required": required}
    described = {"description": tool["description"]} if "description" in tool else {}
    return {"name": tool["name"], **described, "parameters": parameters}


def _json_function(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function schema in which the verifier knows every type."""
    parameters = given.get("parameters") or {}
    properties = {
        name: {**one, "type": _type(one.get("type"))} | _items(one)
        for name, one in (parameters.get("properties") or {}).items()
    }
    required = [name for name in parameters.get("required") or () if name in properties]
    shown = {key: given[key] for key in ("name", "description") if key in given}
    inner = {"type": "dict", "properties": properties, "required": required}
    return {**shown, "parameters": inner}


def _items(one: Mapping[str, Any]) -> dict[str, Any]:
    items = one.get("items")
    return {"items": {**items, "type": _type(items.get("type"))}} if isinstance(items, dict) else {}


def _functions_in(system: str, place: str) -> list[Any]:
    """Return the functions of ToolACE's system message: its first JSON list of objects."""
    decoder = json.JSONDecoder()
    for found in re.finditer(r"\[\s*\{", system):
        try:
            value, _ = decoder.raw_decode(system, found.start())
        except (ValueError, RecursionError):
            continue
        if all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in value):
            return value
    raise DataError(message(place, f"{system!r:.80}", 'a JSON list of functions {"name", ...}'))


def _calls_in(reply: str, names: list[str], place: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the function calls in a reply such as ``[f(a=1), g b(c=2)]``; [] for a reply in
    words.
    """
    text = reply.strip()
    accepted = "calls [NAME(PARAMETER=value, ...)] of functions in the system message"
    if not (text.startswith("[") and text.endswith("]")):
        # A reply with words around a call is an error, because [] means that no call is right.
        if any(re.search(rf"(?<!\w){re.escape(name)}\(", text) for name in names):
            raise DataError(message(place, f"{reply!r:.80}", accepted))
        return []
    # A name with spaces is no Python name, so a number replaces each name before a bracket.
    for number, name in sorted(enumerate(names), key=lambda pair: -len(pair[1])):
        text = re.sub(rf"(?<![\w\"']){re.escape(name)}\(", f"f_{number}(", text)
    try:
        tree = ast.parse(text, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else []
        return [_call(node, names) for node in nodes]
    except (SyntaxError, ValueError, LookupError, RecursionError) as error:
        raise DataError(message(place, f"{reply!r:.80}", accepted)) from error


def _call(node: ast.expr, names: list[str]) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise ValueError("no call with named arguments")
    name = names[int(node.func.id.removeprefix("f_"))]
    return name, {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}


def _expected(
    calls: list[tuple[str, dict[str, Any]]], functions: list[dict[str, Any]], place: str
) -> list[dict[str, Any]]:
    """Return the accepted arguments of each expected call.

    A parameter with a default in the function's signature may be omitted from the call.
    """
    known = {one["name"]: one["parameters"] for one in functions}
    expected: list[dict[str, Any]] = []
    for name, given in calls:
        if name not in known:
            raise DataError(message(place, f"a call of {name!r:.60}", f"{', '.join(known)}"))
        properties, required = known[name]["properties"], known[name]["required"]
        accepted: dict[str, list[Any]] = {}
        for key, value in given.items():
            # An undeclared parameter of a function cannot be checked, so the row is refused.
            if key not in properties:
                accepted_keys = ", ".join(properties) or "no parameter"
                raise DataError(message(place, f"{name} with {key!r:.40}", accepted_keys))
            may_omit = key not in required and _same(value, properties[key].get("default"))
            accepted[key] = [_wrapped(value), *([_OPTIONAL] if may_omit else [])]
        for key, one in properties.items():
            if key not in given:
                default = _typed(one.get("default"), one["type"])
                many = [] if default in (None, _OPTIONAL) else [_wrapped(default)]
                accepted[key] = [_OPTIONAL, *many]
        # A parameter that the published call omits cannot be required.
        known[name]["required"] = [key for key in required if key in given]
        expected.append({name: accepted})
    return expected


def _wrapped(value: Any) -> Any:
    """Return a value in BFCL's form, in which each key of an object has a list of accepted
    values."""
    if isinstance(value, dict):
        return {key: [_wrapped(one)] for key, one in value.items()}
    return [_wrapped(one) for one in value] if isinstance(value, list) else value


def _typed(default: Any, kind: Any) -> Any:
    # xLAM writes some defaults as text, such as "2" for an integer.
    if not isinstance(default, str) or kind == "string":
        return default
    try:
        return json.loads(default)
    except ValueError:
        return default


def _same(value: Any, default: Any) -> bool:
    return default is not None and str(value) == str(default)
