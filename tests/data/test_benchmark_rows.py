"""Questions of public benchmarks, in the shapes in which they are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.data.problems import load_problems
from assay.data.rows import read_problem
from assay.errors import DataError
from assay.types import Completion, Problem
from assay.verify.answers.choice import judge_choice

MMLU = {
    "question": "Which gas do plants take in?", "subject": "biology",
    "choices": ["oxygen", "carbon dioxide", "helium", "neon"], "answer": 1,
}  # fmt: skip
MMLU_PRO = {
    "question_id": 70, "question": "2+2?", "options": ["1", "2", "3", "4", "N/A", "N/A"],
    "answer": "D", "answer_index": 3, "cot_content": "", "category": "math", "src": "made",
}  # fmt: skip
ARC = {
    "id": "Made_1", "question": "What melts?",
    "choices": {"text": ["stone", "ice", "air"], "label": ["1", "2", "3"]}, "answerKey": "2",
}  # fmt: skip
GPQA = {
    "Question": " Which particle is it?\n", "Correct Answer": "a muon\n", "Explanation": "long",
    "Incorrect Answer 1": "a pion", "Incorrect Answer 2": "a kaon", "Incorrect Answer 3": "a tau",
    "High-level domain": "Physics", "Subdomain": "Particles", "Record ID": "rec1",
    "Pre-Revision Question": "another",
}  # fmt: skip


def read(row: dict[str, Any]) -> Problem:
    return read_problem(row, "f:1", "f:1")


@pytest.mark.parametrize(
    ("row", "id", "tags", "shown", "label", "right", "wrong"),
    [
        (MMLU, "f:1", ("biology",), "B. carbon dioxide", "B", "(B)", "A"),
        (MMLU_PRO, "70", ("math",), "D. 4", "D", "Answer: D", "C"),
        (ARC, "Made_1", (), "2. ice", "2", "The answer is 2.", "3"),
    ],
)
def test_options_are_shown_and_judged(
    row: dict[str, Any],
    id: str,
    tags: tuple[str, ...],
    shown: str,
    label: str,
    right: str,
    wrong: str,
) -> None:
    problem = read(row)
    assert (problem.id, problem.tags, problem.verifier) == (id, tags, "choice")
    assert isinstance(problem.prompt, str) and shown in problem.prompt.splitlines()
    assert problem.prompt.startswith(row["question"]) and "N/A" not in problem.prompt
    assert problem.spec["answer"] == label
    for text, value in ((right, 1.0), (wrong, 0.0)):
        assert judge_choice(problem, Completion.from_text(text)).value == value, text


def test_an_option_that_is_left_out_moves_those_behind_it() -> None:
    problem = read({**MMLU_PRO, "options": ["1", "N/A", "3", "4"]})
    assert problem.spec["options"] == {"A": "1", "B": "3", "C": "4"}
    assert problem.spec["answer"] == "C"


def test_gpqa_does_not_tell_the_right_option_by_its_place() -> None:
    places = set[str]()
    for number in range(40):
        problem = read({**GPQA, "Question": f"Which particle is number {number}?"})
        assert problem.spec["options"][problem.spec["answer"]] == "a muon"
        assert read({**GPQA, "Question": f"Which particle is number {number}?"}) == problem
        places.add(problem.spec["answer"])
    assert places == {"A", "B", "C", "D"}
    problem = read(GPQA)
    assert (problem.id, problem.tags) == ("rec1", ("Physics", "Particles"))
    assert problem.spec.keys() == {"options", "answer"}, (
        "no column of the authors' is carried along"
    )


@pytest.mark.parametrize(
    ("row", "id", "answer", "tags"),
    [
        ({"id": 60, "problem": "p", "solution": "s", "answer": "204", "url": "u", "year": "2024"}, "60", "204", ()),
        ({"ID": "2024-I-1", "Problem": "p", "Solution": "s", "Answer": 33}, "2024-I-1", 33, ()),
        ({"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "p", "Answer": "60", "Part": None}, "1983-1", "60", ()),
        ({"problem_idx": 1, "problem": "p", "answer": 204}, "f:1", 204, ()),
        (
            {"problem": "p", "solution": "s", "answer": "3", "subject": "Algebra", "level": 2, "unique_id": "test/a/1.json"},
            "test/a/1.json", "3", ("Algebra", "level-2"),
        ),
        (
            {"metadata": "{'topic': 'Art', 'answer_type': 'Person', 'urls': ['u']}", "problem": "p", "answer": "Ann"},
            "f:1", "Ann", ("Art",),
        ),
    ],
)  # fmt: skip
def test_answers_that_are_written(
    row: dict[str, Any], id: str, answer: Any, tags: tuple[str, ...]
) -> None:
    problem = read(row)
    assert (problem.id, problem.prompt, problem.tags) == (id, "p", tags)
    assert problem.spec["answer"] == answer and problem.verifier is None


def test_a_rows_own_keys_are_kept() -> None:
    problem = read(
        {**MMLU, "verifier": "choice + think_format*0.1", "tags": "mine", "think": "empty"}
    )
    assert problem.verifier == "choice + think_format*0.1" and problem.think == "empty"
    assert problem.tags == ("mine", "biology")
    own = {"question": "A) x B) y", "options": ["x", "y"], "answer": "B"}
    assert read(own) == Problem(
        "f:1", "A) x B) y", {"options": ["x", "y"], "answer": "B"}, None, (), "f:1"
    )
    assert read({"prompt": "p", "choices": ["a"], "answer": 0}).prompt == "p"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({**MMLU, "answer": 4}, "f:1 answer: found 4; accepted: the index of one of the 4 options"),
        ({**MMLU_PRO, "answer_index": -1}, "f:1 answer_index: found -1"),
        ({**ARC, "answerKey": "D"}, "f:1 answerKey: found 'D'; accepted: one of 1, 2, 3"),
        ({**ARC, "choices": {"text": ["a"]}}, "f:1 choices: found {'text': ['a']}; accepted"),
    ],
)
def test_complaints(row: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read(row)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_published_files_are_parquet(tmp_path: Path) -> None:
    for number, row in enumerate((MMLU, MMLU_PRO, ARC)):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{number}.parquet")
        (problem,) = load_problems([str(tmp_path / f"{number}.parquet")])
        assert problem.spec == read(row).spec and problem.prompt == read(row).prompt
