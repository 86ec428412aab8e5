"""The verdict cache: hits equal misses, keys hold all that a verifier reads, bytes are bounded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import planted_verifiers
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Verdict
from assay.verify.base import Part, Verifier
from assay.verify.service import VerifierService
from assay.verify.serving.cache import VerdictCache, completion_key, problem_key, size_of
from assay.verify.serving.configured import Configured

pytestmark = pytest.mark.usefixtures("planted")


def group_of(texts: Sequence[str], problem: Problem) -> Group:
    completions = tuple(Completion.from_text(text, f"p#0/{n}") for n, text in enumerate(texts))
    return Group(problem, Prompt("q", np.zeros(1, np.int32)), completions)


def judge(service: VerifierService, *texts: str, **spec: Any) -> tuple[Verdict, ...]:
    return service.judge([group_of(texts, Problem("p", "q", spec))])[0]


def test_a_hit_is_the_verdict_of_a_miss() -> None:
    with VerifierService("kept") as service:
        first = judge(service, "good", "half", "bad", "sleep 0.01")
        again = judge(service, "good", "half", "bad", "sleep 0.01")
        assert [replace(v, seconds=0.0) for v in first] == list(again)
        assert all(v.seconds == 0.0 for v in again)
        assert len(planted_verifiers.calls) == 4
        assert service.stats["verifiers"]["kept"]["cache_hits"] == 4
        assert service.stats["verifiers"]["kept"]["count"] == 8
        assert service.take_metrics()["verify/kept/cache_hits"] == 4


def test_equal_siblings_are_judged_once() -> None:
    with VerifierService("kept") as service:
        verdicts = judge(service, *["good", "bad"] * 5)
    assert [v.correct for v in verdicts] == [True, False] * 5
    assert sorted(planted_verifiers.calls) == ["bad", "good"]


def test_what_was_not_judged_is_tried_again() -> None:
    with VerifierService("kept") as service:
        assert [v.reason for v in judge(service, "down", "raise")] == ["unavailable", "error"]
        judge(service, "down", "raise")
    assert sorted(planted_verifiers.calls) == ["down", "down", "raise", "raise"]


@pytest.mark.parametrize("settings", [{"cache_mib": 0}, {"default_expression": "threaded"}])
def test_nothing_is_kept_where_nobody_asks(settings: dict[str, Any]) -> None:
    with VerifierService(**{"default_expression": "kept", **settings}) as service:
        judge(service, "good", "good")
        judge(service, "good")
    assert planted_verifiers.calls == ["good"] * 3


def test_an_alternative_is_looked_up_too() -> None:
    with VerifierService("inlined|kept|threaded") as service:
        for _ in range(2):
            verdicts = judge(service, "good", "bad", "bad")
            assert [v.correct for v in verdicts] == [True, False, False]
            assert verdicts[1].components["kept.rescued"] == 0.0
        assert service.stats["verifiers"]["kept"]["count"] == 4
        assert service.stats["verifiers"]["kept"]["cache_hits"] == 3
        assert service.stats["verifiers"]["threaded"]["cache_hits"] == 0


def test_workers_verdicts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    math = replace_math(cached=True)
    monkeypatch.setattr("assay.verify.answers.math_answer.MATH", math)
    with VerifierService("math", num_workers=1) as service:
        first = judge(service, "5", "6", r"\boxed{5}", "5", answer="5")
        again = judge(service, "5", "6", r"\boxed{5}", "5", answer="5")
        other = judge(service, "5", "6", answer="6")
        found = service.stats["verifiers"]["math"]
    assert [replace(v, seconds=0.0) for v in first] == [replace(v, seconds=0.0) for v in again]
    assert [v.correct for v in other] == [False, True]
    assert found["cache_hits"] == 5


def replace_math(**changes: Any) -> Any:
    from assay.verify.answers.math_answer import MATH

    return replace(MATH, **changes)


COMPLETION = Completion.from_text("the text", "p#0/1", ThinkFormat("free"))
PROBLEM = Problem("p", "q", {"answer": ["5"], "n": 1})
VERIFIER = Verifier("kept", 1, print, cached=True)
ONE = Configured(VERIFIER, "abc", options={"who": "me"})


def another(**changes: Any) -> Configured:
    return replace(ONE, verifier=replace(VERIFIER, **changes))


def key(
    one: Configured = ONE, problem: Problem = PROBLEM, completion: Completion = COMPLETION
) -> bytes:
    prefix = problem_key(one, problem)
    assert prefix is not None
    return completion_key(prefix, completion)


@pytest.mark.parametrize(
    "other",
    [
        key(another(name="other")),
        key(another(version=2)),
        key(replace(ONE, hash="abd")),
        key(replace(ONE, options={"who": "you"})),
        key(problem=replace(PROBLEM, spec={"answer": ["5"], "n": 1.0})),
        key(problem=replace(PROBLEM, spec={"answer": ["5"], "n": True})),
        key(problem=replace(PROBLEM, spec={"answer": "5", "n": 1})),
        key(problem=replace(PROBLEM, prompt="another question")),
        key(completion=replace(COMPLETION, text="the text ")),
        key(completion=replace(COMPLETION, finish_reason="length")),
        key(completion=replace(COMPLETION, think=ThinkFormat("off"))),
        key(completion=replace(COMPLETION, think=ThinkFormat("free", "<a>", "</a>"))),
    ],
)
def test_all_that_a_verifier_reads_is_in_the_key(other: bytes) -> None:
    assert other != key()


def test_keys_that_no_verifier_reads_are_not_in_the_cache_key() -> None:
    same = replace(PROBLEM, id="other", spec={"n": 1, "answer": ("5",)}, draw=3, tags=("x",))
    assert key(problem=same, completion=replace(COMPLETION, id="x", policy_version=9)) == key()


def test_some_things_have_no_key() -> None:
    assert problem_key(another(cached=False), PROBLEM) is None
    assert problem_key(another(executor="inline"), PROBLEM) is None
    assert problem_key(another(takes="group"), PROBLEM) is None
    assert problem_key(ONE, replace(PROBLEM, spec={"answer": object()})) is None
    assert problem_key(ONE, replace(PROBLEM, spec={"answer": "\ud800"})) is not None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3000)), max_size=200))
def test_the_cache_is_an_lru_dictionary_bounded_by_bytes(uses: list[tuple[int, int]]) -> None:
    cache = VerdictCache(10_000)
    plain: dict[bytes, Part] = {}
    for number, length in uses:
        name = bytes([number])
        if (found := cache.get(name)) is not None:
            assert found == plain[name]
            plain[name] = plain.pop(name)
        else:
            assert name not in plain
            part = Part(1.0, detail="x" * length, seconds=3.0)
            cache.put(name, part)
            plain[name] = replace(part, seconds=0.0)
            while sum(map(size_of, plain.values())) > 10_000:
                plain.pop(next(iter(plain)))
        assert len(cache) == len(plain)
        assert cache.num_bytes == sum(map(size_of, plain.values())) <= 10_000


@pytest.mark.slow
def test_the_cache_does_not_slow_a_batch_of_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of a completion costs less than its way to a worker and back; and a hit saves that."""
    monkeypatch.setattr("assay.verify.answers.math_answer.MATH", replace_math(cached=True))
    seconds: dict[float, list[float]] = {0.0: [], 64.0: []}
    for mib, found in seconds.items():
        with VerifierService("math", num_workers=1, cache_mib=mib) as service:
            for round in range(30):
                groups = [
                    group_of(
                        [f"{round * n + s}" for s in range(8)],
                        Problem(f"p{n}", "q", {"answer": "12"}),
                    )
                    for n in range(16)
                ]
                started = time.perf_counter()
                service.judge(groups)
                found.append(time.perf_counter() - started)
    medians = {mib: sorted(found)[15] for mib, found in seconds.items()}
    assert medians[64.0] < 2 * medians[0.0]
