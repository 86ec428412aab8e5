"""Environments of the library verifiers 0.1, played as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.data.rows import read_problem
from assay.errors import ConfigError, MissingExtra
from assay.generate.turns import hub_environment
from assay.generate.turns.hub_environment import HubEnvironment
from assay.types import Completion, ThinkFormat

HERE = Path(__file__).parent


def test_without_the_library_the_install_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "verifiers", None)
    with pytest.raises(MissingExtra, match=r'wordle needs verifiers 0.1: .*"verifiers<0.2"'):
        HubEnvironment("wordle")
    assert hub_environment.INSTALL


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch) -> HubEnvironment:
    library = pytest.importorskip(
        "verifiers", reason="needs verifiers 0.1, which the dev extra lacks"
    )
    if not hasattr(library, "load_environment"):
        pytest.skip("verifiers is of another version than 0.1")
    monkeypatch.syspath_prepend(HERE)
    return HubEnvironment("hub-digits", size=3)


def test_rows_and_turns_and_rewards_are_its_own(digits: HubEnvironment) -> None:
    rows: list[dict[str, Any]] = [*digits.rows()]
    assert len(rows) == 3 and rows[1]["id"] == "hub-digits-train-1" and rows[1]["answer"] == "1"
    problem = read_problem(rows[1], "rows:1", "default")
    assert digits.begun(problem).question == "digit 1?"
    conversation = digits.open_conversation(problem, ThinkFormat())
    told = conversation.respond("4")
    assert told == [{"role": "user", "content": "no, not in p1"}]
    assert conversation.respond("1") is None and conversation.is_over
    assert conversation.reward["score"] == 1.0 == conversation.reward["found"]
    assert conversation.reward["num_words"] == 7.0  # 4, no, not in p1, 1, yes
    spans = ((0, 1), (2, 3))
    judged = digits(problem, Completion.from_text("4=1", said=spans))
    assert {**judged} == {**conversation.reward}


def test_its_limit_of_turns_ends_it(digits: HubEnvironment) -> None:
    problem = read_problem(next(digits.rows()), "rows:1", "default")
    conversation = digits.open_conversation(problem, ThinkFormat())
    assert [conversation.respond(str(n)) is None for n in (7, 8, 9)] == [False, False, True]
    assert conversation.reward["score"] == 0.0 and conversation.reward["num_turns"] == 3


def test_an_environment_that_is_not_there_is_told_in_one_line(digits: HubEnvironment) -> None:
    with pytest.raises(ConfigError, match=r"environment no-such: .*prime env install no-such"):
        HubEnvironment("no-such")
