"""A reward that fails on everything is given up at once, in its own words; any other never."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import planted_verifiers
import pytest

from assay.errors import VerifierError
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.expression import BUILT_IN
from assay.verify.service import VerifierService


def verdicts(words: str) -> list[Verdict]:
    """``e``: an error, ``t``: a timeout, ``u``: unavailable, ``0``: wrong."""
    of = {"e": "error", "t": "timeout", "u": "unavailable"}
    return [
        Verdict.of_score(0.0, "r@1")
        if word == "0"
        else Verdict.not_judged(of[word], "r@1", detail=f"word {word}")  # type: ignore[arg-type]
        for word in words
    ]


def test_it_ends_with_the_last_of_the_first_completions() -> None:
    with VerifierService("exact", give_up_after=4) as service:
        service._raise_if_always_failing(verdicts("eue"))
        with pytest.raises(
            VerifierError, match=r"r@1: it failed on each of the first 4.*, 3 times"
        ) as told:
            service._raise_if_always_failing(verdicts("te"))
    assert "word e" in str(told.value) and "\n" not in str(told.value)
    assert str(pickle.loads(pickle.dumps(told.value))) == str(told.value)


@pytest.mark.parametrize("words", ["0eeeeeee", "eee0eeeeee", "uuuuuuuuuu", "eee"])
def test_it_does_not_end_where_something_was_judged_or_nothing_failed(words: str) -> None:
    with VerifierService("exact", give_up_after=4) as service:
        assert service._raise_if_always_failing(verdicts(words)) is None


@pytest.mark.parametrize("text", ["raise", "good"])
def test_sampling_is_left_as_soon_as_patience_ends(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Not after the last group: sampling them may take an hour."""
    monkeypatch.setitem(BUILT_IN, "inlined", planted_verifiers.NAMES["inlined"])
    sampled: list[int] = []

    def sample(on_group: Callable[[Group], None]) -> None:
        for n in reversed(range(10)):
            sampled.append(n)
            completions = tuple(Completion.from_text(text, f"p{n}#0/{each}") for each in range(2))
            on_group(Group(Problem(f"p{n}", "q"), Prompt("q", np.zeros(1, np.int32)), completions))

    with VerifierService("inlined", give_up_after=4) as service, service.judging() as judging:
        if text == "good":
            sample(judging.add)
            return
        with pytest.raises(VerifierError, match=r"inlined@1: .* first 4 .*RuntimeError: planted"):
            sample(judging.add)
        assert sampled == [9, 8]
