"""Which answer a text commits to."""

from __future__ import annotations

from typing import Any

import pytest
from growth import LINEAR, growth
from hypothesis import given
from hypothesis import strategies as st

from assay.verify.answers.extraction import find_answer


def parts(text: str, **options: Any) -> tuple[str, ...] | None:
    found = find_answer(text, **options)
    return found.parts if found else None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\fbox{5}", "5"),
        (r"\boxed 5", "5"),
        (r"\boxed{3} is wrong. " + "We go on for long. " * 9 + r"So \boxed{6}", "6"),
        ("<answer>5</answer>", "5"),
        ("<ANSWER> 5 </ANSWER> done", "5"),
        ("<answer>\nThe result is \\boxed{5}\n</answer>", "5"),
        ("<answer>so the answer is 7</answer>", "7"),
        ("She makes 9*2 = 18 dollars.\n#### 18", "18"),
        ("A: 17\nQ: more?\nA: 18", "18"),
        ("Final: 5", "5"),
        ("The answer is 42.", "42"),
        ("the answer is: **42**", "42"),
        ("**Answer:** 42", "42"),
        ("**Final Answer**: $42$", "$42$"),
        ("**Final Answer**\n\n\\[ 42 \\]", r"\[ 42 \]"),
        ("Final Answer: The final answer is $42$. I hope it is correct.", "$42$"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("The answer to the question is 3.5. Next", "3.5"),
        ("The answer is 3/4 of a cup", "3/4"),
        ("The answer is yes.", "yes"),
        ("Answer: 3\nExplanation: 1+2=3, not 4", "3"),
        (r"\boxed{42}. So the answer is 43.", "43"),
        (r"\boxed{42}. The answer is correct.", "42"),
        (r"\boxed{42}. To check the answer: 42/2 = 21.", "42"),
        ("答案是2。", "2"),
        ("Réponse: il reste 220 $ dans 12 mois.", "220 $"),
        ("x = 13", "x = 13"),
        ("13", "13"),
        ("1 000", "1 000"),
        ("\\boxed{5}\n<|im_end|>\n<|im_start|>user \\boxed{6}", "5"),
    ],
)
def test_marked_answers(text: str, answer: str) -> None:
    assert parts(text, fallback="none") == (answer,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "no answer here at all, sorry about that",
        r"\boxed{}",
        r"\boxed{5",
        "<answer></answer>",
        "<answer>5",
        r"\boxed{5} and then \boxed{",
        "We get 3, 4 and 5 in turn and go on",
        "Then 12 +",
        r"\boxed",
    ],
)
def test_texts_that_commit_to_no_answer(text: str) -> None:
    found = parts(text, fallback="none")
    assert found is None or (found == ("5",) and r"\boxed{5}" in text)


def test_neighbors_are_parts_of_one_answer() -> None:
    assert parts(r"\boxed{5} and \boxed{6}") == ("5", "6")
    assert parts(r"$\boxed{5}$, \(\boxed{6}\)") == ("5", "6")
    assert parts(r"x = \boxed{5}, y = \boxed{6}") == ("5", "6")
    assert parts("\\boxed{5}\n\n\\boxed{6}") == ("5", "6")
    assert parts(r"It could be \boxed{5}. Alternatively it is \boxed{6}") == ("5", "6")
    assert parts("<answer>5</answer> <answer>6</answer>") == ("5", "6")
    assert parts(r"\boxed{5}, \boxed{5}") == ("5",)


def test_boxes_far_apart_are_kept_as_earlier() -> None:
    found = find_answer(
        r"First \boxed{3} stands here for a reason that we now explain at length; \boxed{6}"
    )
    assert found is not None
    assert (found.parts, found.earlier) == (("6",), ("3",))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("48/2 = 24 in May.\nNatalia sold 48+24 = 72 clips altogether.", "72"),
        ("So it takes 3.5 hours.", "3.5 hours"),
        ("Therefore, there are 12 sequences that meet the conditions. I hope it is correct.", "12"),
        ("the number is not 10 which is 1,000.99€", "1,000.99€"),
        ("So the pair $(x, y)$ that solves it is $(7, 6)$.", "$(7, 6)$"),
        ("En conclusion, la probabilité est de **25%**.", "25%"),
        ("所以一共有3 + 10 = 13只鸟。", "13"),
        ("Nobody else could. So the winner is Alice.", "Alice"),
        ("Hence the winner is not Alice.", "not Alice"),
        ("The roots of it are 1, 2 and 3.", "1, 2 and 3"),
        ("We count 5, then 7. The total is 12 apples.", "12"),
    ],
)
def test_the_last_sentence_may_hold_the_answer(text: str, answer: str) -> None:
    assert parts(text, fallback="sentence") == (answer,)


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("It costs 7 dollars.", "one_sentence"),
        ("the number is not 10, it is 7", "one_sentence"),
        ("We add 2 to 1, and so on.\n\n7", "last_line"),
        ("2x = 14\nx = 7", "last_line"),
        ("We add 2 to 1, and so on. The total is **7**.", "final_emphasis"),
        ("There are 7. I hope it is correct.", "one_sentence"),
    ],
)
def test_a_reply_may_commit_without_a_mark(text: str, how: str) -> None:
    found = find_answer(text)
    assert found is not None
    assert found.how == how
    assert "7" in found.parts[0]


@pytest.mark.parametrize(
    "text",
    [
        "48/2 = 24 in May.\nNatalia sold 48+24 = 72 clips altogether.",
        "Nobody knows. So it takes 3.5 hours.",
        "Is it 7?",
        "It may be 7.",
        "Suppose the answer is 7.",
        "It is less than 7.",
        "x = 6\nx = 7",
        "- 6\n- 7",
        "6\n\n7",
        "**6**\n**7**",
        "It costs 6 here and 7 there.",
    ],
)
def test_the_last_number_of_a_text_is_no_commitment(text: str) -> None:
    assert parts(text) is None


def test_a_truncated_text_needs_a_closed_mark() -> None:
    assert parts("The answer is 1", truncated=True) is None
    assert parts("The answer is 12.\nSo", truncated=True) == ("12",)
    assert parts(r"\boxed{12} as", truncated=True) == ("12",)
    assert parts("x = 1", truncated=True) is None


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("The answer is 5 or 6", None),
        (r"\boxed{5}, or possibly 6", ("5", "6")),
        ("The answer is 5. It could also be 6.", ("5", "6")),
        (r"\boxed{5}. However, 6 is also possible.", ("5", "6")),
        ("A: 5\nA: 6", ("5", "6")),
        ("Option 1: \\boxed{5}\nOption 2: \\boxed{6}", ("5", "6")),
    ],
)
def test_alternatives_are_parts(text: str, answers: tuple[str, ...] | None) -> None:
    found = parts(text)
    assert found == answers or (answers is None and found is not None and found[0] not in "56")


@pytest.mark.parametrize(
    "text",
    [
        "there are 12 apples in 3 baskets at 5 dollars",
        "12 + 5 = 17 and then 17 +",
        "AZYUK2A is it so",
    ],
)
def test_an_unclear_last_sentence_holds_none(text: str) -> None:
    assert parts(text, fallback="sentence") is None


def test_the_last_number_is_an_option() -> None:
    text = "there are 12 apples in 3 baskets at 5 dollars"
    assert parts(text, fallback="last_number") == ("5",)
    assert parts("nothing", fallback="last_number") == (
        "nothing",
    )  # a reply of one word is an answer alone


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5. Actually, it is 6.", "6"),
        ("The answer is 5. Sorry, 6.", "6"),
        ("The answer is 5. Actually, it is 6, not 5.", "6"),
        (r"\boxed{5}. No, it should be 6.", "6"),
        ("\\boxed{5}\nCorrection: 6", "6"),
        (r"\boxed{5}... I mean \boxed{6}", "6"),
        ("The answer is 5, wait, the answer is 6", "6"),
        ("The answer is not 5. The answer is 6.", "6"),
        ("The answer is not 5 but 6.", "6"),
        (r"\boxed{6}. No other solutions exist.", "6"),
        (r"\boxed{6}. Wait, let me check: 2 + 4 = 6.", "6"),
        (r"\boxed{6}. Actually, 3 of them are red.", "6"),
        (r"\boxed{5} (wrong)", None),
        (r"\boxed{5}? No.", None),
        ("\\boxed{5}\n\nActually that is wrong.", None),
        ("#### 5\nWait, that's wrong.", None),
    ],
)
def test_what_follows_may_correct_an_answer_or_take_it_back(text: str, answer: str | None) -> None:
    assert parts(text) == (None if answer is None else (answer,))


def test_a_correction_that_was_cut_off_leaves_no_answer() -> None:
    assert parts(r"\boxed{5}. No, it should be 6", truncated=True) is None
    assert parts(r"\boxed{5}. No, it should be 6") == ("6",)


@pytest.mark.parametrize(
    "text",
    [
        r"<!-- \boxed{6} -->",
        r"<!-- \boxed{6}",
        "So\n% \\boxed{6}",
        r"\iffalse\boxed{6}\fi",
        r"\begin{comment}\boxed{6}\end{comment}",
        r"~~\boxed{6}~~",
        r"\sout{\boxed{6}}",
        r"\cancel{\boxed{6}}",
        r"\neq \boxed{6}",
        r"Put your answer as \boxed{6}",
        r"For example, \boxed{6} is the format.",
        r"<|im_start|>user\boxed{6}",
    ],
)
def test_a_box_that_is_not_shown_or_not_meant_is_no_answer(text: str) -> None:
    assert parts(text) is None
    assert parts(rf"\boxed{{7}} {'is what we get, as was shown. ' * 5}" + "\n" + text) in (
        ("7",),
        None,
    )


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"-\boxed{6}", "-6"),
        (r"- \boxed{6}", "6"),
        (r"\boxed{6}^2", "6^2"),
        (r"\boxed{6}^\circ", "6"),
        (r"\boxed{6}.5", "6.5"),
        (r"\boxed{6} million", "6 million"),
        (r"\phantom{\boxed{6}} 7", "7"),
        (r"\boxed{\text{Answer: }32}", "32"),
        ("#### Answer: 32", "32"),
        ("<|im_start|>assistant\n\\boxed{6}<|im_end|>", "6"),
        ("<|begin_of_text|>6", "6"),
        ("<|begin_of_solution|>\\boxed{6}<|end_of_solution|>", "6"),
        ("There are **14** boxes.", "14"),
        ("So the total is 3 + 11 = 14.", "14"),
        ("x = 3 + 11\nx = 14", "x = 14"),
        ("=> 14", "14"),
        ('{"answer": 72}', "72"),
        ("The answer is 5 squared", "5 squared"),
        ("\\boxed{\\frac{\\pi}{2}}\n\nSo the answer is approximately 1.57.", r"\frac{\pi}{2}"),
        ("\\boxed{5}\n\nSo the answer is approximately 6.", "6"),
    ],
)
def test_what_stands_around_a_mark(text: str, answer: str) -> None:
    assert parts(text) == (answer,)


@given(st.text(alphabet=r"\boxed{}<answer>/ 15.,$*=:iste-(#A", max_size=80))
def test_any_text_gives_an_answer_or_none(text: str) -> None:
    found = find_answer(text)
    assert found is None or all(found.parts)


HOSTILE = {
    "digits": "1" * 100_000,
    "spaces": "a" + " " * 100_000 + "b",
    "lines": "a" + "\n " * 50_000 + "b",
    "anchors": "the answer is " * 7000,
    "words": "answer foo bar baz " * 5000,
    "boxes": r"\boxed{" * 14_000,
    "dollars": "$ 1" * 33_000,
    "brackets": r"\[" * 50_000,
    "tags": "<answer>" * 12_000,
    "stars": "** 1 " * 20_000,
    "commas": "1," * 50_000,
    "fractions": r"\frac{1}{2}" * 9000,
    "dashes": "-" * 100_000,
    "comments": "<!-- \\iffalse ~~ " * 6000,
    "struck": r"\cancel{\boxed{" * 6000,
    "corrected": "The answer is 5. No wait, actually " * 3000,
    "lead-ins": r"\text{the final answer is " * 4000,
    "quotes": '"The answer is 5" ' * 5000,
    "sums": "1 + " * 25_000 + "=",
    "multiples": "a multiple of of the the " * 4000,
    "special": "<|im_start|> " * 7000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_work_grows_with_a_hostile_text(name: str) -> None:
    text = HOSTILE[name]
    assert growth(lambda size: find_answer(text[:size]), len(text)) < LINEAR
