"""Verifier ``language``: the share of a completion's words that are in the target language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.base import Field, Part, Verifier, known_errors
from assay.verify.instructions.languages import LANGUAGES, detect_language, script_share

PARTS = ("reasoning", "answer", "all")
CHUNK = 40  # letters: shorter sentences are taken together, for no detector knows them
LEAST_LETTERS = (
    40  # fewer that no common word settles do not count; a text of no more, by its script
)
DETECTED = 2000  # characters that the detector reads
LEAST_REASONING = 10  # words: with fewer in the think block the whole text is judged
SURE = 0.18  # share of function words that settles a language
RIVAL = 0.6  # ... unless another language has so many of them too

# What each language of the detector is written in; all others are in Latin letters.
_SCRIPTS = {
    **dict.fromkeys(["bg", "mk", "ru", "uk"], "cyrillic"),
    **dict.fromkeys(["ar", "fa", "ur"], "arabic"),
    **dict.fromkeys(["hi", "mr", "ne"], "devanagari"),
    **dict.fromkeys(["zh", "zh-cn", "zh-tw"], "han"),
    "bn": "bengali", "el": "greek", "gu": "gujarati", "he": "hebrew", "ja": "kana", "kn": "kannada",
    "ko": "hangul", "ml": "malayalam", "pa": "gurmukhi", "ta": "tamil", "te": "telugu", "th": "thai",
}  # fmt: skip
_SHARED = {"latin", "cyrillic", "arabic", "devanagari"}  # scripts of several languages
_KANA = {"hiragana", "katakana"}

# The commonest words: they settle a sentence in microseconds, and better than a detector where it is short.
_FUNCTION_WORDS = {
    "en": "the of and to in is we that it for so are this be as with by from have has not then if can "
    "there at on which or an a i let's let since each was what but you their he she they will would "
    "because must need how now first second next all no these per day total number sum times makes make made "
    "equals subtract multiply divide both sides answer find value get gets only some many much while about "
    "cost costs sold spent left same using use into between after before one two three his her its our my do does where when more than",
    "de": "der die das und ist in zu den wir von mit ein eine einen einem nicht es auf für sich dass als "
    "auch an so wie dem des sind wird aus bei oder aber wenn also nun dann haben hat kann man er sie",
    "fr": "le la les de des et est un une du que nous pour dans à en il elle qui ne pas sur par avec ce "
    "cette au aux se donc si sont on plus nous ou mais alors comme ont ces son sa leur puis",
    "es": "el la los las de que y en un una es por para con se del al no lo su como más son si pero "
    "entonces o este esta hay cada tiene ya muy cuando donde nos sus ser está porque",
    "it": "il la di che e è un una per in del della i le gli non con si da dei come sono nel alla al lo "
    "quindi se anche ma questo questa più ha abbiamo allora ogni dal delle ci poi",
    "pt": "o a os as de que e é um uma do da em para não com se por no na dos das mais como são então "
    "se mas ou ao este esta cada tem temos nos seu sua quando isso pelo pela foi",
    "nl": "de het een en van is in dat te we op voor met niet zijn aan er die als dus dan om bij ook naar "
    "uit maar of wordt door heeft hebben kan nu deze dit elk geen moet hoe wat ik",
}

_FENCE = re.compile(r"[ \t]{0,3}(```|~~~)")
_FORMULA = re.compile(
    r"\$\$[^$]{1,1000}\$\$|\$[^$\n]{1,400}\$|\\\[.{1,1000}?\\\]|\\\(.{1,400}?\\\)", re.DOTALL
)
_INLINE_CODE = re.compile(r"`[^`\n]{1,200}`")
_TEXT_IN_FORMULA = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s{0,3}\{([^{}]{0,400})\}")
_SENTENCE_IN_FORMULA = re.compile(r"(?<![\\\w])(?:[^\W\d_]{3,}[ ,.]{1,3}){3}")
_NOT_WORDS = re.compile(
    r"https?://\S{1,500}|\\[a-zA-Z]+|<[/!]?[a-zA-Z][^<>\n]{0,100}>|(?<![A-Za-z\d_])[A-Za-z]{0,40}[\d_][A-Za-z\d_]*"
)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？\n]*")
_SINGLE = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_LATIN = "A-Za-z\u00c0-\u024f\u1e00-\u1eff"
# A word of Latin letters (one letter alone is a variable), one of other letters with the marks that
# Indic scripts put on them, or one Chinese or Japanese character.
_WORD = re.compile(
    rf"[{_SINGLE}]|[{_LATIN}][{_LATIN}\u0300-\u036f'’]+"
    rf"|[^\W\d_{_SINGLE}{_LATIN}][^\s\d!-/:-@\[-`{{-~。，、！？；：「」（）{_SINGLE}{_LATIN}]*"
)


def judge_language(problem: Problem, completion: Completion) -> Part:
    """Return the share of words that are in the language ``target``; passed from ``threshold`` on.

    Each Chinese or Japanese character is a word. Code, formulas, numbers, tags and addresses do not
    count (words of a foreign script do, wherever they stand). A language with a script of its own is told by
    the script; others sentence by sentence, by their commonest words and, where these do not
    settle it, by `detect_language`. A text without words is in every language. ``part`` is what is
    read: the reasoning (the whole text where there are fewer than ten words of it), the answer, or
    all. Source: DeepSeek-R1, arXiv:2501.12948, section 2.3.2.
    """
    target = _target(problem)
    threshold: Any = problem.spec.get("threshold", 0.9)
    if not _is_share(threshold):
        raise VerifierError(message("spec.threshold", repr(threshold), "a number from 0 to 1"))
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
        total -= len(unsettled)  # too little to tell: the rest of the text decides
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
    """Raise VerifierError where the detector may be needed and is not installed."""
    if _SCRIPTS.get(str(options.get("target")).lower(), "latin") not in _SHARED:
        return
    if find_spec("langdetect") is None:
        raise VerifierError(
            "verifier language needs langdetect: install it with  pip install 'assay-rl[language]'"
        )


def _read(completion: Completion, problem: Problem) -> str:
    part: Any = problem.spec.get("part", "reasoning")
    if part not in PARTS:
        raise VerifierError(message("spec.part", repr(part), ", ".join(PARTS)))
    reasoning = completion.reasoning_text
    if part == "answer":
        return completion.answer_text
    if part == "reasoning" and len(_WORD.findall(_without_code(reasoning)[0])) >= LEAST_REASONING:
        return reasoning
    return f"{reasoning}\n{completion.answer_text}"


def _target(problem: Problem) -> str:
    target: Any = problem.spec.get("target")
    if not _is_target(target):
        where = f"problem {problem.id}: spec.target"
        raise VerifierError(message(where, repr(target), "a language code such as en, zh, de"))
    return target.lower()


def _without_code(text: str) -> tuple[str, str]:
    """Return (prose, what is no prose: code, formulas, addresses, numbers).

    A formula that holds a sentence is prose.
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
    """Return (the lines outside fenced code, those inside); a fence that never closes runs to the end."""
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
    """Yield the words of each sentence, short ones together; then the foreign words aside from prose."""
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
    """Return the words of a chunk that are in the target language's script."""
    scripts = [_script_of(word[0]) for word in words]
    script = _SCRIPTS.get(target, "latin")
    num_kana = sum(1 for each in scripts if each in _KANA)
    num_han = scripts.count("han")
    accepted = {script}
    if script == "kana":  # Chinese characters are Japanese where kana stand among them
        accepted = {*_KANA, "han"} if num_kana >= 0.1 * num_han or num_han < 6 else _KANA
    elif script == "han" and num_kana >= 0.1 * num_han:
        accepted = set()
    return [word for word, each in zip(words, scripts, strict=True) if each in accepted]


def _settled(words: Sequence[str], target: str) -> bool | None:
    """Return whether words of the target's script are in it; None: they do not tell by themselves."""
    if _SCRIPTS.get(target, "latin") not in _SHARED:
        return True
    counts = _function_words([word.casefold() for word in words])
    first, second = sorted(counts, key=lambda code: (-counts[code], code))[:2]
    if len(words) < 5 or counts[first] < max(2, SURE * len(words)):
        return None
    return first == target if counts[second] <= RIVAL * counts[first] else None


def _is_language(text: str, target: str) -> bool:
    """Whether the sentences that none of the common words settled are in the target language."""
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


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0.0 <= value <= 1.0


def _is_target(value: Any) -> bool:
    return isinstance(value, str) and (value.lower() in LANGUAGES or value.lower() == "zh")


_COMMON = {code: frozenset(words.split()) for code, words in _FUNCTION_WORDS.items()}

LANGUAGE = Verifier(
    name="language",
    version=2,
    judge=judge_language,
    domain="language consistency: whether a completion keeps to one language",
    fields=(
        Field("target", "a language code such as en, zh, de", needed=True, check=_is_target),
        Field("part", ", ".join(PARTS), default="reasoning", check=lambda value: value in PARTS),
        Field("threshold", "a share: from it on the text passes", default=0.9, check=_is_share),
    ),
    accepts="any text; code, formulas, numbers, tags and addresses do not count",
    partial_credit="the share of words",
    weight=0.1,
    known_errors=known_errors("language"),
    text_only=True,
    cached=True,
    modules=("assay.verify.style.language", "assay.verify.instructions.languages", "assay.types"),
    extra="language",
    check_options=check_language,
)
