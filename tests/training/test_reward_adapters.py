"""Verifiers as the reward function of other trainers, as TRL and verl call them."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import assay
from assay.errors import DataError, VerifierError
from assay.session.reward_function import RewardFunction, text_of
from assay.types import Problem


def compares(problem: Problem, group: Any) -> list[float]:
    """A reward that compares siblings: each gets how many there are."""
    return [float(len(group.completions)) / 10 for _ in group.completions]


def fails_on_bad(problem: Problem, completion: Any) -> float:
    if "bad" in completion.text:
        raise RuntimeError("the checker broke")
    return 1.0


@pytest.fixture(scope="module")
def graded() -> Iterator[RewardFunction]:
    yield assay.reward("math*1.0 + think_format*0.1", num_workers=1, deadline=60.0)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_plain_and_chat_completions_get_the_same_reward(graded: RewardFunction) -> None:
    texts = ["<think>3+5</think>\\boxed{8}", "\\boxed{9}"]
    rows = {"answer": ["8", "8"], "level": [1, 1], "trainer_state": object()}
    plain = graded(prompts=["3+5="] * 2, completions=texts, completion_ids=[[1], [2]], **rows)
    asked = [{"role": "user", "content": "3+5="}]
    chat = graded(prompts=[asked] * 2, completions=[said(text) for text in texts], **rows)
    assert plain == chat == [1.1, 0.0]


def test_what_was_not_judged_is_none_and_never_zero() -> None:
    reward = assay.reward(fails_on_bad, num_workers=1, deadline=60.0)
    assert reward(["p"] * 2, ["good", "bad"]) == [1.0, None]
    assert reward.verl("data", "bad", "1") == {"score": 0.0, "acc": 0.0, "judged": 0.0}
    other = assay.reward(fails_on_bad, num_workers=1, deadline=60.0, not_judged=-0.5)
    assert other.verl("data", "bad", "1")["score"] == -0.5


def test_siblings_are_judged_together() -> None:
    reward = assay.reward(compares, num_workers=1, deadline=60.0)
    assert reward(["a", "a", "b"], ["1", "2", "3"], answer=["x"] * 3) == [0.2, 0.2, 0.1]
    assert reward(["a", "a", "a"], ["1", "2", "3"], answer=["x", "y", "y"]) == [0.1, 0.2, 0.2]


def test_a_column_of_another_name_and_gsm8k_answers_are_read(graded: RewardFunction) -> None:
    gsm8k = "3 and 5 are 8.\n#### 1,008"
    assert graded(["q"], ["\\boxed{1008}"], answer=[gsm8k], question=["3+5"]) == [1.0]
    renamed = assay.reward("math", columns={"solution": "answer"}, num_workers=1, deadline=60.0)
    assert renamed(["q"], ["\\boxed{8}"], solution=["$8$"]) == [1.0]


def test_columns_that_are_no_rows_keys_do_no_harm(graded: RewardFunction) -> None:
    rest: dict[str, Any] = {"image": [object()], "log_extra": print, "weights": 3, "note": "a"}
    assert graded(["q"], ["\\boxed{8}"], answer=["8"], **rest) == [1.0]


def test_a_data_set_without_the_key_is_an_error_that_names_the_remedy() -> None:
    reward = assay.reward("math", num_workers=1, deadline=60.0)
    words = r'answer: missing.*its columns: solution; rename one with columns=\{"theirs": "answer"'
    with pytest.raises(VerifierError, match=words):
        reward(["q"], ["8"], solution=["8"])


def test_one_bad_row_among_good_ones_is_not_judged_and_said_once() -> None:
    reward = assay.reward("math", num_workers=1, deadline=60.0)
    texts = ["\\boxed{8}"] * 3
    with pytest.warns(UserWarning, match="a row is not judged"):
        assert reward(["q"] * 3, texts, answer=["8", None, "8"]) == [1.0, None, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reward(["q"], ["8"], answer=[""]) == [None]


def test_metrics_are_told_to_a_trainer_that_asks(graded: RewardFunction) -> None:
    told: dict[str, float] = {}
    graded(["q"] * 2, ["\\boxed{8}", "9"], answer=["8"] * 2, log_metric=told.__setitem__)
    name = "math+think_format"
    assert told == {f"{name}/not_judged": 0.0, f"{name}/math": 0.5, f"{name}/think_format": 0.0}


def test_verl_gives_an_answer_or_a_mapping_of_keys(graded: RewardFunction) -> None:
    info = {"index": 3, "split": "train", "answer": "other", "prompt": "p", "id": 3.5}
    right = {"score": 1.0, "acc": 1.0, "judged": 1.0}
    assert graded.verl("gsm8k", "\\boxed{8}", "8", info) == right
    assert graded.verl("gsm8k", "\\boxed{8}", {"answer": "8"}) == right
    assert graded.verl(
        data_source="a", solution_str="\\boxed{8}", ground_truth="8", extra_info=None, more=1
    )
    choice = assay.reward("regex", num_workers=1, deadline=60.0)
    assert choice.verl("a", "yes", {"pattern": "yes"})["score"] == 1.0


def test_it_is_pickled_named_and_called_from_any_thread(graded: RewardFunction) -> None:
    again = pickle.loads(pickle.dumps(graded))
    assert again.__name__ == "math+think_format"
    ask = lambda n: again(["q"], [f"\\boxed{{{n}}}"], answer=[str(n)])  # noqa: E731
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(ask, range(8))) == [[1.0]] * 8
    assert pickle.loads(pickle.dumps(graded.verl))("a", "\\boxed{8}", "8")["score"] == 1.0


def test_a_function_that_no_worker_can_import_is_refused() -> None:
    with pytest.raises(VerifierError, match=r"other processes cannot import.*%%writefile"):
        assay.reward(lambda problem, completion: 1.0)
    with pytest.raises(VerifierError, match="did you mean math"):
        assay.reward("mth")


def test_a_verifier_that_always_fails_stops_the_trainer() -> None:
    reward = assay.reward(fails_on_bad, num_workers=1, deadline=60.0)
    with pytest.raises(VerifierError, match=r"failed on each of the first 64.*the checker broke"):
        reward(["p"] * 64, ["bad"] * 64)


def test_messages_become_the_assistants_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    turns = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "content": "\\boxed{8}"},
        {"role": "assistant", "content": parts, "reasoning_content": "hm"},
    ]
    assert text_of(turns).strip() == "<think>hm</think>ab"
    with pytest.raises(DataError, match="found int"):
        text_of(3)
