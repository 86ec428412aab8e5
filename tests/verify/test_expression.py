"""Verifier expressions: grammar, weights, and complaints that name the column."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.verify.expression import BUILT_IN, Term, check_importable, parse_expression, unpinned


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("math", [("math", None)]),
        ("math*1.0 + think_format*0.1", [("math", 1.0), ("think_format", 0.1)]),
        ("0.5*math", [("math", 0.5)]),
        ("2*math*0.25", [("math", 0.5)]),
        ("math - think_format*0.2", [("math", None), ("think_format", -0.2)]),
        ("math + -0.2*think_format", [("math", None), ("think_format", -0.2)]),
        ("math*0", [("math", 0.0)]),
        ("math*1e-3", [("math", 0.001)]),
        ("math + math*0.5", [("math", None), ("math", 0.5)]),
        ("math@1", [("math@1", None)]),
        ("my.rewards:length.of*0.1 + math", [("my.rewards:length.of", 0.1), ("math", None)]),
        ("  math  ", [("math", None)]),
        ("math|think_format", [("math|think_format", None)]),
        ("math@1 | a.b:c*0.5 + math", [("math@1|a.b:c", 0.5), ("math", None)]),
        ("0.5*math|think_format|a.b:c", [("math|think_format|a.b:c", 0.5)]),
        ("math & think_format", [("math&think_format", None)]),
        ("math@1&judge >= 0.70*0.5 + math", [("math@1&judge>=0.7", 0.5), ("math", None)]),
        ("judge>=0.9999999", [("judge>=0.9999999", None)]),
        ("judge >= 1.0", [("judge>=1", None)]),
        ("0.5*repetition>=-0.25|math", [("repetition>=-0.25|math", 0.5)]),
    ],
)
def test_terms(text: str, terms: list[tuple[str, float]]) -> None:
    assert [(term.name, term.weight) for term in parse_expression(text)] == terms


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "the end"),
        ("mth", 1, "did you mean math?"),
        ("math*1.0 + thnk_format", 12, "did you mean think_format?"),
        ("math math", 6, "+, - or the end"),
        ("math *", 7, "the end"),
        ("math + ", 8, "the end"),
        ("3", 2, "verifier's name"),
        ("3 * 4", 6, "verifier's name"),
        ("math * math", 8, "accepted: a number"),
        ("math / 2", 6, "+, - or the end"),
        ("(math)", 1, "verifier's name or a number"),
        ("math*1e999", 6, "a finite weight"),
        ("some_function", 1, "package.module:object"),
        ("math|", 6, "the end"),
        ("|math", 1, "verifier's name or a number"),
        ("math|2", 6, "verifier's name"),
        ("math|math", 6, "each alternative once"),
        ("math*2|think_format", 7, "+, - or the end"),
        ("math|thnk_format", 6, "did you mean think_format?"),
        ("math&", 6, "the end"),
        ("math&math", 6, "each verifier once"),
        ("math|code&choice", 10, "use only one of | and & in a term"),
        ("math&code|choice", 10, "accepted: &, a weight, + or -"),
        ("math>=", 7, "a finite threshold"),
        ("math>=code", 7, "a finite threshold"),
        ("math>=1e999", 7, "a finite threshold"),
        ("math>0.5", 5, "found '>'"),
        ("math>=0.5>=0.6", 10, "+, - or the end"),
    ],
)
def test_complaints_name_the_column(text: str, column: int, words: str) -> None:
    with pytest.raises(VerifierError) as caught:
        parse_expression(text)
    assert f"column {column}:" in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_weight_that_is_not_written_is_the_verifiers_own() -> None:
    first, added, taken = parse_expression("math + think_format - think_format")
    assert [one.resolved(0.1).weight for one in (first, added, taken)] == [0.1, 0.1, -0.1]
    assert Term("math", 0.5).resolved(0.1) == Term("math", 0.5)


def test_alternatives_are_asked_in_order() -> None:
    assert parse_expression("math|a.b:c*0.5")[0].names == ("math", "a.b:c")
    assert parse_expression("math")[0].names == ("math",)
    term = parse_expression("math@2&judge>=0.7&a.b:c*0.5")[0]
    assert term.names == ("math@2", "judge", "a.b:c") and term.is_conjunction
    assert term.thresholds == (None, 0.7, None)
    assert unpinned(term.name) == "math&judge>=0.7&a.b:c"
    assert not parse_expression("math>=0.5|judge")[0].is_conjunction


single = st.sampled_from([*BUILT_IN, "a.b:c"])
gates = st.sampled_from(["", ">=0.5", ">=-1", ">=1e-07"])
names = st.builds(
    lambda joint, names, gate: joint.join(f"{name}{gate}" for name in names),
    st.sampled_from("|&"),
    st.lists(single, min_size=1, max_size=3, unique=True),
    gates,
)
weights = st.floats(0, 1e6).map(lambda w: float(f"{w:.6g}"))


@given(st.lists(st.tuples(names, weights), min_size=1, max_size=5))
def test_what_is_written_is_read(terms: list[tuple[str, float]]) -> None:
    text = " + ".join(f"{name}*{weight!r}" for name, weight in terms)
    assert parse_expression(text) == tuple(Term(name, weight) for name, weight in terms)


@given(st.text(alphabet="math +-*|&>=.0123e:@_(", max_size=20))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert parse_expression(text)
    except VerifierError as error:
        assert "column" in str(error)


def test_allowed_modules_are_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_us.py").write_text("raise RuntimeError('imported')\n")
    check_importable(["beside_us", "beside_us:reward", "json", "xml.dom:Node", "__main__"])
    for name in ("beside_uss", "beside_uss:reward", "", "no way"):
        with pytest.raises(VerifierError, match=r"verification\.allow \(--allow\): found '"):
            check_importable([name])
