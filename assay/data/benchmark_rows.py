"""Convert rows of public benchmarks from the published formats to problems.

Prompts of multiple-choice questions list the lettered options. The verifier ``choice`` judges
multiple-choice questions, unless the row names a verifier. GPQA lists the correct option first in
every row, so GPQA options are reordered by a hash of their texts. The verifier ``drop`` judges DROP
rows and accepts the answers of all annotators. The verifier ``function_calls`` judges BFCL rows.
BFCL publishes answers in separate files, which `assay.data.bfcl` joins with the questions.

Keys of a row in the published format of each benchmark:

    {"question", "choices": [...], "answer": 2, "subject"}                        MMLU
    {"question", "options": [...], "answer": "C", "answer_index": 2, "category"}  MMLU-Pro
    {"question", "choices": {"text": [...], "label": [...]}, "answerKey"}         ARC
    {"Question", "Correct Answer", "Incorrect Answer 1", ..., "Subdomain"}        GPQA
    {"problem", "answer", "subject", "level", "unique_id"}                        MATH-500
    {"ID", "Problem", "Solution", "Answer"}, {"Question", "Answer", ...}          AIME
    {"problem", "answer", "metadata": "{'topic': ...}"}                           SimpleQA
    {"passage", "question", "answers_spans" | "answer", "validated_answers"}      DROP
    {"question": [messages], "function": [...], "ground_truth": [...]}            BFCL
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, TypeGuard

from assay.errors import DataError, message

ASKS = "Answer with the letter of the right option."
ASKS_SPANS = (
    "Answer with a number, a date, or words of the passage, and nothing else. Put | between several"
    " answers."
)
ASKS_CALLS = (
    "Answer by calling the functions below. Reply with the calls and nothing else, as a JSON list:"
    ' [{"name": "the function", "arguments": {"parameter": "value"}}]. Where no function serves, or'
    " a value that is needed is missing, say so without a call."
)
_CAPITALS = ("ID", "Problem", "Question", "Solution", "Answer", "Year")
_WRONG = tuple(f"Incorrect Answer {n}" for n in (1, 2, 3))
_TOPIC = re.compile(r"""['"]topic['"]: ['"]([^'"]+)['"]""")


def read_benchmark_form(row: dict[str, Any], where: str) -> None:
    """Convert a row in place if the row has the format of a known benchmark."""
    # A row's format is recognized by keys that no other format has.
    # GPQA is tested before AIME, since the rows of both have the key "Question".
    if "Question" in row and "Correct Answer" in row:
        _read_gpqa(row, where)
    elif "passage" in row and any(
        isinstance(row.get(key), Mapping) for key in ("answers_spans", "answer")
    ):
        _read_drop(row, where)
    elif "question" in row and isinstance(row.get("function"), list | tuple | Mapping):
        _read_bfcl(row, where)
    elif ("Problem" in row or "Question" in row) and "Answer" in row:
        for name in _CAPITALS:
            if name in row:
                row[name.lower()] = row.pop(name)
    elif isinstance(question := row.get("question"), str) and "prompt" not in row:
        _read_options(row, question, where)
    elif "problem" in row and (topic := _TOPIC.search(str(row.get("metadata", "")))):
        _tag(row, topic[1])
    if "problem" in row and "unique_id" in row:
        row.setdefault("id", row.pop("unique_id"))
        _tag(row, row.pop("subject", None))


def _read_gpqa(row: dict[str, Any], where: str) -> None:
    question, right = str(row["Question"]).strip(), str(row["Correct Answer"]).strip()
    options = [right, *(str(row[key]).strip() for key in _WRONG if key in row)]
    # The options are ordered by a hash, so that every run and machine shows the same order.
    options.sort(key=lambda text: zlib.crc32(f"{question}\n{text}".encode()))
    kept = {key: row[key] for key in ("id", "verifier", "tags", "think") if key in row}
    if "Record ID" in row:
        kept.setdefault("id", row["Record ID"])
    _tag(kept, row.get("High-level domain"), row.get("Subdomain"))
    row.clear()
    row.update(kept)
    _ask(row, question, dict(zip(ascii_uppercase, options, strict=False)), options.index(right))


def _read_options(row: dict[str, Any], question: str, where: str) -> None:
    choices, options = row.get("choices"), row.get("options")
    if isinstance(choices, Mapping) and "answerKey" in row:
        labels, texts = (choices.get(key) for key in ("label", "text"))
        if not _are_texts(labels) or not _are_texts(texts) or len(labels) != len(texts):
            accepted = '{"text": [...], "label": [...]}, of the same length'
            raise DataError(message(f"{where} choices", f"{choices!r:.80}", accepted))
        key = row.pop("answerKey")
        if key not in labels:
            raise DataError(message(f"{where} answerKey", repr(key), f"one of {', '.join(labels)}"))
        del row["choices"]
        _ask(row, question, dict(zip(labels, texts, strict=True)), list(labels).index(key))
    elif _are_texts(choices) and type(row.get("answer")) is int:
        del row["choices"]
        _tag(row, row.pop("subject", None))
        _ask(row, question, _lettered(choices, row["answer"], where, "answer"), row["answer"])
    elif _are_texts(options) and type(row.get("answer_index")) is int:
        index = row.pop("answer_index")
        # MMLU-Pro pads shorter lists of options with "N/A".
        kept = [n for n, text in enumerate(options) if n == index or text != "N/A"]
        texts = [options[n] for n in kept]
        index = kept.index(index) if index in kept else index
        if "question_id" in row:
            row.setdefault("id", row.pop("question_id"))
        _tag(row, row.pop("category", None))
        _ask(row, question, _lettered(texts, index, where, "answer_index"), index)


def _read_drop(row: dict[str, Any], where: str) -> None:
    """Convert a DROP row, with the answers of all annotators.

    The flat list ``answers_spans`` of a DROP row contains the spans of a single answer.
    """
    for key in ("passage", "question"):
        if not isinstance(row.get(key), str):
            raise DataError(message(f"{where} {key}", f"{row.get(key)!r:.80}", "text"))
    try:
        golds = [
            list(dict.fromkeys(map(str, gold)))
            for gold in _drop_answers(row)
            if gold is not None and len(gold)
        ]
    except (TypeError, ValueError, AttributeError) as error:
        found = f"a value that cannot be read ({error})".replace("\n", " ")
        accepted = '"number", "date" and a list "spans" of each annotator'
        raise DataError(message(f"{where} answer", found, accepted)) from error
    if not golds:
        accepted = '"answers_spans" with "spans", or "answer" with a number, a date or spans'
        raise DataError(message(f"{where} answer", "none", accepted))
    for key in ("answer", "validated_answers", "answers_spans", "section_id"):
        row.pop(key, None)
    if "query_id" in row:
        row.setdefault("id", row.pop("query_id"))
    passage, question = str(row.pop("passage")).strip(), str(row["question"]).strip()
    row["question"] = f"{passage}\n\n{question}\n\n{ASKS_SPANS}"
    row["answers"] = [gold for n, gold in enumerate(golds) if gold not in golds[:n]]
    row.setdefault("verifier", "drop")


def _drop_answers(row: Mapping[str, Any]) -> list[Any]:
    if isinstance(flat := row.get("answers_spans"), Mapping):
        return [_listed(flat.get("spans"))]
    others = row.get("validated_answers") or ()
    # The library `datasets` returns a list of objects as one object of columns.
    if isinstance(others, Mapping):
        others = [dict(zip(others, one, strict=True)) for one in zip(*others.values(), strict=True)]
    return [_annotated(one) for one in (row["answer"], *others)]


def _listed(spans: Any) -> Any:
    if isinstance(spans, str):
        raise TypeError(f"spans {spans!r:.40}")
    return spans


def _annotated(answer: Mapping[str, Any]) -> Sequence[Any]:
    """Return one annotator's answer as texts: the number, else the spans, else the date."""
    if answer.get("number") not in (None, ""):
        return [answer["number"]]
    if (spans := _listed(answer.get("spans"))) is not None and len(spans):
        return spans
    date = answer.get("date") or {}
    words = " ".join(str(date.get(part) or "") for part in ("day", "month", "year"))
    return [" ".join(words.split())] if words.strip() else []


def _read_bfcl(row: dict[str, Any], where: str) -> None:
    """Convert a BFCL row: the function schemas become a system message before the conversation."""
    turns: Any = row.pop("question")
    if isinstance(turns, str):
        turns = [[{"role": "user", "content": turns}]]
    if isinstance(turns, list | tuple) and turns and isinstance(turns[0], Mapping):
        turns = [turns]
    if not isinstance(turns, list | tuple) or not all(map(_are_messages, turns)):
        accepted = 'a list of one list of {"role", "content"}'
        raise DataError(message(f"{where} question", f"{turns!r:.80}", accepted))
    if len(turns) != 1:
        found, remedy = f"{len(turns)} turns", "remove the multi-turn categories"
        raise DataError(message(f"{where} question", found, "one turn", remedy))
    functions = row["function"]
    row["function"] = functions = [functions] if isinstance(functions, Mapping) else functions
    shown = "\n".join(json.dumps(one, ensure_ascii=False) for one in functions)
    asked, system = list(turns[0]), f"{ASKS_CALLS}\n\n{shown}"
    if asked and asked[0].get("role") == "system":
        system = f"{asked.pop(0)['content']}\n\n{system}"
    row["prompt"] = [{"role": "system", "content": system}, *asked]
    row.setdefault("verifier", "function_calls")


def _are_messages(turn: Any) -> bool:
    return isinstance(turn, list | tuple) and all(
        isinstance(one, Mapping)
        and all(isinstance(one.get(key), str) for key in ("role", "content"))
        for one in turn
    )


def _lettered(texts: Sequence[str], index: int, where: str, key: str) -> dict[str, str]:
    if not 0 <= index < len(texts) <= len(ascii_uppercase):
        accepted = f"the index of one of the {len(texts)} options, from 0"
        raise DataError(message(f"{where} {key}", str(index), accepted))
    return dict(zip(ascii_uppercase, texts, strict=False))


def _ask(row: dict[str, Any], question: str, options: Mapping[str, str], right: int) -> None:
    shown = "\n".join(f"{label}. {text}" for label, text in options.items())
    row["question"] = f"{question.strip()}\n\n{shown}\n\n{ASKS}"
    row |= {"options": dict(options), "answer": [*options][right]}
    row.setdefault("verifier", "choice")


def _tag(row: dict[str, Any], *tags: Any) -> None:
    """Append tags to the row's tags; values that are not text are ignored."""
    new = [tag for tag in tags if isinstance(tag, str) and tag]
    if new:
        own = row.get("tags") or []
        row["tags"] = [*([own] if isinstance(own, str) else own), *new]


def _are_texts(value: Any) -> TypeGuard[Sequence[str]]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and bool(value) and all(isinstance(one, str) for one in value)
