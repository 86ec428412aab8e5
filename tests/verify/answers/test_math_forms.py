"""Numbers in a base, parameters, factorials, named coordinates; what is too hard to be an answer."""

from __future__ import annotations

import pytest

from assay.verify.answers import equality
from assay.verify.answers.equality import equivalent
from assay.verify.answers.formula_size import too_big
from assay.verify.answers.math_forms import is_quickly_solved, split_parameter

SAME = [
    ("-5", "-101_2"),
    ("-101_2", "-101_{2}"),
    (r"\frac12", "0.1_2"),
    ("5.5", "101.1_2"),
    ("0.1_3", r"\frac13"),
    (r"\frac{n!}{k!(n-k)!}", r"\binom{n}{k}"),
    ("(n+1)!", r"(n+1) \cdot n!"),
    ("(m+n)!", "(n+m)!"),
    (r"\frac{(2n)!}{(n!)^2}", r"\binom{2n}{n}"),
    (r"\frac{\pi}{4}+k\pi", r"x=\frac{\pi}{4}+k\pi,\ k\in\mathbb{Z}"),
    (r"2k\pi, k\in\mathbb{Z}", r"2n\pi \quad (n \in \mathbb{Z})"),
    (r"2k\pi, k\in\mathbb{Z}", r"2k\pi \text{ for any integer } k"),
    (r"2k, k\in\mathbb{Z}", r"\{2k : k\in\mathbb{Z}\}"),
    ("e^2", "exp(2)"),
    ("32349", r"32,\! 349"),
    ("(x,y)=(1,2)", "(y,x)=(2,1)"),
    ("A=(1,2)", "(x,y)=(1,2)"),
    ("x_1=1,x_2=2", "x=1 or x=2"),
    ("(2,3)", "(m,b)=(2,3)"),
]
DIFFERENT = [
    ("-101_2", "5"),
    ("101_2", "-101_2"),
    ("0.1_2", "0.1_3"),
    ("0.1", "0.1_2"),
    ("(n+1)!", "n!+1"),
    ("(2n)!", "2n!"),
    ("n!!", "n!"),
    ("m!n!", "(mn)!"),
    (r"\frac{(2n)!}{(n!)^2}", r"\binom{2n}{n+1}"),
    (r"2k, k\in\mathbb{Z}", r"2k, k\in\mathbb{R}"),
    (r"2k, k\in\mathbb{Z}", r"2k, k\in\mathbb{N}"),
    (r"2k, k\in\mathbb{Z}", r"3k, k\in\mathbb{Z}"),
    ("5", r"5, k\in\mathbb{Z}"),
    ("2k", r"2k, n\in\mathbb{Z}"),
    ("(x,y)=(1,2)", "(y,x)=(1,2)"),
    ("(x,y)=(1,2)", "(a,b)=(1,2)"),
    ("(1,2)", "(y,x)=(1,2)"),
    ("x=1,y=2", "u=1,v=2"),
    ("x=1,2", "y=1,2"),
    ("A=(1,2)", "B=(1,2)"),
    (r"x\in\{1,2\}", r"y\in\{1,2\}"),
    ("f(1)=2,f(2)=3", "f(1)=2,f(3)=3"),
    ("a:b=1:2", "b:a=1:2"),
    ("y_1=2x, y_2=3", r"\dot{y}_1=2x, y_2=3"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_in_another_form(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_another_base_parameter_or_name_is_another_answer(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


def test_a_parameter_must_stand_in_the_formula() -> None:
    assert split_parameter(r"2k, k\in \mathbb{Z}") == ("2k", "k", "Z")
    assert split_parameter(r"2k, n\in \mathbb{Z}")[1] == ""


@pytest.mark.parametrize("text", ["((n!)!)!", "(n^9)!", "(99999n)!", "(9999)!!", "(n!+1)!"])
def test_factorials_of_what_grows_stay_out_of_sympy(text: str) -> None:
    assert too_big(text)


ENDLESS = [
    ("x=5", r"\sin(x)^{x}=\cos(x)"),
    ("5", r"\sin(x)^{x}"),
    (r"\frac{1}{2}", r"5 + x^{x^x}"),
    ("y=2x+1", r"\sin(\cos(x))=\tan(x)"),
    ("x > 3", r"\sqrt{x}^{x} < x!"),
    ("[0,1]", r"\tan(x) = x"),
    ("x^2+1", r"\begin{pmatrix}x&1\\1&x\end{pmatrix}^{-9}"),
]


@pytest.mark.parametrize(("gold", "answer"), ENDLESS)
def test_an_endless_equation_fails_before_sympy_sees_it(
    gold: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy would seek *not judged*; here the answer is at fault, and not the checker."""

    def refuse(*_: object) -> bool:
        raise AssertionError("sympy was asked")

    monkeypatch.setattr(equality, "same_expression", refuse)
    monkeypatch.setattr(equality, "same_union", refuse)
    assert not equivalent(gold, answer)


def test_functions_of_the_expected_answer_may_stand_in_a_relation() -> None:
    assert equivalent(r"x=\ln 9", r"2\ln 3 = x") and equivalent("x^2+y^2=1", "y^2=1-x^2")
    assert not is_quickly_solved(r"\ln x = 2") and is_quickly_solved(r"\ln x = 2", r"x = \ln 9")
