"""The rules of IFEval's 25 instruction types, each a function of a text and arguments.

Each rule decides like the public scorer of Zhou et al., "Instruction-Following Evaluation for Large
Language Models", arXiv:2311.07911. With ``strict``, the text must also follow the instruction's
meaning: words must be words and not marks, and a section or title must have content. Every rule
takes time linear in the text's length. The table `RULES` maps an instruction id to its rule. The
second half of an instruction's id is the name of the rule's function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

from assay.verify.instructions.languages import detect_language, is_language
from assay.verify.instructions.sentences import sentences
from assay.verify.instructions.words import has_content, num_capital_words
from assay.verify.instructions.words import num_words as count_words

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_OTHER_COMMAS = re.compile("[،、，﹐﹑､՝߸⸲⸴]")
_LONG_CAPITALS = re.compile(r"\b[^\W\d_]{2,}\b")
_PARAGRAPH_MARK = re.compile(r"\s?\*\*\*\s?")
_BULLET = re.compile(r"^[^\S\n]*(?:\*[^*].*|-.*)$", re.MULTILINE)
_FULL_BULLET = re.compile(r"^[^\S\n]*[*-][^\S\n]+(?=\S).*[^\W_].*$", re.MULTILINE)
_HIGHLIGHT = re.compile(r"\*[^\n*]*\*")
_DOUBLE_HIGHLIGHT = re.compile(r"\*\*[^\n*]*\*\*")
_TIGHT_HIGHLIGHT = re.compile(r"(\*{1,3})(?=[^\s*])([^\n*]*[^\s*])\1")
_FENCES = ("```json", "```Json", "```JSON", "```")
_FIRST_WORD_ENDS = re.compile(r"""[.,?!'"]""")
_LINE_START = r"^[^\S\n]*[*_>#\"'(]*[^\S\n]*"
_POSTSCRIPTS = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}


def existence(text: str, strict: bool, keywords: tuple[str, ...]) -> bool:
    if strict:
        return all(_whole(keyword.strip()).search(text) for keyword in keywords)
    return all(_plain(keyword).search(text) for keyword in keywords)


def frequency(text: str, strict: bool, keyword: str, frequency: int, relation: str) -> bool:
    pattern = (_whole if strict else _plain)(keyword.strip())
    return _holds(relation, len(pattern.findall(text)), frequency)


def forbidden_words(text: str, strict: bool, forbidden_words: tuple[str, ...]) -> bool:
    return not any(_whole(word).search(text) for word in forbidden_words)


def letter_frequency(
    text: str, strict: bool, letter: str, let_frequency: int, let_relation: str
) -> bool:
    return _holds(let_relation, text.lower().count(letter.lower()), let_frequency)


def response_language(text: str, strict: bool, language: str) -> bool:
    # As in the public scorer, a text without a detectable language passes, such as digits alone.
    found = is_language(text, language)
    return found is True if strict else found is not False


def number_sentences(text: str, strict: bool, num_sentences: int, relation: str) -> bool:
    return _holds(relation, _num(sentences(text), strict), num_sentences)


def number_paragraphs(text: str, strict: bool, num_paragraphs: int) -> bool:
    paragraphs = _PARAGRAPH_MARK.split(text)
    if strict:
        return _num(paragraphs, strict) == num_paragraphs
    found = _between_marks(paragraphs)
    return found is not None and len(found) == num_paragraphs


def number_words(text: str, strict: bool, num_words: int, relation: str) -> bool:
    return _holds(relation, count_words(text.replace("_", " ") if strict else text), num_words)


def nth_paragraph_first_word(
    text: str, strict: bool, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = text.split("\n\n")
    if sum(bool(paragraph.strip()) for paragraph in paragraphs) != num_paragraphs:
        return False
    # As in the public scorer, empty paragraphs count when the n-th paragraph is selected, but not
    # in the number of paragraphs.
    paragraph = paragraphs[nth_paragraph - 1].strip() if nth_paragraph <= num_paragraphs else ""
    if not paragraph:
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    return _FIRST_WORD_ENDS.split(word)[0].lower() == first_word.lower()


def number_placeholders(text: str, strict: bool, num_placeholders: int) -> bool:
    return _num(_placeholders(text), strict) >= num_placeholders


def postscript(text: str, strict: bool, postscript_marker: str) -> bool:
    marker, text = postscript_marker.strip(), text.lower()
    pattern = _POSTSCRIPTS.get(marker) or re.escape(marker.lower())
    if not strict:
        return re.search(pattern, text) is not None
    marks = list(re.finditer(_LINE_START + pattern, text, re.MULTILINE))
    return bool(marks) and has_content(text[marks[-1].end() :])


def number_bullet_lists(text: str, strict: bool, num_bullets: int) -> bool:
    return len((_FULL_BULLET if strict else _BULLET).findall(text)) == num_bullets


def constrained_response(text: str, strict: bool) -> bool:
    count = sum(text.count(option) for option in OPTIONS)
    return count == 1 if strict else count > 0


def number_highlighted_sections(text: str, strict: bool, num_highlights: int) -> bool:
    if strict:
        return _num((m[2] for m in _TIGHT_HIGHLIGHT.finditer(text)), strict) >= num_highlights
    single = sum(bool(each.strip("*").strip()) for each in _HIGHLIGHT.findall(text))
    double = sum(bool(each[2:-2].strip()) for each in _DOUBLE_HIGHLIGHT.findall(text))
    return single + double >= num_highlights


def multiple_sections(text: str, strict: bool, section_spliter: str, num_sections: int) -> bool:
    heading = re.escape(section_spliter.strip()) + r"\s?\d+"
    if not strict:
        return len(re.findall(heading, text)) >= num_sections
    sections = re.split(_LINE_START + heading, text, flags=re.MULTILINE)[1:]
    return _num(sections, strict) >= num_sections


def json_format(text: str, strict: bool) -> bool:
    text = text.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        value = json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return not strict or isinstance(value, dict | list)


def title(text: str, strict: bool) -> bool:
    return any(has_content(inner) if strict else inner.strip() for inner in _titles(text))


def two_responses(text: str, strict: bool) -> bool:
    responses = text.split("******")
    if strict:
        found = [" ".join(each.split()).casefold() for each in responses if has_content(each)]
    else:
        found = [each.strip() for each in _between_marks(responses) or ()]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(text: str, strict: bool, prompt_to_repeat: str) -> bool:
    text, prompt = text.strip(), prompt_to_repeat.strip()
    if strict:
        return text.startswith(prompt) and has_content(text[len(prompt) :])
    return text.lower().startswith(prompt.lower())


def end_checker(text: str, strict: bool, end_phrase: str) -> bool:
    end, phrase = text.strip().strip('"'), end_phrase.strip()
    return end.endswith(phrase) if strict else end.lower().endswith(phrase.lower())


def quotation(text: str, strict: bool) -> bool:
    text = text.strip()
    if strict:
        return has_content(text[1:-1])
    return len(text) > 1 and text[0] == text[-1] == '"'


def capital_word_frequency(
    text: str, strict: bool, capital_frequency: int, capital_relation: str
) -> bool:
    longer = (word.isupper() for word in _LONG_CAPITALS.findall(text))
    return _holds(
        capital_relation, sum(longer) if strict else num_capital_words(text), capital_frequency
    )


def english_capital(text: str, strict: bool) -> bool:
    return _is_english(text) if strict else text.isupper() and detect_language(text) in ("en", None)


def english_lowercase(text: str, strict: bool) -> bool:
    return _is_english(text) if strict else text.islower() and detect_language(text) in ("en", None)


def no_comma(text: str, strict: bool) -> bool:
    return not _OTHER_COMMAS.search(text) if strict else "," not in text


RULES: Mapping[str, Callable[..., bool]] = {
    f"{group}:{rule.__name__}": rule
    for group, rules in {
        "keywords": (existence, frequency, forbidden_words, letter_frequency),
        "language": (response_language,),
        "length_constraints": (
            number_sentences,
            number_paragraphs,
            number_words,
            nth_paragraph_first_word,
        ),
        "detectable_content": (number_placeholders, postscript),
        "detectable_format": (
            number_bullet_lists,
            constrained_response,
            number_highlighted_sections,
            multiple_sections,
            json_format,
            title,
        ),
        "combination": (two_responses, repeat_prompt),
        "startend": (end_checker, quotation),
        "change_case": (capital_word_frequency, english_capital, english_lowercase),
        "punctuation": (no_comma,),
    }.items()
    for rule in rules
}


def _holds(relation: str, count: int, bound: int) -> bool:
    return count < bound if relation == "less than" else count >= bound


@lru_cache(maxsize=2048)
def _plain(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text), re.IGNORECASE)


@lru_cache(maxsize=2048)
def _whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(text)}\b", re.IGNORECASE)


def _num(pieces: Iterable[str], strict: bool) -> int:
    """Return the number of texts. With ``strict``, count only texts with a letter or a digit."""
    return sum(1 for piece in pieces if not strict or has_content(piece))


def _between_marks(pieces: list[str]) -> list[str] | None:
    """Return the texts between separators, or None if two separators have no text between them.

    A separator at the start or end of the whole text is allowed.
    """
    if not all(piece.strip() for piece in pieces[1:-1]):
        return None
    return [piece for piece in pieces if piece.strip()]


def _placeholders(text: str) -> Iterator[str]:
    """Yield the contents of square brackets that open and close in one line."""
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            yield line[start + 1 : end]
            start = line.find("[", end)


def _titles(text: str) -> Iterator[str]:
    """Yield the text between the first << and the last >> of each line."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 2 < end:
            yield line[start:end].lstrip("<").rstrip(">")


def _is_english(text: str) -> bool:
    # The language detector is unreliable for text in capitals, so the text is also tried in lower
    # case.
    return "en" in (detect_language(text), detect_language(text.lower()))
