r"""Parse propositional and simple first-order formulas in ASCII, words, Unicode and LaTeX.

    not A, ~A, !A, ¬A, \neg A, A'          A and B, A & B, A && B, A /\ B, A ∧ B, A * B, A · B
    A or B, A | B, A || B, A \/ B, A + B   A xor B, A ^ B, A ⊕ B
    A implies B, A -> B, A => B, A → B     A iff B, A <-> B, A <=> B, A ↔ B, A ≡ B
    forall x (P(x) -> Q(x)), ∀x ∃y R(x, y), a = b, a != b, true, false

The operators bind in this order, tightest first: not and quantifiers, and, xor, or, implies (to the
right), iff. A quantifier followed by a dot or a colon extends as far as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Literal

# Maximum number of characters of a formula.
MAX_FORMULA = 4000
MAX_DEPTH = 60

Connective = Literal["not", "and", "or", "xor", "implies", "iff", "forall", "exists"]
Kind = Literal["atom", "equal", "constant"] | Connective


@dataclass(frozen=True, slots=True)
class LogicTerm:
    """A term of first-order logic: a name, or a function applied to terms."""

    name: str
    arguments: tuple[LogicTerm, ...] = ()


@dataclass(frozen=True, slots=True)
class Formula:
    """One node of a formula's syntax tree.

    name: name of an atom, name of a quantified variable, or ``true`` or ``false`` for a constant.
    terms: arguments of a predicate, or the two sides of an equation.
    parts: subformulas.
    """

    kind: Kind
    name: str = ""
    terms: tuple[LogicTerm, ...] = ()
    parts: tuple[Formula, ...] = ()

    def walk(self) -> Iterator[Formula]:
        """Yield this formula and all its subformulas."""
        stack: list[Formula] = [self]
        while stack:
            formula = stack.pop()
            yield formula
            stack.extend(reversed(formula.parts))

    @property
    def atoms(self) -> tuple[str, ...]:
        """Sorted names of the formula's propositional variables and predicates."""
        return tuple(sorted({each.name for each in self.walk() if each.kind == "atom"}))

    @property
    def is_propositional(self) -> bool:
        """Whether a formula has no terms and no quantifiers."""
        return all(
            each.kind not in ("forall", "exists", "equal") and not each.terms
            for each in self.walk()
        )


class NotAFormula(ValueError):
    """Raised for text that is not a formula.

    The message of the exception states the fault in the formula's syntax.
    """


_SPELLINGS = {
    "and": r"∧ ⋀ && & \& /\ * · ⋅ ∙ and \land \wedge \cdot",
    "or": r"∨ ⋁ || | \/ + or \lor \vee",
    "xor": r"⊕ ⊻ ^ xor \oplus \veebar",
    "not": r"¬ ~ ! ∼ not \neg \lnot \sim",
    "implies": r"→ ⇒ ⊃ ⟶ ⟹ -> => --> ==> implies \to \rightarrow \Rightarrow \implies \supset "
    r"\longrightarrow",
    "iff": r"↔ ⇔ ⟷ ⟺ ≡ <-> <=> <--> <==> iff \leftrightarrow \Leftrightarrow \iff \equiv",
    "forall": r"∀ forall \forall",
    "exists": r"∃ exists \exists",
    "true": r"⊤ true \top",
    "false": r"⊥ false \bot",
    "=": "= ==",
    "!=": r"≠ != \neq \ne",
    "'": "' ′ ’",
    **{each: each for each in "(),.:"},
}
_SYMBOLS = {each: symbol for symbol, those in _SPELLINGS.items() for each in those.split()}
_SIGNS = sorted(
    (each for each in _SYMBOLS if not re.search("[A-Za-z]", each)), key=len, reverse=True
)
_ANY_SIGN = "|".join(map(re.escape, _SIGNS))
_TOKEN = re.compile(rf"\s*(?:(?P<latex>\\[A-Za-z]+)|(?P<name>\w+(?:-\w+)*)|(?P<sign>{_ANY_SIGN}))")
_BINARY: tuple[Kind, ...] = ("iff", "implies", "or", "xor", "and")
_SPACING = re.compile(
    r"(?<!/)\\(?:left|right|big|Big|bigl|bigr|quad|qquad|;|,|!|:| )(?![a-zA-Z])|[$]"
)
_WORDS = re.compile(r"\\(?:text|mathrm|mathit|mathsf|operatorname|mathbf)\s*\{([^{}]*)\}")
_BRACKETS = str.maketrans("[]{}（），", "()()(),")
_OVER = re.compile(r"\\(?:overline|bar)\s*\{([^{}]*)\}|\\bar\s*([A-Za-z])")


def parse_formula(text: str) -> Formula:
    """Parse a formula. Raises NotAFormula."""
    return _Parser(_tokens(text)).formula()


def parse_letters(text: str, letters: frozenset[str]) -> Formula:
    """Parse a formula in the notation of circuits, in which AB, A.B and A(B + C) are conjunctions.

    letters: the one-letter variables in lower case. A name that contains another letter is a single
        variable.

    Raises NotAFormula.
    """
    found: list[tuple[str, str]] = []
    for symbol, name in _tokens(text):
        if symbol == "." and found:
            found.append(("and", ""))
            continue
        apart = symbol == "name" and len(name) <= 26 and set(name.casefold()) <= letters
        for each in name if apart else (name,):
            if found and found[-1][0] in _ENDS and symbol in _BEGINS:
                found.append(("and", ""))
            found.append((symbol, each))
    return _Parser(found).formula()


_ENDS = ("name", ")", "'", "true", "false")
_BEGINS = ("name", "(", "not", "true", "false")


def _plain(text: str) -> str:
    text = _WORDS.sub(r" \1 ", _SPACING.sub(" ", text))
    for _ in range(20):
        text, count = _OVER.subn(lambda m: f" ~({m[1] or m[2]}) ", text)
        if not count:
            break
    return text.replace("\\{", "(").replace("\\}", ")").translate(_BRACKETS)


def _tokens(text: str) -> list[tuple[str, str]]:
    """Return the tokens of a text as (symbol, name) pairs.

    The field `symbol` of a name has the form ``name``.
    """
    if len(text) > MAX_FORMULA:
        raise NotAFormula(f"more than {MAX_FORMULA} characters")
    found: list[tuple[str, str]] = []
    position, text = 0, _plain(text).strip().rstrip(".。;")
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise NotAFormula("an unknown symbol")
        position = match.end()
        if match["latex"]:
            symbol = _SYMBOLS.get(match["latex"])
            if symbol is None:
                raise NotAFormula("an unknown LaTeX command")
            found.append((symbol, ""))
        elif match["name"]:
            found.extend(_of_name(match["name"]))
        else:
            found.append((_SYMBOLS[match["sign"]], ""))
    return found


def _of_name(name: str) -> Iterator[tuple[str, str]]:
    symbol = _SYMBOLS.get(name.lower()) if len(name) > 1 else None
    if symbol is not None:
        yield symbol, ""
    elif match := re.fullmatch(r"(forall|exists)_?([a-z]\d?)", name, re.IGNORECASE):
        yield _SYMBOLS[match[1].lower()], ""
        yield "name", match[2]
    else:
        yield "name", name


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.index = 0
        self.depth = 0

    def formula(self) -> Formula:
        formula = self._binary(0)
        if self.index < len(self.tokens):
            raise NotAFormula("two formulas without a connective, or a parenthesis too many")
        return formula

    def _peek(self, ahead: int = 0) -> str:
        place = self.index + ahead
        return self.tokens[place][0] if place < len(self.tokens) else ""

    def _name(self) -> str:
        return self.tokens[self.index][1] if self.index < len(self.tokens) else ""

    def _take(self, symbol: str) -> bool:
        if self._peek() != symbol:
            return False
        self.index += 1
        return True

    def _need(self, symbol: str, what: str) -> str:
        if self._peek() != symbol:
            raise NotAFormula(what)
        self.index += 1
        return self.tokens[self.index - 1][1]

    def _binary(self, level: int) -> Formula:
        if level == len(_BINARY):
            return self._unary()
        kind = _BINARY[level]
        parts = [self._binary(level + 1)]
        while self._take(kind):
            parts.append(self._binary(level + 1))
        # A -> B -> C means A -> (B -> C).
        if kind == "implies":
            return reduce(lambda right, left: Formula(kind, parts=(left, right)), reversed(parts))
        return reduce(lambda left, right: Formula(kind, parts=(left, right)), parts)

    def _unary(self) -> Formula:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotAFormula(f"more than {MAX_DEPTH} levels")
        try:
            if self._take("not"):
                return Formula("not", parts=(self._unary(),))
            for kind in ("forall", "exists"):
                if self._take(kind):
                    return self._quantified(kind)
            formula = self._atom()
            while self._take("'"):
                formula = Formula("not", parts=(formula,))
            return formula
        finally:
            self.depth -= 1

    def _quantified(self, kind: Literal["forall", "exists"]) -> Formula:
        if (run := re.fullmatch(r"([a-z]\d?)([A-Z]\w*)", self._name())) and self._peek(1) == "(":
            # In ∃xP(x), the tokenizer reads xP as a single name.
            self.tokens[self.index : self.index + 1] = [
                ("name", run[1]),
                ("name", run[2]),
            ]
        names = [self._need("name", "a quantifier without a variable")]
        while self._peek() == "," and self._peek(1) == "name" and self._peek(2) != "(":
            self.index += 1
            names.append(self._need("name", ""))
        wide = self._take(".") or self._take(":") or self._take(",")
        body = self._binary(0) if wide else self._unary()
        for name in reversed(names):
            body = Formula(kind, name, parts=(body,))
        return body

    def _atom(self) -> Formula:
        if self._take("("):
            inner = self._binary(0)
            self._need(")", "an unclosed parenthesis")
            return inner
        for constant in ("true", "false"):
            if self._take(constant):
                return Formula("constant", constant)
        term = self._term()
        if self._peek() in ("=", "!="):
            negative = self._peek() == "!="
            self.index += 1
            equal = Formula("equal", terms=(term, self._term()))
            return Formula("not", parts=(equal,)) if negative else equal
        return Formula("atom", term.name, term.arguments)

    def _term(self) -> LogicTerm:
        name = self._need("name", "a connective without an operand")
        if not self._take("("):
            return LogicTerm(name)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotAFormula(f"more than {MAX_DEPTH} levels")
        arguments = [self._term()]
        while self._take(","):
            arguments.append(self._term())
        self._need(")", "an unclosed parenthesis")
        self.depth -= 1
        return LogicTerm(name, tuple(arguments))
