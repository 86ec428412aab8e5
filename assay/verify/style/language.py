"""Verifier ``language``: the share of a completion's words in the target language."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from assay.errors import VerifierError
from assay.host.fields import Field, choice, number
from assay.types import Completion, Problem
from assay.verify.base import Part, Verifier
from assay.verify.instructions.languages import LANGUAGES, detect_language, script_share

# Sentences with fewer letters than this are combined, because no detector recognizes such short
# sentences.
CHUNK = 40
# A word without a detected language is ignored if it has fewer letters than this, or its script
# alone decides.
LEAST_LETTERS = 40
# Maximum number of characters that the detector reads.
DETECTED = 2000
# If the think block has fewer words than this, the whole text is judged.
LEAST_REASONING = 10
# Minimum share of function words in a text that identifies a language.
SURE = 0.18
# A language is certain only if no other language has more than this fraction of its function words.
RIVAL = 0.6

_FILE = Path(__file__).with_name("languages.toml")
_TABLES = tomllib.loads(_FILE.read_text(encoding="utf-8"))
# Scripts of the detector's languages. All others use Latin letters.
_SCRIPTS = {code: script for script, codes in _TABLES["scripts"].items() for code in codes.split()}
_COMMON = {code: frozenset(words.split()) for code, words in _TABLES["words"].items()}
# Scripts shared by several languages.
_SHARED = {"latin", "cyrillic", "arabic", "devanagari"}
_KANA = {"hiragana", "katakana"}

_FENCE = re.compile(r"[ \t]{0,3}(```|~~~)")
_FORMULA = re.compile(
    r"\$\$[^$]{1,1000}\$\$|\$[^$\n]{1,400}\$|\\\[.{1,1000}?\\\]|\\\(.{1,400}?\\\)", re.DOTALL
)
_INLINE_CODE = re.compile(r"`[^`\n]{1,200}`")
_TEXT_IN_FORMULA = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s{0,3}\{([^{}]{0,400})\}")
_SENTENCE_IN_FORMULA = re.compile(r"(?<![\\\w])(?:[^\W\d_]{3,}[ ,.]{1,3}){3}")
_NOT_WORDS = re.compile(
    r"https?://\S{1,500}|\\[a-zA-Z]+|<[/!]?[a-zA-Z][^<>\n]{0,100}>"
    r"|(?<![A-Za-z\d_])[A-Za-z]{0,40}[\d_][A-Za-z\d_]*"
)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？\n]*")
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LATIN = "A-Za-z\u00c0-\u024f\u1e00-\u1eff"
# A word in Latin letters has at least two letters, because a single letter is a variable.
# Letters of another script form a word with their combining marks.
# In Chinese or Japanese text, each character counts as a word.
_WORD = re.compile(
    rf"[{_SINGLE}]|[{_LATIN}][{_LATIN}\u0300-\u036f'’]+"
    rf"|[^\W\d_{_SINGLE}{_LATIN}][^\s\d!-/:-@\[-`{{-~。，、！？；：「」（）{_SINGLE}{_LATIN}]*"
)


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and (value.lower() in LANGUAGES or value.lower() == "zh")


TARGET = Field("target", "a language code such as en, zh, de", needed=True, check=_is_target)
PART = choice("part", "reasoning", "answer", "all")
THRESHOLD = Field("threshold", "the lowest share that passes", default=0.9, check=number(0, 1))


def judge_language(problem: Problem, completion: Completion) -> Part:
    """Return the share of words in the language ``target``. A share of ``threshold`` passes.

    Reads ``target``, ``part`` and ``threshold`` from the spec. ``part`` selects the reasoning, the
    answer, or all. If the reasoning has fewer than ten words, the whole text is read.

    In Chinese or Japanese text, each character counts as a word. Code, formulas, numbers, tags and
    addresses do not count, but words of a foreign script always count. A language with its own
    script is identified by the script. All other languages are identified sentence by sentence, by
    their most common words and otherwise by `detect_language`. A text without words passes. Source:
    DeepSeek-R1, arXiv:2501.12948, section 2.3.2.
    """
    target, threshold = TARGET.read(problem).lower(), THRESHOLD.read(problem)
    text = _read(completion, problem)
    right = total = 0
    unsettled: list[str] = []
    for words in _chunks(text, target):
        inside = _inside(words, target)
        settled = _settled(tuple(inside), target)
        if settled is None:
            unsettled += inside
        elif settled:
            right += len(inside)
        total += len(words)
    rest = " ".join(unsettled)
    if sum(map(str.isalpha, rest)) < LEAST_LETTERS and total > len(unsettled):
        # Words without a detected language are too few for the detector, so the other words decide.
        total -= len(unsettled)
    elif _is_language(rest, target):
        right += len(unsettled)
    if not total:
        return Part(1.0, passed=True, detail="no words")
    share = right / total
    return Part(
        share,
        passed=share >= threshold,
        detail=f"{right} of {total} words are {target}",
        components={"words": float(total)},
    )


def check_language(options: Mapping[str, Any]) -> None:
    """Raise VerifierError if the target needs the language detector and the detector is not
    installed."""
    if _SCRIPTS.get(str(options.get("target")).lower(), "latin") not in _SHARED:
        return
    if find_spec("langdetect") is None:
        raise VerifierError(
            "verifier language needs langdetect: install it with  pip install 'assay-rl[language]'"
        )


def _read(completion: Completion, problem: Problem) -> str:
    part, reasoning = PART.read(problem), completion.reasoning_text
    if part == "answer":
        return completion.answer_text
    if part == "reasoning" and len(_WORD.findall(_without_code(reasoning)[0])) >= LEAST_REASONING:
        return reasoning
    return f"{reasoning}\n{completion.answer_text}"


def _without_code(text: str) -> tuple[str, str]:
    """Split a text into prose and other text, such as code, formulas, addresses and numbers.

    A formula that contains a sentence is prose. If every formula were removed, a sentence between
    dollar signs would not count.
    """
    aside: list[str] = []

    def formula(found: re.Match[str]) -> str:
        words = " ".join(_TEXT_IN_FORMULA.findall(found[0]))
        if _SENTENCE_IN_FORMULA.search(found[0]):
            return found[0]
        aside.append(_TEXT_IN_FORMULA.sub(" ", found[0]))
        return f" {words} "

    def cut(found: re.Match[str]) -> str:
        aside.append(found[0])
        return " "

    prose, fenced = _without_fences(text)
    aside.append(fenced)
    prose = _INLINE_CODE.sub(cut, prose)
    prose = _NOT_WORDS.sub(cut, _FORMULA.sub(formula, prose))
    return prose, " ".join(aside)


def _without_fences(text: str) -> tuple[str, str]:
    """Return (text outside fenced code, fenced code).

    A fenced block without a closing fence extends to the end of the text.
    """
    if "```" not in text and "~~~" not in text:
        return text, ""
    lines: tuple[list[str], list[str]] = ([], [])
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark is not None and (not fence or fence == mark[1]):
            fence = "" if fence else mark[1]
            continue
        lines[bool(fence)].append(line)
    return "\n".join(lines[0]), "\n".join(lines[1])


def _chunks(text: str, target: str) -> Iterator[list[str]]:
    """Yield lists of words: the words of each sentence, then the foreign words outside prose.

    Several short sentences are combined into one list.
    """
    prose, aside = _without_code(text)
    waiting: list[str] = []
    letters = 0
    for sentence in _SENTENCE.findall(prose):
        words = _WORD.findall(sentence)
        if letters and len(words) > 20:
            yield waiting
            waiting, letters = [], 0
        waiting = waiting + words if waiting else words
        letters += sum(map(len, words))
        if letters >= CHUNK:
            yield waiting
            waiting, letters = [], 0
    if waiting:
        yield waiting
    own = _SCRIPTS.get(target, "latin")
    foreign = [
        word
        for word in _WORD.findall(aside)
        if _script_of(word[0]) not in ("latin", "greek", own, *(_KANA if own == "kana" else ()))
    ]
    if foreign:
        yield foreign


def _inside(words: Sequence[str], target: str) -> list[str]:
    """Return those of the words that are written in the target language's script."""
    scripts = [_script_of(word[0]) for word in words]
    script = _SCRIPTS.get(target, "latin")
    num_kana = sum(1 for each in scripts if each in _KANA)
    num_han = scripts.count("han")
    accepted = {script}
    # Japanese text mixes kana and Chinese characters, so a tenth of kana makes a text Japanese.
    if script == "kana":
        accepted = {*_KANA, "han"} if num_kana >= 0.1 * num_han or num_han < 6 else _KANA
    elif script == "han" and num_kana >= 0.1 * num_han:
        accepted = set()
    return [word for word, each in zip(words, scripts, strict=True) if each in accepted]


def _settled(words: Sequence[str], target: str) -> bool | None:
    """Return whether words in the target's script are in the target language; None if undecided.

    Returns None if the function words do not decide between languages of the same script.
    """
    if _SCRIPTS.get(target, "latin") not in _SHARED:
        return True
    counts = _function_words([word.casefold() for word in words])
    first, second = sorted(counts, key=lambda code: (-counts[code], code))[:2]
    if len(words) < 5 or counts[first] < max(2, SURE * len(words)):
        return None
    return first == target if counts[second] <= RIVAL * counts[first] else None


def _is_language(text: str, target: str) -> bool:
    """Return whether a text that `_settled` could not decide is in the target language."""
    if sum(map(str.isalpha, text)) < LEAST_LETTERS:
        return True
    words = text.casefold().split()
    counts = _function_words(words)
    if target in counts and counts[target] >= max(0.12 * len(words), *counts.values()):
        return True
    return detect_language(text[:DETECTED]) in (target, None)


def _function_words(words: Sequence[str]) -> dict[str, int]:
    return {code: sum(map(common.__contains__, words)) for code, common in _COMMON.items()}


@lru_cache(maxsize=8192)
def _script_of(char: str) -> str:
    return next(iter(script_share(char)), "")


LANGUAGE = Verifier(
    name="language",
    version=2,
    judge=judge_language,
    domain="language consistency: whether a completion keeps to one language",
    fields=(TARGET, PART, THRESHOLD),
    accepts="any text; code, formulas, numbers, tags and addresses do not count",
    partial_credit="the share of words",
    weight=0.1,
    text_only=True,
    cached=True,
    modules=("assay.verify.instructions.languages",),
    extra="language",
    check_options=check_language,
)
