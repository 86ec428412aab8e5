"""Environments: their turns, their rewards, runs with them, kills in the middle of one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_games
import pytest
from own_games import Digit, Exits, Faulty, Silent, Warmer, Wordless
from tool_worlds import check_a_kill_changes_nothing, rollouts_of

import assay
from assay import config as configuration
from assay.config import SamplingConfig
from assay.errors import ConfigError, DataError, RunError, VerifierError
from assay.generate.engine import Engine
from assay.generate.turns.environment import Environment
from assay.generate.turns.reply_controller import ChatFormatter
from assay.generate.turns.toolbox import Toolbox
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, tiny_model
from assay.training.api import train
from assay.types import Completion, Problem, Prompt, StepScore, ThinkFormat

HERE = Path(own_games.__file__).parent
PROBLEM = Problem("p", "Which digit?", {"digit": 5})
PLAYED = "4\nno\n5\n"
"""What the fixture `player` says by heart, with what it is told."""


@pytest.fixture(autouse=True)
def _modules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(HERE)


def completion(*turns: str, told: str = "no\n", **keys: Any) -> Completion:
    """Return the completion of a conversation."""
    text, spans = "", []
    for turn in turns:
        spans.append((len(text), len(text) + len(turn)))
        text += turn + told
    return Completion.from_text(text.removesuffix(told), said=tuple(spans), **keys)


def test_a_conversation_and_its_reward() -> None:
    assert Digit.begun(PROBLEM).prompt == ({"role": "user", "content": "Which digit?"},)
    talk = Digit.open_conversation(PROBLEM, ThinkFormat(mode="opened"))
    assert not talk.is_addressed("5", False) and talk.is_addressed("5\n", True)
    said = "is it 5?</think>4\n"
    assert talk.respond(said) == [{"role": "user", "content": "no"}]
    assert talk.messages[1] == {"role": "assistant", "content": "4\n"}
    assert talk.respond("5\n") is None
    assert talk.is_over and talk.reward == {"score": 1.0, "tries": 2}
    assert talk.respond("5\n") is None  # whatever is said behind the end


def test_a_completion_is_judged_by_playing_it_again() -> None:
    assert Digit(PROBLEM, completion("4\n", "5\n")) == {"score": 1.0, "tries": 2}
    assert Digit(PROBLEM, completion("4\n", "3\n", "2\n")) == {"score": 0.0, "tries": 3}
    assert Digit(PROBLEM, completion("5\n")) == {"score": 1.0, "tries": 1}
    cut = completion("4\n", "5", finish_reason="length")
    assert Digit(PROBLEM, cut) == {"score": 0.0}  # it was not heard
    with pytest.raises(VerifierError, match="not deterministic"):
        Digit(PROBLEM, completion("4\n"))
    with pytest.raises(VerifierError, match="continued after the environment ended"):
        Digit(PROBLEM, completion("5\n", "5\n"))


def test_what_turns_earn_is_added_and_stands_where_they_end() -> None:
    talk = Warmer.open_conversation(PROBLEM, ThinkFormat())
    assert talk.step("3\n") == [{"role": "user", "content": "no"}] and talk.earned == [0.25]
    played = completion("3\n", "4\n", "5\n")
    played = replace(played, turn_ends=(2, 7, 12))
    part = Warmer(PROBLEM, played)
    assert (part.value, part.score) == (1.5, 1.0)
    assert part.components == {"tries": 3.0, "turns": 0.5}
    assert part.step_scores == (StepScore(0.25, 1), StepScore(0.25, 6))
    cut = replace(played, finish_reason="length")
    assert (Warmer(PROBLEM, cut).value, Warmer(PROBLEM, cut).score) == (0.5, 0.0)
    rows = [{"prompt": "?", "digit": 5, "completion": "3\n4\n5", "said": [[0, 2], [2, 4], [4, 5]]}]
    (verdict,) = assay.judge(rows, verifier="own_games:Warmer")
    assert verdict["reward"] == 1.5 and verdict["score"] == 1.0 and verdict["status"] == "passed"


@pytest.mark.parametrize(
    "answer", [{"messages": "no", "close": 1}, {"messages": "", "reward": "x"}]
)
def test_a_malformed_reward_of_an_environment_is_refused(answer: dict[str, Any]) -> None:
    class Says:
        def start(self, problem: Problem) -> str:
            return "?"

        def respond(self, messages: Any) -> Any:
            return answer

    with pytest.raises(VerifierError, match=r"environment respond: found .*accepted: .*a number"):
        Environment(Says).open_conversation(PROBLEM, ThinkFormat()).step("x")


def test_an_environment_that_fails_ends_its_completion_as_not_judged() -> None:
    assert Faulty.open_conversation(PROBLEM, ThinkFormat()).respond("5\n") is None
    rows = [{"prompt": "?", "digit": 5, "completion": "5"}]
    (verdict,) = assay.judge(rows, verifier="own_games:Faulty")
    assert verdict["status"] == "not_judged"
    assert "cannot answer 5 (own_games.py:74)" in verdict["detail"]
    assert Exits.open_conversation(PROBLEM, ThinkFormat()).respond("5\n") is None
    with pytest.raises(DataError, match=r"^f:7 environment: found a row .*KeyError: 'digit'"):
        Exits.begun(Problem("p", "?", source="f:7"))
    with pytest.raises(VerifierError, match=r"environment start: found \{'role': 'user'\}"):
        Wordless.begun(PROBLEM)
    with pytest.raises(VerifierError, match="environment respond"):
        Silent.open_conversation(PROBLEM, ThinkFormat()).step("x")


# runs


def test_an_environment_of_several_turns_is_not_said_to_fail_before_a_run(
    tmp_path: Path, player: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row's answer is one turn of a game: that it does not end there is no failure."""
    tree = tree_of(tmp_path, player, "run", rl={"steps": 1})
    rows = [{"question": f"{n}?", "digit": 5, "answer": "4"} for n in range(10, 18)]
    (tmp_path / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    train(tree, quiet=False)
    told = capsys.readouterr()
    assert "failed on each" not in told.err + told.out


def tree_of(folder: Path, player: Path, name: str, **sections: Any) -> dict[str, Any]:
    problems = folder / "problems.jsonl"
    rows = [{"question": f"{n}?", "digit": 5} for n in range(10, 18)]
    problems.write_text("\n".join(map(json.dumps, rows)))
    tree: dict[str, Any] = {
        "run": {"name": name, "directory": str(folder / "runs"), "threads": 1},
        "model": {"path": str(player)},
        "data": {
            "train": [str(problems)],
            "verifier": "own_games:Digit",
            "prompt_template": "{question}",
        },
        "sampling": {"max_tokens": 24, "stop": ["\n"]},
        "tools": {"environment": "own_games:Digit", "result": "{result}\n"},
        "rl": {"steps": 2, "num_prompts": 2, "group_size": 4},
        "optimizer": {"learning_rate": 1e-4},
        "verification": {"num_workers": 1},
    }
    return {**tree, **{key: {**tree.get(key, {}), **value} for key, value in sections.items()}}


def test_a_run_learns_from_the_turns_of_the_policy(tmp_path: Path, player: Path) -> None:
    run = train(tree_of(tmp_path, player, "run"), quiet=True).run
    rows = rollouts_of(run)
    played = [row for row in rows if row["text"] == PLAYED]
    assert len(rows) == 16 and played
    for row in played:
        sampled = np.array(row["sampled"])
        assert bytes(np.array(row["tokens"])[~sampled].tolist()).decode() == "no\n"
        assert not np.array(row["advantages"])[~sampled].any()
        assert row["said"] == [[0, 2], [5, 7]] and row["finish_reason"] == "stop_string"
        assert row["status"] == "passed" and ("own_games:Digit.tries", 2.0) in row["components"]
    assert all(row["status"] != "not_judged" for row in rows)


@pytest.mark.parametrize("weight", ["", "*2", "*0.5 + constant*0.25"])
def test_credit_by_turns_gives_each_turn_its_own_advantage(
    tmp_path: Path, player: Path, weight: str
) -> None:
    """The run's advantages are those of its logged rewards, turn by turn, among the siblings.

    What a turn earned counts as much as the end does: by the weight of the first term.
    """
    game = {
        "data": {"verifier": f"own_games:Warmer{weight}"},
        "tools": {"environment": "own_games:Warmer"},
        "algorithm": {"name": "rloo", "credit": "turns"},
    }
    rows = rollouts_of(train(tree_of(tmp_path, player, "run", **game), quiet=True).run)
    differs = 0
    for start in range(0, len(rows), 4):
        group = rows[start : start + 4]
        to_go = [_to_go_of_turns(row) for row in group]
        for row, own in zip(group, to_go, strict=True):
            ends = row["turn_ends"] or [len(row["tokens"])]
            advantages, sampled = np.array(row["advantages"]), np.array(row["sampled"])
            for turn, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                others = [found[turn] for found in to_go if found is not own and turn < len(found)]
                want = own[turn] - np.mean(others) if others else 0.0
                np.testing.assert_allclose(
                    advantages[first:end], want * sampled[first:end], atol=1e-5
                )
            differs += len({round(value, 4) for value in advantages[sampled]}) > 1
    assert differs


def _to_go_of_turns(row: dict[str, Any]) -> list[float]:
    ends = row["turn_ends"] or [len(row["tokens"])]
    steps = {step["end"] + 1: step["score"] for step in row["step_scores"] or ()}
    factor = {"own_games:Warmer@1*2": 2.0, "own_games:Warmer@1": 1.0}.get(row["verifier"], 0.5)
    earned = [factor * steps.get(end, 0.0) for end in ends]
    return [row["reward"] - sum(earned[:turn]) for turn in range(len(ends))]


def test_grpo_learns_to_find_the_digit(tmp_path: Path, player: Path) -> None:
    """The player finds the digit in two of five games; the first turn decides which."""
    how = {"rl": {"steps": 10, "num_prompts": 4, "group_size": 8}}
    run = train(
        tree_of(tmp_path, player, "run", **how, optimizer={"learning_rate": 2e-3}), quiet=True
    )
    rows = rollouts_of(run.run)
    found = [row["status"] == "passed" for row in rows]
    assert np.mean(found[-64:]) > np.mean(found[:64]) + 0.2


def test_a_kill_in_the_middle_of_a_game_changes_nothing(tmp_path: Path, player: Path) -> None:
    game = {"tools": {"environment": "own_games:Killed"}}
    whole, killed = (tree_of(tmp_path, player, name, **game) for name in ("whole", "killed"))
    check_a_kill_changes_nothing(whole, killed, GAME_ENDS_AT="30")


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"environment": "own_games:absent"}, "absent"),
        ({"environment": "own_games:not_an_environment"}, "found a type; accepted: an Environment"),
        ({"names": ["calculator"], "environment": "own_games:Digit"}, "names or environment"),
        ({"environment": "game"}, "package.module:object"),
    ],
)
def test_environments_that_cannot_be(
    tmp_path: Path, player: Path, tools: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(tree_of(tmp_path, player, "run", tools=tools), quiet=True)


def test_a_run_from_elsewhere_brings_no_environment(
    tmp_path: Path, player: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(tree_of(tmp_path, player, "run"), quiet=True).run
    monkeypatch.setattr("assay.session.consent.why_not_own", lambda path: "it came by mail")
    with pytest.raises(RunError, match=r"tools\.environment = own_games:Digit"):
        assay.sample(f"{run}@last", "1", quiet=True)


def test_settings() -> None:
    tree = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["x"]}}
    config = configuration.parse({**tree, "tools": {"environment": "a:b"}})
    assert config.tools.environment == "a:b" and configuration.parse(tree).tools.environment is None


def test_games_that_begin_alike_are_no_fault_unless_that_is_asked() -> None:
    def rules(**sections: Any) -> set[str]:
        tree = {"model": {"path": "m"}, "rl": {}, "data": {"train": ["x"]}, **sections}
        return {rule.name for rule in configuration.parse(tree).watched.active()}

    game = {"environment": "a:b"}
    assert rules() - rules(tools=game) == {"same_prompt"}
    asked = {"options": {"same_prompt": {"limit": 0.5}}}
    assert "same_prompt" in rules(tools=game, guard=asked)


def test_an_environment_is_sent_the_turns_that_the_log_holds() -> None:
    """Turns end with an end token, which an environment neither hears at once nor on a replay."""
    heard: list[str] = []

    class Listens:
        def start(self, problem: Problem) -> str:
            self.turns = 0
            return "?"

        def respond(self, messages: Any) -> Any:
            self.turns += 1
            heard.append(messages[-1]["content"])
            return "go on" if self.turns < 3 else 1.0

    tokenizer, ends = byte_tokenizer(CHAT_TEMPLATE), [*range(80, 120), 257]
    names = [tokenizer.convert_ids_to_tokens(number) for number in ends]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    environment = Environment(Listens)
    prompt = Prompt("?", np.array([63], np.int32))
    engine = Engine(tiny_model(), tokenizer, lambda problem: prompt, eos_ids=ends, seed=1)
    engine.make_controller = Toolbox(
        ChatFormatter(tokenizer),
        lambda problem, prompt: environment.open_conversation(problem, prompt.think),
    ).make_controller
    (group,) = engine.generate([PROBLEM], SamplingConfig(max_tokens=200), 1)
    (found,) = group.completions
    assert found.finish_reason == "eos" and len(found.said) == 3
    told, heard[:] = [*heard], []
    assert [*found.turn_texts] == told
    assert environment(PROBLEM, found) == 1.0 and heard == told
