"""Derivatives, connectives and products that do not commute: each is itself, and nothing simpler."""

from __future__ import annotations

import pytest

from assay.verify.answers.equality import equivalent
from assay.verify.answers.notation import as_names, same_order

DERIVATIVES = [
    (r"\frac{dy}{dx}", r"\dfrac{dy}{dx}"),
    (r"\frac{dy}{dx}", "dy/dx"),
    (r"\frac{dx}{dt}=5", "5"),
    (r"\frac{dy}{dx}=\frac{x}{y}", r"\frac{x}{y}"),
    (r"\frac{d^2y}{dx^2} + y = 0", r"y + \frac{d^2 y}{dx^2} = 0"),
    (r"\frac{\partial u}{\partial t} + 1", r"1 + \frac{\partial u}{\partial t}"),
    (r"4\pi r^2\frac{dr}{dt}", r"4r^2\pi\frac{dr}{dt}"),
    (r"2\pi\gamma", r"\gamma 2\pi"),
    (r"\frac{d}{dx}(x^2)", "2x"),
    ("y'=2x", "2x"),
    ("y''+y=0", "y+y''=0"),
    (r"y^{\prime\prime}", "y''"),
    ("f^{(2)}(x)", "f''(x)"),
    ("f(2)=3", "3"),
    ("f(x)=2x+1", "y=2x+1"),
    (r"\frac{h(a+b)}{2}", r"\frac{(a+b)h}{2}"),
]
NO_DERIVATIVES = [
    (r"\frac{dy}{dx}", "0"),
    (r"\frac{dx}{dt}=5", "1=6"),
    (r"\frac{dx}{dt}=5", r"\frac{dy}{dt}=5"),
    (r"2x\frac{dy}{dx}", "0"),
    (r"x+\frac{dy}{dx}", "x"),
    (r"\frac{d^2y}{dx^2}", r"\frac{dy}{dx}"),
    (r"\frac{\partial u}{\partial t}", "0"),
    (r"\frac{\partial u}{\partial t}", r"\frac{\partial u}{\partial x}"),
    (r"\frac{\partial^2 u}{\partial x\partial y}", r"\frac{\partial^2 u}{\partial x^2}"),
    (r"\frac{\partial u}{\partial t} = \frac{\partial^2 u}{\partial x^2}", "0=0"),
    (r"4\pi r^2\frac{dr}{dt}", r"4r^2\pi"),
    ("y'=ky", "y=ky"),
    ("f'(2)=3", "f(2)=3"),
    ("f'(2)=3", "f''(2)=3"),
    ("f'(2)=3", "f'=3/2"),
    ("f(2)=3", "f(3)=9/2"),
    ("y''+y=0", "y'+y=0"),
    (r"y^{\prime}=ky", "y=ky"),
    (r"\dot{x}=kx", "x=kx"),
    (r"\ddot{x}", r"\dot{x}"),
    ("f^{(3)}(x)", "f(x)^3"),
    (r"\nabla f", "0"),
    (r"\nabla \cdot F", r"\nabla \times F"),
    (r"\int_0^1 f(x)\,dx", r"\frac{f}{2}"),
    ("0=5", "1=6"),
    ("f(x)=2x+1", "f(y)=2x+1"),
]


@pytest.mark.parametrize(("gold", "answer"), DERIVATIVES)
def test_a_derivative_has_many_spellings(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), NO_DERIVATIVES)
def test_a_derivative_is_neither_zero_nor_its_function(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


@pytest.mark.parametrize("text", [r"\sin'(x)", "(x^2)'", r"\vec{v}'"])
def test_a_prime_that_the_grammar_would_drop_is_refused(text: str) -> None:
    assert as_names(text) is None


CONNECTED = [
    (r"A\lor B", r"B \vee A"),
    (r"A \Rightarrow B", r"A \implies B"),
    (r"x<1 \lor x>2", r"(-\infty,1)\cup(2,\infty)"),
    (r"x=1 \lor x=2", "1, 2"),
    (r"x \equiv 3 \pmod 5", r"x \equiv 3 \mod{5}"),
    (r"x \equiv 3 \pmod 5", "x ≡ 3 (mod 5)"),
    (r"x \equiv 3 \pmod 5", r"3 \pmod{5}"),
    (r"\triangle ABC \sim \triangle DEF", r"\triangle DEF \sim \triangle ABC"),
]
OTHERWISE_CONNECTED = [
    (r"A\lor B", r"A\land B"),
    (r"A\land B", "A,B"),
    (r"x<1 \lor x>2", r"x<1 \land x>2"),
    (r"\lnot A", "A"),
    (r"p \land \lnot q", r"p \land q"),
    (r"A \Rightarrow B", r"B \Rightarrow A"),
    (r"A \to B", r"B \to A"),
    (r"A \iff B", r"A \Rightarrow B"),
    (r"A \oplus B", r"A \otimes B"),
    (r"\forall x P(x)", r"\exists x P(x)"),
    (r"x \equiv 3 \pmod 5", r"x \equiv 3 \pmod 7"),
    (r"x \equiv 3 \pmod 5", r"y \equiv 3 \pmod 5"),
    (r"3 \pmod 5", r"3 \pm 5"),
    (r"\triangle ABC \sim \triangle DEF", r"\triangle ABC \cong \triangle DEF"),
]


@pytest.mark.parametrize(("gold", "answer"), CONNECTED)
def test_a_statement_has_many_spellings(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), OTHERWISE_CONNECTED)
def test_another_connective_is_another_statement(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


@pytest.mark.parametrize("sign", [r"\equiv", r"\sim", r"\cong", r"\Rightarrow", r"\to", r"\mapsto", r"\propto", "≡", "→", r"\ne", r"\nmid", "~", "=="])  # fmt: skip
def test_a_number_behind_a_relation_is_no_number(sign: str) -> None:
    assert not equivalent("42", f"41 {sign} 42")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("PDP^{-1}", "D"),
        ("PDP^{-1}", "P^{-1}DP"),
        ("ABA^{-1}", "B"),
        ("A^{-1}B", "BA^{-1}"),
        ("A^TA", "AA^T"),
        ("A^T", "A"),
        ("2^T", "2"),
        ("(AB)^{-1}", "A^{-1}B^{-1}"),
        (r"\vec{a} \times \vec{b}", r"\vec{b} \times \vec{a}"),
        (r"\vec{a} \times \vec{b}", r"\vec{a} \cdot \vec{b}"),
    ],
)
def test_a_product_of_matrices_or_vectors_keeps_its_order(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


def test_sums_and_products_of_numbers_have_no_order() -> None:
    assert same_order("A^{-1}B + C", "C + A^{-1}B") and same_order("V = IR", "RI = V")
    assert equivalent("PDP^{-1}", "P D P^{-1}")


@pytest.mark.parametrize("name", ["Gamma", "Delta", "Sigma", "Omega", "Phi", "Lambda", "Theta"])
def test_a_capital_is_another_letter(name: str) -> None:
    assert not equivalent(rf"\{name}", rf"\{name.lower()}")
    assert equivalent(rf"2\{name}", rf"\{name}\cdot 2")


def test_gamma_is_a_name_and_a_function() -> None:
    assert not equivalent(r"\gamma", "0.577215664901532")
    assert equivalent("n!", r"\Gamma(n+1)") and not equivalent("n!", r"\Gamma(n)")
    assert not equivalent("E", "e")
