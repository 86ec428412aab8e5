"""Extract the value that a sentence states, for replies without an answer mark."""

from __future__ import annotations

import re

from assay.verify.answers.commitment import Commitment, is_negated, object_answers
from assay.verify.answers.latex_text import canonical
from assay.verify.answers.math_policy import Fallback
from assay.verify.answers.number_words import NUMBER_WORDS
from assay.verify.answers.plain_numbers import read_number
from assay.verify.answers.tables import opens, pattern, says
from assay.verify.answers.units import read_unit

MAX_SHORT = 80
MAX_SENTENCE = 200
# Number of characters at the end of a reply in which its last line or sentence is searched.
MAX_ENDING = 4000
MATH_PHRASES = ("result", "answer_line", "final_answer", "language")

DISPLAY = r"\$\$.{1,1000}?\$\$|\\\[.{1,1000}?\\\]"
# A dollar sign before a digit is money and closes no formula, so "$6 + $18" has no formula.
_INLINE = (
    r"(?<![\\\d])\$(?!\s*\d[\d.,]*\s+[a-z]{2})[^$\n]{1,1000}?(?<!\\)\$(?!\d)|\\\(.{1,1000}?\\\)"
)
_MATH = re.compile(f"{DISPLAY}|{_INLINE}", re.DOTALL)
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_BARE = re.compile(
    r"-?\\[dt]?frac\s*\{[^{}]*\}\s*\{[^{}]*\}|(?:(?<!\d)-?\d{1,20})?\\sqrt\s*\{[^{}]*\}"
)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.^{/\\])(?:[€£¥₹]|\\?\$)?\s?[-−]?(?:\\?\$)?"
    r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?!\d)|\d+[.,]\d+|\.\d+|\d+)"
    r"(?:\s*/\s*\d+|\s+\d+\s*[/⁄]\s*\d+|\s*⁄\s*\d+)?(?:[eE][+-]?\d+)?"
    r"(?:\s*(?:\\?%|percent\b)|\s?[€£¥₹$]|(?:m|cm|km|mm)[²³]|°)?"
)
_INTERVAL = re.compile(r"(?<![\w}\\])([(\[][^()\[\]=\n]{1,60},[^()\[\]=\n]{1,60}[)\]])[\s.*$]*\Z")
_SAYING = r"\b(?:is|are|was|equals|gets?|gives?|makes?|obtain|yields?|leaves?)\s{1,3}"
_IS_VALUE = re.compile(_SAYING + r"(-?\d[\d.,]*)[\s.!*]*\Z")
# A condition is removed if an equation follows: "if it has 5 sides, then it has 5 * 2 = 10".
_IF = re.compile(
    r"\A\W{0,4}if\b[^.?]{1,300}?,?\s(?:then\s)(?=[^.?]*\d\s*=)|\A\W{0,4}if\b[^.?,]{1,300},\s(?=[^.?]*\d\s*=)",
    re.I,
)
_OF_ALL = re.compile(
    r"[\s,]{0,3}(?:for|where|with)\s(?:(?:all|any|every|some|an)\s)?(?:arbitrary\s)?integers?\s"
)
_SAYS_VALUE = re.compile(_SAYING + r"-?\d")
_COPULA = re.compile(r"\b(?:is|are|was|were)\s+\**([A-Za-z][A-Za-z -]{0,60})$")
_FOLLOWING = re.compile(r"(?:[ ]?[/°]?[ ]?[A-Za-z°]+(?:[²³]|\^\{?-?\d\}?)?){1,5}")
_LISTED = re.compile(r"[\s,;]*(?:and|or)?[\s,;]*")
_CUT_OFF = re.compile(r"(?:[=+/^({\\-]|(?<!\*)\*)\s*$|\\f?boxed\b|<answer>")
_QUOTED = re.compile(
    r"```\w*\n([^`]{1,300})\n?```|>\s*([^>\n]{1,300})|[\"“']([^\"“”\n]{1,300})[\"”']"
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=\D|\d+\.\s)|(?<=[。！？؟।])\s*|\n+")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_SPOKEN = re.compile(
    r"\\(?:begin|end|text|mbox|mathrm|textbf|mathbf|operatorname)\s*\{[^{}]*\}|\\[A-Za-z]+"
)
_MATH_WORDS = {
    *["and", "or", "pi", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "infinity", "inf", "mod"]
}
_SPELLED = re.compile(
    rf"\b(?:{'|'.join(sorted(NUMBER_WORDS - {'one', 'dozen'}))})\b",
    re.IGNORECASE,
)
_BULLET = re.compile(r"\A\s*(?:\d{1,2}[.)]|\(?[a-z]\)|[-*•])\s+")
_SUM = re.compile(
    r"(?:^|\s)\d[\d.,]*(?:\s?[+*/×÷·-]\s?\d[\d.,]{0,30}){1,8}\s?=\s?(-?\d[\d,]*(?:\.\d+)?)[\s.!]*$"
)
_ARITHMETIC = re.compile(r"[\d\s.]*\d(?:\s*[+*×·]\s*|\s+[-/]\s+)[\d\s.+*×·/-]*\d")
_OPEN_BEFORE = re.compile(r"[\\{}\[\]+*/^_&|~…(]\s*$|\.\.$|\d")
_WORKED_ON = re.compile(
    r"\s?[nkxyz](?![a-zA-Z])|\s*(?:[+*^×·]\s?[\w({\\]|/\s?[\d(\\]|[-−]\s?(?:\d|[a-zA-Z]\b)"
    r"|\\(?:[cd]dot|times|div|pi|sqrt|[dt]?frac))"
)
_OPEN_AFTER = re.compile(r"\s*(?:\\|[+&|~^_{}\[\]*/…]|\.\.)")


def is_answer_alone(text: str) -> bool:
    """Return whether a text is only a value, a formula or a few words, without a sentence."""
    text = text.strip().strip("*").strip()
    if "\n" in text or len(text) > 300:
        return False
    if read_number(text.rstrip(".")) is not None:
        return True
    spoken = _WORD.findall(_SPOKEN.sub(" ", text))
    words = [word for word in spoken if word.lower() not in _MATH_WORDS]
    if not re.search(r"[\d=+^\\$]", text):
        return len(words) <= 4 and len(text) <= MAX_SHORT
    if len(words) > 1 or (words and len(text) > MAX_SHORT):
        return False
    return not re.search(r"[^\W\d_a-zA-Z]{2,}|[?؟]|[A-Za-z][.!]\s|\d[.!]\s+[A-Z][a-z]", text)


def value_of(sentence: str) -> str | None:
    """Return the final or only value in a sentence, or None if the value is ambiguous."""
    sentence = sentence.strip().rstrip(".。").strip()
    if not sentence or is_answer_alone(sentence):
        return sentence.strip("*").strip() or None
    if any(says(name, sentence) for name in ("hedge", "bound", "changed")):
        return None
    if interval := _INTERVAL.search(sentence):
        return interval[1]
    for each in (_BOLD, _MATH):
        found = list(each.finditer(sentence))
        if found and re.search(r"\w", sentence[found[-1].end() :]):
            # A bold name or a bold formula without digits is no value if words follow.
            found = [match for match in found if re.search(r"[\d\\=]", match[0])]
        if not found:
            continue
        first, last = found[0], found[-1]
        if is_value := _IS_VALUE.search(sentence, last.end()):
            # In "the number after $42$ is 43", the value is 43.
            return is_value[1]
        if len(found) > 1 and _OF_ALL.fullmatch(sentence, found[-2].end(), last.start()):
            if len(found) == 2 and not re.search(r"\w", sentence[last.end() :]):
                # The condition belongs to the answer, as in "$x = 3k$ for all integers $k$".
                return sentence[first.start() : last.end()]
        elif not re.search(r"\w", sentence[last.end() :]) or len(found) == 1:
            if says("beside_it", sentence, 0, last.start()):
                return None
            return last[each.groups].strip()
        if not re.search(r"\w", sentence[: first.start()]):
            return first[each.groups].strip()
    bare = _BARE.findall(sentence)
    return bare[-1] if bare else _number_of(sentence)


def only_value_of(content: str) -> str | None:
    """Return `value_of` applied to the words after an answer phrase, or None if they name another
    number.

    In "5, though 6", a second number follows the number at the start.
    """
    value = value_of(content)
    if not re.match(r"[-$\\(*]{0,3}\d", content) or "=" in content or is_answer_alone(content):
        return value
    return None if len({canonical(number) for _, _, number in numbers_of(content)}) > 1 else value


def _number_of(sentence: str) -> str | None:
    """Return the value of a sentence without formulas, or None.

    The value is the number after the last equals sign, else the only number, else the numbers at
    the end of the sentence, else the only amount of money or percentage.
    """
    equals = sentence.rpartition("=")[2].replace("**", "") if "=" in sentence else ""
    if equals and (after := numbers_of(equals)):
        if not _is_in_formula(equals, *after[0]):
            return after[0][2]
        return equals.strip() if is_answer_alone(equals) else None
    numbers = numbers_of(sentence)
    if not numbers:
        return None
    if len({canonical(text) for _, _, text in numbers}) == 1:
        beside = says("beside_it", sentence, 0, numbers[0][0])
        return None if beside else with_unit(sentence, *numbers[-1])
    if not re.search(r"\w", sentence[numbers[-1][1] :]):
        first = len(numbers) - 1
        while first and _LISTED.fullmatch(sentence[numbers[first - 1][1] : numbers[first][0]]):
            first -= 1
        return sentence[numbers[first][0] : numbers[-1][1]].strip()
    money = [text for _, _, text in numbers if re.search(r"[$€£¥₹%]", text)]
    return money[0] if len(money) == 1 else None


def _is_in_formula(text: str, start: int, end: int, number: str) -> bool:
    """Return whether a number is part of a formula, like the 1 in ``2x + 1``."""
    before = text[:start].rstrip()
    if _OPEN_BEFORE.search(before) or before[-1:] in ("-", "−") or _WORKED_ON.match(text, end):
        return True
    # `numbers_of` has removed the minus sign of the number if the sign is a subtraction.
    return text[start:end].strip() != number


def numbers_of(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, number) of each number in a text, with currency and percent signs."""
    found: list[tuple[int, int, str]] = []
    for match in _NUMBER.finditer(text):
        number = match[0].strip()
        before = text[: match.start()].rstrip()
        if number[0] in "-−" and before and (before[-1].isalnum() or before[-1] in ")]}"):
            # After a letter, digit or bracket, the minus sign is a subtraction.
            number = number[1:]
        following = text[match.end() : match.end() + 1]
        if not (following.isascii() and following.isalnum()):
            found.append((match.start(), match.end(), number))
    return found


def with_unit(text: str, start: int, end: int, number: str) -> str:
    """Return a number with the unit of measurement that follows it, without other words."""
    following = _FOLLOWING.match(text, end)
    words = following[0] if following else ""
    while words:
        unit = read_unit(canonical(words))
        if unit and (unit.factors or unit.scale) and not unit.nouns:
            return number + words
        shorter = re.match(r"(.*\S)[\s/]+\S+$", words, re.DOTALL)
        words = shorter[1] if shorter else ""
    return number


def value_of_only_sentence(text: str) -> str | None:
    """Return the only value of a reply that is a single short sentence, or None.

    Negated numbers do not count. A sentence with a hedge such as "maybe" has no value.
    """
    if "\n" in text or len(text) > MAX_SENTENCE or says("hedge", text) or says("supposed", text):
        return None
    if is_quoted_or_negated(text) or opens("step", text):
        return None
    named = pattern("connective").sub("", pattern("the_answer").sub("", text))
    if named != text and is_answer_alone(named) and re.search(r"\d", named):
        return named
    text = pattern("negated").sub(" ", text)
    if says("changed", text) or says("bound", text) or _SPELLED.search(text):
        return None
    if len([each for each in _SENTENCE.split(_protected(text)) if each.strip()]) != 1:
        return None
    if (total := _SUM.search(text)) and text.count("=") == 1 and not opens("first", text):
        return total[1]
    bold = _BOLD.findall(text)
    if len(bold) == 1 and read_number(bold[0]) is not None:
        text = text.replace("**", "")
    formulas = [m[0] for m in _MATH.finditer(text) if re.search(r"[\d\\=]", m[0])]
    rest = _MATH.sub(" ", text)
    numbers = numbers_of(rest)
    if formulas and numbers:
        return None
    formulas = formulas or _BARE.findall(rest)
    if formulas:
        return formulas[0] if len(formulas) == 1 else None
    one = len({canonical(number) for _, _, number in numbers}) == 1
    if one and "=" not in rest and _stands_alone(rest):
        return with_unit(rest, *numbers[-1])
    return None


def is_quoted_or_negated(sentence: str) -> bool:
    """Return whether a sentence quotes another person's answer or negates its answer phrase."""
    said = says("says_so", sentence)
    if said is not None and not says("own", sentence, 0, said.start()):
        return True
    found = pattern(*MATH_PHRASES).finditer(sentence)
    return any(is_negated(sentence, match.start()) or says("given", match[0]) for match in found)


def _stands_alone(text: str) -> bool:
    """Return whether no number of a sentence is part of a formula or a longer number."""
    start = 0
    for first, end, _ in numbers_of(text):
        if _OPEN_BEFORE.search(text[start:first]) or _OPEN_AFTER.match(text, end):
            return False
        start = end
    return not re.search(r"\d", text[start:])


def value_of_last_line(text: str) -> str | None:
    """Return the last line of a reply if the line is only an answer, else None.

    A line of an enumeration, such as a line with a bullet or a line after a similar value, is no
    final answer.
    """
    lines = [line.strip() for line in _protected(text[-MAX_ENDING:]).split("\n") if line.strip()]
    if len(lines) < 2:
        return None
    before, last = (line.replace("\0", "\n") for line in lines[-2:])
    if (len(before) < 40 and says("hedge", before)) or says("hedge", last) or _BULLET.match(last):
        return None
    if read_number(last.rstrip(".")) is not None and re.fullmatch(r"[^=]{0,39}\d[^\w.]*", before):
        return None
    displayed = bool(_MATH.fullmatch(last))
    if not re.search(r"[\d\\]", last) or not (displayed or is_answer_alone(last)):
        return None
    if _are_listed(before, last):
        return None
    return last if displayed else last.rstrip(".").strip("*").strip()


def _are_listed(before: str, last: str) -> bool:
    """Return whether two adjacent lines or sentences are items of an enumeration of values."""
    if not (_MATH.fullmatch(before) or (re.search(r"[\d\\]", before) and is_answer_alone(before))):
        return False
    pair = (pattern("connective").sub("", each) for each in (before, last))
    names = [re.split(r"[=<>]", canonical(each), maxsplit=1) for each in pair]
    worked_out = _ARITHMETIC.fullmatch(before.rpartition("=")[2].strip(" .$"))
    return (len(names[0]) == 1 or not worked_out) and (
        min(map(len, names)) == 1 or names[0][0].strip() == names[1][0].strip()
    )


def bold_value_at_end(text: str) -> str | None:
    """Return the bold value at the end of the last sentence, or None.

    The sentence must have no second bold text, and words must precede the bold value.
    """
    sentences = _sentences(text)
    sentence = sentences[-1] if sentences else ""
    bold = list(_BOLD.finditer(sentence))
    if len(bold) != 1 or not re.search(r"\w", sentence[: bold[0].start()]):
        return None
    if re.search(r"\w", sentence[bold[0].end() :]) or len(sentence) > 2 * MAX_SENTENCE:
        return None
    if any(says(name, sentence) for name in ("hedge", "bound", "supposed")):
        return None
    return bold[0][1] if is_answer_alone(bold[0][1]) and re.search(r"[\d\\]", bold[0][1]) else None


def value_of_last_sentence(text: str) -> tuple[str, str] | None:
    """Return (value, sentence) for the value that a text's last sentence states, or None.

    If the last sentence has no number and leaves nothing open, the sentence before the last is
    read. A value without a sentence counts only if a word such as "so" introduces it as a
    conclusion.
    """
    sentences = _sentences(text)[-2:]
    for sentence in reversed(sentences):
        sentence = _IF.sub("", _BULLET.sub("", sentence, count=1), count=1)
        if is_quoted_or_negated(sentence) or says("hedge", sentence) or says("supposed", sentence):
            return None
        if not re.search(r"\d", sentence):
            if opens("goes_on", sentence) or says("unfinished", sentence):
                return None
            value = value_of(sentence)
            if value is not None and re.search(r"[\\$]", value):
                return value, sentence.strip().rstrip(".")
            if copula := _COPULA.search(sentence.rstrip(".!。* ")):
                return copula[1], ""
            continue
        if any(opens(name, sentence) for name in ("task", "step")) or says("unfinished", sentence):
            return None
        if is_answer_alone(sentence):
            if not opens("concluding", sentence) or len(sentences) < 2:
                return None
            if _are_listed(sentences[0].strip(), sentence.strip()):
                return None
            value = pattern("connective").sub("", sentence.strip()).rstrip(".").strip("* ")
            return value, value
        if (value := value_of(sentence)) is None or not re.search(r"[\d\\$]", value):
            return None
        computed = re.compile(rf"=\s*{re.escape(value)}(?![\d.,]*\d)")
        if _has_other_numbers(sentence, value):
            return None
        is_said = opens("concluding", sentence) or says("asserts", sentence)
        if not is_said and not computed.search(text):
            return None
        return value, sentence.strip().rstrip(".")
    return None


def _has_other_numbers(sentence: str, value: str) -> bool:
    """Return whether a sentence has more numbers than ``value`` and no verb that states the value.

    value: the value found in the sentence.
    """
    if "=" in sentence or _MATH.search(sentence) or _BARE.search(sentence):
        return False
    named, found = (
        {canonical(number) for _, _, number in numbers_of(text)} for text in (sentence, value)
    )
    if named <= found:
        return False
    return not _IS_VALUE.search(sentence) or len(_SAYS_VALUE.findall(sentence)) > 1


def _sentences(text: str) -> list[str]:
    """Return the sentences at the end of a text, omitting sentences of punctuation only."""
    found = _SENTENCE.split(_protected(text[-MAX_ENDING:]))
    return [each.replace("\0", "\n") for each in found if re.search(r"\w", each)]


def _protected(text: str) -> str:
    """Join the lines of each formula, so that splitting a text into sentences keeps formulas."""
    return _MATH.sub(lambda m: m[0].replace("\n", "\0"), text)


_VALUES_AT_END = {
    "one_sentence": value_of_only_sentence,
    "last_line": value_of_last_line,
    "final_emphasis": bold_value_at_end,
}
"""Rules for a value at the end of a reply, by the names that verdicts show."""


def unmarked_answer(text: str, fallback: Fallback, had_courtesy: bool) -> Commitment | None:
    """Return the answer of a text that has no box, tag or answer phrase, or None."""
    if _CUT_OFF.search(text):
        # The text ends inside a formula, a box or a tag, so its last number is incomplete.
        return None
    if quoted := _QUOTED.fullmatch(text):
        text = next(filter(None, quoted.groups())).strip()
    if text.count('":') == 1 and "[" not in text and (values := object_answers(text)):
        return Commitment((str(values[0]).strip(),), how="object")
    said = pattern("connective").sub("", text)
    if said and is_answer_alone(said):
        return Commitment((said,), phrase=said if said != text else "", how="whole")
    for how, rule in _VALUES_AT_END.items():
        if (value := rule(text)) is not None:
            return Commitment((value,), how=how)
    if fallback == "sentence" or had_courtesy:
        last = value_of_last_sentence(text)
        return Commitment((last[0],), phrase=last[1], how="sentence") if last else None
    numbers = numbers_of(text) if fallback == "last_number" else []
    return Commitment((numbers[-1][2],), how="last_number") if numbers else None
