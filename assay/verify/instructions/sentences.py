"""How many sentences a text has, as the public scorer of instruction following counts them.

That scorer counts with Punkt (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary
Detection", Computational Linguistics 32(4), 2006) and its English model. The decisions here are those
of the paper's section 4. Of the model there is only what matters in English prose: the abbreviations
that it knows, and the words that it takes for the start of a sentence behind one.
"""

from __future__ import annotations

import re
import string

# A mark ends a sentence only before one of these, or before white space and something more.
_INSIDE_NO_WORD = r"""[)"';}\]*:@({\[!?‘’“”«»]"""
_CANDIDATE = re.compile(rf"[.?!](?=(?P<mark>{_INSIDE_NO_WORD})|\s+(?P<following>\S+))")
_LAST_PART = re.compile(rf"['‘’“”«»?!]?(?:(?!{_INSIDE_NO_WORD}|--|\.\.)\S)*\Z")
_FIRST_PART = re.compile(rf"(?:(?!{_INSIDE_NO_WORD}|--|,(?!\w))\S)+")
_INSIDE = re.compile(rf"[?!](?=\.\.)|[.?!](?=(?P<mark>{_INSIDE_NO_WORD}))")
_CLOSERS = re.compile(r"""["')\]}‘’“”«»]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*")
_NAME = re.compile(r"(?:[A-Z]\S* |\A|[\n(\"])[A-Z]\Z")
_NO_WORD_STARTS_WITH = "#&`,-"
_PUNCTUATION = tuple(";:,.!?")
_LONGEST = 200  # characters of a word that are looked at: a longer one is no abbreviation

# "etc", "e.g", "i.e" and "p.s" are not among them: behind those a sentence ends.
_ABBREVIATIONS = """
    dr gen jr lt maj messrs mr mrs ms prof rep reps sen sr adm col ph.d m.b.a
    jan feb aug sept sep oct nov dec tues wed fri a.m p.m a.d yr
    bros cie co corp cos inc ltd n.v s.p.a s.a a.g b.v chg vs v ok ct mg ft st ave sw
    u.k u.n u.s u.s.a u.s.s.r n.y l.a d.c n.c n.d n.h n.j n.m s.c r.i w.va
    ala ariz calif colo conn fla ga ill kan ky mich minn nev okla ore pa tenn va vt wash wis
    a.a a.c a.h a.s a.t b.f c.v d.h d.w e.f e.h e.l e.m f.g f.j g.d g.f g.k h.c h.f h.m j.b j.c j.j j.k
    j.p j.r l.f l.p m.j r.a r.h r.j r.k r.t s.g s.s t.j w.c w.r w.w
    c d e f g h k l m n p r s t w
"""

# Behind an abbreviation or an ellipsis, one of these with a capital letter starts a sentence.
_STARTERS = """
    according although among both but despite even he however i if in indeed instead it many
    meanwhile moreover most nevertheless nonetheless nor separately similarly since so some the there
    these they this though thus under when while yet
    allow anyway appear ask assuming become begin being believe between build calculate call check
    choose combined consider considering convert create currently depending determine die different
    does done doors double example except explain final finally follow furthermore given guests happen
    hear hence her here him hold imagine include including kill learn lose lunch mine normally note
    nothing okay originally otherwise overall play please provide put question regards remain remember
    same section send serve simply sincerely sit solve someone sometimes sorry speak specifically spend
    stand starting step such suddenly suppose thank thanks them therefore think through throughout title
    together tomorrow try typically ultimately understand unfortunately upon us using very visitors wait
    walk were whether which win without yes yesterday your
"""

# Behind an initial ("plan B. We"), these too: words that are usually written small.
_COMMON = """
    a add after all also am an and another answer any are at be because been before best breakfast
    bring buy by can change chapter children come continue could cut day did dinner do during each every
    everybody everyone everything expect fall feel few find first for from get give go grow had half has
    have help his how is its just keep know last later lead leave less let like live look love make may
    maybe me meet might more move much must my next no nobody not now of offer on once one only open or
    other our out over own part pay people perhaps reach read run say second see set several she should
    show start stay stop students take tell that their then third those three today too two until use
    want was watch we well what where who why will with would write you
"""

ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
STARTERS = frozenset(_STARTERS.split())
COMMON = (STARTERS | frozenset(_COMMON.split())) - {"i"}  # which is never written small


def num_sentences(text: str) -> int:
    """Return the number of sentences of a text; a closing quote or bracket belongs to its sentence."""
    return sum(1 for _ in sentences(text))


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, in order, without the white space between them."""
    found: list[str] = []
    start = 0
    for end, next_start in [*_ends(text), (len(text.rstrip()), len(text))]:
        if found and (closers := _CLOSERS.match(text, start, end)):
            found[-1] += closers[0].rstrip()
            start = closers.end()
        if start < end:
            found.append(text[start:end])
        start = max(start, next_start)
    return found


def _ends(text: str) -> list[tuple[int, int]]:
    """Return where each sentence but the last ends, and where the one behind it starts."""
    candidates = list(_CANDIDATE.finditer(text))
    found: list[tuple[int, int]] = []
    for index, match in enumerate(candidates):
        start, end = match.span()
        if index + 1 < len(candidates):
            starts_word = not start or text[start - 1] in string.whitespace
            if not starts_word and not _has_space(text, end, candidates[index + 1].start()):
                continue  # a later mark of the same word decides
        if match[0] != "." or _is_end(text[max(0, start - _LONGEST) : start], match):
            found.append((end, match.start("following") if match["following"] else end))
    return found


def _has_space(text: str, start: int, end: int) -> bool:
    return any(char in string.whitespace for char in text[start:end])


def _is_end(before: str, match: re.Match[str]) -> bool:
    """Whether a period ends a sentence; so it does where one ends inside the words around it."""
    following = match["mark"] or match["following"][:_LONGEST]
    chunk = before.split()[-1] if before and not before[-1].isspace() else ""
    if _ends_inside(chunk + ".") or _ends_inside(following):
        return True
    return _ends_word(before, chunk, _first_part(following), match.string[match.end()])


def _ends_inside(chunk: str) -> bool:
    return any(
        match[0] != "." or _ends_word("", chunk[: match.start()], match["mark"], "")
        for match in _INSIDE.finditer(chunk)
    )


def _ends_word(before: str, chunk: str, following: str, gap: str) -> bool:
    """Whether a period behind ``chunk``, at the end of ``before``, ends a sentence."""
    part = _LAST_PART.search(chunk)
    word = part[0].lower().lstrip(_NO_WORD_STARTS_WITH) if part else ""
    lookup = following.lower().rstrip(".")
    if chunk.endswith("."):  # an ellipsis
        return following[0].isupper() and lookup in STARTERS
    is_initial = len(word) == 1 and word.isalpha()
    if word in ABBREVIATIONS or word.rpartition("-")[2] in ABBREVIATIONS:
        return not is_initial and following[0].isupper() and lookup in STARTERS
    if is_initial or _NUMBER.fullmatch(word):
        if following in _PUNCTUATION or following[0].islower():
            return False
        is_name = is_initial and following[0].isupper() and _is_name(before, lookup, gap)
        return not is_name
    return True


def _is_name(before: str, lookup: str, gap: str) -> bool:
    """Whether an initial and the capitalized word behind it are a name, as in "Ann J. Baker"."""
    if lookup in COMMON or gap != " ":
        return False
    is_short = len(lookup) == 1 or "." in lookup or lookup in ABBREVIATIONS
    return is_short or _NAME.search(before) is not None


def _first_part(following: str) -> str:
    found = _FIRST_PART.match(following)
    return found[0] if found else following[0]
