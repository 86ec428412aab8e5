"""Options of verifiers and rows: what may be said, where, and the complaints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from growth import calls
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.host.fields import Field
from assay.types import Problem
from assay.verify.base import Verifier
from assay.verify.service import VerifierService
from assay.verify.serving.configured import Configured, RowCheck, canonical, options_digest

pytestmark = pytest.mark.usefixtures("planted")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"threaded": {"god": "x"}},
            "verification.options.threaded.god: unknown key; did you mean good",
        ),
        ({"threaded": {"zzz": "x"}}, "known keys: good, who, concurrency"),
        ({"threaded": {"good": 3}}, "verification.options.threaded.good: found 3; accepted: text"),
        ({"threaded": {"concurrency": 0}}, "concurrency: found 0; accepted: a whole number >= 1"),
        ({"device": {"batch_size": True}}, "batch_size: found True"),
        ({"inlined": {"concurrency": 2}}, "concurrency: unknown key"),
        ({"threadde": {"good": "x"}}, "did you mean threaded?"),
        ({"threaded@1": {"good": "x"}}, "without a version"),
    ],
)
def test_options_that_are_wrong(options: dict[str, dict[str, Any]], words: str) -> None:
    with pytest.raises(VerifierError) as caught:
        VerifierService("inlined", options=options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def judge(service: VerifierService, text: str, **spec: Any) -> Any:
    return next(service.judge_text([(Problem("p", "q", spec), text)]))


@pytest.mark.parametrize("expression", ["threaded", "inlined"])
def test_a_row_wins_over_the_configuration(expression: str) -> None:
    options = {"threaded": {"good": "fine"}}
    with VerifierService("threaded", options=options) as service:
        assert judge(service, "fine").correct
        assert judge(service, "fine", good=None).correct  # a key that holds nothing is not there
        assert not judge(service, "fine", good="well").correct
        assert judge(service, "well", good="well").correct


def test_options_reach_workers_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_options.py").write_text(
        "def told(problem, completion): return {'score': 1, 'told': problem.spec['told']}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "their_options:told"
    with VerifierService(name, num_workers=1, options={name: {"told": 7}}) as service:
        assert judge(service, "x").components[f"{name}.told"] == 7
        assert judge(service, "x", told=8).components[f"{name}.told"] == 8
        assert service.describe()[name]["options"] == options_digest({"told": 7})


def test_what_only_the_configuration_may_set() -> None:
    with VerifierService("threaded", options={"threaded": {"who": "me"}}) as service:
        assert judge(service, "good").detail == "seen by me"
        assert judge(service, "good", who="you").detail == "seen by me"  # a row's key is metadata
        service.check_problem(Problem("p", "q", {"who": 7}))


def test_the_digest_tells_options_that_can_change_a_verdict() -> None:
    assert options_digest({}) == options_digest({"concurrency": 3, "batch_size": 4}) == ""
    one, other = options_digest({"a": 1, "b": [1]}), options_digest({"b": [1], "a": 2})
    assert len(one) == 12 and one != other
    assert one == options_digest({"b": [1], "a": 1, "concurrency": 9})
    with VerifierService("threaded", options={"threaded": {"concurrency": 3}}) as service:
        assert "options" not in service.describe()["threaded"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"anwser": "5"}, "rows.jsonl:3 answer: missing, or null; accepted: text"),
        ({"anwser": "5"}, "the row has anwser: rename it"),
        ({"question": "x"}, "rows.jsonl:3 answer: missing"),
        ({"answer": None}, "answer: missing"),
        ({"answer": "5", "good": 3}, "rows.jsonl:3 good: found 3; accepted: text"),
    ],
)
def test_rows_that_are_wrong(spec: dict[str, Any], words: str) -> None:
    with VerifierService("math + threaded", num_workers=1) as service:
        service.check_problem(Problem("p", "q", {"answer": "5", "good": "x", "more": 1}))
        with pytest.raises(VerifierError) as caught:
            service.check_problem(Problem("p", "q", spec, source="rows.jsonl:3"))
        assert words in str(caught.value)
        service.check_problem(Problem("p", "q", {}, verifier="threaded"))
        with pytest.raises(VerifierError, match="did you mean math"):
            service.check_problem(Problem("p", "q", {}, verifier="mth"))


def check_of(
    *fields: Field,
    options: Mapping[str, Any] | None = None,
    whole: Callable[[Mapping[str, Any]], None] | None = None,
) -> RowCheck:
    verifier = Verifier("v", 1, print, fields=fields, check_spec=whole)
    return RowCheck([Configured(verifier, options=options or {})])


def test_an_option_replaces_a_required_key() -> None:
    check = check_of(Field("answer", "text", needed=True), options={"answer": "5"})
    check(Problem("p", "q", {}))
    with pytest.raises(VerifierError, match="missing"):
        check_of(Field("answer", "text", needed=True))(Problem("p", "q", {}))


def test_a_check_that_raises_refuses() -> None:
    check = check_of(Field("n", "a number > 0", check=lambda value: value > 0))
    check(Problem("p", "q", {"n": 1}))
    with pytest.raises(VerifierError, match="n: found 'x'"):
        check(Problem("p", "q", {"n": "x"}))


def test_checking_a_row_takes_few_steps() -> None:
    with VerifierService("math", num_workers=1) as service:
        problem = Problem("p", "q", {"answer": "5"})
        service.check_problem(problem)
        assert calls(lambda: service.check_problem(problem)) < 40


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(plain, plain)
def test_canonical_texts_are_equal_exactly_where_values_are(one: Any, other: Any) -> None:
    same = repr_of(one) == repr_of(other)
    assert (canonical(one) == canonical(other)) == same


def repr_of(value: Any) -> Any:
    """A slow and obvious identity: types and values, keys in order."""
    if isinstance(value, dict):
        return ("dict", sorted((key, repr_of(inner)) for key, inner in value.items()))
    if isinstance(value, list):
        return ("list", [repr_of(inner) for inner in value])
    return (type(value).__name__, repr(value))


@given(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers()), plain)
def test_merging_keeps_the_row(spec: dict[str, Any], extra: Any) -> None:
    options = {"a": 1, "z": extra}
    one = Configured(Verifier("v", 1, print), options=options)
    found = one.reads(Problem("p", "q", spec)).spec
    for key in {*spec, *options}:
        assert found[key] == (options.get(key) if spec.get(key) is None else spec[key])


def test_a_spec_is_checked_as_a_whole_under_the_options() -> None:
    def either(spec: Mapping[str, Any]) -> None:
        if "low" not in spec and "high" not in spec:
            raise VerifierError("low: missing; accepted: low or high")

    place = Problem("p", "q", {}, source="rows.jsonl:3")
    with pytest.raises(VerifierError, match=r"rows\.jsonl:3 low: missing; accepted: low or high"):
        check_of(whole=either)(place)
    check_of(options={"high": 1}, whole=either)(place)


def test_a_key_that_is_nearly_one_that_is_read_is_refused_where_that_one_is_absent() -> None:
    check = check_of(Field("hidden_tests", "a list"), Field("unit", "text"))
    place = "rows.jsonl:3"
    with pytest.raises(VerifierError, match=r"rows\.jsonl:3 hiden_tests: .*mean hidden_tests\?"):
        check(Problem("p", "q", {"hiden_tests": []}, source=place))
    with pytest.raises(VerifierError, match=r"Hidden_tsets: .*mean hidden_tests\?"):
        check(Problem("p", "q", {"Hidden_tsets": []}))
    check(Problem("p", "q", {"hiden_tests": [], "hidden_tests": []}, source=place))
    check(Problem("p", "q", {"units": "m", "difficulty": 3}, source=place))  # metadata
