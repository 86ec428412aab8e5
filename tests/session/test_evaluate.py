"""Rates of an evaluation, each against its definition."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from train_worlds import CountingJudge, group_of, verdict

from assay.config import SamplingConfig
from assay.run.evaluations import parts_of
from assay.session import evaluate as evaluate_module
from assay.session.evaluate import Evaluation, evaluate, majority_correct, pass_at_k, summarize
from assay.testing import ScriptedGenerator
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, ThinkMode, Verdict
from assay.verify.service import VerifierService

outcomes = st.lists(st.booleans(), min_size=1, max_size=9)


@given(outcomes, st.data())
def test_pass_at_k_is_the_mean_over_all_choices(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    choices = list(itertools.combinations(right, k))
    expected = sum(any(choice) for choice in choices) / len(choices)
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(expected)


def test_pass_at_k_needs_k_samples() -> None:
    with pytest.raises(ValueError, match="at least 4 samples"):
        pass_at_k(3, 1, 4)


votes = st.lists(st.tuples(st.sampled_from(["1", "2", "3", None]), st.just(None)), max_size=8)


@given(votes)
def test_majority_is_the_chance_of_a_random_tie_break(
    ballots: list[tuple[str | None, None]],
) -> None:
    """The answer "1" is right; of several most frequent answers one is taken at random."""
    answers = [answer for answer, _ in ballots]
    counts = Counter(answer for answer in answers if answer is not None)
    tied = [answer for answer, count in counts.items() if count == max(counts.values())]
    expected = sum(answer == "1" for answer in tied) / len(tied) if tied else 0.0
    verdicts = [verdict(answer == "1", answer) for answer in answers]
    assert majority_correct(verdicts) == pytest.approx(expected)


problems = st.lists(
    st.lists(st.sampled_from([True, False, None]), min_size=3, max_size=3), min_size=1, max_size=6
)


@given(problems)
def test_rates_are_means_over_problems_of_what_was_judged(table: list[list[bool | None]]) -> None:
    verdicts = [[verdict(one) for one in row] for row in table]
    groups = [group_of(row, id=f"p{n}") for n, row in enumerate(verdicts)]
    result = summarize(groups, verdicts)
    judged = [[one for one in row if one is not None] for row in table]
    shares = [sum(row) / len(row) for row in judged if row]
    assert result.num_not_judged == sum(one is None for row in table for one in row)
    assert result.num_completions == 3 * len(table)
    assert result.num_problems == len(shares)
    if not shares:
        assert math.isnan(result.pass_at_1)
        assert result.as_row()["eval/pass_at_1"] is None
        return
    assert result.pass_at_1 == pytest.approx(statistics.mean(shares))
    if len(shares) > 1:
        assert result.stderr == pytest.approx(statistics.stdev(shares) / math.sqrt(len(shares)))
    else:
        assert result.stderr is None and result.as_row()["eval/stderr"] is None
        assert "(95% interval 0." in str(result) and "1 problem, greedy" in str(result)
    most = max(result.pass_at)
    whole = [row for row in judged if row and len(row) >= most]
    assert result.pass_at_problems == len(whole) >= len(shares) / 2
    for k, rate in result.pass_at.items():
        known = [pass_at_k(len(row), sum(row), k) for row in whole]
        assert rate == pytest.approx(statistics.mean(known)), "every k of the same problems"
    rates = [result.pass_at[k] for k in sorted(result.pass_at)]
    assert rates == sorted(rates) and set(result.pass_at) <= {1, 2, 3}


def test_a_single_sample_has_no_majority() -> None:
    rows = [[verdict(True, "1")], [verdict(False, "2")]]
    assert summarize(map(group_of, rows), rows).majority is None


def test_where_no_answer_was_extracted_there_is_no_majority() -> None:
    rows = [[verdict(True), verdict(True)], [verdict(True), verdict(False)]]
    result = summarize(map(group_of, rows), rows)
    assert result.majority is None and "majority" not in str(result)
    rows[0] = [verdict(True, "1"), verdict(True, "1")]
    assert summarize(map(group_of, rows), rows).majority == 0.5


def ask_math(texts: Sequence[str], gold: Any, verifier: str = "math") -> tuple[float | None, int]:
    """Return the majority of completions under a verifier, and how many judgements it took besides."""
    asked: list[int] = []

    class Counting(VerifierService):
        def submit(self, group: Any) -> Any:
            asked.append(len(group.completions))
            return super().submit(group)

    generator = ScriptedGenerator(lambda problem, sibling: texts[sibling])  # type: ignore[arg-type]
    problem = Problem("p", "?", {"answer": gold})
    with Counting(verifier, num_workers=1, deadline=60.0) as service:
        found = evaluate(generator, service, [problem], SamplingConfig(), len(texts))
    return found.majority, sum(asked) - len(texts)


@pytest.mark.parametrize(
    ("texts", "gold", "majority", "asked"),
    [
        # three ways to write a half are three votes for it
        (["1/2", "0.5", r"\frac12", "3", "3"], "3", 0.0, 2),
        (["1/2", "0.5", r"\frac12", "3", "3"], "1/2", 1.0, 0),
        (["7", "8", "9", "3", "3"], "3", 1.0, 3),
        (["7", "3", "3", "3"], "3", 1.0, 0),
        (["1/2", "0.5", "3", "3"], "3", 0.5, 1),
        (["", "", "3"], "3", 1.0, 0),
        # of several accepted answers each is a candidate of its own
        (["1", "2", "7", "7", "7"], ["1", "2"], 0.0, 0),
        (["1", "2", "7"], ["1", "2"], 2 / 3, 1),
        (["1", "2", "7", "7"], ["1", "2"], 0.0, 1),
        (["1", "2", "1.0", "7", "7", "8"], ["1", "2"], 0.5, 3),
        (["1/2", "0.5", r"\frac12", "7", "7"], ["1/2", "3"], 1.0, 2),
    ],
)
def test_equal_answers_are_one_candidate(
    texts: list[str], gold: Any, majority: float, asked: int
) -> None:
    boxed = [f"\\boxed{{{text}}}" if text else "" for text in texts]
    assert ask_math(boxed, gold, "math*1.0 + think_format*0.1") == (majority, asked)


def test_a_verifier_that_compares_nothing_lets_texts_vote() -> None:
    texts = ["1/2", "0.5", "3", "3"]
    assert ask_math(texts, "3", "train_worlds:says_three") == (1.0, 0)


def test_rates_by_tag() -> None:
    rows = [[verdict(True)], [verdict(False)], [verdict(True)]]
    tags = [("a",), ("a", "b"), ()]
    groups = [group_of(row, tags=tag) for row, tag in zip(rows, tags, strict=True)]
    assert summarize(groups, rows).by_tag == {"a": 0.5, "b": 0.0}


def summarize_pairs(pairs: Sequence[tuple[Group, list[Verdict]]]) -> Evaluation:
    return summarize([group for group, _ in pairs], [verdicts for _, verdicts in pairs])


def test_rates_by_think_mode() -> None:
    def group(mode: ThinkMode, length: int, outcome: bool | None) -> tuple[Group, list[Verdict]]:
        verdicts = [verdict(outcome)]
        made = group_of(verdicts)
        tokens = np.zeros(length, np.int32)
        sibling = replace(made.completions[0], tokens=tokens, id=f"{mode}{length}#0/0")
        problem = replace(made.problem, id=f"{mode}{length}")
        prompt = Prompt("?", made.prompt.tokens, ThinkFormat(mode))
        return Group(problem, prompt, (sibling,)), verdicts

    one = [group("free", 30, True), group("free", 40, False)]
    both = [*one, group("empty", 2, True), group("opened", 9, None)]
    assert summarize_pairs(one).by_think == {}, "of a single mode there is no more to say"
    found = summarize_pairs(both)
    rates = {
        "free": (0.5, 0.5, 2, 35.0),
        "empty": (1.0, None, 1, 2.0),
        "opened": (None, None, 0, 9.0),
    }
    names = ("pass_at_1", "stderr", "num_problems", "mean_tokens")
    expected = {mode: dict(zip(names, values, strict=True)) for mode, values in rates.items()}
    assert found.by_think == expected == json.loads(json.dumps(found.as_row()))["eval/by_think"]
    assert "think free 0.500 (95% interval 0.095 to 0.905), think opened not judged" in str(found)


def test_rates_by_source_and_think_mode() -> None:
    def group(id: str, source: str, mode: ThinkMode, outcome: bool) -> tuple[Group, list[Verdict]]:
        verdicts = [verdict(outcome)]
        made = group_of(verdicts)
        problem = replace(made.problem, id=id, source=source)
        prompt = Prompt("?", made.prompt.tokens, ThinkFormat(mode))
        return Group(problem, prompt, made.completions), verdicts

    one = [group("p", "a.jsonl:1", "free", True), group("q", "a.jsonl:2", "free", False)]
    assert summarize_pairs(one).by_source == {}, "one source in one mode: there is no more to say"
    more = [group("r", "hf:o/n:1", "free", True), group("s", "hf:o/n:2", "empty", False)]
    found = summarize_pairs([*one, *more])
    parts = parts_of(found.as_row())
    assert parts.keys() == {("a.jsonl", "free"), ("hf:o/n", "free"), ("hf:o/n", "empty")}
    first = parts["a.jsonl", "free"]
    assert first["eval/pass_at_1"] == 0.5 and first["eval/stderr"] == pytest.approx(0.5)
    assert first["eval/by_problem"] == {"p": 1.0, "q": 0.0}
    assert parts["hf:o/n", "empty"]["eval/num_problems"] == 1
    assert "by_problem" not in json.dumps(found.as_dict())
    assert found.by_think["free"]["num_problems"] == 3


def judge_length(problem: Problem, completion: Completion) -> Verdict:
    return verdict(len(completion.text) == 1, completion.text)


def test_problems_go_through_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Problem(f"p{n}", f"{n}", {"answer": "1"}) for n in range(7)]
    generator = ScriptedGenerator(lambda problem, sibling: "x" * (1 + (int(problem.prompt) == 5)))  # type: ignore[arg-type]
    sampling = SamplingConfig(temperature=0.5)
    seen: list[str] = []

    def sink(group: Group, verdicts: Sequence[Verdict]) -> None:
        seen.extend(f"{group.id} {one.correct}" for one in verdicts)

    whole = evaluate(generator, CountingJudge(judge_length), rows, sampling, 2)
    monkeypatch.setattr(evaluate_module, "MAX_PROBLEMS_AT_ONCE", 3)
    judge = CountingJudge(judge_length)
    parts = evaluate(generator, judge, rows, sampling, 2, sink)
    assert judge.seen == [f"p{n}#0/{sibling}" for n in range(7) for sibling in range(2)]
    assert seen == [f"p{n}#0 {n != 5}" for n in range(7) for _ in range(2)]
    timeless = [{**one.as_row(), "eval/seconds": 0} for one in (whole, parts)]
    assert timeless[0] == timeless[1]
    assert parts.pass_at_1 == pytest.approx(6 / 7)
    assert parts.temperature == 0.5


def test_what_is_printed_and_what_is_json() -> None:
    rows = [[verdict(True, "1"), verdict(None)], [verdict(False, "2"), verdict(True, "1")]]
    result = summarize(map(group_of, rows), rows, temperature=1.0)
    assert "pass@1 0.750" in str(result) and "1 not judged" in str(result)
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["pass_at_1"] == 0.75
    nothing = summarize([group_of([verdict(None)])], [[verdict(None)]])
    assert "nothing was judged" in str(nothing)
    assert json.loads(json.dumps(nothing.as_dict(), allow_nan=False))["pass_at_1"] is None
