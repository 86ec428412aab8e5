"""Verifiers ``boolean_equivalence`` and ``entailment``: formulas and labels that logic decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.types import Completion, Problem
from assay.verify.answers.commitment import (
    bare,
    clipped,
    commitment,
    committed,
    retraction,
    unwrapped,
)
from assay.verify.base import Field, Limits, Part, Verifier, known_errors
from assay.verify.logic.formulas import (
    MAX_FORMULA,
    Formula,
    NotAFormula,
    parse_formula,
    parse_letters,
)
from assay.verify.logic.solver import (
    MAX_TABLE,
    RLIMIT,
    Unknown,
    entails,
    equivalent,
    is_normal,
    num_connectives,
    satisfiable,
)

FORMS = ("any", "nnf", "cnf", "dnf")
LABELS = ("True", "False", "Uncertain")
MAX_LABEL = 80  # characters of a line that is only a label
MAX_SENTENCES = 2000  # characters of a line in which a label is looked for
MAX_NODES = 400  # connectives and quantifiers of a model's formula

_FORMULA = "a formula, as A & (B -> ~C), in ASCII, words, Unicode or LaTeX"
_PREMISES = "a list of formulas, as forall x (P(x) -> Q(x))"
_SYNONYMS = {
    "True": ("true", "entailed", "proved", "provable", "follows", "valid", "entailment"),
    "False": ("false", "refuted", "contradicted", "disproved", "contradiction"),
    "Uncertain": ("uncertain", "unknown", "undetermined", "undecided", "neutral", "neither", "indeterminate"),
}  # fmt: skip
_LABEL_OF = {word: label for label, words in _SYNONYMS.items() for word in words}
_NAMED = re.compile(r"\A(?!.{0,60}(?:forall|exists))[A-Za-z][A-Za-z ]{0,60}[:：]\s*", re.IGNORECASE)
_SAID = re.compile(
    r"\A(?:(?:so|thus|hence|therefore|the|my|a|an|final|simplified|simplest|minimal|minimized|reduced|equivalent|resulting|logical|boolean|propositional|formula|expression|form|version|result|answer|it|this|cnf|dnf|nnf),?\s+){1,8}(?:is|becomes|simplifies\s+to|reduces\s+to)\b\s*[:：]?\s*",
    re.IGNORECASE,
)
_OR_WORD, _AND_WORD = re.compile(r"\bor\b", re.IGNORECASE), re.compile(r"\band\b", re.IGNORECASE)
_OR_SIGN = re.compile(r"[|∨⋁+]|\\/|\\(?:lor|vee)(?![a-z])")
_AND_SIGN = re.compile(r"[&∧⋀*·]|/\\|\\(?:land|wedge|cdot)(?![a-z])")
_ASSIGNED = re.compile(r"(?<![<>!=:])=(?![>=])")
_PURE = {**_LABEL_OF, "yes": "True", "no": "False"}
_VERDICT = re.compile(
    r"[^\w?]{0,6}(?:(?:it|this|the\sconclusion)\sis\s|it['’]s\s)?([a-z]+)[^\w?]{0,6}"
)
_YES_NO = re.compile(r"\W{0,6}(yes|no)\s?[,:—–-]")
_UNDECIDED = re.compile(
    r"\b(?:(?:it|this|the\s(?:conclusion|answer|statement))\s)?(?:cannot|can\s?not|can['’]t|could\snot)\sbe\s(?:determined|concluded|decided|inferred|known)\b"
    r"|\b(?:we\s)?(?:cannot|can['’]t)\s(?:tell|say|determine|know|decide)\b|\b(?:not\senough|insufficient)\sinformation\b"
)
_CONTRAST = re.compile(
    rf",?\s(?:(?:and\s)?not|rather\sthan|instead\sof|neither)\s(?:\W{{0,4}})(?:{'|'.join(_LABEL_OF)})\b(?:\snor\s\w+\b)?"
)
_DENIALS = frozenset(("not", "or", "isn't", "cannot", "either", "maybe", "perhaps", "nor", "and"))
_END = re.compile(r"[.;。!?？]+")
_REASON = re.compile(
    r"\b(?:because|since|as|given|for|while|but|whereas)\b|[.;。\n]", re.IGNORECASE
)


def judge_boolean(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the completion's propositional formula is equivalent to the expected one, else 0.

    Reads ``formula``, ``form`` and ``max_connectives``. A variable that does not matter may be added or
    left out; case tells variables apart only where the expected formula does.
    """
    where = f"problem {problem.id}: spec."
    gold = _read(problem.spec.get("formula"), f"{where}formula")
    if not gold.is_propositional:
        raise VerifierError(message(f"{where}formula", "quantifiers, terms or =", "a propositional formula"))  # fmt: skip
    form, bound = problem.spec.get("form", "any"), problem.spec.get("max_connectives")
    if form not in FORMS:
        raise VerifierError(message(f"{where}form", repr(form), ", ".join(FORMS)))
    text = _committed_formula(completion)
    if text is None:
        return Part(0.0, detail="no formula, or several")
    text = _ASSIGNED.split(text)[-1].strip()  # F = ..., or the last of a chain of rewritings
    if (_OR_WORD.search(text) and _OR_SIGN.search(text)) or (
        _AND_WORD.search(text) and _AND_SIGN.search(text)
    ):
        return Part(
            0.0, extracted=text, detail="words and signs for one connective: several formulas"
        )
    formula, fault = _parsed(text, gold)
    if formula is None:
        return Part(0.0, extracted=text, detail=fault)
    if not formula.is_propositional:
        return Part(0.0, extracted=text, detail="no propositional formula")
    if form != "any" and not is_normal(formula, form):
        return Part(0.0, extracted=text, detail=f"not in {form}")
    if bound is not None and num_connectives(formula) > bound:
        return Part(0.0, extracted=text, detail="more connectives than allowed")
    try:
        return Part(float(equivalent(gold, _spelled_as(gold, formula))), extracted=text)
    except Unknown as error:
        return Part.not_judged("timeout", f"{error}")


def check_boolean(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, for a formula that is none."""
    if not _read(spec.get("formula"), "formula").is_propositional:
        raise VerifierError(
            message("formula", "quantifiers, terms or =", "a propositional formula")
        )


def check_entailment(spec: Mapping[str, Any]) -> None:
    """Raise VerifierError, which begins with the key, where neither a label nor what gives it is there."""
    if spec.get("target") is None and spec.get("answer") is not None:
        return
    other = "conclusion" if spec.get("target") is None else "target"
    if spec.get(other) is None:
        raise VerifierError(message("answer", "missing", f"{', '.join(LABELS)}; else premises, and a conclusion or a target"))  # fmt: skip
    if not is_premises(spec.get("premises")):
        raise VerifierError(message("premises", "missing", _PREMISES))
    for each in spec["premises"]:
        _read(each, "premises")
    _read(spec[other], other)


def judge_entailment(problem: Problem, completion: Completion) -> Part:
    """Score 1 where the label is right, or where the formula given follows and says enough, else 0.

    With ``target``: the completion gives a formula that the premises entail, that is no tautology and
    that alone entails the target. Otherwise it gives a label: ``answer``, or what z3 says of
    ``premises`` and ``conclusion``.
    """
    try:
        if problem.spec.get("target") is not None:
            return _judge_formula(problem, completion)
        return _judge_label(problem, completion)
    except Unknown as error:
        return Part.not_judged("timeout", f"{error}")


def _judge_label(problem: Problem, completion: Completion) -> Part:
    answer = problem.spec.get("answer")
    if answer is None:
        gold = label_of(_premises(problem), _conclusion(problem, "conclusion"))
    elif is_label(answer):
        gold = _LABEL_OF[str(answer).strip().casefold()]
    else:
        where = f"problem {problem.id}: spec.answer"
        raise VerifierError(message(where, repr(answer)[:80], ", ".join(LABELS)))
    found = find_label(clipped(completion.answer_text))
    return Part(
        float(found == gold), extracted=found, detail="" if found else "no label, or several"
    )


def _judge_formula(problem: Problem, completion: Completion) -> Part:
    premises, target = _premises(problem), _conclusion(problem, "target")
    _check_consistent(tuple(premises), f"problem {problem.id}: spec.premises")
    text = _committed_formula(completion)
    if text is None:
        return Part(0.0, detail="no formula, or several")
    formula, fault = _parsed(text)
    if formula is None:
        return Part(0.0, extracted=text, detail=fault)
    try:
        if entails([], formula):
            fault = "a tautology says nothing"
        elif not entails(premises, formula):
            fault = "does not follow from the premises"
        elif not entails([formula], target):
            fault = "follows from the premises, but says too little"
    except NotAFormula as error:
        fault = f"{error}"
    return Part(0.0 if fault else 1.0, extracted=text, detail=fault)


def label_of(premises: Sequence[Formula], conclusion: Formula) -> str:
    """Return True, False or Uncertain: proved, refuted or neither. Raises Unknown."""
    proved = entails(premises, conclusion)
    refuted = entails(premises, Formula("not", parts=(conclusion,)))
    if proved and refuted:
        raise VerifierError(message("spec.premises", "premises that contradict each other", "ones that can be true together"))  # fmt: skip
    return "True" if proved else "False" if refuted else "Uncertain"


def find_label(text: str) -> str | None:
    """Return the one label that a text commits to, None where there is none or more than one.

    A marked answer, else a first line that is only a label, else the last line. What takes a label
    back counts, a question does not.
    """
    found, end = commitment(text)
    if len(found) > 1:
        return None
    lines = [line for line in text.splitlines() if line.strip()]
    if found:
        content, rest = found[0], text[end:]
    else:
        first, last = (lines[0], lines[-1]) if lines else ("", "")
        alone = _pure(first) is not None and _pure(last) is None
        content, rest = (first, "\n".join(lines[1:])) if alone else (last, "")
        if taken := retraction(text, 1):
            content, rest = taken.content, ""
    label = _label_in(content, bool(found))
    return None if label is None or _another(rest, label) else label


def _label_in(content: str, marked: bool) -> str | None:
    """Return the label with which a line answers: the only one of its sentence, before any reason."""
    content = content[:MAX_SENTENCES] if marked else content[-MAX_SENTENCES:]
    if (label := _pure(content)) is not None:
        return label
    text = _UNDECIDED.sub(" uncertain ", re.sub(r"\\[a-z]+", " ", content.casefold()))
    rest = _CONTRAST.sub(" ", text).strip()
    while rest:
        sentence, stop, rest = _sentence(rest)
        words = re.findall(r"[a-z']+", sentence)
        if not _YES_NO.match(sentence) and not any(word in _LABEL_OF for word in words):
            continue
        if stop in ("?", "？"):
            return None
        for head in (sentence, _REASON.split(sentence, maxsplit=1)[0]):
            label = _only_label(head, marked)
            if label is not None or not _REASON.search(sentence):
                return None if label is None or _another(rest, label) else label
        return None
    return None


def _only_label(head: str, marked: bool) -> str | None:
    words = re.findall(r"[a-z']+", head)
    said = {_LABEL_OF[word] for word in words if word in _LABEL_OF}
    if spoken := _YES_NO.match(head):
        said.add(_PURE[spoken[1]])
    sure = len(said) == 1 and not _DENIALS & {*words} and (marked or len(words) <= 20)
    return said.pop() if sure else None


def _sentence(text: str) -> tuple[str, str, str]:
    """Return the first sentence of a line, the sign that ends it, and the rest."""
    end = _END.search(text)
    if end is None:
        return text.strip(), "", ""
    return text[: end.start()].strip(), end[0][-1], text[end.end() :].strip(" \t*_\"'")


def _pure(text: str) -> str | None:
    """Return the label that a text is, with nothing beside it but marks."""
    if len(text) > MAX_LABEL:
        return None
    match = _VERDICT.fullmatch(bare(text).casefold())
    return None if match is None else _PURE.get(match[1])


def _another(rest: str, label: str) -> bool:
    """Whether a sentence or line in the rest of a text is only a label, and another one."""
    for sentence in re.split(r"[.!?;\n]", rest.casefold()):
        said = _pure(
            re.sub(r"\A(?:or|and)?\s*(?:maybe|perhaps|possibly)?\s*", "", sentence.strip())
        )
        if said is not None and said != label and said != _pure(label):
            return True
    return False


def _committed_formula(completion: Completion) -> str | None:
    text = clipped(completion.answer_text)
    found = committed(text)
    if len(found) > 1:
        return None
    if not found:
        lines = [line for line in unwrapped(text).splitlines() if line.strip(" `$")]
        found = (lines[-1],) if lines else ()
    content = bare(found[0]) if found else ""
    return bare(_SAID.sub("", _NAMED.sub("", content, count=1), count=1)) or None


def _parsed(text: str, gold: Formula | None = None) -> tuple[Formula | None, str]:
    """Return a formula and what is wrong with it; gold: whose single letters may stand side by side."""
    formula, fault = None, ""
    try:
        formula = parse_formula(text)
    except NotAFormula as error:
        fault = f"no formula: {error}"
    letters = frozenset(name.casefold() for name in gold.atoms) if gold else frozenset[str]()
    known = (
        formula is not None
        and formula.is_propositional
        and {name.casefold() for name in formula.atoms} <= letters
    )
    if letters and not known and all(len(letter) == 1 for letter in letters):
        with suppress(NotAFormula):
            formula = parse_letters(text, letters)
    if formula is None:
        return None, fault
    if num_connectives(formula) > MAX_NODES:
        return None, f"more than {MAX_NODES} connectives"
    return formula, ""


def _spelled_as(gold: Formula, formula: Formula) -> Formula:
    """Return a formula with its variables in the case of the expected formula's, where that is clear."""
    folded = {name.casefold(): name for name in gold.atoms}
    taken = {name.casefold() for name in formula.atoms}
    if len(folded) < len(gold.atoms) or len(taken) < len(formula.atoms):
        return formula
    return _renamed(formula, folded)


def _renamed(formula: Formula, names: dict[str, str]) -> Formula:
    name = names.get(formula.name.casefold(), formula.name) if formula.kind == "atom" else formula.name  # fmt: skip
    return Formula(formula.kind, name, formula.terms, tuple(_renamed(p, names) for p in formula.parts))  # fmt: skip


@lru_cache(maxsize=4096)
def _read_text(text: str, where: str) -> Formula:
    try:
        return parse_formula(text)
    except NotAFormula as error:
        raise VerifierError(message(where, f"{text[:60]!r} ({error})", _FORMULA)) from error


def _read(value: Any, where: str) -> Formula:
    if not isinstance(value, str) or not value.strip():
        raise VerifierError(message(where, repr(value)[:80], _FORMULA))
    return _read_text(value, where)


def _premises(problem: Problem) -> list[Formula]:
    given, where = problem.spec.get("premises"), f"problem {problem.id}: spec.premises"
    if not is_premises(given):
        raise VerifierError(message(where, repr(given)[:80], _PREMISES))
    return [_read(each, where) for each in cast("Sequence[Any]", given)]


def _conclusion(problem: Problem, key: str) -> Formula:
    return _read(problem.spec.get(key), f"problem {problem.id}: spec.{key}")


@lru_cache(maxsize=256)
def _check_consistent(premises: tuple[Formula, ...], where: str) -> None:
    if not satisfiable(premises):
        raise VerifierError(message(where, "premises that contradict each other", "ones that can be true together"))  # fmt: skip


def is_label(value: Any) -> bool:
    """Whether a value names one of the three labels."""
    return isinstance(value, (str, bool)) and str(value).strip().casefold() in _LABEL_OF


def is_premises(value: Any) -> bool:
    """Whether a value may be a list of premises."""
    if not isinstance(value, (list, tuple)):
        return False
    listed = cast("Sequence[Any]", value)
    return len(listed) <= 100 and all(isinstance(each, str) and each.strip() for each in listed)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_MODULES = (
    "assay.verify.logic.verifiers",
    "assay.verify.logic.formulas",
    "assay.verify.logic.solver",
    "assay.verify.answers",
    "assay.types",
)
_SIZES = f"formulas of at most {MAX_FORMULA} characters and {MAX_NODES} connectives"
_is_count: Callable[[Any], bool] = lambda value: type(value) is int and value >= 0  # noqa: E731

BOOLEAN_EQUIVALENCE = Verifier(
    name="boolean_equivalence",
    version=2,
    judge=judge_boolean,
    check_spec=check_boolean,
    domain="propositional formulas: equivalence, normal forms, simplification",
    fields=(
        Field("formula", _FORMULA, needed=True, check=_is_text, equates=True),
        Field("form", "any, or the normal form that the answer must have: nnf, cnf, dnf", default="any", check=lambda value: value in FORMS),
        Field("max_connectives", "how many connectives the answer may have, a whole number", check=_is_count),
    ),
    accepts="the formula in a box, answer tags or after 'the answer is', else the last line; what follows its last = ; "
    f"{_SIZES}; a truth table up to {MAX_TABLE} variables, z3 beyond",
    limits=Limits(memory_mib=4096),
    memory_mib=4096,
    known_errors=known_errors("boolean_equivalence"),
    text_only=True,
    cached=True,
    modules=_MODULES,
    packages=("z3-solver",),
    extra="logic",
)  # fmt: skip

ENTAILMENT = Verifier(
    name="entailment",
    version=2,
    judge=judge_entailment,
    check_spec=check_entailment,
    domain="what follows from premises: a label (True, False, Uncertain), or a formula that follows",
    fields=(
        Field("answer", f"the label: {', '.join(LABELS)} (also Unknown); absent: z3 finds it from premises and conclusion", check=is_label),
        Field("premises", _PREMISES, check=is_premises),
        Field("conclusion", _FORMULA, check=_is_text),
        Field("target", "a formula: the completion then gives one that follows from the premises and entails it", check=_is_text),
    ),
    accepts="a label or a formula in a box, answer tags or after 'the answer is', else in the last line; "
    f"propositional or first-order with one sort, functions and equality; {_SIZES}; z3 under a limit of {RLIMIT} units, "
    "beyond which a completion is not judged",
    limits=Limits(memory_mib=4096),
    memory_mib=4096,
    known_errors=known_errors("entailment"),
    text_only=True,
    cached=True,
    modules=_MODULES,
    packages=("z3-solver",),
    extra="logic",
)  # fmt: skip
