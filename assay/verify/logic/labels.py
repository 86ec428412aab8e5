"""Find a text's final label: True, False or Uncertain."""

from __future__ import annotations

import re

from assay.verify.answers.commitment import bare, commitment, retraction

LABELS = ("True", "False", "Uncertain")
# Maximum number of characters of a text that is only a label.
MAX_LABEL = 80
# Maximum number of characters of a line in which a label is searched.
MAX_SENTENCES = 2000

_WORDS = {
    "True": "true entailed proved provable follows valid entailment",
    "False": "false refuted contradicted disproved contradiction",
    "Uncertain": "uncertain unknown undetermined undecided neutral neither indeterminate",
}
LABEL_OF = {word: label for label, words in _WORDS.items() for word in words.split()}
_PURE = {**LABEL_OF, "yes": "True", "no": "False"}
_VERDICT = re.compile(
    r"[^\w?]{0,6}(?:(?:it|this|the\sconclusion)\sis\s|it['’]s\s)?([a-z]+)[^\w?]{0,6}"
)
_YES_NO = re.compile(r"\W{0,6}(yes|no)\s?[,:—–-]")
_UNDECIDED = re.compile(
    r"\b(?:(?:it|this|the\s(?:conclusion|answer|statement))\s)?"
    r"(?:cannot|can\s?not|can['’]t|could\snot)\sbe\s(?:determined|concluded|decided|inferred|known)\b"
    r"|\b(?:we\s)?(?:cannot|can['’]t)\s(?:tell|say|determine|know|decide)\b"
    r"|\b(?:not\senough|insufficient)\sinformation\b"
)
_CONTRAST = re.compile(
    r",?\s(?:(?:and\s)?not|rather\sthan|instead\sof|neither)\s(?:\W{0,4})"
    rf"(?:{'|'.join(LABEL_OF)})\b(?:\snor\s\w+\b)?"
)
_DENIALS = frozenset(["not", "or", "isn't", "cannot", "either", "maybe", "perhaps", "nor", "and"])
_END = re.compile(r"[.;。!?？]+")
_REASON = re.compile(
    r"\b(?:because|since|as|given|for|while|but|whereas)\b|[.;。\n]", re.IGNORECASE
)
_OFFERS = re.compile(r"\A(?:or|and)?\s*(?:maybe|perhaps|possibly)?\s*")


def find_label(text: str) -> str | None:
    """Return a text's final label, or None if the text has no final label or several labels.

    The label is searched in the marked answer, else in the first line if that line is only a label,
    else in the last line. A retraction overrules an earlier label. A label that occurs in a
    question does not count.
    """
    found = commitment(text)
    if len(found.parts) > 1:
        return None
    if found.parts:
        content, rest = found.parts[0], text[found.end :]
    else:
        lines = [line for line in text.splitlines() if line.strip()] or [""]
        content, rest = lines[-1], ""
        if _pure(lines[0]) is not None and _pure(content) is None:
            content, rest = lines[0], "\n".join(lines[1:])
        if taken := retraction(text, 1):
            content, rest = taken.content, ""
    label = _label_in(content, bool(found.parts))
    return None if label is None or _another(rest, label) else label


def _label_in(content: str, marked: bool) -> str | None:
    """Return the label of a text's first sentence with a label. None: no label, or several.

    marked: whether the text is the content of an answer mark.
    """
    content = content[:MAX_SENTENCES] if marked else content[-MAX_SENTENCES:]
    if (label := _pure(content)) is not None:
        return label
    text = _UNDECIDED.sub(" uncertain ", re.sub(r"\\[a-z]+", " ", content.casefold()))
    rest = _CONTRAST.sub(" ", text).strip()
    while rest:
        end = _END.search(rest)
        sentence, rest = (rest[: end.start()], rest[end.end() :]) if end else (rest, "")
        sentence, rest = sentence.strip(), rest.strip(" \t*_\"'")
        words = re.findall(r"[a-z']+", sentence)
        if not _YES_NO.match(sentence) and not any(word in LABEL_OF for word in words):
            continue
        if end and end[0][-1] in "?？":
            return None
        # The reason after "because" may name other labels, so the sentence is also read without the
        # reason.
        for head in (sentence, _REASON.split(sentence, maxsplit=1)[0]):
            label = _only_label(head, marked)
            if label is not None or not _REASON.search(sentence):
                return None if label is None or _another(rest, label) else label
        return None
    return None


def _only_label(head: str, marked: bool) -> str | None:
    words = re.findall(r"[a-z']+", head)
    said = {LABEL_OF[word] for word in words if word in LABEL_OF}
    if spoken := _YES_NO.match(head):
        said.add(_PURE[spoken[1]])
    sure = len(said) == 1 and not _DENIALS & {*words} and (marked or len(words) <= 20)
    return said.pop() if sure else None


def _pure(text: str) -> str | None:
    """Return the label of a text that contains only a label and punctuation, else None."""
    if len(text) > MAX_LABEL:
        return None
    match = _VERDICT.fullmatch(bare(text).casefold())
    return None if match is None else _PURE.get(match[1])


def _another(rest: str, label: str) -> bool:
    """Return whether a sentence or line of ``rest`` consists of a label other than ``label``."""
    sentences = (each.strip() for each in re.split(r"[.!?;\n]", rest.casefold()))
    said = {_pure(_OFFERS.sub("", sentence)) for sentence in sentences}
    return bool(said - {None, label, _pure(label)})
