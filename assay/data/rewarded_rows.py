"""Convert rows that name their reward function: Tulu 3 (RLVR), verl (DAPO), SYNTHETIC-1 and -2.

Rows of such a data set need different verifiers, so the reader sets the verifier of each row that
is not mathematics. For rows of mathematics, the setting ``data.verifier`` decides.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from assay.data.benchmark_rows import add_tags
from assay.data.code_rows import put_tests
from assay.errors import DataError, message

# IFEval has Tulu 3's constraints under other names: (id, {our argument: Tulu's argument}).
# A constraint "at most N" or "around N" becomes two instructions, as `_bounds` computes.
_CONSTRAINTS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "verify_keywords": ("keywords:existence", {"keywords": "keyword_list"}),
    "verify_keyword_frequency": ("keywords:frequency", {"keyword": "word", "frequency": "N"}),
    "validate_forbidden_words": (
        "keywords:forbidden_words",
        {"forbidden_words": "forbidden_words"},
    ),
    "verify_letter_frequency": (
        "keywords:letter_frequency",
        {"letter": "letter", "let_frequency": "N"},
    ),
    "validate_response_language": ("language:response_language", {"language": "language"}),
    "validate_word_constraint": ("length_constraints:number_words", {"num_words": "N"}),
    "verify_sentence_constraint": ("length_constraints:number_sentences", {"num_sentences": "N"}),
    "validate_paragraphs": (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": "N", "nth_paragraph": "i", "first_word": "first_word"},
    ),
    "verify_postscript": (
        "detectable_content:postscript",
        {"postscript_marker": "postscript_marker"},
    ),
    "validate_placeholders": ("detectable_content:number_placeholders", {"num_placeholders": "N"}),
    "verify_bullet_points": ("detectable_format:number_bullet_lists", {"num_bullets": "N"}),
    "validate_title": ("detectable_format:title", {}),
    "validate_highlighted_sections": (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": "N"},
    ),
    "validate_sections": (
        "detectable_format:multiple_sections",
        {"num_sections": "N", "section_spliter": "section_splitter"},
    ),
    "validate_json_format": ("detectable_format:json_format", {}),
    "validate_repeat_prompt": (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "original_prompt"},
    ),
    "validate_two_responses": ("combination:two_responses", {}),
    "validate_uppercase": ("change_case:english_capital", {}),
    "validate_lowercase": ("change_case:english_lowercase", {}),
    "validate_frequency_capital_words": (
        "change_case:capital_word_frequency",
        {"capital_frequency": "N"},
    ),
    "validate_end": ("startend:end_checker", {"end_phrase": "end_phrase"}),
    "validate_quotation": ("startend:quotation", {}),
    "validate_no_commas": ("punctuation:no_comma", {}),
}
# Instructions with a number and a relation: (argument of the number, argument of the relation).
_RELATIONS = {
    "keywords:frequency": ("frequency", "relation"),
    "keywords:letter_frequency": ("let_frequency", "let_relation"),
    "length_constraints:number_words": ("num_words", "relation"),
    "length_constraints:number_sentences": ("num_sentences", "relation"),
    "change_case:capital_word_frequency": ("capital_frequency", "capital_relation"),
}


def read_tulu(row: dict[str, Any], where: str) -> None:
    """Convert a Tulu 3 row, which has messages, a ground truth and the name of its data set.

    Assistant messages after the last user message are a solution, and are removed.
    """
    turns = row.pop("messages")
    if isinstance(turns, list | tuple):
        while turns and isinstance(turns[-1], Mapping) and turns[-1].get("role") == "assistant":
            turns = turns[:-1]
    row["prompt"] = turns
    names = row.pop("dataset")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list | tuple) or len(names) != 1 or not isinstance(names[0], str):
        raise DataError(message(f"{where} dataset", f"{names!r:.80}", "the name of one data set"))
    truth = row.pop("ground_truth")
    truths = [truth] if isinstance(truth, str | Mapping) else truth
    if isinstance(truths, list | tuple) and len(truths) == 1 and len(names) == 1:
        truth = truths[0]
    add_tags(row, names[0])
    place = f"{where} ground_truth"
    name = names[0].lower()
    readers: dict[str, Callable[[dict[str, Any], Any, str], None]] = {
        "ifeval": _put_instructions,
        "code": _put_code,
        "code_stdio": _put_code,
        "string_matcher": _put_text,
    }
    read = readers.get(name, _put_math if name in ("gsm8k", "math") else None)
    if read is None:
        accepted = "gsm8k, MATH, math, ifeval, code, code_stdio, string_matcher"
        raise DataError(message(f"{where} dataset", repr(names[0]), accepted))
    read(row, truth, place)


def is_verl(row: Mapping[str, Any]) -> bool:
    """Whether the reward model in a verl row has a ground truth."""
    reward = row.get("reward_model")
    return isinstance(reward, Mapping) and "ground_truth" in reward


def read_verl(row: dict[str, Any], where: str) -> None:
    """Convert a verl row. The format of the ground truth determines the verifier.

    DAPO-Math-17k repeats its rows, so the index in ``extra_info`` is not used as the id.
    """
    # Unknown keys of a row stay in the spec, where a user's reward function may read them.
    reward = row["reward_model"]
    truth, place = reward["ground_truth"], f"{where} reward_model.ground_truth"
    add_tags(row, row.pop("data_source", None), row.pop("ability", None))
    if reward.get("style") == "model":
        row["answer"] = truth
        row.setdefault("verifier", "judge")
        return
    value = _literal(truth)
    if isinstance(value, Mapping) and "inputs" in value:
        put_tests(row, value, place)
        row.setdefault("verifier", "code")
    elif isinstance(value, list) and value and _is_test(value[0]):
        _put_code(row, value, place)
    elif _constraints_of(value):
        _put_instructions(row, truth, place)
    else:
        _put_math(row, truth, place)


def read_synthetic(row: dict[str, Any], where: str) -> None:
    """Convert a row of SYNTHETIC-1, SYNTHETIC-2 or Open-R1's verifiable coding problems."""
    place = f"{where} verification_info"
    info = _literal(row.pop("verification_info"))
    if not isinstance(info, Mapping):
        raise DataError(message(place, f"{info!r:.80}", "a JSON object"))
    if "problem_statement" in row and "prompt" not in row and "problem" not in row:
        row["prompt"] = row.pop("problem_statement")
    if row.get("problem_id") is not None:
        row.setdefault("id", row.pop("problem_id"))
    name = str(row.get("id") or "")
    add_tags(row, row.pop("task_type", None))
    truth = info.get("ground_truth")
    if "test_cases" in info:
        _put_programs(row, info, place)
    elif info.get("reasoning_gym_dataset"):
        entry = _literal(info.get("reasoning_gym_entry")) or {}
        row["task"], row["answer"] = info["reasoning_gym_dataset"], truth
        row["metadata"] = entry.get("metadata", entry)
        row.setdefault("verifier", "gym")
    elif "code_output" in info or name.startswith("complex_json_output"):
        row["schema"] = {"const": _literal(info.get("code_output", truth))}
        row.setdefault("verifier", "json_schema")
    elif truth is not None and _constraints_of(_literal(truth)):
        _put_instructions(row, truth, place)
    elif set(info) == {"ground_truth"} and not name.startswith("formatask"):
        _put_math(row, truth, place)
    else:
        found = f"{name.rpartition('_')[0] or 'a task'} with {', '.join(info)}"
        accepted = "mathematics, programs, instructions, reasoning-gym tasks, JSON outputs"
        raise DataError(message(place, found, accepted, "its scorer is the set's own"))


def _put_math(row: dict[str, Any], truth: Any, place: str) -> None:
    if isinstance(truth, list | tuple) and truth:
        golds = cast("list[Any]", list(truth))
        truth = golds if len(golds) > 1 else golds[0]
    if isinstance(truth, bool) or not isinstance(truth, str | int | float | list):
        raise DataError(message(place, f"{truth!r:.80}", "a text or a number"))
    row["answer"] = truth


def _put_text(row: dict[str, Any], truth: Any, place: str) -> None:
    if not isinstance(truth, str):
        raise DataError(message(place, f"{truth!r:.80}", "a text"))
    row["answer"] = truth
    row.setdefault("verifier", "exact")


def _put_code(row: dict[str, Any], truth: Any, place: str) -> None:
    tests = _literal(truth)
    # If the ground truth is a list with a single test, the list is unpacked first.
    tests = [tests] if isinstance(tests, str | Mapping) and _is_test(tests) else tests
    if not isinstance(tests, list) or not tests or not all(map(_is_test, tests)):
        accepted = 'a list of asserts, or of {"input", "output"}'
        raise DataError(message(place, f"{tests!r:.80}", accepted))
    row["tests"] = [
        {"assert": one}
        if isinstance(one, str)
        else {"stdin": one["input"], "stdout": one["output"]}
        for one in tests
    ]
    row.setdefault("verifier", "code")


def _put_programs(row: dict[str, Any], info: Mapping[str, Any], place: str) -> None:
    """Set the tests of a program from ``{"inputs", "outputs"}``, or from a list of inputs and
    outputs.
    """
    tests, language = _literal(info["test_cases"]), info.get("language") or "python"
    if isinstance(tests, Mapping):
        put_tests(row, tests, f"{place}.test_cases")
        row.setdefault("verifier", "code")
        return
    pairs = isinstance(tests, list) and all(
        isinstance(one, Mapping) and {"input", "output"} <= one.keys() for one in tests
    )
    if not pairs:
        accepted = 'a list of {"input", "output"}'
        raise DataError(message(f"{place}.test_cases", f"{tests!r:.80}", accepted))
    names = {one.get("fn_name") for one in tests}
    if names - {None, ""}:
        values = {key: [_literal(one[key]) for one in tests] for key in ("input", "output")}
        given = {"inputs": values["input"], "outputs": values["output"], "fn_name": names.pop()}
        put_tests(row, given, f"{place}.test_cases")
    else:
        _put_code(row, tests, f"{place}.test_cases")
    if language != "python":
        row["language"], row["verifier"] = language, "program"
    row.setdefault("verifier", "code")


def _is_test(value: Any) -> bool:
    if isinstance(value, str):
        return "assert" in value
    return isinstance(value, Mapping) and all(
        isinstance(value.get(key), str) for key in ("input", "output")
    )


def _put_instructions(row: dict[str, Any], truth: Any, place: str) -> None:
    found = _constraints_of(_literal(truth))
    if not found:
        accepted = 'a constraint {"func_name", ...}, or a list of {"instruction_id", "kwargs"}'
        raise DataError(message(place, f"{truth!r:.80}", accepted))
    pairs: list[tuple[str, dict[str, Any]]] = []
    for one in found:
        if "func_name" in one:
            pairs += _instructions_of(one, place)
            continue
        names, tables = one["instruction_id"], one.get("kwargs") or ()
        names = [names] if isinstance(names, str) else names
        tables = [tables] if isinstance(tables, Mapping) else [*tables]
        tables += [{}] * (len(names) - len(tables))
        given: list[dict[str, Any]] = [dict(table or {}) for table in tables]
        pairs += zip(names, given, strict=True)
    row["instruction_id_list"] = [name for name, _ in pairs]
    row["kwargs"] = [table for _, table in pairs]
    row.setdefault("verifier", "instructions")


def _constraints_of(value: Any) -> Sequence[Mapping[str, Any]]:
    """Return the constraints in a ground truth of Tulu 3, or ()."""
    many = [value] if isinstance(value, Mapping) else value
    keys = ("func_name", "instruction_id")
    if isinstance(many, list) and all(
        isinstance(one, Mapping) and any(key in one for key in keys) for one in many
    ):
        return many
    return ()


def _instructions_of(given: Mapping[str, Any], place: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the IFEval instructions that together equal one constraint of Tulu 3."""
    name = given["func_name"]
    if name not in _CONSTRAINTS:
        accepted = f"one of {', '.join(_CONSTRAINTS)}"
        remedy = "no verifier checks this constraint: skip the row (data.on_bad_row)"
        raise DataError(message(place, repr(name), accepted, remedy))
    id, names = _CONSTRAINTS[name]
    missing = [theirs for theirs in names.values() if given.get(theirs) is None]
    if missing:
        raise DataError(message(place, f"{name} without {missing[0]}", ", ".join(names.values())))
    table = {ours: given[theirs] for ours, theirs in names.items()}
    if id not in _RELATIONS:
        return [(id, table)]
    number, relation = _RELATIONS[id]
    # In Tulu 3, keyword and letter frequencies without a quantifier mean exactly N.
    return [
        (id, {**table, number: count, relation: word})
        for word, count in _bounds(given.get("quantifier") or "exactly", table[number], place)
    ]


def _bounds(quantifier: str, count: Any, place: str) -> list[tuple[str, int]]:
    """Return the (relation, number) pairs of instructions that express a quantifier and a number.

    As in Tulu 3, "around N" accepts a deviation of a tenth of N, and of at least one.
    """
    if type(count) is not int:
        raise DataError(message(place, f"N of {count!r}", "a whole number"))
    near = max(round(count * 0.1), 1)
    bounds = {
        "at least": [("at least", count)],
        "at most": [("less than", count + 1)],
        "less than": [("less than", count)],
        "exactly": [("at least", count), ("less than", count + 1)],
        "around": [("at least", max(count - near, 0)), ("less than", count + near + 1)],
    }
    if quantifier not in bounds:
        raise DataError(message(place, f"the quantifier {quantifier!r}", ", ".join(bounds)))
    return bounds[quantifier]


def _literal(value: Any) -> Any:
    """Parse text as JSON or as a Python literal; other text, and values that are not text, are
    returned unchanged.
    """
    if isinstance(value, str):
        for read in (json.loads, ast.literal_eval):
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return read(value)
    return value
