"""Instructions on what a text holds: words, letters, lengths, language, case, commas.

Each rule is a function of the text and the instruction's arguments, and reads as the public scorer
does (Zhou et al., "Instruction-Following Evaluation for Large Language Models", arXiv:2311.07911);
the function behind it in a pair is the further demand that ``stricter`` makes. Keywords are plain text.
"""

from __future__ import annotations

import re
from functools import lru_cache

from assay.verify.instructions.languages import detect_language, is_language
from assay.verify.instructions.sentences import num_sentences as count_sentences
from assay.verify.instructions.sentences import sentences
from assay.verify.instructions.words import has_content, num_capital_words
from assay.verify.instructions.words import num_words as count_words

_OTHER_COMMAS = re.compile("[،、，﹐﹑､՝߸⸲⸴]")
_LONG_CAPITALS = re.compile(r"\b[^\W\d_]{2,}\b")


def holds(relation: str, count: int, bound: int) -> bool:
    """Whether a count stands in a relation (``less than``, ``at least``) to its bound."""
    return count < bound if relation == "less than" else count >= bound


@lru_cache(maxsize=2048)
def _plain(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text), re.IGNORECASE)


@lru_cache(maxsize=2048)
def _whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(text)}\b", re.IGNORECASE)


def existence(text: str, keywords: tuple[str, ...]) -> bool:
    return all(_plain(keyword).search(text) for keyword in keywords)


def existence_of_words(text: str, keywords: tuple[str, ...]) -> bool:
    return all(_whole(keyword.strip()).search(text) for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return holds(relation, len(_plain(keyword.strip()).findall(text)), frequency)


def frequency_of_words(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return holds(relation, len(_whole(keyword.strip()).findall(text)), frequency)


def forbidden_words(text: str, forbidden_words: tuple[str, ...]) -> bool:
    return not any(_whole(word).search(text) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return holds(let_relation, text.lower().count(letter.lower()), let_frequency)


def response_language(text: str, language: str) -> bool:
    # A text of which no language can be told (only digits) breaks no rule, says the public scorer.
    return is_language(text, language) is not False


def is_surely_language(text: str, language: str) -> bool:
    return is_language(text, language) is True


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return holds(relation, count_sentences(text), num_sentences)


def number_full_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return holds(relation, sum(has_content(each) for each in sentences(text)), num_sentences)


def number_words(text: str, num_words: int, relation: str) -> bool:
    return holds(relation, count_words(text), num_words)


def number_real_words(text: str, num_words: int, relation: str) -> bool:
    return holds(relation, count_words(text.replace("_", " ")), num_words)


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    return holds(capital_relation, num_capital_words(text), capital_frequency)


def long_capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    longer = sum(word.isupper() for word in _LONG_CAPITALS.findall(text))
    return holds(capital_relation, longer, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and detect_language(text) in ("en", None)


def english_lowercase(text: str) -> bool:
    return text.islower() and detect_language(text) in ("en", None)


def is_english(text: str) -> bool:
    # The case tells nothing of the language, and text all in capitals is hard to tell.
    return "en" in (detect_language(text), detect_language(text.lower()))


def no_comma(text: str) -> bool:
    return "," not in text


def no_other_comma(text: str) -> bool:
    return not _OTHER_COMMAS.search(text)
