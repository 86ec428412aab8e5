"""Questions of public benchmarks, in the shapes in which they are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assay.data.bfcl import rows
from assay.data.problems import load_problems
from assay.data.rows import read_problem
from assay.errors import DataError
from assay.types import Completion, Problem
from assay.verify.answers.choice import judge_choice
from assay.verify.answers.function_calls import judge_calls
from assay.verify.answers.spans import judge_spans

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
DROP = {
    "section_id": "nfl_1", "query_id": "q1", "passage": "Smith and Jones scored. ",
    "question": "Who scored?", "answers_spans": {"spans": ["Smith", "Jones"], "types": ["span", "span"]},
}  # fmt: skip
NO_DATE = {"day": "", "month": "", "year": ""}
DROP_ANNOTATED = {
    **{key: DROP[key] for key in ("section_id", "query_id", "passage", "question")},
    "answer": {"number": "", "date": {**NO_DATE, "month": "March", "year": "1797"}, "spans": [], "worker_id": "w", "hit_id": "h"},
    "validated_answers": {
        "number": ["", "7"], "date": [NO_DATE, NO_DATE], "spans": [["Ann", "Bob"], []],
        "worker_id": ["a", "b"], "hit_id": ["c", "d"],
    },
}  # fmt: skip
WEATHER = {
    "name": "weather", "description": "The weather.",
    "parameters": {"type": "dict", "required": ["city"], "properties": {"city": {"type": "string"}}},
}  # fmt: skip
BFCL = {
    "id": "parallel_0",
    "question": [[{"role": "user", "content": "Rome?"}]],
    "function": [WEATHER],
}
BFCL_ANSWER = {"id": "parallel_0", "ground_truth": [{"weather": {"city": ["Rome"]}}]}


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
def test_written_answers_become_the_spec(
    row: dict[str, Any], id: str, answer: Any, tags: tuple[str, ...]
) -> None:
    problem = read(row)
    assert (problem.id, problem.prompt, problem.tags) == (id, "p", tags)
    assert problem.spec["answer"] == answer and problem.verifier is None


def test_drop_accepts_every_annotators_answer() -> None:
    flat, annotated = read(DROP), read(DROP_ANNOTATED)
    for problem in (flat, annotated):
        assert (problem.id, problem.verifier) == ("q1", "drop")
        assert isinstance(problem.prompt, str)
        assert problem.prompt.startswith("Smith and Jones scored.\n\nWho scored?\n\nAnswer with")
    assert flat.spec == {"answers": [["Smith", "Jones"]]}
    assert annotated.spec == {"answers": [["March 1797"], ["Ann", "Bob"], ["7"]]}
    columns = {key: DROP_ANNOTATED["validated_answers"][key] for key in ("number", "date", "spans")}
    listed = [dict(zip(columns, one, strict=True)) for one in zip(*columns.values(), strict=True)]
    assert read({**DROP_ANNOTATED, "validated_answers": listed}).spec == annotated.spec
    for text, value in (("Jones | Smith", 1.0), ("Smith", 0.5), ("Lee", 0.0)):
        assert judge_spans(flat, Completion.from_text(text)).value == value


def test_bfcl_shows_its_functions_and_judges_calls() -> None:
    problem = read({**BFCL, **BFCL_ANSWER})
    assert (problem.id, problem.verifier) == ("parallel_0", "function_calls")
    assert not isinstance(problem.prompt, str)
    system, user = problem.prompt
    assert user == {"role": "user", "content": "Rome?"}
    assert system["content"].startswith("Answer by calling") and '"weather"' in system["content"]
    for text, value in (('[weather(city="Rome")]', 1.0), ('[weather(city="Ulm")]', 0.0)):
        assert judge_calls(problem, Completion.from_text(text)).value == value
    own = [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rome?"}]]
    told = read({**BFCL, "question": own, "ground_truth": []})
    assert "ground_truth" not in read(BFCL).spec, "no answers: not that no call is right"
    assert told.prompt[0]["content"].startswith("Be brief.\n\nAnswer by calling")  # type: ignore[index]
    assert judge_calls(told, Completion.from_text("I cannot.")).value == 1.0  # no call is expected


def test_bfcl_is_published_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "q.json").write_text(f"{json.dumps(BFCL)}\n{json.dumps({**BFCL, 'id': 'b'})}\n")
    (tmp_path / "a.json").write_text(json.dumps(BFCL_ANSWER))
    questions, answers = tmp_path / "q.json", tmp_path / "a.json"
    alone = list(rows(str(questions)))
    assert [read(row).spec["ground_truth"] for row in alone] == [[], []]
    with pytest.raises(DataError, match=r"q.json b: found no answer; accepted: one in .*a.json"):
        list(rows(str(questions), str(answers)))
    questions.write_text(json.dumps(BFCL))
    source = f"assay.data.bfcl:rows?questions={questions}&answers={answers}"
    (problem,) = load_problems([source])
    assert problem.spec["ground_truth"] == BFCL_ANSWER["ground_truth"]
    with pytest.raises(DataError, match="keys id, ground_truth; accepted: a row with id and ques"):
        list(rows(str(answers)))
    questions.write_text(json.dumps({**BFCL, "id": "live_relevance_0-0-0"}))
    with pytest.raises(DataError, match=r"any call is right.*remove the category relevance"):
        list(rows(str(questions)))


def test_bfcl_may_offer_no_function() -> None:
    """Some rows of live_irrelevance have an empty list of functions."""
    none = read({**BFCL, "function": [], "ground_truth": []})
    for text, value in (("I (alone) cannot.", 1.0), ('[weather(city="Rome")]', 0.0)):
        assert judge_calls(none, Completion.from_text(text)).value == value


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
        (
            {**DROP, "answers_spans": {"spans": []}},
            'f:1 answer: found none; accepted: "answers_spans"',
        ),
        ({**BFCL, "question": 5}, "f:1 question: found 5; accepted: a list of one list of"),
        ({**BFCL, "question": [["Rome?"]]}, "f:1 question: found [['Rome?']]; accepted"),
        ({**BFCL, "question": [[{"role": "user"}]]}, "f:1 question: found [[{'role': 'user'}]]"),
        ({**DROP, "question": None}, "f:1 question: found None; accepted: text"),
        (
            {key: value for key, value in DROP.items() if key != "question"},
            "f:1 question: found None; accepted: text",
        ),
        (
            {**DROP, "answers_spans": {"spans": "Smith"}},
            "f:1 answer: found a value that cannot be read",
        ),
        ({**DROP, "answers_spans": {"spans": 5}}, "f:1 answer: found a value that cannot be read"),
        (
            {**DROP_ANNOTATED, "validated_answers": {"number": ["1"], "spans": []}},
            "f:1 answer: found a value that cannot be read",
        ),
        (
            {**DROP_ANNOTATED, "answer": {"date": "1797"}},
            "f:1 answer: found a value that cannot be read",
        ),
        ({**BFCL, "question": [[], []]}, "f:1 question: found 2 turns; accepted: one turn"),
        ({**ARC, "choices": {"text": ["a"]}}, "f:1 choices: found {'text': ['a']}; accepted"),
    ],
)
def test_complaints(row: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read(row)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_published_files_are_parquet(tmp_path: Path) -> None:
    for number, row in enumerate((MMLU, MMLU_PRO, ARC, DROP, DROP_ANNOTATED)):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{number}.parquet")
        (problem,) = load_problems([str(tmp_path / f"{number}.parquet")])
        assert problem.spec == read(row).spec and problem.prompt == read(row).prompt
