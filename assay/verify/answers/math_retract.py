"""What a text takes back, corrects or leaves to others: denied phrases, second thoughts, quoted answers."""

from __future__ import annotations

import re

NUMBER = r"(?:\\?\$)?[-+]?(?:\\(?:frac|dfrac|sqrt|pi)[^\s.,;]*|\d[\d.,/]*\d|\d)"
_EDGE = r"[\s$.,;:!)*\]\\}(/\"”'–—-]{0,10}"
_WRONG = (
    r"(?:wrong|incorrect|mistaken|(?:a|my|an)\s(?:mistake|error|typo)|not\s(?:right|correct|it|true|the\s(?:final\s|correct\s|right\s)?"
    r"answer)|crossed\sout|no\slonger\svalid)"
)
_TURNING = (
    r"(?:actually|no|nope|wait|sorry|oops|hmm+|but|however|hold\son|apologies|correction|edit|update|I\smean(?:t)?|rather|or\srather"
    r"|on\s(?:second\sthoughts?|reflection)|scratch\sthat|strike\sthat|make\sthat|my\smistake|my\sbad|I\swas\s(?:wrong|mistaken)"
    r"|I\smade\san?\s(?:mistake|error)|that(?:'s|\sis|\swas)\s(?:wrong|incorrect)|it(?:'s|\sis|\swas)\s(?:wrong|incorrect)"
    r"|let\sme\scorrect\s(?:that|this|it|myself))"
)
_TURNS = rf"(?:{_TURNING}\b[\s,.:;!–—-]{{0,6}})"
_TAKEN_BACK = re.compile(
    rf"^[\s$*.)\]\\}}]{{0,6}}\?\s*(?:no|nope|wrong|not)\b|^{_EDGE}(?:no|nope|wrong)\s?[.!](?:\s|$)"
    rf"|^[\s$*.)\\}}]{{0,6}}[(\[–—-]{{1,2}}\s*(?:{_WRONG}|no)\s*(?:[)\].!]|$)|^{_EDGE}(?:wrong|incorrect)\s*(?:[)\].!]|$)"
    rf"|^{_EDGE}{_TURNS}{{0,3}}(?:(?:it|this|that|which|the\sanswer|(?:this|that)\s(?:answer|result|value))"
    rf"(?:\s(?:is|was|seems|looks|must\sbe|can't\sbe|cannot\sbe)|'s)\s(?:\w+\s)?{_WRONG}\b"
    r"|I\swas\s(?:wrong|mistaken)\b|I\smade\san?\s(?:mistake|error)\b|scratch\sthat\b|strike\sthat\b|ignore\s(?:that|this)\b"
    r"|disregard\s(?:that|this)\b)",
    re.IGNORECASE,
)
_CORRECTED = re.compile(
    rf"^{_EDGE}(?:\?\s*)?{_TURNS}{{1,4}}"
    r"(?:(?:it|this|that|the\s(?:(?:correct|right|actual|final|real|true|new|proper)\s)?(?:answer|value|result|number|total|one))\s?"
    r"(?:is|'s|was|should\sbe|should\shave\sbeen|must\sbe|would\sbe|equals|=|:)\s*(?:actually\s|really\s|in\sfact\s|just\s)?)?"
    rf"(?P<value>[\s$(\\*]{{0,6}}?{NUMBER}(?:\}}*\$|\\\))?)(?:,?\s+not\s+\S{{1,20}}?)?"
    r"(?P<after>[*)\]!}]{0,4}(?:\.?\s*$|\s*\n|[.!;,)]+\s))",
    re.IGNORECASE,
)
_DISOWNED = re.compile(
    r"^[\s$*.)\]\\]{0,6}(?:is|was|would\s+be|seems|looks)\s+(?:\w+\s+)?(?:wrong|incorrect|not|false|a\s+mistake|impossible)\b"
    r"|^[\s$*)\]\\}.,]{0,6}(?:is|was|as|being)\s+(?:just\s+|only\s+)?(?:the|an?)\s+(?:\w+\s+)?(?:format|example|template|sample|placeholder)\b",
    re.IGNORECASE,
)
_DENIED_BOX = re.compile(
    r"(?:\b(?:not|isn't|cannot\s+be|can't\s+be|never|neither|nor)(?:\s+(?:equal(?:\s+to)?|be|simply|just))?|\\neq?|≠|!=|\\not\s*=?)"
    r"\s*[\s$\\(\[*:]{0,6}$"
    r"|\byour\s+(?:final\s+|own\s+)?answers?\s+(?:\w+\s+){0,3}[\s$\\(\[*:`]{0,6}$"
    r"|(?:\bfor\s+(?:example|instance)|\be\.g\.)[,:]?[\s$\\(\[*:`]{0,6}$",
    re.IGNORECASE,
)
_SECOND_THOUGHT = re.compile(
    r"^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:or|alternatively|maybe|perhaps|possibly|otherwise|else|but|and|also|if\s+not|if\s+that\s+is"
    r"\s+wrong)\b[\s,]*)+(?:(?:it|this|that|they|the\s+answer)\s*)?(?:(?:is|'s|are|could|might|may|can|would)\b\s*)?"
    r"(?:(?:also|even|maybe|perhaps|possibly|instead|well|be|as)\b\s*){0,4}[\s$(\\]{0,4}?"
    rf"(?P<value>{NUMBER})"
    r"|^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:actually|however|but|though|although|wait|hmm)\b[\s,]*){1,2}"
    rf"(?P<rival>{NUMBER})\s+(?:is|are|could|might|may|would|works?)\b[^.\n]{{0,30}}?\b(?:possible|also|valid|too|well|be)\b"
    r"|^[\s$.,;:!)*\]\\}(/-]{0,10}(?:(?:actually|however|but|though|although|wait|hmm)\b[\s,]*){0,2}"
    r"(?:it|this|that|the\s+answer)\s+(?:could|might|may)\s+(?:also\s+|instead\s+)?be\s+[\s$(\\]{0,4}?"
    rf"(?P<other>{NUMBER})",
    re.IGNORECASE,
)
_NEXT_LINE = re.compile(rf"^[\s.*$]*\n[\s*$]*(?:or[\s*$]+)?({NUMBER})[\s.*$]*(?:\n|$)")

# words beside a value that make it another one, or none
CHANGED = re.compile(
    r"\b(?:root|half|third|thirds|quarter|quarters|double|twice|thrice|triple|negative|minus|multiple|factor|divisor|power"
    r"|reciprocal|inverse|opposite|cube|square|log|logarithm|ln|sine?|cosine|cos|tan|tangent|exp|almost|nearly|not|never|far|longer"
    r"|unlikely|hardly|close|closer|anything\s+but|isn't|fraction|percentage|complement)"
    r"\b(?:\s+(?:of|the|a|an|from|to|be|number))*\s*[-$\\({*]{0,5}(?:\d|[dt]?frac|sqrt|pi\b)"
    r"|\d[\s$*)}]*\s+(?:squared|cubed|factorial|below|above|(?:more|less|fewer|greater)\s+than|to\s+the\s+power|choose|modulo|mod)\b",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:if|suppose|supposing|assume|assuming|whether|doubt|don'?t\s+think|not\s+(?:the|true)|unless|were|think"
    r"\s+not|pretend|imagine)\b[^.!?\n]{0,40}$|\b(?:wrong|incorrect|false)\b[^.!?,:;–—\n]{0,40}$",
    re.IGNORECASE,
)
_THE = r"(?:the\s+|my\s+|his\s+|her\s+|their\s+)?(?:final\s+|correct\s+|right\s+)?"
_SAYS = re.compile(
    r"\b(?:says?|said|saying|thinks?|thought|believes?|believed|claims?|claimed|insists?|argues?|asserts?|guesse[sd]"
    rf"|told\s+(?:me|us))(?:\s+that)?[\s,:\"“']{{0,3}}{_THE}$",
    re.IGNORECASE,
)
_SAYS_SO = re.compile(
    r"\b(?:says?|said|thinks?|thought|believes?|claims?|claimed|insists?|guesse[sd])(?:\s+that)?\s+(?:it|this|there|they)\b",
    re.IGNORECASE,
)
_OF_THE_ANSWER = re.compile(
    rf"\b(?:reciprocal|square|cube|root|half|third|double|twice|opposite|negative|inverse|logarithm|multiple|factor)\s+(?:of\s+)?{_THE}$",
    re.IGNORECASE,
)
BY_CASE = re.compile(
    r"\b(?:and|or|but|otherwise|else)\s+\S{1,30}\s+(?:when|if|for|where|otherwise)\b", re.IGNORECASE
)
GIVEN = re.compile(
    r"\b(?:by|of|from)\s(?:my|his|her|some|most|other|another)\s(?:friends?|teachers?|classmates?|students?|people|person)\b",
    re.IGNORECASE,
)
_OWN = re.compile(
    r"\b(?:I|we|us|let's|you|can|safe|fair|right|correct|accurate)\b[^.!?\n]*$", re.IGNORECASE
)
_QUOTE = re.compile(rf"[\"“]\s{{0,2}}{_THE}$", re.IGNORECASE)
_UNQUOTE = re.compile(r"[\"”]([^\n]{0,80})")
_ANOTHERS = re.compile(
    r"\b(?:expected|reference|official|stated|listed|claimed|supposed|intended|given|textbook|book|gold|his|her|their|friend's"
    r"|teacher's|student's|old|previous|first|initial)\s*$",
    re.IGNORECASE,
)


def is_denied(text: str, position: int, beside_box: bool = False) -> bool:
    """Whether the words before a phrase take it back or leave it to others: if, I doubt that, she says.

    beside_box: a box stands before, which "the expected answer is" does not overrule.
    """
    before = text[max(0, position - 80) : position]
    if _OF_THE_ANSWER.search(before):
        return True
    if _DENIED.search(before) or (beside_box and _ANOTHERS.search(before)):
        return True
    if (said := _SAYS.search(before)) and not _OWN.search(before[: said.start()]):
        return True
    if _QUOTE.search(before):
        closing = _UNQUOTE.search(text, position, position + 400)
        return closing is not None and bool(re.search(r"[A-Za-z]", closing[1]))
    return False


def is_anothers(sentence: str) -> bool:
    """Whether a sentence only reports what another says: my friend says it is 5."""
    said = _SAYS_SO.search(sentence)
    return said is not None and not _OWN.search(sentence[: said.start()])


def is_disowned(text: str, start: int, end: int) -> bool:
    """Whether a text takes a mark back at once: is wrong, or not before it, or shows only the format."""
    before, after = text[max(0, start - 40) : start], text[end : end + 160]
    if (said := _SAYS.search(before.rstrip(" $\\([*:") + " ")) and not _OWN.search(
        before[: said.start()]
    ):
        return True
    return bool(_DISOWNED.match(after) or _TAKEN_BACK.match(after) or _DENIED_BOX.search(before))


def second_thought(rest: str) -> tuple[str | None, bool] | None:
    """Return (value, whether it replaces what was said) of what follows an answer at once, or None.

    5 (or maybe 6) adds an alternative; 5. No wait, 6. replaces it; 5. That is wrong. takes it back
    and leaves none.
    """
    rest = rest[:200]
    if line := _NEXT_LINE.match(rest):
        return line[1], False
    if corrected := _CORRECTED.match(rest):
        return corrected["value"].strip(" $(*\\"), True
    if _TAKEN_BACK.match(rest):
        return None, True
    match = _SECOND_THOUGHT.match(rest)
    if match is None or (
        re.match(r"^\W*but\b", rest)
        and not re.search(r"\b(?:could|might|may|maybe|perhaps)\b", match[0])
    ):
        return None
    return match["value"] or match["rival"] or match["other"], False
