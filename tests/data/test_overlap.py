"""Overlap: what is shared is found, exactly and nearly; what only looks alike is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import problems_of
from hypothesis import given
from hypothesis import strategies as st

from assay.data.overlap import (
    NearQuestions,
    check_overlap,
    holds_own_answer,
    normalize,
    states_own_answer,
    words_in,
)
from assay.data.problems import ProblemSet, load_problems
from assay.errors import DataError
from assay.types import Problem

LONG = "A farmer has twelve cows and sells four of them at the market for ninety dollars each"


def sets(tmp_path: Path, train: list[str], heldout: list[str]) -> tuple[ProblemSet, ProblemSet]:
    return (
        problems_of(tmp_path / "train.jsonl", [{"prompt": text} for text in train]),
        problems_of(tmp_path / "heldout.jsonl", [{"prompt": text} for text in heldout]),
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2 + 2?", "what is   2+2 ?"),
        ("It\u2019s \u201cfive\u201d.", 'It\'s "five"'),
        ("Straße, 1.", "STRASSE 1"),
    ],
)
def test_a_reformatted_heldout_question_is_an_error(tmp_path: Path, one: str, other: str) -> None:
    train, heldout = sets(tmp_path, ["something else", one], ["not that", other])
    with pytest.raises(DataError) as caught:
        check_overlap(train, heldout, near="ignore")
    assert "train.jsonl:2 prompt: found the question of the held-out" in str(caught.value)
    assert "heldout.jsonl:2;" in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3+5-2=", "3-5+2="),
        ("What is 3.5?", "What is 35?"),
        ("What is 1 2?", "What is 12?"),
        ("Compute 5!", "Compute 5"),
        ("f'(x)", "f(x)"),
        ("1,000", "1 000"),
        ("x\u00b2", "x2"),
    ],
)
def test_questions_that_differ_in_a_mark_that_matters_are_two(
    tmp_path: Path, one: str, other: str
) -> None:
    train, heldout = sets(tmp_path, [one], [other])
    assert check_overlap(train, heldout).near_duplicates == ()


def test_chats_are_compared_whole_but_for_the_system_part() -> None:
    def chat(*texts: str) -> Problem:
        roles = ("system", "user", "assistant", "user")
        return Problem(
            "a", tuple({"role": r, "content": t} for r, t in zip(roles, texts, strict=False))
        )

    assert normalize(chat("Be kind.", "2+2?")) == normalize(Problem("b", "2+2"))
    assert normalize(chat("S", "2+2?", "4", "Sure?")) != normalize(chat("S", "3+3?", "6", "Sure?"))


def test_near_duplicates_are_reported_dropped_or_ignored(tmp_path: Path) -> None:
    train, heldout = sets(tmp_path, ["short", f"{LONG} today.", "other"], ["nothing", LONG])
    report = check_overlap(train, heldout)
    (near,) = report.near_duplicates
    assert (near.train.endswith("train.jsonl:2"), near.heldout.endswith("heldout.jsonl:2")) == (
        True,
        True,
    )
    assert (near.share, report.num_dropped, len(report.train)) == (1.0, 0, 3)
    assert "1 training problems nearly repeat held-out problems (kept;" in report.describe()
    dropped = check_overlap(train, heldout, near="drop")
    assert [problem.prompt for problem in dropped.train] == ["short", "other"]
    assert [problem.id for problem in dropped.train] == ["train.jsonl:1", "train.jsonl:3"]
    assert "(dropped)" in dropped.describe()
    assert check_overlap(train, heldout, near="ignore").near_duplicates == ()
    assert len(check_overlap(train, heldout, overlap=1.0).near_duplicates) == 1


def test_dropping_everything_is_an_error(tmp_path: Path) -> None:
    train, heldout = sets(tmp_path, [f"{LONG} today."], [LONG])
    with pytest.raises(DataError, match="only near duplicates of held-out problems"):
        check_overlap(train, heldout, near="drop")


def cut(start: int, length: int, last: str) -> list[str]:
    """Return some words of one long text, so that questions often share 8-grams, and a last one."""
    return [f"word{chr(97 + n)}" for n in range(start, start + length)] + [last]


QUESTIONS = st.lists(
    st.builds(cut, st.integers(0, 6), st.integers(1, 14), st.sampled_from("xyz")),
    min_size=1,
    max_size=6,
)


@given(train=QUESTIONS, heldout=QUESTIONS, overlap=st.sampled_from([0.1, 0.5, 0.75, 1.0]))
def test_shares_equal_those_of_a_plain_double_loop(
    train: list[list[str]], heldout: list[list[str]], overlap: float
) -> None:
    """`check_overlap` needs only a sequence with `select`, so lists stand in for sets."""

    class Listed(list[Problem]):
        def select(self, indices: object) -> Listed:
            return Listed(self[index] for index in indices)  # type: ignore[attr-defined]

    def listed(name: str, rows: list[list[str]]) -> Listed:
        return Listed(Problem(f"{name}{n}", " ".join(words)) for n, words in enumerate(rows))

    def grams(words: list[str]) -> set[tuple[str, ...]]:
        return {tuple(words[n : n + 8]) for n in range(len(words) - 7)}

    expected = {}
    for n, words in enumerate(train):
        shares = [len(grams(words) & grams(h)) / len(grams(h)) for h in heldout if grams(h)]
        if max(shares, default=0) >= overlap:
            expected[f"t{n}"] = max(shares)
    arguments = listed("t", train), listed("h", heldout)
    if any(words in heldout for words in train):
        with pytest.raises(DataError, match="the question of the held-out"):
            check_overlap(*arguments, overlap=overlap)  # type: ignore[arg-type]
        return
    report = check_overlap(*arguments, overlap=overlap)  # type: ignore[arg-type]
    assert {near.train: near.share for near in report.near_duplicates} == expected


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("Is 18 even?", "18", True),
        ("Is 18 even?", 18, True),
        ("Is 18 even?", "8", False),
        ("Is 180 or 18 even?", "18", True),
        ("Solve x+1=2.", "x+1=2", True),
        ("Solve x+1=23", "x+1=2", False),
        ("$x$ is?", "$x$", True),
        ("Is it?", "", False),
        ("Is it true?", True, False),
        ("Is it?", ["it"], False),
    ],
)
def test_prompts_that_hold_their_own_answer(question: str, answer: object, expected: bool) -> None:
    assert holds_own_answer(Problem("a", question, {"answer": answer})) is expected


def test_own_answers_are_counted_in_one_line(tmp_path: Path) -> None:
    train = problems_of(
        tmp_path / "t.jsonl", [{"prompt": "is it 4?", "answer": 4}, {"prompt": "x"}]
    )
    heldout = problems_of(tmp_path / "h.jsonl", [{"prompt": "is it 5 or 6?", "answer": "6"}])
    text = check_overlap(train, heldout).describe()
    assert text.startswith("2 of 3 prompts contain their own answer")
    assert "\n" not in text


def test_neighboring_gym_seeds_share_problems_and_the_error_says_so() -> None:
    train = load_problems(["gym:chain_sum?size=30&seed=0"])
    with pytest.raises(DataError, match="set their seeds further apart than their sizes"):
        check_overlap(train, load_problems(["gym:chain_sum?size=30&seed=5"]))
    check_overlap(train, load_problems(["gym:chain_sum?size=30&seed=1000"]))


def test_real_sets_are_disjoint(shared_data: Path) -> None:
    train = load_problems([str(shared_data / "gsm8k" / "train.jsonl")])
    heldout = load_problems([str(shared_data / "gsm8k" / "test_200.jsonl")])
    report = check_overlap(train, heldout)
    assert report.num_prompts == 7673
    assert len(report.near_duplicates) < 10
    assert 0 < report.num_self_answering < 2000


def test_a_question_with_two_answers_is_told(tmp_path: Path) -> None:
    """Once a row that differs from the one before it; the same answer twice is no contradiction."""
    rows = [("1+1=", "2"), ("2+2=", "4"), ("1 + 1 =", "3"), ("2+2=", "4"), ("1+1=", "2")]
    train = problems_of(
        tmp_path / "train.jsonl", [{"prompt": text, "answer": answer} for text, answer in rows]
    )
    report = check_overlap(train, [])
    places = [[place.rpartition(":")[2] for place in pair] for pair in report.contradictions]
    assert places == [["1", "3"], ["3", "5"]]
    assert "2 training questions are repeated with another answer" in report.describe()
    assert "again" not in check_overlap(train.select([0, 1, 3]), []).describe()


STORY = "A baker sells 14 loaves on Monday and twice as many on Friday. How many loaves in all?"


@pytest.mark.parametrize(
    ("text", "is_similar"),
    [
        ("A baker sells 25 loaves on Monday and twice as many on Friday. How many in all?", True),
        ("On Monday a baker sells 14 loaves, twice as many on Friday. How many loaves?", True),
        ("A farmer has 14 cows and twice as many goats. How many animals in all?", False),
    ],
)
def test_reworded_questions_are_similar(tmp_path: Path, text: str, is_similar: bool) -> None:
    train, heldout = sets(tmp_path, ["short", text], ["nothing", STORY])
    assert check_overlap(train, heldout).near_duplicates == ()
    report = check_overlap(train, heldout, similarity=0.45)
    assert [near.is_similar for near in report.near_duplicates] == [True] * is_similar
    assert ("~" in report.describe() and "(similarity " in report.describe()) is is_similar


def test_short_questions_are_not_similar(tmp_path: Path) -> None:
    train, heldout = sets(tmp_path, ["Find the odd numbers in a list"], ["Find the odd numbers in"])
    assert check_overlap(train, heldout, similarity=0.1).near_duplicates == ()


@given(train=QUESTIONS, heldout=QUESTIONS, limit=st.sampled_from([0.1, 0.4, 0.75, 1.0]))
def test_similarities_equal_those_of_a_plain_double_loop(
    train: list[list[str]], heldout: list[list[str]], limit: float
) -> None:
    def jaccard(one: list[str], other: list[str]) -> float:
        if min(len(one), len(other)) < 8:
            return 0.0
        a, b = ({tuple(words[n : n + 3]) for n in range(len(words) - 2)} for words in (one, other))
        return len(a & b) / len(a | b)

    # An overlap above 1 is never reached, so only the similarity finds a question.
    index = NearQuestions(overlap=1.1, similarity=limit)
    for words in heldout:
        index.add(tuple(words))
    for words in train:
        best = max(jaccard(words, one) for one in heldout)
        found = index.nearest(tuple(words))
        assert (0.0 if found is None else found[1]) == (best if best >= limit else 0.0)


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        ("What is 2+3? The answer is 5.", "5", True),
        ("What is 2+3? Answer: **(5)**", "5", True),
        ("2+3 = 5\n#### 5", 5, True),
        (r"Check \boxed{\frac{1}{2}}.", r"\frac{1}{2}", True),
        ("What is 2+3? The answer is 55.", "5", False),
        ("Is 5 odd? Give the answer as a number.", "5", False),
        ("She has 5 cats. How many cats?", "5", False),
        ("The answer is?", "", False),
        ("The answer is: 5", "5", True),
        ("Answer:\n5", "5", True),
        ("**Answer**: 5", "5", True),
        ("Answer: YES", "yes", True),
        (r"Check \boxed{5}.", "5.0", True),
        ("#### 1,000", "1000", True),
        ("Answer: (A)", "(A)", True),
        ("Answer: [1, 2].", "[1, 2]", True),
        ("The answer is $5.", "$5", True),
        ("The answer is 5.5", "5", False),
        ("The answer is 5,000", "5", False),
        ("The answer is x+1", "x", False),
        ("The answer is a number", "A", False),
    ],
)
def test_prompts_that_state_their_own_answer(question: str, answer: object, expected: bool) -> None:
    assert states_own_answer(Problem("a", question, {"answer": answer})) is expected


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("caf\u00e9", "cafe\u0301", True),
        ("\uff12\uff0b\uff13\uff1d", "2+3=", True),
        ("\u4eca\u5929\u3002", "\u4eca\u5929", True),
        ("x\u00b2", "x2", False),
    ],
)
def test_forms_of_one_letter_are_the_same_word(one: str, other: str, is_same: bool) -> None:
    assert (words_in(one) == words_in(other)) is is_same


@pytest.mark.parametrize(
    "word", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e17\u0e35\u0e48\u0e19\u0e35\u0e48"]
)
def test_vowel_signs_are_part_of_a_word(word: str) -> None:
    assert words_in(word) == (word,)
