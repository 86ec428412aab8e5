"""Verifier ``choice``: check that a completion's final choice is the expected option."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_uppercase
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, is_answer, listed
from assay.types import Completion, Problem
from assay.verify.answers.commitment import (
    PHRASES,
    last_marks,
    object_answers,
    phrases,
    retraction,
    shown,
    unwrapped,
)
from assay.verify.answers.tables import opens, pattern, says
from assay.verify.base import Part, Verifier, spec_check

# Maximum number of characters of a label followed by its option's text.
MAX_CHOICE = 400

_ANSWER = (
    "a label such as B, an option's text, its index from 0, or a list of them (all must be chosen)"
)
_OPTIONS = "a list of texts (labelled A, B, ...), or label -> text"
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*([^{}]*)\}")
_LABEL = re.compile(r"\s*(?:[A-Za-z]|\d{1,2})\s*")
_OWN_LABEL = re.compile(r"\s*\(?([A-Za-z]|\d{1,2})[).:]\s*(?=\S)")
# A choice was made, but its label is ambiguous or unreadable.
_UNSURE = ("?",)
# Labels of a problem without options whose expected answer is a number.
_NUMBERS = tuple(map(str, range(100)))
_UNKNOWN: tuple[str, ...] = ()

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Labels of a question's options.

    texts: each option's normalized text by label. The mapping of labels to texts is empty if the
        row has no option texts.
    several: whether the expected answer is a set of several options, so that "A and C" is valid.
    """

    labels: Labels
    texts: Mapping[str, str]
    several: bool

    def by_text(self, text: str) -> str | None:
        """Return the label of the only option that has this text.

        The result is None if no option has this text, or if several options have this text.
        """
        wanted = plain(text)
        found = [label for label, each in self.texts.items() if each == wanted]
        return found[0] if len(found) == 1 else None

    def has(self, label: str) -> bool:
        """Return whether ``label``, in upper or lower case, is a label of the question."""
        return label.upper() in self.labels


def judge_choice(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the last choice is exactly the expected option or set of options, else 0.

    Reads ``answer`` and ``options`` from the spec. A reply that names several labels fails if a
    single option is expected. Text inside the think block is ignored.
    """
    options, golds = read_spec(problem)
    chosen = find_choice(shown(completion.answer_text), options)
    if not chosen:
        return Part(0.0, detail="no choice")
    said = ", ".join(chosen)
    if len(golds) == 1 and len(chosen) > 1:
        return Part(0.0, extracted=said, detail=f"{len(chosen)} choices at once; accepted: one")
    return Part(float(set(chosen) == set(golds)), extracted=said)


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """Return a text without case, wrapping, surrounding punctuation and extra white space."""
    text = _TEXT.sub(r"\1", unicodedata.normalize("NFC", unwrapped(text)))
    return " ".join(text.strip(" \t\n.,;:!\"'“”‘’*`$").casefold().split())


def read_spec(problem: Problem) -> tuple[Options, Labels]:
    """Return the options and the expected labels of a problem.

    If the spec has no options, the labels are all letters, or 0 to 99 for a numeric answer. Raises
    VerifierError if the spec is malformed or the answer is not one of the options.
    """
    given, golds = OPTIONS.read(problem), listed(ANSWER.read(problem))
    texts: dict[str, str] = {}
    if given is not None:
        labelled = isinstance(given, Mapping)
        pairs = given if labelled else dict(zip(ascii_uppercase, given, strict=False))
        named = {str(label).strip().upper(): str(text) for label, text in pairs.items()}
        texts = {label: plain(_without_label(text, label)) for label, text in named.items()}
    numbered = all(str(gold).strip(" ().:").isdigit() for gold in golds)
    labels = tuple(texts) or (_NUMBERS if numbered else tuple(ascii_uppercase))
    options = Options(labels, texts, len(golds) > 1)
    where = f"problem {problem.id}: spec.answer"
    return options, tuple(dict.fromkeys(_gold_label(gold, options, where) for gold in golds))


def _without_label(text: str, label: str) -> str:
    """Remove an option's own label from its text, as in "A) Paris"."""
    match = _OWN_LABEL.match(text)
    return text[match.end() :] if match and match[1].upper() == label else text


def _gold_label(gold: Any, options: Options, where: str) -> str:
    # If the row has options, an integer is an index from 0, as in the rows of MMLU.
    # If the row has no options, an integer is itself a label.
    if isinstance(gold, int) and options.texts and 0 <= gold < len(options.labels):
        return options.labels[gold]
    text = unwrapped(str(gold))
    leading = re.match(r"\(?\s*([A-Z]|\d{1,2})(?:\s*[).:]|\s+|$)", text)
    for label in (text.strip(" ().:*[]").upper(), options.by_text(text), leading and leading[1]):
        if label in options.labels:
            return label
    accepted = f"one of {', '.join(options.labels)}, or an option's text"
    raise VerifierError(message(where, repr(gold)[:80], accepted))


def find_choice(text: str, options: Options) -> Labels:
    """Return the labels of a text's last choice, or () if the text makes no choice."""
    if replied := _of_object(text, options):
        return replied
    if len(text) <= 200 and (alone := _of_answer_mark(text, options) or _alone(text, options)):
        return _correction(text, 1, options) or alone
    run = last_marks(text)
    after = run[-1].end if run else 0
    if spoken := _in_phrase(text, after, options):
        return spoken
    if not run:
        return _unmarked(text, options)
    if taken := _correction(text, after, options):
        return taken
    chosen: list[str] = []
    for mark in run:
        content = mark.content.strip()
        said = _of_object(content, options) or _alone(content, options)
        chosen += said or _in_phrase(content, 0, options) or _UNSURE
    chosen += _others(text[after:].lstrip("$"), "", options)
    return _UNKNOWN if chosen == ["?"] else tuple(dict.fromkeys(chosen))


def _of_object(text: str, options: Options) -> Labels:
    """Return the option labels in a JSON reply such as {"answer": "B"}."""
    labels = [one for each in object_answers(text) for one in _alone(str(each), options) or _UNSURE]
    return _UNKNOWN if labels == ["?"] else tuple(dict.fromkeys(labels))


def _of_answer_mark(text: str, options: Options) -> Labels:
    """Return ("B",) for the reply "A: B", in which "A:" abbreviates "Answer:"."""
    match = opens("answer_mark", text)
    if (
        not match
        or not options.has(match["label"])
        or options.texts.get("A") == plain(match["label"])
    ):
        return _UNKNOWN
    said = plain(match["text"] or "")
    return (match["label"],) if not said or said == options.texts.get(match["label"]) else _UNKNOWN


def _alone(content: str, options: Options) -> Labels:
    """Return the labels of a text that contains only a choice, else ()."""
    if len(content) > MAX_CHOICE:
        return _UNKNOWN
    text = unwrapped(pattern("contrast").sub("", content.strip().rstrip("。").rstrip(), count=1))
    text = _TEXT.sub(r"\1", text).replace("**", "").strip().strip("$\"'“”‘’` ")
    single = pattern("single_label").fullmatch(text)
    if single and options.has(single["label"]):
        return (single["label"].upper(),)
    if label := options.by_text(text):
        return (label,)
    if found := _joined(text, options):
        return found
    match = pattern("labelled").fullmatch(text)
    if not match or not options.has(match["label"]):
        return _UNKNOWN
    label, rest = match["label"].upper(), match["rest"]
    if opens("conditional", rest) and options.texts.get(label) != plain(rest):
        return _UNSURE
    if options.texts:
        if options.texts[label] == plain(rest):
            return (label,)
        if options.by_text(rest):
            # The label belongs to one option and the text to another option.
            return _UNSURE
    if not match["close"].strip(",") or says("wrong", rest):
        return _UNKNOWN
    return (label, *_others(rest, label, options))


def _joined(text: str, options: Options) -> Labels:
    """Return the labels of "A, B and C", or of "ABC" if the question asks for a set."""
    if pattern("labels").fullmatch(text):
        labels = re.findall(r"(?<!\w)(?:[A-Za-z]|\d{1,2})(?!\w)", text)
        if all(map(options.has, labels)):
            # "A or C" does not say which label is meant, so "A or C" is not a set of labels.
            choice = options.several and re.search(r"\bor\b|/", text)
            return _UNSURE if choice else tuple(dict.fromkeys(map(str.upper, labels)))
    distinct = text.isupper() and text.isalpha() and len(set(text)) == len(text) > 1
    return tuple(text) if options.several and distinct and all(map(options.has, text)) else _UNKNOWN


def _in_phrase(text: str, start: int, options: Options) -> Labels:
    """Return the labels in the last phrase such as "the answer is (b) because ..."."""
    commitments = _commitments(text, start, options)
    stop, labels = next(commitments, (0, _UNKNOWN))
    if not labels:
        return _UNKNOWN
    if taken := _correction(text, stop, options):
        return taken
    for end, earlier in commitments:
        # Two distant phrases are separate statements, of which the later statement counts.
        if stop - end > 80 or not says("joins", text, end, stop):
            break
        labels = (*earlier, *labels)
    return tuple(dict.fromkeys(labels))


def _commitments(text: str, start: int, options: Options) -> Iterator[tuple[int, Labels]]:
    """Yield (end position, labels) for each answer phrase with a choice, from last to first."""
    # The function is a generator, so that phrases are parsed only when the caller asks for more.
    # Parsing the text after a phrase is slow, and the last phrase usually decides.
    said = phrases(text, start, "option", *PHRASES, "language")
    right = (m for m in pattern("is_right").finditer(text, start) if options.has(m["label"]))
    for match in sorted((*said, *right), key=re.Match[str].span, reverse=True):
        if "label" in match.re.groupindex:
            before = text[max(0, match.start() - 80) : match.start()]
            denied = match["negated"] or says("doubted", before)
            labels = _UNKNOWN if denied else (match["label"],)
        else:
            labels = _after(text[match.end() : match.end() + MAX_CHOICE], options)
        if labels:
            yield match.end(), labels


def _correction(text: str, start: int, options: Options) -> Labels:
    """Return the labels of the last correction after ``start``, as in "no wait: C"."""
    taken = retraction(text, start)
    labels = _alone(taken.content, options) if taken else _UNKNOWN
    return _UNKNOWN if "?" in labels else labels


def _after(rest: str, options: Options) -> Labels:
    """Return the labels at the beginning of ``rest``, the text after an answer phrase."""
    if opens("no_option", rest):
        return _UNKNOWN
    line = rest.lstrip(" \t*_").lstrip("\n").partition("\n")[0]
    sentence = re.split(r"(?<=[^A-Z\s(])\.(?:\s|$)", line, maxsplit=1)[0]
    if found := _alone(sentence, options):
        return found
    if run := last_marks(line):
        return _alone(run[0].content, options)
    line = pattern("lead_in").sub("", _TEXT.sub(r"\1", line), count=1)
    match = opens("leading_label", line)
    if not match or not options.has(match["label"]):
        return _UNKNOWN
    label, following = match["label"], line[match.end() :]
    if opens("conditional", following):
        # A conditional choice such as "B if x > 0" is not final.
        return _UNSURE
    bare = label == match[0].strip("* ")
    if bare and (label in "AI" or label.islower()) and not opens("soft", following):
        text = options.texts.get(label.upper())
        if not text or not plain(following).startswith(text):
            # A bare "A" before other words is the English article, and a bare "I" is the pronoun.
            return _UNKNOWN
    return tuple(dict.fromkeys((label.upper(), *_others(following, label.upper(), options))))


def _others(rest: str, label: str, options: Options) -> Labels:
    """Return the additional labels after a choice, such as C in "B or C"."""
    if doubted := re.match(r"\s*\?(?:\s*(?:or\s+)?[A-Z]\s*\?)+", rest):
        return tuple(re.findall(r"\b[A-Z]\b", doubted[0]))
    cut = says("why", rest)
    head = rest[: cut.start()] if cut else rest
    found: list[str] = []
    for match in pattern("another_label").finditer(head):
        other, adorned = match["label"], bool(match["open"] or match["close"])
        article = other in "AI" and not adorned and re.match(r"\s+[a-z]", head[match.end() :])
        # A lower-case letter without brackets, such as "a", is usually a word and not an option.
        if options.has(other) and (other.isupper() or adorned) and not article:
            found.append(other.upper())
    return tuple(other for other in found if other != label)


def _unmarked(text: str, options: Options) -> Labels:
    """Return the choice that a text without answer marks makes.

    A choice is searched in the last line, at the end of the text, and in the first line.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    alone = [_alone(line, options) for line in lines]
    if alone[-1]:
        # Several lines with only a label are a list of options, not a choice.
        bare = any(len(line) < 8 and found for line, found in zip(lines[:-1], alone, strict=False))
        if not bare:
            return alone[-1]
    sentence = re.split(r"(?<=[.?!])\s+", lines[-1])[-1][-MAX_CHOICE:]
    closing = None if says("doubt", sentence) else says("so_label", sentence)
    for match in (closing, opens("label_because", text)):
        if match and options.has(match["label"]):
            return (match["label"],)
    return alone[0] if len(lines) > 1 and sum(map(bool, alone)) == 1 else _UNKNOWN


def is_options(value: Any) -> bool:
    """Return whether a value is valid as the options of a question."""
    # The options of a list get the labels A to Z.
    # If the options are a mapping, the mapping's keys are the labels.
    most = len(ascii_uppercase)
    if isinstance(value, Mapping):
        if not all(_LABEL.fullmatch(str(label)) for label in value):
            return False
        value, most = list(value.values()), len(value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    texts = all(isinstance(text, (str, int, float)) for text in cast("Sequence[Any]", value))
    return texts and 0 < len(value) <= most


ANSWER = Field("answer", _ANSWER, needed=True, check=is_answer, equates=True)
OPTIONS = Field("options", _OPTIONS, check=is_options)
CHOICE = Verifier(
    name="choice",
    version=4,
    judge=judge_choice,
    check_spec=spec_check(read_spec),
    domain="multiple choice: one option, or a set of options",
    fields=(ANSWER, OPTIONS),
    accepts=r"the last of \boxed{B}, <answer>B</answer>, 'the answer is (b)', 'B is correct', "
    "'option B'; else a reply, or a last line, that is only a label, a labelled option or an "
    "option's text",
    text_only=True,
    cached=True,
)
