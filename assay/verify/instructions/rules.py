"""The table of the 25 instruction types: their arguments, their rule, and what ``stricter`` adds."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.errors import VerifierError, message
from assay.verify.instructions import content as content
from assay.verify.instructions import format as form
from assay.verify.instructions.arguments import Kind, read_arguments
from assay.verify.instructions.words import visible


@dataclass(frozen=True, slots=True)
class Rule:
    """One instruction type.

    follows: ``(text, **arguments) -> bool``, as the public scorer decides. stricter: a further demand
    on the visible text, of the same arguments; None: there is none. as_written: the language is told
    from the text itself, in which characters of no width may be letters' joints.
    """

    follows: Callable[..., bool]
    stricter: Callable[..., bool] | None = None
    arguments: Mapping[str, Kind] = field(default_factory=dict[str, Kind])
    as_written: bool = False


_WORD_COUNT: Mapping[str, Kind] = {"num_words": "count", "relation": "relation"}
_SENTENCE_COUNT: Mapping[str, Kind] = {"num_sentences": "count", "relation": "relation"}

RULES: Mapping[str, Rule] = {
    "keywords:existence": Rule(
        content.existence, content.existence_of_words, {"keywords": "texts"}
    ),
    "keywords:frequency": Rule(
        content.frequency,
        content.frequency_of_words,
        {"keyword": "text", "frequency": "count", "relation": "relation"},
    ),
    "keywords:forbidden_words": Rule(
        content.forbidden_words, content.forbidden_words, {"forbidden_words": "texts"}
    ),
    "keywords:letter_frequency": Rule(
        content.letter_frequency,
        content.letter_frequency,
        {"letter": "letter", "let_frequency": "count", "let_relation": "relation"},
    ),
    "language:response_language": Rule(
        content.response_language, content.is_surely_language, {"language": "language"}, True
    ),
    "length_constraints:number_sentences": Rule(
        content.number_sentences, content.number_full_sentences, _SENTENCE_COUNT
    ),
    "length_constraints:number_paragraphs": Rule(
        form.number_paragraphs, form.full_paragraphs, {"num_paragraphs": "count"}
    ),
    "length_constraints:number_words": Rule(
        content.number_words, content.number_real_words, _WORD_COUNT
    ),
    "length_constraints:nth_paragraph_first_word": Rule(
        form.nth_paragraph_first_word,
        form.nth_paragraph_first_word,
        {"num_paragraphs": "count", "nth_paragraph": "count", "first_word": "text"},
    ),
    "detectable_content:number_placeholders": Rule(
        form.number_placeholders, form.full_placeholders, {"num_placeholders": "count"}
    ),
    "detectable_content:postscript": Rule(
        form.postscript, form.postscript_on_its_own_line, {"postscript_marker": "text"}
    ),
    "detectable_format:number_bullet_lists": Rule(
        form.number_bullet_lists, form.full_bullets, {"num_bullets": "count"}
    ),
    "detectable_format:constrained_response": Rule(
        form.constrained_response, form.one_constrained_response
    ),
    "detectable_format:number_highlighted_sections": Rule(
        form.number_highlighted_sections, form.full_highlights, {"num_highlights": "count"}
    ),
    "detectable_format:multiple_sections": Rule(
        form.multiple_sections,
        form.full_sections,
        {"section_spliter": "text", "num_sections": "count"},
    ),
    "detectable_format:json_format": Rule(form.json_format, form.json_collection),
    "detectable_format:title": Rule(form.title, form.full_title),
    "combination:two_responses": Rule(form.two_responses, form.two_full_responses),
    "combination:repeat_prompt": Rule(
        form.repeat_prompt, form.repeat_prompt_and_answer, {"prompt_to_repeat": "text"}
    ),
    "startend:end_checker": Rule(
        form.end_checker, form.end_checker_exactly, {"end_phrase": "text"}
    ),
    "startend:quotation": Rule(form.quotation, form.quotation_of_something),
    "change_case:capital_word_frequency": Rule(
        content.capital_word_frequency,
        content.long_capital_word_frequency,
        {"capital_frequency": "count", "capital_relation": "relation"},
    ),
    "change_case:english_capital": Rule(content.english_capital, content.is_english),
    "change_case:english_lowercase": Rule(content.english_lowercase, content.is_english),
    "punctuation:no_comma": Rule(content.no_comma, content.no_other_comma),
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a problem, its arguments read and checked."""

    name: str
    rule: Rule
    arguments: Mapping[str, Any]

    def is_followed(self, text: str, stricter: bool = False) -> bool:
        """Whether a text follows it. An empty text follows nothing."""
        if not text.strip() or not self.rule.follows(text, **self.arguments):
            return False
        if not stricter or self.rule.stricter is None:
            return True
        seen = text if self.rule.as_written else visible(text)
        return bool(seen.strip()) and self.rule.stricter(seen, **self.arguments)

    def is_followed_loosely(self, text: str, stricter: bool = False) -> bool:
        """Whether a text follows it, or would without its first or last line or its asterisks."""
        return any(self.is_followed(variant, stricter) for variant in loose_variants(text))


def loose_variants(text: str) -> tuple[str, ...]:
    """Return the text and what is left without its first line, its last, both, and any asterisk."""
    lines = text.split("\n")
    cut = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return tuple(dict.fromkeys([*cut, *(each.replace("*", "") for each in cut)]))


def read_instruction(name: Any, given: Any, where: str, index: int) -> Instruction:
    """Return instruction number ``index`` of a problem; raises VerifierError where it is malformed."""
    rule = RULES.get(name) if isinstance(name, str) else None
    if rule is None:
        nearest = difflib.get_close_matches(str(name), RULES, n=1, cutoff=0.5)
        remedy = f"did you mean {nearest[0]}?" if nearest else ""
        accepted = "one of the 25 instruction ids, such as punctuation:no_comma"
        raise VerifierError(
            message(f"{where}.instruction_id_list[{index}]", repr(name), accepted, remedy)
        )
    arguments = read_arguments(rule.arguments, given, f"{where}.kwargs[{index}]", name)
    if arguments.get("nth_paragraph", 1) not in range(1, arguments.get("num_paragraphs", 1) + 1):
        raise VerifierError(
            message(
                f"{where}.kwargs[{index}].nth_paragraph",
                arguments["nth_paragraph"],
                f"1 to num_paragraphs ({arguments['num_paragraphs']})",
            )
        )
    return Instruction(name, rule, arguments)
