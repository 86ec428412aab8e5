"""Verifier ``choice``: whether the option that a completion commits to is the expected one."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.answers.commitment import clipped, last_marks, retraction, unwrapped
from assay.verify.base import Field, Part, Verifier, known_errors

MAX_CHOICE = 400  # characters of a label with its option's text

_ANSWER = (
    "a label such as B, an option's text, its index from 0, or a list of them (all must be chosen)"
)
_OPTIONS = "a list of texts (labelled A, B, ...), or label -> text"

_LEADING_LABEL = re.compile(r"\(?\s*([A-Za-z]|\d{1,2})(?:\s*[).:]|\s+|$)")
_ADORNED = r"[(\[{]?\s*(?P<label>[A-Za-z]|\d{1,2})\s*(?P<close>[)\]}.:,]?)"
_NOUN = r"(?:(?:the\s+)?(?:answers?|options?|choices?|letters?|alternatives?|opción|opci[oó]n|réponse|lettre|buchstabe|选项|選項)\s*)?"
_LEAD = re.compile(
    r"[\s*_`$\"'“”‘’]*(?:\\[(\[])?\s*(?:(?:clearly|simply|definitely|therefore|thus|both|either|then)\b[\s:,]*)*",
    re.IGNORECASE,
)
_ANCHORS = re.compile(
    r"\b(?:answer|option|choice|one)\**\s{1,3}(?:is|would\s+be|should\s+be|must\s+be|has\s+to\s+be|seems\s+to\s+be)\b\s{0,3}[:：]?"
    r"|\banswers\s+are\b\s{0,3}[:：]?|\b(?:correct|right)\s+(?:option|choice|letter)s\s+are\b\s{0,3}[:：]?"
    r"|\b(?:answer|ans|option|choice|letter|selection)s?\**\s{0,3}[:：=]\**"
    r"|\b(?:I(?:'ll|’ll|\s+will|\s+would|'d|’d)?\s+)(?:choose|pick|select|go\s+with|say|answer)\b"
    r"|^[^\w\n]{0,6}(?:choose|pick|select)\b"
    r"|\bans\.|^[^\w\n]{0,6}(?:final|correct|right)\**\s{0,3}[:：]\**"
    r"|[选選]\s{0,3}[:：]?"
    r"|^####"
    r"|(?:答案|答え|正解|答|정답|답|الجواب|الإجابة|उत्तर)\s{0,3}(?:应该是|是|为|為|は|هو|هي|은|는)?\s{0,3}[:：]?"
    r"|\b(?:r[ée]ponse|respuesta|antwort|risposta|resposta|ответ|odpowied[źz]|cevap|jawaban|svar|antwoord)"
    r"(?:\s+\w+)?\s{0,3}(?:est\b|es\b|ist\b|è|é|är\b|is\b|[:：—=-])\s{0,3}[:：]?",
    re.IGNORECASE | re.MULTILINE,
)  # fmt: skip
_CORRECT = re.compile(
    r"(?P<negated>\bnot\s+)?(?:\b(?:option|choice|answer|letter)\s+)?[(\[*]{0,3}\b(?P<label>[A-Z])\b[)\].*]{0,3}"
    r"\s+(?:is|must\s+be|would\s+be)\s+(?:therefore\s+|thus\s+|clearly\s+|also\s+)?"
    r"(?:the\s+)?(?:correct|right|best|answer\b)(?:\s+(?:answer|option|choice))?",
)
_LABELLED_LINE = re.compile(r"^[\s>*-]*[(\[*]{0,3}(?P<label>[A-Za-z])(?P<close>[)\].:*]{1,4})\s*(?P<rest>[^\n]*)$", re.MULTILINE)  # fmt: skip
_REASON = re.compile(r"\b(?:because|since|as|which|given|due|for|by|not|rather|instead|non|and\s+not|while|but|weil|car|porque|因为|因為)\b|[。!?]|\.(?=\s|$)|\s[-–—]\s|\n", re.IGNORECASE)  # fmt: skip
_WRONG = re.compile(r"\b(?:not|wrong|incorrect|false|isn't|cannot|can't)\b", re.IGNORECASE)
_NOT = re.compile(r"\s*(?:is\s+)?(?:definitely\s+|probably\s+)?(?:not\b|none\b|neither\b|never\b|n't)", re.IGNORECASE)  # fmt: skip
_JOINER = r"(?:\s*(?:[,;/&+|、，和或]|\b(?:and/or|and|or|und|oder|ou|et|y|o|alternatively|possibly|maybe|perhaps|even|also|either)\b))++\s*+"
_ARTICLES = ("A", "I")
_NUMBERS = tuple(str(n) for n in range(100))  # labels, where the answer is one
_AT_END = re.compile(
    r"(?:\b(?i:therefore|thus|hence|so|is|be|final)\b|['’]s|[→⇒∴:：])\s*[,:：]?\s*[*$(\[]{0,3}(?P<label>[A-Z])[*$)\]]{0,3}\s*[.!。]?\s*\Z"
)
_AT_START = re.compile(r"[*(\[]{0,3}(?P<label>[A-Z])[*)\].,:]{0,4}\s+(?:because|since|as\s+it)\b")
_DOUBT = re.compile(
    r"\b(?:not|wrong|incorrect|false|neither|either|or|and|maybe|perhaps|possibly|could|might|eliminated?)\b|n['’]t\b|\?",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:false|untrue|incorrect|wrong|not\s+true|not\s+the\s+case|doubt|deny)\s+that\s+(?:the\s+)?(?:final\s+|correct\s+)?\Z",
    re.IGNORECASE,
)
_MARKED = re.compile(
    r"\W{0,6}A\W{0,3}[:：]\W{0,6}(?P<label>[A-Z])(?:\W{0,6}|[).:]{1,2}\s{1,3}(?P<text>[^\n]{1,300}))"
)
_CONTRAST = re.compile(r",?\s(?:and\s)?not\s(?:option\s)?[(\[]?[A-Z][)\]]?[.!]?\Z")
_KEYS = (
    "answer",
    "final_answer",
    "correct_answer",
    "choice",
    "option",
    "selected",
    "label",
    "answers",
    "choices",
)
_MAX_JSON = 2000
_SOFT = re.compile(r"\s*(?:because|since|as|for|which|given|due|not|and|or|is|was|non|but|rather|instead|from|among|here)\b|\s*[^\w\s]|\s*$", re.IGNORECASE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """The labels that may be chosen; texts: normalized text of each, where given."""

    labels: tuple[str, ...]
    texts: Mapping[str, str]

    def by_text(self, text: str) -> str | None:
        """Return the one label whose option says this."""
        wanted = plain(text)
        found = [label for label, each in self.texts.items() if each == wanted]
        return found[0] if len(found) == 1 else None


def judge_choice(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the last committed choice is exactly the expected option, or set of options.

    Reads ``answer`` and ``options`` of the spec. Several labels at once never answer a question that
    has one; nothing inside the think block counts.
    """
    options = read_options(problem)
    golds = read_answer(problem, options)
    chosen = find_choice(clipped(completion.answer_text), options, len(golds) > 1)
    if not chosen:
        return Part(0.0, detail="no choice")
    shown = ", ".join(chosen)
    if len(golds) == 1 and len(chosen) > 1:
        return Part(0.0, extracted=shown, detail=f"{len(chosen)} choices at once; accepted: one")
    return Part(float(set(chosen) == set(golds)), extracted=shown)


def plain(text: str) -> str:
    """Return a text without case, outer wrapping, surrounding punctuation and runs of white space."""
    text = unicodedata.normalize("NFC", unwrapped(text))
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", text)
    return " ".join(text.strip(" \t\n.,;:!\"'“”‘’*`$").casefold().split())


def read_options(problem: Problem) -> Options:
    """Return the options of a problem; every letter is a label where none are given."""
    given: Any = problem.spec.get("options")
    if given is None:
        return Options(
            _NUMBERS if _is_numbered(problem.spec.get("answer")) else tuple(ascii_uppercase), {}
        )
    if not is_options(given):
        raise VerifierError(
            message(f"problem {problem.id}: spec.options", repr(given)[:80], _OPTIONS)
        )
    if isinstance(given, Mapping):
        pairs = [(str(label).strip().upper(), str(text)) for label, text in given.items()]
    else:
        pairs = [(ascii_uppercase[n], str(text)) for n, text in enumerate(given)]
    texts = {label: plain(_without_label(text, label)) for label, text in pairs}
    return Options(tuple(texts), texts)


def check_choice(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, where the answer is none of the options."""
    problem = Problem("", "", spec)
    try:
        read_answer(problem, read_options(problem))
    except VerifierError as error:
        raise VerifierError(str(error).removeprefix("problem : spec.")) from error


def _is_numbered(answer: Any) -> bool:
    each = cast("Sequence[Any]", answer if isinstance(answer, (list, tuple)) else [answer])
    return all(isinstance(one, (str, int)) and str(one).strip(" ().:").isdigit() for one in each)


def _without_label(text: str, label: str) -> str:
    """Return an option's text without its own label, as in "A) Paris"."""
    match = re.match(rf"\s*\(?{re.escape(label)}[).:]\s*(?=\S)", text, re.IGNORECASE)
    return text[match.end() :] if match else text


def read_answer(problem: Problem, options: Options) -> tuple[str, ...]:
    """Return the expected labels; raises VerifierError where the answer names no option."""
    answer: Any = problem.spec.get("answer")
    where = f"problem {problem.id}: spec.answer"
    if not is_answer(answer):
        raise VerifierError(message(where, repr(answer)[:80], _ANSWER))
    each = cast("Sequence[Any]", answer if isinstance(answer, (list, tuple)) else [answer])
    return tuple(dict.fromkeys(_gold_label(one, options, where) for one in each))


def _gold_label(gold: str | int, options: Options, where: str) -> str:
    if isinstance(gold, int):
        if 0 <= gold < len(options.labels) and options.texts:
            return options.labels[gold]
        if str(gold) in options.labels:
            return str(gold)
    else:
        text = unwrapped(gold)
        bare = text.strip(" ().:*[]").upper()
        if bare in options.labels:
            return bare
        if label := options.by_text(text):
            return label
        leading = _LEADING_LABEL.match(text)
        if leading and leading[1].upper() in options.labels and leading[1].isupper():
            return leading[1].upper()
    raise VerifierError(message(where, repr(gold)[:80], f"one of {', '.join(options.labels)}, or an option's text"))  # fmt: skip


def find_choice(text: str, options: Options, several: bool = False) -> tuple[str, ...]:
    """Return the labels of the last commitment, () where there is none.

    several: whether the question asks for a set, so that "A and C" is one choice of two.
    """
    if replied := _of_json(text, options, several):
        return replied
    if (marked := _MARKED.fullmatch(text[:MAX_CHOICE])) and _is_marked(marked, options):
        return (marked["label"],)
    if len(text) <= 200 and (alone := _alone(text, options, several)):
        return _instead(text, 1, options, several) or alone
    run = last_marks(text)
    after = run[-1].end if run else 0
    if spoken := _spoken(text, after, options, several):
        return spoken
    if run and (taken := _instead(text, after, options, several)):
        return taken
    if run:
        chosen: list[str] = []
        for mark in run:
            found = _of_json(mark.content, options, several) or _alone(mark.content, options, several) or _spoken(mark.content, 0, options, several)  # fmt: skip
            chosen += found or ("?",)
        tail = re.match(rf"\$?{_JOINER}{_NOUN}{_ADORNED}(?![\w'’])", text[after:])
        if tail and _is_label(tail["label"], options):
            chosen.append(tail["label"].upper())
        return () if chosen == ["?"] else tuple(dict.fromkeys(chosen))
    return (
        _last_line(text, options, several)
        or _labelled_line(text, options)
        or _at_an_end(text, options, several)
    )


def _of_json(text: str, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels of a reply such as {"answer": "B"}."""
    text = unwrapped(text) if len(text) <= _MAX_JSON else ""
    if not (text.startswith("{") and text.endswith("}")):
        return ()
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    named = [value[key] for key in _KEYS if key in value]
    each: Any = named[0] if len(named) == 1 else None
    listed = cast("list[Any]", each) if isinstance(each, list) else [each]
    if not listed or not all(isinstance(one, str) for one in listed):
        return ()
    labels = [label for one in listed for label in _alone(one, options, several) or ("?",)]
    return () if labels == ["?"] else tuple(dict.fromkeys(labels))


def _is_marked(match: re.Match[str], options: Options) -> bool:
    """Whether "A: B" says B: the label and its text, where that is no text of the option A."""
    label, said = match["label"], plain(match["text"] or "")
    right = not said or said == options.texts.get(label)
    return right and label in options.labels and options.texts.get("A") != plain(label)


def _alone(content: str, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels of a text that is only a choice."""
    if len(content) > MAX_CHOICE:
        return ()
    text = unwrapped(_CONTRAST.sub("", content.strip().rstrip("。").rstrip(), count=1))
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*([^{}]*)\}", r"\1", text)
    text = text.replace("**", "").strip().strip("$\"'“”‘’` ")
    single = re.fullmatch(rf"{_NOUN}[(\[{{]*\s*([A-Za-z]|\d{{1,2}})\s*[)\]}}.:!,]*", text, re.IGNORECASE)  # fmt: skip
    if single and _is_label(single[1], options):
        return (single[1].upper(),)
    if label := options.by_text(text):
        return (label,)
    if found := _joined(text, options, several):
        return found
    match = re.fullmatch(rf"{_NOUN}{_ADORNED}\s*[-–—:]?\s*(?P<rest>.+)", text, re.DOTALL | re.IGNORECASE)  # fmt: skip
    if not match or not _is_label(match["label"], options) or "\n" in match["rest"]:
        return ()
    label, rest = match["label"].upper(), match["rest"]
    if options.texts:
        if options.texts[label] == plain(rest):
            return (label,)
        if options.by_text(rest):
            return ("?",)  # one option's label with another's text
    if match["close"] in tuple(")]}.:") and not _WRONG.search(rest):
        return (label, *_others(rest, label, options))
    return ()


def _joined(text: str, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels of "A, B and C" or, where a set is asked for, "ABC"."""
    text = re.sub(r"^(?:both|either|all\s+of)\b\s*", "", text, flags=re.IGNORECASE)
    one = rf"{_NOUN}[(\[]?\s*(?:[A-Za-z]|\d{{1,2}})[)\].]?"
    if re.fullmatch(rf"{one}(?>(?:{_JOINER}|\s++){one})+", text, re.IGNORECASE):
        bare = re.sub(rf"\b{_NOUN}(?=[(\[]?\s*[A-Za-z]\b)", "", text, flags=re.IGNORECASE)
        labels = list(re.findall(r"(?<![\w])(?:[A-Za-z]|\d{1,2})(?![\w])", bare))
        if labels and all(_is_label(label, options) for label in labels):
            if re.search(r"\bor\b|/", text) and several:
                return ("?",)
            return tuple(dict.fromkeys(label.upper() for label in labels))
    if several and re.fullmatch(r"[A-Z]{2,26}", text) and len(set(text)) == len(text) and all(_is_label(label, options) for label in text):  # fmt: skip
        return tuple(text)
    return ()


def _spoken(text: str, start: int, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels of the last phrase such as "the answer is (b) because ..." after ``start``."""
    commitments = _commitments(text, start, options, several)
    stop, labels = next(commitments, (0, ()))
    if not labels:
        return ()
    if taken := _instead(text, stop, options, several):
        return taken
    for end, earlier in commitments:
        between = text[end:stop]
        if len(between) > 80 or not re.search(r"\b(?:or|alternatively|maybe|perhaps|possibly|also)\b", between, re.IGNORECASE):  # fmt: skip
            break
        labels = (*earlier, *labels)
    return tuple(dict.fromkeys(labels))


def _commitments(text: str, start: int, options: Options, several: bool) -> Iterator[tuple[int, tuple[str, ...]]]:  # fmt: skip
    """Yield the end and the labels of each phrase that names a choice, the last one first.

    Lazily: reading what follows a phrase is dear, and mostly the last phrase decides.
    """
    phrases = (*_ANCHORS.finditer(text, start), *_CORRECT.finditer(text, start))
    for match in sorted(phrases, key=re.Match[str].span, reverse=True):
        if match.re is _CORRECT:
            named = _is_label(match["label"], options) and not match["negated"]
            labels = (match["label"],) if named else ()
        elif _DENIED.search(text[max(0, match.start() - 60) : match.start()]):
            continue
        else:
            labels = _after(text[match.end() : match.end() + 400], options, several)
        if labels:
            yield match.end(), labels


def _instead(text: str, start: int, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels that take back a choice before ``start``: "no wait: C", "actually, it is C"."""
    taken = retraction(text, start)
    labels = _alone(taken.content, options, several) if taken else ()
    return () if "?" in labels else labels


def _after(rest: str, options: Options, several: bool) -> tuple[str, ...]:
    """Return the labels with which the rest of a sentence begins."""
    if _NOT.match(rest):
        return ()
    line = rest.lstrip(" \t*_").lstrip("\n").partition("\n")[0]
    if found := _alone(
        re.split(r"(?<=[^A-Z\s(])\.(?:\s|$)", line, maxsplit=1)[0], options, several
    ):
        return found
    box = re.match(r"\$?\\boxed\s*\{([^{}]*)\}|<answer>(.*?)</answer>", line)
    if box:
        return _alone(box[1] or box[2] or "", options, several)
    line = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{\s*([^{}]*)\}", r"\1", line)
    line = line[(_LEAD.match(line) or re.match("", line)).end() :]  # type: ignore[union-attr]
    match = re.match(rf"{_NOUN}{_ADORNED}\**(?![\w'’])", line, re.IGNORECASE)
    if not match or not _is_label(match["label"], options):
        return ()
    label, following = match["label"], line[match.end() :]
    bare = not match["close"] and match[0].lstrip()[:1] not in "([{" and label == match[0].strip()
    if bare and (label in _ARTICLES or label.islower()) and not _SOFT.match(following):
        said = options.texts and any(
            each and plain(following).startswith(each)
            for key, each in options.texts.items()
            if key == label.upper()
        )
        if not said:
            return ()  # an article or a pronoun
    return tuple(dict.fromkeys((label.upper(), *_others(following, label.upper(), options))))


def _others(rest: str, label: str, options: Options) -> tuple[str, ...]:
    """Return the labels that the rest of a choice adds: "B or C", "B. Paris or (C) Rome"."""
    if doubted := re.match(r"\s*\?(?:\s*(?:or\s+)?[A-Z]\s*\?)+", rest):
        return tuple(re.findall(r"\b[A-Z]\b", doubted[0]))
    head = rest[: cut.start()] if (cut := _REASON.search(rest)) else rest
    found: list[str] = []
    for match in re.finditer(rf"(?:^|(?<=[\s,/&|(])){_JOINER}{_NOUN}(?P<open>[(\[*]*)(?P<label>[A-Za-z]|\d{{1,2}})(?P<close>[)\].:*]*)(?![\w'’])", head):  # fmt: skip
        other, adorned = match["label"], bool(match["open"] or match["close"])
        if _is_label(other, options) and other.upper() != label and (other.isupper() or adorned):
            if other in _ARTICLES and not adorned and re.match(r"\s+[a-z]", head[match.end() :]):
                continue
            found.append(other.upper())
    return tuple(found)


def _labelled_line(text: str, options: Options) -> tuple[str, ...]:
    """Return the label of the only line that reads "B. Paris"; a list of the options is no choice."""
    lines = list(_LABELLED_LINE.finditer(text))
    labels = {m["label"].upper() for m in lines if _is_label(m["label"], options)}
    if len(labels) != 1:
        return ()
    (label,) = labels
    rest = plain(lines[-1]["rest"])
    stands = lines[-1].start() == 0 or not text[lines[-1].end() :].strip()
    said = not options.texts or not rest or rest == options.texts[label]
    if not stands or not said or _WRONG.search(rest):
        return ()
    return (label, *_others(lines[-1]["rest"], label, options))


def _at_an_end(text: str, options: Options, several: bool) -> tuple[str, ...]:
    """Return the label that opens or closes a text: "C because ...", "C" and a reason, "... so C."."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    sentence = re.split(r"(?<=[.?!])\s+", lines[-1])[-1] if lines else ""
    if not _DOUBT.search(sentence):
        closing = _AT_END.search(sentence[-MAX_CHOICE:])
        if closing and _is_label(closing["label"], options):
            return (closing["label"],)
    opening = _AT_START.match(text)
    if opening and _is_label(opening["label"], options):
        return (opening["label"],)
    alone = [found for line in lines if (found := _alone(line, options, several))]
    first = _alone(lines[0], options, several) if lines else ()
    return first if len(alone) == 1 and len(lines) > 1 else ()


def _last_line(text: str, options: Options, several: bool) -> tuple[str, ...]:
    *before, last = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    chosen = _alone(last, options, several)
    if any(len(line) < 8 and _alone(line, options, several) for line in before):
        return ()  # bare labels one under another
    return chosen


def _is_label(label: str, options: Options) -> bool:
    return label.upper() in options.labels


def is_answer(value: Any) -> bool:
    """Whether a value may be the expected choice."""
    if isinstance(value, (list, tuple)):
        listed = cast("Sequence[Any]", value)
        return bool(listed) and all(is_answer(each) and not isinstance(each, (list, tuple)) for each in listed)  # fmt: skip
    return bool(value.strip()) if isinstance(value, str) else type(value) is int and value >= 0


def is_options(value: Any) -> bool:
    """Whether a value may be the options of a question."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return bool(pairs) and all(re.fullmatch(r"\s*(?:[A-Za-z]|\d{1,2})\s*", str(k)) and isinstance(v, (str, int, float)) for k, v in pairs.items())  # fmt: skip
    if isinstance(value, str) or not isinstance(value, Sequence):
        return False
    listed = cast("Sequence[Any]", value)
    return 0 < len(listed) <= 26 and all(isinstance(each, (str, int, float)) for each in listed)


CHOICE = Verifier(
    name="choice",
    version=1,
    judge=judge_choice,
    check_spec=check_choice,
    domain="multiple choice: one option, or a set of them",
    fields=(
        Field("answer", _ANSWER, needed=True, check=is_answer, equates=True),
        Field("options", _OPTIONS, check=is_options),
    ),
    accepts=r"the last of \boxed{B}, <answer>B</answer>, 'the answer is (b)', 'B is correct', 'option B'; else a reply, "
    "or a last line, that is only a label, a labelled option or an option's text",
    known_errors=known_errors("choice"),
    text_only=True,
    cached=True,
    modules=("assay.verify.answers", "assay.types"),
)
