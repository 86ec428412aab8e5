"""Plain numbers: what is read as one, and when two agree."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.answers.equality import equivalent
from assay.verify.answers.plain_numbers import read_number, same_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("13", 13),
        ("-5", -5),
        ("- 5", -5),
        ("−5", -5),
        ("+5", 5),
        ("3.", 3),
        (".5", Fraction(1, 2)),
        ("007", 7),
        ("1,000.99", Fraction(100099, 100)),
        ("1000,99", Fraction(100099, 100)),
        ("0,111", Fraction(111, 1000)),
        ("1 000", 1000),
        ("12,\\!000,\\!023", 12000023),
        ("23{,}000", 23000),
        ("1,000", 1000),
        ("1/3", Fraction(1, 3)),
        ("-10/9", Fraction(-10, 9)),
        (r"\frac{1}{3}", Fraction(1, 3)),
        (r"\frac13", Fraction(1, 3)),
        (r"\frac 18", Fraction(1, 8)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"-\dfrac{20}{3}", Fraction(-20, 3)),
        (r"\frac{2.5}{5}", Fraction(1, 2)),
        ("1 1/4", Fraction(5, 4)),
        ("-1 1/4", Fraction(-5, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"14 \dfrac{6}{7}", Fraction(104, 7)),
        ("5⁄11", Fraction(5, 11)),
        ("½", Fraction(1, 2)),
        ("2½", Fraction(5, 2)),
        (r"\$7.50", Fraction(15, 2)),
        ("$30", 30),
        ("-$5", -5),
        ("5 €", 5),
        ("1e-7", Fraction(1, 10**7)),
        (r"1.2\times 10^{-3}", Fraction(12, 10**4)),
        ("3 x 10^8", 3 * 10**8),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"\mbox{four}", 4),
        ("twenty-five", 25),
        ("one hundred and five", 105),
        ("two thousand three hundred", 2300),
        ("minus two", -2),
        ("5 million dollars", 5 * 10**6),
        (r"15\mbox{ cm}^2", 15),
        ("72°", 72),
        (r"54^\circ", 54),
        ("180 miles per hour", 180),
        ("1,000.99m²", Fraction(100099, 100)),
        (r"$\left( \frac{1}{3} \right)$", Fraction(1, 3)),
        ("**73**", 73),
        ("٤٢", 42),
        ("five apples", 5),
        ("two and a half", Fraction(5, 2)),
        ("three quarters", Fraction(3, 4)),
        ("10,00,000", 10**6),
        ("1'000'000", 10**6),
        ("0.(3)", Fraction(1, 3)),
        ("0.1666...", Fraction(1, 6)),
        (r"0.\dot{3}", Fraction(1, 3)),
        ("2 hours 30 minutes", Fraction(5, 2)),
        ("3 dozen", 36),
    ],
)
def test_numbers(text: str, value: int | Fraction) -> None:
    number = read_number(text)
    assert number is not None
    assert number.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "2x",
        "3c",
        "2m",
        "3 pi",
        "5^2",
        "5²",
        "1,-2",
        "1,2,3",
        "5:30",
        "3/0",
        "1e99999",
        "AZYUK2A",
        "0.5.3",
        "1..2",
        "12 13 x",
        "hundred",
        "1" * 5000,
        "1e-99999",
        "-",
        "%",
        r"\frac{1}{x}",
        *["5 sin x", "sqrt 2", "1 + 1", "(1, 2)", "inf", "nan", "0x10", "1_000", "٣x"],
    ],
)
def test_values_that_are_not_plain_numbers(text: str) -> None:
    assert read_number(text) is None


def agree(gold: str, text: str) -> bool:
    expected, found = read_number(gold), read_number(text)
    assert expected is not None and found is not None
    return same_number(expected, found)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("18", "18.00"),
        ("0.5", "1/2"),
        ("1/3", "0.333333"),
        ("2/3", "0.666667"),
        ("0.3", "0.30000000000000004"),
        ("20%", "20"),
        ("20", "20%"),
        ("20%", "0.2"),
        ("0.2", "20%"),
        ("1 m", "100 cm"),
        ("5 cm", "5"),
        ("5", "5 cm"),
        ("1 hour", "60 minutes"),
        ("2 square meters", "20000 cm^2"),
        ("5 apples", "5"),
    ],
)
def test_agreement(gold: str, text: str) -> None:
    assert agree(gold, text)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ("0", "1e-7"),
        ("0", "0.0000001"),
        ("1e-9", "2e-9"),
        ("1/3", "0.33"),
        ("1/3", "0.3333"),
        ("5", "5.0000001"),
        ("100000000", "100000001"),
        ("16386.17", "16386.16"),
        ("16386.17", "16386.169"),
        ("0.5", "0.5%"),
        ("5 m", "5 cm"),
        ("5 m", "5 seconds"),
        ("5 m^2", "5 m^3"),
        ("1000", "1.000"),
        ("-1", "1"),
    ],
)
def test_disagreement(gold: str, text: str) -> None:
    assert not agree(gold, text)


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_a_decimal_is_read_exactly_in_every_spelling(number: int, places: int) -> None:
    value = Fraction(number, 10**places)
    plain = f"{'-' if number < 0 else ''}{abs(number) // 10**places}"
    fraction = f".{abs(number) % 10**places:0{places}d}" if places else ""
    grouped = f"{int(plain.lstrip('-')):,}"
    sign = "-" if number < 0 else ""
    for text in (
        plain + fraction,
        f"{sign}{grouped}{fraction}",
        f"${plain}{fraction}$",
        f"{plain}{fraction} miles",
    ):
        read = read_number(text)
        assert read is not None and read.value == value


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=999))
def test_fractions_are_read_exactly_in_every_spelling(value: Fraction) -> None:
    top, bottom = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    for text in (
        f"{sign}{top}/{bottom}",
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        f"{sign}{top}⁄{bottom}",
    ):
        read = read_number(text)
        assert read is not None and read.value == value
    if top > bottom > 1 and top % bottom:
        mixed = read_number(f"{sign}{top // bottom} {top % bottom}/{bottom}")
        assert mixed is not None and mixed.value == value


@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    number = read_number(text)
    assert number is None or same_number(number, number)


@pytest.mark.parametrize(
    "other", ["44 cm", r"\$44", "€44", r"44^\circ", "44 °C", "44 apples", "44 s"]
)
def test_a_share_is_no_length_price_angle_or_count(other: str) -> None:
    assert not equivalent(r"44\%", other)
    assert not equivalent(other, r"44\%")


@pytest.mark.parametrize("other", [r"\sqrt{2}\text{ cm}", r"\$\sqrt{2}", r"\sqrt{2}^\circ"])
def test_a_percentage_of_a_root_is_no_length_price_or_angle(other: str) -> None:
    assert not equivalent(r"\sqrt{2}\%", other)
    assert not equivalent(other, r"\sqrt{2}\%")


@pytest.mark.parametrize("share", ["44 percent", "44 percent of students", "44% off", "0.44", "44"])
def test_a_share_in_words_is_one(share: str) -> None:
    assert equivalent(r"44\%", share)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [(r"\$5", "5€"), (r"\$5", "£5"), ("5 CAD", "5 EUR"), (r"\$\sqrt{2}", r"\sqrt{2}\text{ cm}")],
)
def test_another_currency_is_another_price(gold: str, answer: str) -> None:
    assert not equivalent(gold, answer)
