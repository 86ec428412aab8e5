"""Equality of answers: what is the same in another spelling, and what only looks alike."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.verify.answers import symbolic
from assay.verify.answers.equality import equivalent
from assay.verify.answers.formula_size import too_big
from assay.verify.answers.math_policy import Policy
from assay.verify.answers.symbolic import same_expression

SAME = [
    ("x^2", "x**2"),
    ("5!", "120"),
    ("2^{10}", "1024"),
    (r"\binom{5}{2}", "10"),
    (r"\log_2 8", "3"),
    (r"\sin(30^\circ)", "1/2"),
    (r"\sin \frac{\pi}{3}", r"\sin 60^\circ"),
    (r"e^{i\pi}", "-1"),
    ("14 - i", "14.0 + -1.0i"),
    (r"\sqrt{2}/2", r"\frac{1}{\sqrt{2}}"),
    (r"3\sqrt{2}", r"\sqrt{18}"),
    (r"12\sqrt{13}\text{ feet}", r"12\sqrt{13}"),
    (r"\pi", "3.14159265"),
    (r"-2\pi", "-2*pi"),
    ("x+y", "y+x"),
    (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
    ("(r+5)(r+5)", "(r+5)^2"),
    (r"\sqrt{x^2}", "|x|"),
    (r"\frac{1}{3\sqrt[3]{x}^2}", r"\frac{1}{3x^{2/3}}"),
    ("1,-2", "-2,1"),
    (r"\{1,2\}", r"\{2,1\}"),
    ("1 and 2 and 3", "1,2,3"),
    ("{1,2,3}", "1, 2, 3"),
    (r"\pm 3", "3,-3"),
    (r"1\pm\sqrt{5}", r"1+\sqrt5, 1-\sqrt5"),
    ("x=1 or x=2", "1, 2"),
    ("1,2", "x=2, x=1"),
    ("x=1, y=2", "y=2, x=1"),
    ("(x,y)=(1,2)", "x=1, y=2"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("(1, 9/2)", "(1, 4.5)"),
    ("(1,3)", "{1,3}"),
    ("[2,5)", "[2, 5)"),
    (r"-2 \le x \le 7", r"x \in [-2,7]"),
    ("(0,1)", "0<x<1"),
    (r"x \geq 2", r"[2,\infty)"),
    (r"x \geq 5", r"5 \leq x"),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,1)"),
    (r"(-\infty,1)\cup(2,\infty)", "x<1 or x>2"),
    (r"x<1 \text{ or } x>2", r"(-\infty,1)\cup(2,\infty)"),
    ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
    ("2x+4y-3=0", r"y=-\frac{1}{2}x+\frac{3}{4}"),
    ("y=2x+1", "2x+1"),
    ("2x+1", "f(x)=2x+1"),
    ("k=1", "1"),
    ("11", "x=11"),
    (r"\frac{NO}{BO}=\frac{1}{\sqrt{6}}", r"\frac{1}{\sqrt{6}}"),
    ("S_{MBCN}:S=7:32", "7:32"),
    ("7:32", "7 : 32"),
    ("204_5", "204_{5}"),
    ("54", "204_5"),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ("Even", r"\text{even}"),
    (r"\text{(B)}", "B"),
    ("no solution", "No solution."),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    ("1.2", "1,2"),
    ("1,22", "1.22"),
    (r"\emptyset", r"\{\}"),
    ("13", "12 + 1 = 13"),
    (r"\int_0^1 x \, dx", "1/2"),
]

SAME += [
    ("2:3", "2/3"),
    ("3:4:5", "6:8:10"),
    ("(0,1)", "]0,1["),
    ("[0,1)", "[0,1["),
    ("3:30 pm", "15:30"),
    ("FF_{16}", "255"),
    (r"\frac{\pi}{6}", r"30^\circ"),
    (r"12\pi \text{ cm}^2", r"1200\pi \text{ mm}^2"),
    ("1<x<2", r"x>1 \text{ and } x<2"),
    (r"\mathbb{R}", "all real numbers"),
    ("(x,y)=(1,2)", "y=2, x=1"),
]

DIFFERENT = [
    ("2A", "2a"),
    ("2^{100}", "2^{100}+1"),
    ("1, 1, 2", "1, 2, 2"),
    ("5", "2+3"),
    ("2:3", "3:2"),
    ("3:30 pm", "3:30 am"),
    ("July 4", "July 14"),
    (r"180^\circ", r"\pi^\circ"),
    (r"12\pi \text{ cm}^2", r"12\pi \text{ m}^2"),
    ("(3,4)", "y=3, x=4"),
    ("1/2004!", "1/2006!"),
    (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
    ("x/2004!", "x/2006!"),
    (r"(1, \frac{1}{2004!})", r"(1, \frac{1}{2006!})"),
    (
        r"\begin{pmatrix}1 & \frac{1}{2004!}\end{pmatrix}",
        r"\begin{pmatrix}1 & \frac{1}{2006!}\end{pmatrix}",
    ),
    ("0", "10^{-7}"),
    ("0", r"\frac{1}{10^{9}}"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}"),
    ("3", "3c"),
    ("3c", "3"),
    ("2m", "2"),
    ("x", "2"),
    (r"\pi", "3.14"),
    (r"\sqrt{2}", "1.41"),
    ("(1,2)", "(2,1)"),
    ("[2,5)", "(2,5)"),
    ("(3,4)", "[3,4]"),
    ("1", "-[0,1)"),
    (r"1\sqrt{19}", "1"),
    ("2", "2 2/3"),
    ("5", "5 or 6"),
    ("6", "5 or 6"),
    ("5", "4, 5, 6"),
    ("5,6", "5"),
    ("5,6", "5,6,7"),
    ("x=1, y=2", "x=2, y=1"),
    ("(x,y)=(1,2)", "x=2, y=1"),
    ("1:4:9", "1:2:3"),
    (r"1:2:3:\ldots", r"1:4:9:\ldots"),
    ("204_5", "204_6"),
    ("204", "204_5"),
    ("2x + z = 1", "1"),
    ("7 = 11a+c", "11a+c"),
    ("x=3", "y=3"),
    ("x > 2", r"[2,\infty)"),
    (r"x \geq 5", r"x \leq 5"),
    ("0<x<1", "x>0"),
    ("D = (0, 1)", "D = (0, 1.5)"),
    ("(a+5)(b+2)", "(+5)(b+2)"),
    ("2x", "x^2"),
    (r"\frac{x}{y}", r"\frac{y}{x}"),
    ("i", "-i"),
    ("1+i", "1-i"),
    ("|x|", "x"),
    (r"\infty", r"-\infty"),
    ("odd", r"\text{oddd}"),
    ("Even", "Odd"),
    ("even", "even or odd"),
    ("True", "False"),
    ("June 20", "20"),
    ("12", "1 2"),
    ("1,2", "1.2"),
    ("10:30 am", "10:30 pm"),
    ("9^{9^{9^{9}}}", "1"),
    ("1", "9^{9^{9^{9}}}"),
    ("1", "100000000!"),
    ("42", ""),
    ("", ""),
    ("42", "answer"),
    ("5", "5 maybe six"),
    ("5", "five, perhaps six"),
    ("6", "5 = 6"),
    ("6", r"5 \approx 6"),
    ("10", r"\sum_{i=1}^{4} i"),
    ("5", r"5 \pm 1"),
    ("6", r"5 \pm 1"),
    ("5", "[0, 10]"),
    ("x=5", r"x \in \mathbb{R}"),
    ("x=5", "x^2=25"),
    ("5", r"5, \ldots"),
    ("x", "y"),
    ("x^2", "x^2 + 10^{-20}"),
]

DONE = [  # closed forms: nothing is left to do, or no more than the expected one leaves
    ("1/2", r"\frac{3}{6}"),
    (r"2\sqrt{3}", r"\sqrt{12}"),
    (r"2\sqrt{3}", r"2 \cdot \sqrt{3}"),
    ("1024", "2^{10}"),
    ("3072", r"3 \cdot 2^{10}"),
    ("720", "6!"),
    ("10", r"\binom{5}{2}"),
    ("6", r"\gcd(12,18) = 6"),
    ("x = 6", r"x = \gcd(12, 18) = 6"),
    ("3", r"3 \mod 7"),
    (r"\ln 4", r"2 \ln 2"),
    (r"\cos 20^\circ", r"\sin 70^\circ"),
    ("2-\\sqrt{3}", r"\frac{1}{2+\sqrt{3}}"),
    ("3", "3+0i"),
    (r"3 \pm \sqrt{2}", r"3-\sqrt{2}, 3+\sqrt{2}"),
    (r"\frac{1+\sqrt{5}}{2}", r"\frac{1}{2}+\frac{\sqrt{5}}{2}"),
    ("(-1,3)", "-1<x<3"),
    ("(-1,3)", r"\{x : -1 < x < 3\}"),
    ("x>2", "2<x"),
    (r"(-\infty,-1)\cup(3,\infty)", r"x<-1 \text{ or } x>3"),
    ("x^2<4", "x^2-4<0"),
    ("x_1 > 2", "2 < x_1"),
    ("ACB", r"\text{ACB}"),
    ("xy", "yx"),
]

STILL_TO_DO = [
    ("6", r"\gcd(12,18)"),
    ("x = 6", r"\gcd(12, 18)"),
    ("6 cm", r"\gcd(12,18) \text{ cm}"),
    ("(6, 1)", r"(\gcd(12,18), 1)"),
    ("6", r"\max\{3,6\}"),
    ("3", r"\lfloor 3.7 \rfloor"),
    ("3", r"\lceil 2.2 \rceil"),
    ("2", r"17 \mod 5"),
    ("5", "|-5|"),
    ("-2", r"\det\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("3", r"\log_2(8)"),
    (r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ"),
    ("1", r"\sin^2 x + \cos^2 x"),
    ("2x", r"\frac{d}{dx}x^2"),
    ("2800", "64^2-36^2"),
    ("60", r"0.18 \div 0.003"),
    ("4", r"\sqrt{2} \cdot \sqrt{8}"),
    ("48", r"\frac{6!+7!}{5!}"),
    (r"2\sqrt{5}", r"\sqrt{5}-\sqrt{20}+\sqrt{45}"),
    ("-4-6i", "(-3-2i)-(1+4i)"),
    (
        r"\begin{pmatrix} 3 \\ 4 \end{pmatrix}",
        r"\begin{pmatrix} 1 \\ 1 \end{pmatrix} + \begin{pmatrix} 2 \\ 3 \end{pmatrix}",
    ),
    ("(-1,3)", "|x-1|<2"),
    ("(-1,3)", "x^2-2x-3<0"),
    ("[-1,3]", r"\{x : x^2-2x-3 \le 0\}"),
    ("-1<x<3", "x-1>-2, x<3"),
    (r"x \in (-1,3)", "(x-3)(x+1)<0"),
    ("x>2", "x-2>0"),
    (r"(-\infty,-1)\cup(3,\infty)", "x^2-2x-3>0"),
    ("ACB", "BAC"),
    ("ACB", "ABC"),
    ("AB", "BA"),
]


@pytest.mark.parametrize(("gold", "answer"), DONE)
def test_a_closed_form_is_an_answer(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), STILL_TO_DO)
def test_what_is_still_to_be_done_is_no_answer(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), [("6", r"\gcd(12,18)"), ("2800", "64^2-36^2"), ("(-1,3)", "x^2-2x-3<0")])  # fmt: skip
def test_it_may_stand_for_its_value_where_the_policy_says_so(gold: str, answer: str) -> None:
    assert equivalent(gold, answer, Policy(unevaluated=True))


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same_in_another_spelling(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_look_alikes_are_not_equivalent(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


formulas = st.recursive(
    st.sampled_from(["x", "y", "2", "3", "7", r"\pi"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: f"({p[0]}+{p[1]})"),
        st.tuples(inner, inner).map(lambda p: rf"{p[0]} \cdot {p[1]}"),
        st.tuples(inner, inner).map(lambda p: rf"\frac{{{p[0]}}}{{{p[1]}}}"),
        inner.map(lambda p: f"({p})^2"),
        inner.map(lambda p: rf"\sqrt{{{p}}}"),
    ),
    max_leaves=5,
)


@settings(max_examples=40, deadline=None)
@given(formulas)
def test_a_formula_equals_itself_rewritten_and_not_itself_plus_one(formula: str) -> None:
    undone = Policy(unevaluated=True)
    assert equivalent(formula, f"({formula}) + 1 - 1", undone)
    assert not equivalent(formula, f"({formula}) + 1", undone)


@settings(max_examples=60, deadline=None)
@given(st.fractions(-50, 50, max_denominator=40), st.fractions(-50, 50, max_denominator=40))
def test_symbols_and_numbers_agree_about_fractions(a: Fraction, b: Fraction) -> None:
    slow = same_expression(
        rf"\frac{{{a.numerator}}}{{{a.denominator}}}", rf"\frac{{{b.numerator}}}{{{b.denominator}}}"
    )
    assert equivalent(str(a), str(b)) == slow == (a == b)


@settings(deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True), st.randoms())
def test_a_list_has_no_order_and_a_tuple_has(items: list[int], random) -> None:
    shuffled = random.sample(items, len(items))
    text, other = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert equivalent(text, other)
    assert equivalent(f"({text}, 1000)", f"({other}, 1000)") == (items == shuffled)
    assert not equivalent(text, ", ".join(map(str, items[1:])))


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "9^9^9^9",
        "(9^{9999})^{9999}",
        "10^{100000000}",
        "99999999!",
        "(5!)!",
        "3!!",
        "1" * 500,
        "(" * 60 + ")" * 60,
        "x" * 3000,
        r"\binom{99999999}{5}",
        r"\frac{1}{" * 50 + "2" + "}" * 50,
        "2^{-99999999}",
        "x^" * 100 + "2",
        "((x+1)^{999}+1)^{9999}",
        r"\exp(\exp(\exp(9)))",
        r"\Gamma(10^9)",
    ],
)
def test_expressions_too_big_for_sympy(text: str) -> None:
    assert too_big(text)


@pytest.mark.parametrize(
    "text", ["2^{2005}+1", "2006!", "2^{3^2}", "e^{x^2}", r"x^{10}(1+x)^{20}", r"\binom{100}{50}"]
)
def test_expressions_small_enough_for_sympy(text: str) -> None:
    assert not too_big(text)


def test_of_a_text_python_sees_numerals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The LaTeX grammar hands numerals to sympy.Number, which evaluates them; nothing else may get there."""
    import builtins

    hostile = [
        "__import__('os').getpid()",
        "exec(1)",
        "lambda: 1",
        "().__class__.__bases__",
        "print(5)",
    ]
    hostile += [
        r"\\text{exit()}+7",
        "5;import os",
        r"\\operatorname{eval}(3)",
        "x.__class__",
        "a[0].b()",
        "3.5.real",
    ]
    for text in hostile:
        same_expression("5", text)  # everything that is imported at first use is now
    symbolic.parse_latex.cache_clear()
    ran: list[str] = []
    evaluate = builtins.eval

    def watch(code: object, *rest: object) -> object:
        ran.append(str(getattr(code, "co_consts", code)) if not isinstance(code, str) else code)
        return evaluate(code, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "eval", watch)
    for text in hostile:
        assert not equivalent("41", text)
        assert not same_expression("41", text)
    assert ran
    assert [
        code for code in ran if not re.fullmatch(r"(Integer|Float)\s*\('?\s*[\d.]+\s*'?\)\s*", code)
    ] == []


def test_math_verify_arms_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    def refuse(*_: object) -> None:
        raise AssertionError("math-verify armed an alarm")

    symbolic.parse_latex.cache_clear()
    monkeypatch.setattr(signal, "alarm", refuse)
    assert same_expression("x+x", "2x")


# Answers that only look like the expected one: words beside it, roundings, repeats.
BESIDE = [
    (r"\sqrt{2}", r"\text{not }\sqrt{2}"),
    (r"\sqrt{2}", r"\text{half of }\sqrt{2}"),
    (r"\frac{\pi}{2}", r"\frac{\pi}{2}\text{ plus }1"),
    (r"\sqrt{2}", r"\phantom{\sqrt{2}}"),
    ("5", r"5\dots"),
    ("5", "5'"),
    ("5", r"5\text{ and others}"),
    ("5", r"5\text{ error}"),
    ("x>3", r"x>3\text{ or }99"),
    (r"\frac{8!}{6!}", "56.00001"),
    ("2^{10}", "1024.001"),
    ("4", r"\sqrt{16.00001}"),
    (r"\sin 90^\circ", "0.9999995"),
    (r"\pi", "3.14158"),
    ("1,2,3", "1,2,2,3"),
    ("75,75", "75"),
    ("25", r"2500\%"),
    ("y=2x+1", r"x^{77}-13x^{5}+\sqrt{x^3+2}=0"),
    (r"\int_0^1 x\,dx", r"\int \frac{dx}{1+x^{11}}"),
    ("2,3", "|x^3-|x^2-|x-1|||<5"),
    ("[-2,7]", r"\{x\in\mathbb{Z} : -2\le x\le 7\}"),
    ("x-1=0", "(x-1)^2=0"),
]

SPELLINGS = [
    (r"\pi", "3.14159"),
    ("2^{10}", "1,024"),
    ("10^6", "1{,}000{,}000"),
    ("10^6", "1 million"),
    (r"12{,}500\pi", r"12500\pi"),
    ("[-2,7]", r"\{x\in\mathbb{R}: -2\le x\le 7\}"),
    (r"\{x \mid x>3\}", r"(3,\infty)"),
    (r"\mathbb{R}", r"\R"),
    ("C", r"\mathbf{C}"),
    ("32", r"{\color{red}32}"),
    ("32", r"\textcolor{blue}{32}"),
    ("32", r"32\tag{1}"),
    ("(1,2)", "{(1,2)}"),
    (r"45^\circ", r"{45^\circ}"),
    (r"20\text{ m/s}", r"20\frac{m}{s}"),
    ("9.8 m/s^2", r"9.8\ \mathrm{m\,s^{-2}}"),
    ("x^2-5x+6=0", "2x^2-10x+12=0"),
    ("C_{5}^{2}", "10"),
]


@pytest.mark.parametrize(("gold", "answer"), BESIDE)
def test_what_stands_beside_a_value_counts(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), SPELLINGS)
def test_spellings_of_latex(gold: str, answer: str) -> None:
    assert equivalent(gold, answer)
