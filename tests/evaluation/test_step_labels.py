"""Step labels by rollouts: exact on a scripted generator, the same when killed, and learned from."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from train_worlds import CountingJudge, World

from assay.config import DataConfig, RewardModelConfig, SamplingConfig, build, dump
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, DataError
from assay.evaluation.step_labels import (
    PREFIX,
    PrefixRenderer,
    StepLabeller,
    ToLabel,
    append_labels,
    label_steps,
    labelled_before,
    load_judged,
)
from assay.generate.engine import Engine
from assay.host.files import Journal
from assay.run.rollout_log import RolloutLog
from assay.testing import CHAT_TEMPLATE, ScriptedGenerator, byte_tokenizer
from assay.training.reward_rows import LOADERS, RowReader
from assay.types import Completion, Group, Problem, Verdict

RIGHT = "2+3 is 5\n5+4 is 9\nSo 9"
WRONG = "2+3 is 5\n5+4 is 8\nSo 8"


def goes_on(problem: Problem, sibling: int) -> str:
    """After a right beginning three of four rollouts end well, after the second step all; never after 8."""
    begun = problem.spec[PREFIX]
    if "is 8" in begun:
        return "So 8"
    if "is 9" in begun:
        return "So 9"
    return "5+4 is 9\nSo 9" if sibling % 4 else "5+4 is 7\nSo 7"


def ends_in_answer(problem: Problem, completion: Completion) -> Verdict:
    if "?" in completion.text:
        return Verdict.not_judged("timeout", "fake@1")
    last = completion.text.split("\n")[-1]
    return Verdict.of_score(float(last == f"So {problem.spec['answer']}"), "fake@1")


def item(text: str, name: str) -> ToLabel:
    return ToLabel(Problem(name, "2+3+4?", {"answer": "9"}), Completion.from_text(text, name))


def labeller(**changes: Any) -> StepLabeller:
    settings: dict[str, Any] = {
        "generator": ScriptedGenerator(goes_on),
        "verifiers": CountingJudge(ends_in_answer),
        "sampling": SamplingConfig(max_tokens=32),
        "num_rollouts": 8,
    }
    return StepLabeller(**{**settings, **changes})


def test_labels_are_what_the_rollouts_come_to() -> None:
    right, wrong, short, empty = labeller().label(
        [item(RIGHT, "a"), item(WRONG, "b"), item("So 9", "c"), item("\n", "d")]
    )
    assert right is not None and wrong is not None and short is not None and empty is None
    assert right["soft_labels"] == [0.75, 1.0, 1.0] and right["passed"] == [6, 8, 1]
    assert wrong["soft_labels"] == [0.75, 0.0, 0.0]
    assert right["hard_labels"] == [1, 1, 1] and wrong["hard_labels"] == [1, 0, 0]
    assert right["judged"] == [8, 8, 1] and right["rollouts"] == 16
    assert wrong["labels"] == wrong["hard_labels"]
    assert short["labels"] == [1] and short["rollouts"] == 0
    for row in (right, wrong):
        text, ends = row["completion"], row["step_ends"]
        assert [text[: end + 1].split("\n")[-1] for end in ends] == text.split("\n")


def test_soft_labels_are_learned_from_where_that_is_asked_for() -> None:
    (row,) = labeller(estimate="soft").label([item(RIGHT, "a")])
    assert row is not None and row["labels"] == [0.75, 1.0, 1.0]


def test_what_is_judged_is_the_whole_completion() -> None:
    seen: list[tuple[str, bool]] = []

    def sees(problem: Problem, completion: Completion) -> Verdict:
        seen.append((completion.text, PREFIX in problem.spec))
        return ends_in_answer(problem, completion)

    labeller(verifiers=CountingJudge(sees), num_rollouts=1).label([item(RIGHT, "a")])
    assert seen == [("2+3 is 5\n5+4 is 7\nSo 7", False), (RIGHT, False), (RIGHT, False)]


def test_rollouts_that_are_not_judged_count_for_nothing() -> None:
    def some(problem: Problem, sibling: int) -> str:
        return "So 9" if sibling == 0 else "So 9?" if sibling < 3 else "So 1"

    def never(problem: Problem, sibling: int) -> str:
        return "?"

    (row,) = labeller(generator=ScriptedGenerator(some), num_rollouts=4).label([item(RIGHT, "a")])
    assert row is not None and row["soft_labels"] == [0.5, 0.5, 1.0] and row["judged"] == [2, 2, 1]
    assert labeller(generator=ScriptedGenerator(never)).label([item(RIGHT, "a")]) == [None]


def test_a_labelling_goes_on_where_it_was(tmp_path: Path) -> None:
    items = [item(RIGHT if n % 3 else WRONG, f"c{n}") for n in range(40)]
    whole, parts = Journal(tmp_path / "whole.jsonl"), Journal(tmp_path / "parts.jsonl")
    said: list[str] = []
    result = append_labels(labeller(), items, whole, {"rollouts": 8}, said.append)
    assert result.labelled == 40 and result.steps == 120 and result.rollouts == 40 * 16
    assert said[0].startswith("40 completions, 80 steps to continue: 640 rollouts of at most 32")
    assert result.share_right == pytest.approx((3 * 26 + 14) / 120)
    append_labels(labeller(), items[:7], parts, {"rollouts": 8})
    parts.close()
    with open(parts.path, "ab") as file:
        file.write(b'{"id": "c7", "labels": [1')  # killed within a line
    again = append_labels(labeller(), items, parts, {"rollouts": 8})
    assert again.labelled == 33 and again.labelled_before == 7
    assert "7 were labelled before" in str(again) and again.as_dict()["labelled"] == 33
    assert {row["id"]: row for row in parts.rows()} == {row["id"]: row for row in whole.rows()}
    nothing = append_labels(labeller(), items, parts, {"rollouts": 8})
    assert nothing.labelled == 0 and nothing.share_right is None
    with pytest.raises(ConfigError, match="rollouts = 8, and not 4"):
        append_labels(labeller(), items, parts, {"rollouts": 4})
    whole.close()
    parts.close()


def test_labelled_rows_are_read_as_the_same_steps(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "rows.jsonl")
    append_labels(labeller(), [item(RIGHT, "a"), item(WRONG, "b")], journal, {})
    journal.close()
    settings = RewardModelConfig(kind="process", rows=(str(journal.path),))
    reader = RowReader(settings, DataConfig(), byte_tokenizer(), 256)
    groups, complaints = reader.read_all(LOADERS["process"](settings.rows))
    assert not complaints
    text = groups[1].texts[0]
    assert text.labels.tolist() == [1.0, 0.0, 0.0]
    written = byte_tokenizer().decode(text.tokens)
    assert written == "2+3+4?\n" + WRONG + "\n"
    assert [written[: place + 1].count("\n") for place in text.places] == [2, 3, 4]


@pytest.mark.parametrize("chat", [False, True])
def test_a_prefix_stands_behind_the_prompt_as_the_policy_wrote_it(chat: bool) -> None:
    tokenizer = byte_tokenizer(CHAT_TEMPLATE if chat else None)
    render = PrefixRenderer(PromptRenderer(tokenizer, DataConfig()))
    plain = render(Problem("p", "2+3+4?"))
    begun = render(Problem("p", "2+3+4?", {PREFIX: "2+3 is 5\n"}))
    assert begun.tokens.tolist() == [*plain.tokens.tolist(), *b"2+3 is 5\n"]
    assert begun.text == plain.text + "2+3 is 5\n"


def test_a_model_labels_a_file_and_goes_on(world: World) -> None:
    rows = [
        {
            "id": f"c{n}",
            "prompt": f"{n}+1?",
            "completion": f"{n}\nis\n{n + 1}",
            "answer": str(n + 1),
        }
        for n in range(4)
    ]
    file, out = world.write_rows("completions.jsonl", rows), world.folder / "labels.jsonl"
    options: dict[str, Any] = {
        "num_rollouts": 3,
        "max_tokens": 6,
        "verifier": "train_worlds:even_text",
        "overrides": ["verification.num_workers=1", "engine.num_slots=4"],
    }
    model = str(world.folder / "model")
    result = label_steps(model, [str(file)], out, **options)
    assert result.labelled == 4 and result.steps == 12 and result.rollouts == 24
    first = out.read_text().splitlines()
    out.write_text("\n".join(first[:2]) + "\n" + first[2][:30])
    again = label_steps(model, [str(file)], out, **options)
    assert again.labelled == 2 and again.labelled_before == 2
    labelled = {row["id"]: row for row in Journal(out).rows()}
    assert labelled == {row["id"]: row for row in map(json.loads, first)}
    assert {label for row in labelled.values() for label in row["soft_labels"]} - {0.0, 1.0}


def test_a_runs_rollouts_are_taken_with_their_problems(world: World) -> None:
    run = world.folder / "runs" / "run"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(dump(build(world.tree())), encoding="utf-8")
    (run / "rollouts").mkdir()
    problems = [Problem("p3", "3 + 1 ="), Problem("gone", "?")]
    groups = list(ScriptedGenerator(lambda *_: "4").generate(problems, SamplingConfig(), 2))
    judged = [[Verdict.of_score(1.0, "fake@1")] * 2] * 2
    with closing(RolloutLog(run / "rollouts")) as log:
        log.record(1, groups, judged, {}, {})
    items = load_judged([str(run)])
    assert [one.completion.id for one in items] == ["p3#0/0", "p3#0/1"]
    assert items[0].problem.spec["answer"] == "4" and items[0].completion.text == "4"
    assert len(load_judged([str(run)], limit=1)) == 1


def test_rows_that_are_wrong_are_told_with_their_place(world: World) -> None:
    for row, text in (
        ({"completion": "x"}, "rows.jsonl:1 prompt: found none among"),
        ({"prompt": "q"}, "rows.jsonl:1 completion: found none"),
    ):
        file = world.write_rows("rows.jsonl", [row])
        with pytest.raises(DataError, match=text):
            load_judged([str(file)])


@pytest.mark.parametrize(
    "text", ["my notes\n", "my notes", '{"prompt": "p"}\n', '{"id": 1}\n[1]\n']
)
def test_a_foreign_file_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"--out .*notes\.jsonl: found .*; accepted: labelled rows"
    ):
        labelled_before(Journal(path), {})
    assert path.read_text() == text


def test_a_rollout_behind_a_step_has_no_budget_and_keeps_its_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget would count its own tokens alone."""
    rows = [
        {
            "id": f"c{n}",
            "prompt": f"{n}=",
            "answer": "1",
            "completion": "one\ntwo",
            "effort": effort,
        }
        for n, effort in enumerate(("low", "line"))
    ]
    seen: list[Group] = []
    plain = Engine.generate

    def see(self: Engine, *rest: Any, **more: Any) -> list[Group]:
        seen.extend(found := plain(self, *rest, **more))
        return found

    monkeypatch.setattr(Engine, "generate", see)
    thinks = ["data.think=opened", "data.think_close=}", "sampling.think_stop_text={close}"]
    levels = ["sampling.efforts.low=3", "sampling.efforts.line=Be brief.", "sampling.effort=low"]
    label_steps(
        str(world.folder / "model"),
        [str(world.write_rows("some.jsonl", rows))],
        world.folder / "out.jsonl",
        num_rollouts=4,
        max_tokens=12,
        verifier="train_worlds:even_text",
        overrides=["verification.num_workers=1", *thinks, *levels],
    )
    assert ["Be brief." in group.prompt.text for group in seen] == [False, True]
    assert all(one.num_given == 0 for group in seen for one in group.completions)


def test_a_device_is_no_place_for_labels() -> None:
    with pytest.raises(ConfigError, match="--out /dev/full: found a pipe or a device"):
        labelled_before(Journal(Path("/dev/full")), {})


def test_what_ends_a_step_is_not_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--split: found nothing"):
        label_steps("no model", ["rows.jsonl"], tmp_path / "out", split="")
    with pytest.raises(ConfigError, match="temperature: found inf"):
        label_steps("no model", ["rows.jsonl"], tmp_path / "out", temperature=float("inf"))
