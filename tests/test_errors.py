"""The error tree: exit codes, standard types, pickling, and the one form of a message."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from assay import errors

TREE = [
    thing
    for _, thing in inspect.getmembers(errors, inspect.isclass)
    if thing.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", TREE)
def test_an_error_survives_pickling(kind: type[errors.AssayError]) -> None:
    error = kind("run.toml:12 rl.steps: found 0; accepted: a whole number >= 1")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == error.args[0]


@pytest.mark.parametrize("kind", TREE)
def test_the_drawn_tree_is_the_real_one(kind: type[errors.AssayError]) -> None:
    drawn = re.search(rf"{kind.__name__}(?: \((\w+)\))?", errors.__doc__ or "")
    assert drawn is not None, "draw the error in the docstring of errors.py"
    standard = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
    assert [drawn[1]] == (standard or [None]) or kind is errors.AssayError


@pytest.mark.parametrize("kind", TREE)
def test_wrong_input_exits_2_and_the_rest_1(kind: type[errors.AssayError]) -> None:
    assert kind.exit_code == (2 if issubclass(kind, errors.UserError) else 1)


def test_a_missing_extra_names_its_install_command() -> None:
    error = errors.MissingExtra.of("peft", "lora", "model.lora")
    assert str(error) == 'model.lora needs peft: install it with  pip install "assay-rl[lora]"'
    assert isinstance(error, ImportError)
    assert isinstance(pickle.loads(pickle.dumps(error)), errors.MissingExtra)


def test_a_message_says_where_what_accepted_and_remedy() -> None:
    text = errors.message("rows.jsonl:3 answer", "nothing", "text or a number", "add it")
    assert text == "rows.jsonl:3 answer: found nothing; accepted: text or a number; add it"
    assert errors.message("a", 1, "2") == "a: found 1; accepted: 2"


@pytest.mark.parametrize(
    ("found", "known", "meant"),
    [
        ("gpro", ["gspo", "grpo", "ppo"], ["grpo"]),  # two letters changed places
        ("dpao", ["dapo", "dpo_norm", "dpo"], ["dapo"]),
        ("mth", ["math", "match"], ["math"]),
        ("zzzz", ["math"], []),
        ("Grpo", ["GRPO", "gspo"], ["GRPO"]),  # capitals are no edits
    ],
)
def test_the_nearest_name_has_the_fewest_edits(
    found: str, known: list[str], meant: list[str]
) -> None:
    assert errors.nearest(found, known) == meant


def test_several_near_names_come_nearest_first() -> None:
    assert errors.nearest("sun", ["sums", "moon", "sum", "sun_1"], 0.4, most=2) == ["sum", "sums"]
    assert errors.did_you_mean("sun", ["moon", "sum"]) == "did you mean sum?"
    assert errors.did_you_mean("sun", ["moon"]) == ""


def test_an_edit_is_a_letter_put_in_left_out_changed_or_swapped() -> None:
    pairs = {("", "ab"): 2, ("ab", "ba"): 1, ("gpro", "grpo"): 1, ("gpro", "gspo"): 2}
    assert {pair: errors.edits(*pair) for pair in pairs} == pairs
