"""Users' rewards are called on the rows before a model is loaded: a row that one cannot judge is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.config import DataConfig
from assay.errors import DataError
from assay.session.reward_trial import answer_of, try_rewards
from assay.testing import save_tiny_model
from assay.types import Problem
from assay.verify.service import VerifierService

REWARDS = "tried_rewards"
SUMS = [{"answer": str(n)} for n in range(2, 6)]


@pytest.fixture(scope="module")
def service() -> Iterator[VerifierService]:
    with VerifierService("exact", num_workers=1, allow=[REWARDS], give_up_after=2) as service:
        yield service


def tried(
    service: VerifierService,
    reward: str,
    specs: list[dict[str, Any]],
    seconds: float = 60.0,
    **data: Any,
) -> list[str]:
    """Return what a trial says of a reward on rows."""
    verifier = reward if reward == "exact" else f"{REWARDS}:{reward}"
    rows = [
        Problem(f"p{n}", f"{n} =", spec, verifier=verifier, source=f"rows.jsonl:{n + 1}")
        for n, spec in enumerate(specs)
    ]
    return try_rewards(rows, "training rows", service, DataConfig(**data), seconds)


def refusal(service: VerifierService, reward: str, specs: list[dict[str, Any]]) -> str:
    with pytest.raises(DataError) as told:
        tried(service, reward, specs)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_a_reward_that_works_is_told_in_a_line(service: VerifierService) -> None:
    said = "tried_rewards:right: tried on 4 training rows; their own answers earn 1.00"
    assert tried(service, "right", SUMS) == [said]
    assert service.nothing_judged_yet and not service.take_metrics(), (
        "the first step is not here yet"
    )


def test_a_row_without_the_key_is_told_with_its_place(service: VerifierService) -> None:
    words = refusal(service, "right", [*SUMS, {"anser": "7", "level": 1}, *SUMS])
    assert words.startswith("rows.jsonl:5: tried_rewards:right cannot judge this row: KeyError: ")
    assert "this row has no key 'answer', did you mean anser?; it has: anser, level" in words
    assert words.endswith("; fix the row or the reward")


def test_a_key_that_no_row_has_is_told_once(service: VerifierService) -> None:
    words = refusal(service, "misspelled", SUMS)
    assert words.startswith("rows.jsonl:1: tried_rewards:misspelled cannot judge this row (and 3 ")
    assert "(tried_rewards.py:" in words and "did you mean answer?" in words


def test_who_asks_for_the_question_is_told_where_it_is(service: VerifierService) -> None:
    assert "it is problem.question" in refusal(service, "asks_for_question", SUMS)


def test_a_row_that_fails_with_answers_of_others_is_at_fault(service: VerifierService) -> None:
    words = refusal(service, "near_number", [*SUMS, {"answer": "n/a"}])
    assert words.startswith("rows.jsonl:5: ") and "could not convert" in words


@pytest.mark.parametrize(
    ("reward", "specs", "said"),
    [
        # its own answer is at fault, and not the row: other completions are judged
        ("parsed", [*SUMS, {"answer": "n/a"}], ["1.00; 1 could not be judged"]),
        # whether completions will be like that is not known: a warning, and no refusal
        ("json_only", SUMS, ["warning: tried_rewards:json_only failed on each of 4 training rows"]),
        ("out_of_ten", SUMS, ["returned 10.0; accepted: a correctness from 0 to 1"]),
        ("tolerant", [{"answer": "2"}, {"hard": 1}], ["earn 0.75"]),
        ("siblings", [{"answer": "22", "longest": 4}], ["earn 0.50"]),
        ("none", SUMS, []),
        ("exact", [{"answer": "2"}], []),  # a built-in one says what it reads
    ],
)
def test_what_may_work_is_not_refused(
    service: VerifierService, reward: str, specs: list[dict[str, Any]], said: list[str]
) -> None:
    lines = tried(service, reward, specs)
    assert [word in line for word, line in zip(said, lines, strict=True)] == [True] * len(said)


def test_a_reward_that_is_no_correctness_may_say_any_number(service: VerifierService) -> None:
    row = Problem("p", "q", {"answer": "2"}, verifier=f"exact + {REWARDS}:out_of_ten*0.1")
    (line,) = try_rewards([row], "rows", service, DataConfig(), 60.0)
    assert line.endswith("tried on 1 rows; their own answers earn 10.00")


def test_the_reward_of_a_tag_is_tried_on_its_rows() -> None:
    tags = {"sums": f"{REWARDS}:right"}
    row = Problem("p", "q", {"answer": "2"}, tags=("sums",))
    with VerifierService("exact", num_workers=1, by_tag=tags) as tagged:
        (line,) = try_rewards([row], "rows", tagged, DataConfig(), 60.0)
    assert line.startswith(f"{REWARDS}:right: tried on 1 rows")


def test_the_completion_has_reasoning_where_the_prompt_asks_for_it(
    service: VerifierService,
) -> None:
    for think in ("free", "opened"):
        (line,) = tried(service, "reasoned", [{"answer": "2"}], think=think)
        assert line.endswith("earn 1.00")
    assert tried(service, "reasoned", [{"answer": "2"}])[0].endswith("earn 0.00")


def test_where_bad_rows_are_skipped_a_warning_is_given(service: VerifierService) -> None:
    (line,) = tried(service, "right", [*SUMS, {}], on_bad_row="skip")
    assert line.startswith("warning: rows.jsonl:5: ") and line.endswith("will not be judged")


def test_a_slow_reward_takes_no_longer_than_it_may(service: VerifierService) -> None:
    assert tried(service, "hangs", SUMS, seconds=0.3) == []
    assert tried(service, "right", SUMS)[0].endswith("earn 1.00"), "the workers still work"


def test_an_answer_is_the_row_s_or_its_first_text() -> None:
    specs = {"7": {"level": [2], "answer": 7}, "a": {"answers": ["a", "b"]}, "42": {"tests": [{}]}}
    assert {answer_of(Problem("p", "q", spec)) for spec in specs.values()} == set(specs)


def write_run(folder: Path, reward: str, **verification: Any) -> Path:
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"question": f"{n}=", "file": "calls"}) + "\n" for n in range(3))
    )
    keys = "".join(f"{key} = {value}\n" for key, value in verification.items())
    (folder / "run.toml").write_text(
        f'[model]\npath = "model"\n[data]\ntrain = ["rows.jsonl"]\nverifier = "{REWARDS}:{reward}"\n'
        f"[sampling]\nmax_tokens = 2\n[verification]\nnum_workers = 1\n{keys}"
        "[rl]\nsteps = 1\nnum_prompts = 1\ngroup_size = 2\n"
    )
    return folder / "run.toml"


@pytest.mark.parametrize("call", [assay.train, assay.dry_run])
def test_a_command_ends_before_a_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> None:
    """The folder of the model is empty, which is not noticed: the row is told first."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(DataError, match=r"^rows.jsonl:1: tried_rewards:right cannot judge this"):
        call(write_run(tmp_path, "right"))
    assert DataError.exit_code == 2 and not (tmp_path / "runs").exists()


def test_a_run_says_how_the_trial_went_and_can_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save_tiny_model("model")
    assay.train(write_run(tmp_path, "counted"))
    assert "tried_rewards:counted: tried on 3 training rows" in capsys.readouterr().err
    assert len(Path("calls").read_text().splitlines()) == 3 + 2
    assay.train(write_run(tmp_path, "counted", trial_seconds=0))
    assert "tried on" not in capsys.readouterr().err
    assert len(Path("calls").read_text().splitlines()) == 3 + 2 + 2
