"""Instructions of a problem: their arguments read and checked, and whether a text follows them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from assay.errors import VerifierError, did_you_mean, message
from assay.verify.instructions.languages import LANGUAGES
from assay.verify.instructions.rules import RULES
from assay.verify.instructions.words import visible

RELATIONS = ("less than", "at least")

# Of these, characters of no width may be joints of the letters: they are read as they are written.
AS_WRITTEN = {"language:response_language"}


def _count(value: Any) -> int | None:
    # Tables of numbers with gaps come back from some formats as floats.
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and not isinstance(value, bool) and value >= 0 else None


def _relation(value: Any) -> str | None:
    return value if value in RELATIONS else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _texts(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return None
    texts = cast("Sequence[Any]", value)
    return tuple(texts) if all(map(_text, texts)) else None


def _letter(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) == 1 and value.strip() else None


def _language(value: Any) -> str | None:
    return value if value in LANGUAGES or value == "zh" else None


_NUMBERS = """
    num_words num_sentences num_paragraphs nth_paragraph num_placeholders num_bullets num_sections
    num_highlights frequency let_frequency capital_frequency
"""
_TEXTS = "keyword first_word postscript_marker section_spliter prompt_to_repeat end_phrase"
_RELATIONS = "relation let_relation capital_relation"

# Of each argument what it accepts, in words, and what reads it; a reader refuses by None.
ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(_NUMBERS.split(), ("a whole number, 0 or more", _count)),
    **dict.fromkeys(
        _RELATIONS.split(), (" or ".join(f'"{each}"' for each in RELATIONS), _relation)
    ),
    **dict.fromkeys(_TEXTS.split(), ("text that is not empty", _text)),
    **dict.fromkeys(("keywords", "forbidden_words"), ("a list of texts, none empty", _texts)),
    "letter": ("one character", _letter),
    "language": ("a language code such as en, de or zh-cn", _language),
}
NEEDED = {name: list(inspect.signature(rule).parameters)[2:] for name, rule in RULES.items()}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a problem, its arguments read and checked."""

    name: str
    arguments: Mapping[str, Any]

    def is_followed(self, text: str, stricter: bool = False) -> bool:
        """Whether a text follows it. An empty text follows nothing.

        stricter: what a reader sees of the text must also be what the instruction means.
        """
        rule = RULES[self.name]
        if not text.strip() or not rule(text, False, **self.arguments):
            return False
        if not stricter:
            return True
        seen = text if self.name in AS_WRITTEN else visible(text)
        return bool(seen.strip()) and rule(seen, True, **self.arguments)

    def is_followed_loosely(self, text: str, stricter: bool = False) -> bool:
        """Whether a text follows it, or would without its first or last line or its asterisks."""
        return any(self.is_followed(variant, stricter) for variant in loose_variants(text))


def loose_variants(text: str) -> tuple[str, ...]:
    """Return the text and what is left without its first line, its last, both, and any asterisk."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return tuple(dict.fromkeys([*cut, *(each.replace("*", "") for each in cut)]))


def read_instruction(name: Any, given: Any, where: str, index: int) -> Instruction:
    """Return instruction number ``index`` of a problem.

    Raises VerifierError for an unknown id, and for an argument that is missing, of another kind, or
    not one of the instruction's. An argument that holds None is as good as absent: tables of rows
    fill up every column.
    """
    if not isinstance(name, str) or name not in RULES:
        remedy = did_you_mean(str(name), RULES, 0.5)
        accepted = "one of the 25 instruction ids, such as punctuation:no_comma"
        place = f"{where}.instruction_id_list[{index}]"
        raise VerifierError(message(place, repr(name), accepted, remedy))
    where, found = f"{where}.kwargs[{index}]", {} if given is None else given
    if not isinstance(found, Mapping):
        raise VerifierError(message(where, _shown(given), "a table of the instruction's arguments"))
    held = {k: v for k, v in cast("Mapping[str, Any]", found).items() if v is not None}
    arguments: dict[str, Any] = {}
    for key in NEEDED[name]:
        accepts, read = ARGUMENTS[key]
        value = read(held[key]) if key in held else None
        if value is None:
            shown = _shown(held.pop(key)) if key in held else "nothing"
            raise VerifierError(message(f"{where}.{key}", shown, f"{accepts}, for {name}"))
        arguments[key] = value
    if unknown := held.keys() - arguments.keys():
        accepts = f"{', '.join(NEEDED[name]) or 'no argument'}, for {name}"
        raise VerifierError(message(f"{where}.{min(unknown)}", "an unknown key", accepts))
    num = arguments.get("num_paragraphs", 1)
    if arguments.get("nth_paragraph", 1) not in range(1, num + 1):
        accepts = f"1 to num_paragraphs ({num})"
        raise VerifierError(message(f"{where}.nth_paragraph", arguments["nth_paragraph"], accepts))
    return Instruction(name, arguments)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
