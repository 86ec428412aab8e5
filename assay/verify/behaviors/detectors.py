"""Find behaviors in a completion by deterministic rules for English, without a model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from assay.types import Completion, Problem
from assay.verify.instructions.languages import script_share
from assay.verify.style.repetition import judge_repetition

Behavior = Literal[
    "self_verification",
    "backtracking",
    "subgoals",
    "backward_chaining",
    "metacognition",
    "language_mixing",
    "answer_first",
    "repetition",
]
BEHAVIORS: tuple[Behavior, ...] = get_args(Behavior)

# Longer sentences are cut, because some rules take quadratic time.
MAX_SENTENCE = 600
# A full stop inside a number or a word does not end a sentence.
# The number of a list item, as in "1.", belongs to the item's sentence.
_SENTENCE = re.compile(
    r"(?:(?m:^)[ \t]*\d{1,2}[.)][ \t])?[^\n.!?]+(?:[.!?]+(?![\s.!?]|$)[^\n.!?]*)*[.!?…]*"
)
_STYLE = Path(__file__).parent.parent / "style" / "languages.toml"


@dataclass(frozen=True, slots=True)
class Span:
    """A span of the completion's text that shows a behavior: characters ``start`` to ``end``."""

    behavior: Behavior
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Detections:
    """The behaviors found in a completion.

    measured: whether the text was measured; False if the text is not English. Only the rule for
        repetition reads a text that is not English, because the errors of all other rules are
        measured for English only.
    """

    spans: tuple[Span, ...]
    measured: bool = True

    @property
    def behaviors(self) -> frozenset[Behavior]:
        """The behaviors with at least one span."""
        return frozenset(span.behavior for span in self.spans)


@dataclass(frozen=True, slots=True)
class _Rule:
    cues: re.Pattern[str]
    unless: re.Pattern[str] | None

    def holds(self, sentence: str) -> bool:
        return bool(self.cues.search(sentence)) and not (
            self.unless and self.unless.search(sentence)
        )


def find_behaviors(completion: Completion) -> Detections:
    """Find the behaviors in a completion's reasoning, or in the whole completion without reasoning.

    The detectors do not read tool results and other injected text.
    """
    text = reasoning_of(completion)
    spans: list[Span] = []
    plain = Problem("", "")
    if judge_repetition(plain, Completion.from_text(text)).passed is False:
        spans.append(_whole("repetition", text))
    if not is_english(text):
        return Detections(tuple(spans), measured=False)
    rules = sentence_rules("rules.toml")
    for start, sentence in sentences(lowered(text)):
        end = start + len(sentence)
        spans += [Span(name, start, end) for name, rule in rules.items() if rule.holds(sentence)]
    for behavior, holds in _OF_TEXT.items():
        if holds(text):
            spans.append(_whole(behavior, text))
    return Detections(tuple(spans))


def reasoning_of(completion: Completion) -> str:
    """Return a completion's text, in which each character that the detectors do not read is a line
    break.

    The result keeps all positions: each position is the same position in the completion's text.
    """
    text, think = completion.text, completion.think
    span = think.answer_span(text)
    if span is not None and text[: span[0]].strip():
        text = text[: span[0]] + "\n" * (len(text) - span[0])
    if completion.said:
        kept = ["\n"] * len(text)
        for start, end in completion.said:
            kept[start:end] = text[start:end]
        text = "".join(kept)
    for tag in (think.open_tag, think.close_tag):
        text = text.replace(tag, "\n" * len(tag))
    return text


def lowered(text: str) -> str:
    """Return a text in lower case, with the same length."""
    low = text.lower()
    # For a few letters, such as U+0130, the lower-case form has two characters.
    return low if len(low) == len(text) else "".join(char.lower()[:1] for char in text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield (position, sentence) for each sentence that contains a letter."""
    for match in _SENTENCE.finditer(text):
        sentence = match[0][:MAX_SENTENCE]
        if any(map(str.isalpha, sentence)):
            yield match.start(), sentence


@lru_cache
def sentence_rules(name: str | Path) -> Mapping[Any, _Rule]:
    """Return the compiled rules of a TOML file, by behavior or finding.

    name: a path, or the name of a file in this package.
    """
    path = Path(__file__).parent / name
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    fragments: dict[str, str] = table.pop("fragments")

    def compiled(patterns: Sequence[str]) -> re.Pattern[str]:
        joined = "|".join(f"(?:{one})" for one in patterns)
        for key, value in fragments.items():
            joined = joined.replace(f"{{{key}}}", value)
        # Rules read sentences in lower case, because IGNORECASE is several times slower.
        return re.compile(joined)

    return {
        kind: _Rule(compiled(rule["cues"]), compiled(rule["unless"]) if rule["unless"] else None)
        for kind, rule in table.items()
    }


def _whole(behavior: Behavior, text: str) -> Span:
    start = len(text) - len(text.lstrip())
    return Span(behavior, start, max(start, len(text.rstrip())))


# Language.

_COMMON: Mapping[str, frozenset[str]] = {
    code: frozenset(words.split())
    for code, words in tomllib.loads(_STYLE.read_text(encoding="utf-8"))["words"].items()
}
# Common words of other languages that occur in English texts too.
_LIKE_ENGLISH = """
die on son am man no me so was also hat war or car do as met sin plus est nun er um ma ha per non
van an in is si ex via pro al den pour
"""
_ENGLISH = _COMMON["en"] | frozenset(_LIKE_ENGLISH.split())
# Words that English texts contain in names such as Rio de Janeiro, and that are therefore weak
# evidence.
_NAMES = "la le de el los las der del di da dos das des du il san von y e o os"
_IN_NAMES = frozenset(_NAMES.split())
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
# Pattern of code, formulas, addresses and quotations, which do not show the language of the prose.
_ASIDE = re.compile(
    r"```.*?(?:```|$)|`[^`\n]{1,200}`|\$\$.{1,1000}?\$\$|\$[^$\n]{1,400}\$|\\\[.{1,1000}?\\\]"
    r"|\\\(.{1,400}?\\\)|https?://\S{1,500}|\\[a-zA-Z]+"
    r"|\"[^\"\n]{1,80}\"|“[^”\n]{1,80}”|(?<!\w)'[^'\n]{1,40}'(?!\w)|«[^»\n]{1,80}»",
    re.DOTALL,
)
# Number of words in a window, and the evidence that shows another language if a window contains it.
_WINDOW, _ENOUGH = 8, 2.0


def is_english(text: str) -> bool:
    """Return whether most of a text is English.

    A text of fewer than ten words counts as English unless it is mostly in another script.
    """
    prose = _ASIDE.sub(" ", text)
    shares = script_share(prose)
    if shares and shares.get("latin", 0.0) + shares.get("greek", 0.0) < 0.5:
        return False
    words = [word.casefold() for word in _WORD.findall(prose)]
    if len(words) < 10:
        return True
    english = sum(map(_COMMON["en"].__contains__, words))
    other = max(sum(_evidence(words, code)) for code in _COMMON if code != "en")
    return 3 * english >= other or other < 0.12 * len(words)


def _mixes_languages(text: str) -> bool:
    """Return whether an English text contains words of another language.

    One word in another script than Latin is sufficient evidence, except Greek words of up to three
    letters. A language in Latin letters needs evidence of 2 within eight words, from at least two
    different common words. Evidence of a language: a common word counts 1. Evidence of a language:
    a word that occurs in names or has an accent counts 1/2. Quoted words, code and formulas do not
    count as evidence of a language.
    """
    words = _WORD.findall(_ASIDE.sub(" ", text))
    for word in words:
        if not word.isascii():
            scripts = script_share(word)
            if scripts.keys() - {"latin", "greek"} or ("greek" in scripts and len(word) > 3):
                return True
    folded = [word.casefold() if word[0].islower() else word for word in words]
    for code, common in _COMMON.items():
        if code == "en":
            continue
        marks = _evidence(folded, code)
        for start in range(max(1, len(folded) - _WINDOW + 1)):
            window = slice(start, start + _WINDOW)
            if sum(marks[window]) >= _ENOUGH:
                own = {word for word in folded[window] if word in common - _ENGLISH}
                if len(own - _IN_NAMES) and len(own) > 1:
                    return True
    return False


def _evidence(words: Sequence[str], code: str) -> list[float]:
    """Return each word's evidence for a language: 0, 1/2 or 1."""
    common = _COMMON[code] - _ENGLISH
    return [
        (0.5 if word in _IN_NAMES else 1.0)
        if word in common
        else 0.5 * (not word.isascii() and word[0].islower())
        for word in words
    ]


# Answer first.

_VALUE = (
    r"(?:\\boxed\{[^}]*\}|[$€£]?\s?-?\d[\d,./:]*(?:\\?%| percent)?|\(?[A-F]\)?"
    r"|\\frac\{\d+\}\{\d+\}|(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|\w+teen|(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)(?:-\w+)?))"
)
_BARE = re.compile(rf"^[\W_]*{_VALUE}(?: [a-z]+){{0,2}}[\W_]*$", re.IGNORECASE)
_SAID = re.compile(
    r"\\boxed|####|^\W*(?:so |thus )?(?:the |my |final |correct )*"
    r"(?:answer|result|choice|solution)\b(?: (?:is|must be|should be)\b|\W*:)"
    r"|^\W*(?:final |short )?ans(?:wer)?\b\W*:"
    r"|^\W*(?:yes|no|true|false)\W*[.,!:](?!\W*(?:i|we|you|there)\b)"
    r"|^\W*option [A-F]\b|\bis (?:the (?:correct |right )?(?:answer|choice)|correct)\W*$",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"^\W*(?:it|there|he|she|they|the [\w' ]{1,60}?|[a-z]|[A-Z]\w+) "
    r"(?:is|are|was|were|=|takes?|pays?|has|have|gets?|needs?|costs?|remains?)\b[^=+*/×]*$",
    re.IGNORECASE,
)
# Sentences that state an answer and no fact of the problem, such as "It is 41" and "x = 5".
_PLAIN = re.compile(
    rf"^\W*(?:it|[a-z]|the (?:\w+ )?(?:number|total|sum|result|value|probability|largest|smallest"
    rf"|word|difference|product)) (?:is|=|equals) {_VALUE}[^+=*/×]*$",
    re.IGNORECASE,
)
_REASON = re.compile(
    r"^\W*(?:to see|reason|because|since|note|indeed|explanation|justification|let me explain"
    r"|we get|i know|here is (?:how|why)|if it were|let me justify|first|each|in each|the reason)\b"
    r"|\bbecause\b|\bto see\b",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(r"\b(?:so|therefore|thus|hence|answer)\b|####|\\boxed", re.IGNORECASE)
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:/\d+)?")


def _answers_first(text: str) -> bool:
    """Return whether a text gives its answer in the first sentence and the reasoning afterwards."""
    parts = list(_lines(text))
    if len(parts) < 2:
        first = parts[0][1] if parts else ""
        return bool(re.match(rf"^\W*{_VALUE}\W* (?:because|since|as)\b", first))
    first, rest = parts[0][1], text[parts[1][0] :]
    if len(re.findall(r"\w+", rest)) < 4:
        return False
    # A first sentence such as "1." is a list item's number, not an answer.
    if _SAID.search(first) or (_BARE.match(first) and not re.match(r"\W*\d[.)]\s*$", first)):
        return True
    numbers = _NUMBER.findall(first)
    if _PLAIN.match(first):
        return not _CONCLUDES.search(rest)
    if not _STATES.match(first) or len(numbers) != 1:
        return False
    if _CONCLUDES.search(rest) and _NUMBER.findall(rest)[-1:] != numbers:
        return False
    return bool(_REASON.search(rest)) or _NUMBER.findall(rest)[-1:] == numbers


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (position, sentence) for every sentence, including a sentence that is only a number."""
    for match in _SENTENCE.finditer(text):
        if match[0].strip():
            yield match.start(), match[0][:MAX_SENTENCE]


_OF_TEXT: Mapping[Behavior, Callable[[str], bool]] = {
    "language_mixing": _mixes_languages,
    "answer_first": _answers_first,
}
