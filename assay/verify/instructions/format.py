"""Instructions on how a text is built: paragraphs, lists, marks, titles, beginnings and ends.

Each rule is a function of the text and the instruction's arguments, and reads as the public scorer
does (Zhou et al., "Instruction-Following Evaluation for Large Language Models", arXiv:2311.07911);
the function behind it in a pair is the further demand that ``stricter`` makes. All take time linear
in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from assay.verify.instructions.words import has_content

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

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


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    first, *rest = _PARAGRAPH_MARK.split(text)
    inner, last = rest[:-1], rest[-1:]
    if not all(paragraph.strip() for paragraph in inner):
        return False
    # An empty first or last one is only a mark at the edge of the text.
    edges = [paragraph for paragraph in (first, *last) if paragraph.strip()]
    return len(inner) + len(edges) == num_paragraphs


def full_paragraphs(text: str, num_paragraphs: int) -> bool:
    return sum(map(has_content, _PARAGRAPH_MARK.split(text))) == num_paragraphs


def nth_paragraph_first_word(
    text: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    paragraphs = text.split("\n\n")
    if sum(bool(paragraph.strip()) for paragraph in paragraphs) != num_paragraphs:
        return False
    # Empty paragraphs do not count towards the number, and yet towards n.
    paragraph = paragraphs[nth_paragraph - 1].strip() if nth_paragraph <= num_paragraphs else ""
    if not paragraph:
        return False
    word = paragraph.split()[0].lstrip("'").lstrip('"')
    return _FIRST_WORD_ENDS.split(word)[0].lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    return sum(1 for _ in _placeholders(text)) >= num_placeholders


def full_placeholders(text: str, num_placeholders: int) -> bool:
    return sum(map(has_content, _placeholders(text))) >= num_placeholders


def _placeholders(text: str) -> Iterator[str]:
    """Yield what stands in square brackets, each within one line."""
    for line in text.split("\n"):
        start = line.find("[")
        while start >= 0 and (end := line.find("]", start)) >= 0:
            yield line[start + 1 : end]
            start = line.find("[", end)


def postscript(text: str, postscript_marker: str) -> bool:
    return re.search(_postscript(postscript_marker), text.lower()) is not None


def postscript_on_its_own_line(text: str, postscript_marker: str) -> bool:
    pattern = _LINE_START + _postscript(postscript_marker)
    marks = list(re.finditer(pattern, text.lower(), re.MULTILINE))
    return bool(marks) and has_content(text.lower()[marks[-1].end() :])


def _postscript(marker: str) -> str:
    return _POSTSCRIPTS.get(marker.strip()) or re.escape(marker.strip().lower())


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    return len(_BULLET.findall(text)) == num_bullets


def full_bullets(text: str, num_bullets: int) -> bool:
    return len(_FULL_BULLET.findall(text)) == num_bullets


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    single = sum(bool(each.strip("*").strip()) for each in _HIGHLIGHT.findall(text))
    double = sum(bool(each[2:-2].strip()) for each in _DOUBLE_HIGHLIGHT.findall(text))
    return single + double >= num_highlights


def full_highlights(text: str, num_highlights: int) -> bool:
    spans = [match[2] for match in _TIGHT_HIGHLIGHT.finditer(text)]
    return sum(map(has_content, spans)) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    return len(re.findall(_section(section_spliter), text)) >= num_sections


def full_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    pattern = _LINE_START + _section(section_spliter)
    sections = re.split(pattern, text, flags=re.MULTILINE)[1:]
    return sum(map(has_content, sections)) >= num_sections


def _section(spliter: str) -> str:
    return re.escape(spliter.strip()) + r"\s?\d+"


def constrained_response(text: str) -> bool:
    return any(option in text for option in OPTIONS)


def one_constrained_response(text: str) -> bool:
    return sum(text.count(option) for option in OPTIONS) == 1


def json_format(text: str) -> bool:
    return _parsed(text) is not _NOTHING


def json_collection(text: str) -> bool:
    return isinstance(_parsed(text), (dict, list))


_NOTHING = object()


def _parsed(text: str) -> Any:
    text = text.strip()
    for fence in _FENCES:
        text = text.removeprefix(fence)
    try:
        return json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return _NOTHING


def title(text: str) -> bool:
    return any(inner.strip() for inner in _titles(text))


def full_title(text: str) -> bool:
    return any(map(has_content, _titles(text)))


def _titles(text: str) -> Iterator[str]:
    """Yield what stands between the first << and the last >> of each line."""
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and start + 2 < end:
            yield line[start:end].lstrip("<").rstrip(">")


def two_responses(text: str) -> bool:
    first, *rest = text.split("******")
    inner, last = rest[:-1], rest[-1:]
    if not all(response.strip() for response in inner):
        return False
    found = [response.strip() for response in (first, *inner, *last) if response.strip()]
    return len(found) == 2 and found[0] != found[1]


def two_full_responses(text: str) -> bool:
    found = [" ".join(each.split()).casefold() for each in text.split("******")]
    found = [each for each in found if has_content(each)]
    return len(found) == 2 and found[0] != found[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def repeat_prompt_and_answer(text: str, prompt_to_repeat: str) -> bool:
    prompt = prompt_to_repeat.strip()
    return text.strip().startswith(prompt) and has_content(text.strip()[len(prompt) :])


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def end_checker_exactly(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').endswith(end_phrase.strip())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def quotation_of_something(text: str) -> bool:
    return has_content(text.strip()[1:-1])
