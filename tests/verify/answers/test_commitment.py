"""What a text commits itself to, for every verifier of answers."""

import pytest

from assay.verify import checker
from assay.verify.answers.commitment import commitment

INSIDE = [
    r"\boxed{<answer>%s</answer> No wait, %s.}",
    r"\boxed{<answer>%s</answer> No wait, %s}",
    r"<answer>\boxed{%s} No wait, %s.</answer>",
]


@pytest.mark.parametrize(
    ("name", "gold", "other"),
    [
        ("math", "5", "6"),
        ("exact", "5", "6"),
        ("choice", "B", "C"),
        ("entailment", "True", "False"),
    ],
)
@pytest.mark.parametrize("form", INSIDE)
def test_words_inside_a_mark_take_back_the_mark_in_it(
    name: str, gold: str, other: str, form: str
) -> None:
    judge = checker(name)
    assert judge(form % (gold, other), gold).status == "failed"
    alone = form.replace(" No wait, %s", "").replace(".", "")
    assert judge(alone % gold, gold).status == "passed"


def test_a_mark_around_another_ends_with_it_where_nothing_is_said_between() -> None:
    assert commitment(r"<answer>\boxed{5}</answer> is wrong").parts == ()
    assert commitment(r"<answer>\boxed{5} </answer>.").parts == ("5",)
    assert commitment(r"<answer>\boxed{5} is wrong</answer>").parts == ()
