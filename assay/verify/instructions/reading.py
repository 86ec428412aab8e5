"""Parse and validate the instructions of a problem, and check them on a text."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from assay.errors import VerifierError, did_you_mean, message
from assay.host.fields import Field, is_number, is_text, list_of, one_of
from assay.verify.instructions.languages import LANGUAGES
from assay.verify.instructions.rules import RULES
from assay.verify.instructions.words import visible

# Maximum number of keywords in a list.
MAX_WORDS = 10_000

# Instructions that read a text with its zero-width characters, which join letters in some scripts.
AS_WRITTEN = {"language:response_language"}

_RELATIONS = ("less than", "at least")
_NUMBERS = """
    num_words num_sentences num_paragraphs nth_paragraph num_placeholders num_bullets num_sections
    num_highlights frequency let_frequency capital_frequency
"""
_TEXTS = "keyword first_word postscript_marker section_spliter prompt_to_repeat end_phrase"
_GROUPS: tuple[tuple[str, str, Any], ...] = (
    # Some file formats return a column of integers with missing values as floats.
    (_NUMBERS, "a whole number, 0 or more", lambda n: is_number(n, 0) and float(n).is_integer()),
    (
        "relation let_relation capital_relation",
        " or ".join(f'"{each}"' for each in _RELATIONS),
        one_of(*_RELATIONS),
    ),
    (_TEXTS, "text that is not empty", is_text),
    (
        "keywords forbidden_words",
        "a list of texts, none empty",
        list_of(is_text, MAX_WORDS, least=1),
    ),
    ("letter", "one character", lambda value: is_text(value) and len(value) == 1),
    ("language", "a language code such as en, de or zh-cn", one_of(*LANGUAGES, "zh")),
)
ARGUMENTS = {
    name: Field(name, accepts, needed=True, check=check)
    for names, accepts, check in _GROUPS
    for name in names.split()
}
NEEDED = {name: list(inspect.signature(rule).parameters)[2:] for name, rule in RULES.items()}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a problem, with validated arguments."""

    name: str
    arguments: Mapping[str, Any]

    def is_followed(self, text: str, stricter: bool = False) -> bool:
        """Return whether a text follows the instruction. An empty text follows no instruction.

        stricter: whether the visible text must also follow the instruction's meaning.
        """
        rule = RULES[self.name]
        if not text.strip() or not rule(text, False, **self.arguments):
            return False
        if not stricter:
            return True
        seen = text if self.name in AS_WRITTEN else visible(text)
        return bool(seen.strip()) and rule(seen, True, **self.arguments)

    def is_followed_loosely(self, text: str, stricter: bool = False) -> bool:
        """Return whether a text follows the instruction in any of its `loose_variants`."""
        return any(self.is_followed(variant, stricter) for variant in loose_variants(text))


def loose_variants(text: str) -> tuple[str, ...]:
    """Return the eight texts of IFEval's loose mode.

    Four of the eight texts are the text itself, the text without its first line, without its last
    line, and without both lines. The other four of the eight texts are the first four without
    asterisks.
    """
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return tuple(dict.fromkeys([*cut, *(each.replace("*", "") for each in cut)]))


def read_instruction(name: Any, given: Any, where: str, index: int) -> Instruction:
    """Parse instruction number ``index`` of a problem.

    name: the instruction's id. given: the instruction's arguments. where: path of the spec, for
        error messages.

    Raises VerifierError for an unknown id, and for a missing, unknown or invalid argument.
    """
    if not isinstance(name, str) or name not in RULES:
        remedy = did_you_mean(str(name), RULES, 0.5)
        accepted = "one of the 25 instruction ids, such as punctuation:no_comma"
        place = f"{where}.instruction_id_list[{index}]"
        raise VerifierError(message(place, repr(name), accepted, remedy))
    where, found = f"{where}.kwargs[{index}]", {} if given is None else given
    if not isinstance(found, Mapping):
        raise VerifierError(
            message(where, repr(given)[:80], "a table of the instruction's arguments")
        )
    # An argument of None counts as absent, because tables of rows fill every column.
    held = {k: v for k, v in cast("Mapping[str, Any]", found).items() if v is not None}
    arguments = {key: ARGUMENTS[key].of(held, where) for key in NEEDED[name]}
    arguments |= {key: int(n) for key, n in arguments.items() if isinstance(n, float)}
    if unknown := held.keys() - arguments.keys():
        accepts = f"{', '.join(NEEDED[name]) or 'no argument'}, for {name}"
        raise VerifierError(message(f"{where}.{min(unknown)}", "an unknown key", accepts))
    num = arguments.get("num_paragraphs", 1)
    if arguments.get("nth_paragraph", 1) not in range(1, num + 1):
        accepts = f"1 to num_paragraphs ({num})"
        raise VerifierError(message(f"{where}.nth_paragraph", arguments["nth_paragraph"], accepts))
    return Instruction(name, arguments)
