"""Convert rows of public benchmarks from the published formats to problems.

The prompt of a multiple-choice question lists the options, each with a letter. The verifier
``choice`` judges multiple-choice questions, unless the row names a verifier. GPQA lists the correct
option first in every row, so the reader reorders the options by a hash of their texts. The verifier
``drop`` judges DROP rows and accepts the answers of all annotators. The verifier ``function_calls``
judges BFCL rows. BFCL publishes answers in separate files, which `assay.data.bfcl` joins with the
questions.

`assay.data.forms` has the keys of each format.
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
ASKS_GRID = "Answer with one JSON object in exactly this form, with the values in place of ..."
_CAPITALS = ("ID", "Problem", "Question", "Solution", "Answer", "Year")
_WRONG = tuple(f"Incorrect Answer {n}" for n in (1, 2, 3))
_TOPIC = re.compile(r"""['"]topic['"]: ['"]([^'"]+)['"]""")


def is_drop(row: Mapping[str, Any]) -> bool:
    """Whether a DROP row has the answers of several annotators."""
    return any(isinstance(row.get(key), Mapping) for key in ("answers_spans", "answer"))


def is_bfcl(row: Mapping[str, Any]) -> bool:
    """Whether a row offers functions."""
    return isinstance(row.get("function"), list | tuple | Mapping)


def is_arc(row: Mapping[str, Any]) -> bool:
    """Whether the choices of a multiple-choice row are labels with texts."""
    return _asks(row) and isinstance(row.get("choices"), Mapping)


def is_mmlu(row: Mapping[str, Any]) -> bool:
    """Whether the answer of a multiple-choice row is the index of a choice."""
    return _asks(row) and _are_texts(row.get("choices")) and type(row.get("answer")) is int


def is_mmlu_pro(row: Mapping[str, Any]) -> bool:
    """Whether the answer of a multiple-choice row is the index of an option."""
    return _asks(row) and _are_texts(row.get("options")) and type(row["answer_index"]) is int


def is_simpleqa(row: Mapping[str, Any]) -> bool:
    """Whether the metadata of a SimpleQA row name a topic."""
    return _TOPIC.search(str(row.get("metadata", ""))) is not None


def _asks(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("question"), str) and "prompt" not in row


def read_aime(row: dict[str, Any], where: str) -> None:
    """Convert an AIME row, whose keys are capitalized."""
    for name in _CAPITALS:
        if name in row:
            row[name.lower()] = row.pop(name)


def read_simpleqa(row: dict[str, Any], where: str) -> None:
    """Tag a SimpleQA row with its topic."""
    topic = _TOPIC.search(str(row["metadata"]))
    add_tags(row, topic and topic[1])


def read_math_500(row: dict[str, Any], where: str) -> None:
    """Tag a MATH-500 row with its subject, and use ``unique_id`` as the id."""
    row.setdefault("id", row.pop("unique_id"))
    add_tags(row, row.pop("subject", None))


def read_gpqa(row: dict[str, Any], where: str) -> None:
    """Convert a GPQA row, with its options in the order of a hash."""
    question, right = str(row["Question"]).strip(), str(row["Correct Answer"]).strip()
    options = [right, *(str(row[key]).strip() for key in _WRONG if key in row)]
    # The options are ordered by a hash, so that every run and machine shows the same order.
    options.sort(key=lambda text: zlib.crc32(f"{question}\n{text}".encode()))
    kept = {key: row[key] for key in ("id", "verifier", "tags", "think") if key in row}
    if "Record ID" in row:
        kept.setdefault("id", row["Record ID"])
    add_tags(kept, row.get("High-level domain"), row.get("Subdomain"))
    row.clear()
    row.update(kept)
    ask(row, question, dict(zip(ascii_uppercase, options, strict=False)), options.index(right))


def read_arc(row: dict[str, Any], where: str) -> None:
    """Convert an ARC row, and keep the labels of its options."""
    choices = row.pop("choices")
    labels, texts = (choices.get(key) for key in ("label", "text"))
    if not _are_texts(labels) or not _are_texts(texts) or len(labels) != len(texts):
        accepted = '{"text": [...], "label": [...]}, of the same length'
        raise DataError(message(f"{where} choices", f"{choices!r:.80}", accepted))
    key = row.pop("answerKey")
    if key not in labels:
        raise DataError(message(f"{where} answerKey", repr(key), f"one of {', '.join(labels)}"))
    ask(row, row["question"], dict(zip(labels, texts, strict=True)), list(labels).index(key))


def read_mmlu(row: dict[str, Any], where: str) -> None:
    """Convert an MMLU row."""
    options = _lettered(row.pop("choices"), row["answer"], where, "answer")
    add_tags(row, row.pop("subject", None))
    ask(row, row["question"], options, row["answer"])


def read_mmlu_pro(row: dict[str, Any], where: str) -> None:
    """Convert an MMLU-Pro row."""
    options, index = row["options"], row.pop("answer_index")
    # MMLU-Pro pads shorter lists of options with "N/A".
    kept = [n for n, text in enumerate(options) if n == index or text != "N/A"]
    texts = [options[n] for n in kept]
    index = kept.index(index) if index in kept else index
    if "question_id" in row:
        row.setdefault("id", row.pop("question_id"))
    add_tags(row, row.pop("category", None))
    ask(row, row["question"], _lettered(texts, index, where, "answer_index"), index)


def read_zebra_choices(row: dict[str, Any], where: str) -> None:
    """Convert a multiple-choice row of ZebraLogic, whose answer is the text of the right choice."""
    choices, answer = row.pop("choices"), row["answer"]
    if not _are_texts(choices) or answer not in choices:
        accepted = f"one of {choices!r:.80} (the public rows hide it: take the private ones)"
        raise DataError(message(f"{where} answer", repr(answer), accepted))
    index = list(choices).index(answer)
    text = f"{str(row.pop('puzzle')).strip()}\n\n{row.pop('question')}"
    ask(row, text, _lettered(choices, index, where, "answer"), index)


def read_zebra_grid(row: dict[str, Any], where: str) -> None:
    """Convert a grid of ZebraLogic: the reply is a JSON object with one object per house."""
    solution: Any = row.pop("solution")
    try:
        header, cells = solution["header"][1:], [[*map(str, one)][1:] for one in solution["rows"]]
        houses = [dict(zip(header, one, strict=True)) for one in cells]
    except (TypeError, KeyError, ValueError) as error:
        accepted = '{"header": ["House", ...], "rows": [["1", ...], ...]}'
        raise DataError(message(f"{where} solution", f"{solution!r:.80}", accepted)) from error
    values = [value for house in houses for value in house.values()]
    if not values or any(not value.strip("_ ") for value in values):
        accepted = "the values of every house (the public rows hide them: take the private ones)"
        raise DataError(message(f"{where} solution", "blanks", accepted))
    names = [f"House {number}" for number in range(1, len(houses) + 1)]
    shown = json.dumps({name: dict.fromkeys(header, "...") for name in names})
    row["prompt"] = f"{str(row.pop('puzzle')).strip()}\n\n{ASKS_GRID}\n{shown}"
    row["schema"] = _objects(
        {
            name: _objects({key: _spelled(value) for key, value in house.items()})
            for name, house in zip(names, houses, strict=True)
        }
    )
    row.setdefault("verifier", "json_schema")


def _objects(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": [*properties]}


def _spelled(value: str) -> dict[str, Any]:
    # Like the public scorer of ZebraLogic, the comparison ignores case and surrounding spaces.
    return {"type": "string", "pattern": rf"(?i)\A\s*{re.escape(value.strip())}\s*\Z"}


def read_drop(row: dict[str, Any], where: str) -> None:
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
    # The library `datasets` turns a list of objects into one object of lists.
    if isinstance(others, Mapping):
        others = [dict(zip(others, one, strict=True)) for one in zip(*others.values(), strict=True)]
    return [_annotated(one) for one in (row["answer"], *others)]


def _listed(spans: Any) -> Any:
    if isinstance(spans, str):
        raise TypeError(f"spans {spans!r:.40}")
    return spans


def _annotated(answer: Mapping[str, Any]) -> Sequence[Any]:
    """Return the answer of one annotator as texts: the number, or else the spans, or else the
    date.
    """
    if answer.get("number") not in (None, ""):
        return [answer["number"]]
    if (spans := _listed(answer.get("spans"))) is not None and len(spans):
        return spans
    date = answer.get("date") or {}
    words = " ".join(str(date.get(part) or "") for part in ("day", "month", "year"))
    return [" ".join(words.split())] if words.strip() else []


def read_bfcl(row: dict[str, Any], where: str) -> None:
    """Convert a BFCL row: a system message with the function schemas precedes the conversation."""
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
    row["function"] = [functions] if isinstance(functions, Mapping) else functions
    ask_for_calls(row, list(turns[0]))


def ask_for_calls(row: dict[str, Any], turns: list[Any]) -> None:
    """Set the prompt: a system message that shows the row's functions, and the turns."""
    shown = "\n".join(json.dumps(one, ensure_ascii=False) for one in row["function"])
    system = f"{ASKS_CALLS}\n\n{shown}"
    if turns and turns[0].get("role") == "system":
        system = f"{turns.pop(0)['content']}\n\n{system}"
    row["prompt"] = [{"role": "system", "content": system}, *turns]
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


def ask(row: dict[str, Any], question: str, options: Mapping[str, str], right: int) -> None:
    """Set the question with a letter before each option, and set the letter of the right option."""
    shown = "\n".join(f"{label}. {text}" for label, text in options.items())
    row["question"] = f"{question.strip()}\n\n{shown}\n\n{ASKS}"
    row |= {"options": dict(options), "answer": [*options][right]}
    row.setdefault("verifier", "choice")


def add_tags(row: dict[str, Any], *tags: Any) -> None:
    """Append tags to a row's tags; values that are not text are ignored."""
    new = [tag for tag in tags if isinstance(tag, str) and tag]
    if new:
        own = row.get("tags") or []
        row["tags"] = [*([own] if isinstance(own, str) else own), *new]


def _are_texts(value: Any) -> TypeGuard[Sequence[str]]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    return is_list and bool(value) and all(isinstance(one, str) for one in value)
