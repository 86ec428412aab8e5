"""Step labels by rollouts: exact on a scripted generator, the same when killed, and learned
from."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stage_runs import took, written
from train_worlds import CountingJudge, World

from assay.config import DataConfig, RewardModelConfig, SamplingConfig, build, dump
from assay.curation.asking import StepLabelSettings
from assay.curation.base import run_stage
from assay.curation.output import Manifest, Output
from assay.curation.step_labeller import (
    StepLabeller,
    ToLabel,
    labelled_before,
    load_judged,
    write_labels,
)
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, DataError
from assay.generate.engine import Engine
from assay.recipes.check import settings_of_data
from assay.recipes.file import RecipeStage
from assay.run.rollout_log import RolloutLog
from assay.session.prefixes import PREFIX, PrefixRenderer
from assay.testing import CHAT_TEMPLATE, ScriptedGenerator, byte_tokenizer
from assay.training.reward_rows import LOADERS, RowReader
from assay.types import Completion, Group, Problem, Verdict

RIGHT = "2+3 is 5\n5+4 is 9\nSo 9"
WRONG = "2+3 is 5\n5+4 is 8\nSo 8"


def goes_on(problem: Problem, sibling: int) -> str:
    """After a right beginning three of four rollouts end well, after the second step all; never
    after 8."""
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
        "num_samples": 8,
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

    labeller(verifiers=CountingJudge(sees), num_samples=1).label([item(RIGHT, "a")])
    assert seen == [("2+3 is 5\n5+4 is 7\nSo 7", False), (RIGHT, False), (RIGHT, False)]


def test_rollouts_that_are_not_judged_count_for_nothing() -> None:
    def some(problem: Problem, sibling: int) -> str:
        return "So 9" if sibling == 0 else "So 9?" if sibling < 3 else "So 1"

    def never(problem: Problem, sibling: int) -> str:
        return "?"

    (row,) = labeller(generator=ScriptedGenerator(some), num_samples=4).label([item(RIGHT, "a")])
    assert row is not None and row["soft_labels"] == [0.5, 0.5, 1.0] and row["judged"] == [2, 2, 1]
    assert labeller(generator=ScriptedGenerator(never)).label([item(RIGHT, "a")]) == [None]


def settings(**changes: Any) -> StepLabelSettings:
    return StepLabelSettings(**{"inputs": ("rows.jsonl",), "model": "m", **changes})


def write(
    folder: Path, items: list[ToLabel], earlier: Path | None = None, rollouts: int = 8
) -> Manifest:
    """Label items into a folder by the scripted generator."""
    folder.mkdir()
    facts = {"rollouts": rollouts}
    before = labelled_before(None if earlier is None else str(earlier), facts)
    with Output("label_steps", settings(), folder) as out:
        write_labels(labeller(), items, out, facts, before)
    return out.manifest


def test_labelling_resumes_at_its_last_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [item(RIGHT if n % 3 else WRONG, f"c{n}") for n in range(40)]
    whole = write(tmp_path / "whole", items)
    assert (
        "40 completions, 80 steps to continue: 640 rollouts of at most 32"
        in capsys.readouterr().err
    )
    assert (whole.rows, whole.measured["steps"], whole.measured["rollouts"]) == (40, 120, 640)
    share = whole.measured["steps with a passed continuation"]
    assert share == pytest.approx((3 * 26 + 14) / 120)
    lines = (tmp_path / "whole/rows.jsonl").read_text().splitlines()
    killed = tmp_path / "rows.jsonl.part"
    killed.write_text("\n".join(lines[:7]) + "\n" + lines[7][:20])
    again = write(tmp_path / "again", items, killed)
    assert (again.rows, again.measured["labelled before"]) == (40, 7)
    assert again.measured["rollouts"] == 33 * 16
    assert written(tmp_path / "again") == written(tmp_path / "whole")
    with pytest.raises(ConfigError, match="rollouts = 8, and not 4"):
        write(tmp_path / "other", items, killed, rollouts=4)


def test_completions_without_labels_are_taken_and_counted(tmp_path: Path) -> None:
    manifest = write(tmp_path / "out", [item(RIGHT, "a"), item("\n", "b")])
    assert (manifest.rows, took(manifest)) == (1, {"not_labelled": 1})
    assert manifest.filters[0].examples[0]["row"]["id"] == "b"


def test_labelled_rows_are_read_as_the_same_steps(tmp_path: Path) -> None:
    write(tmp_path / "out", [item(RIGHT, "a"), item(WRONG, "b")])
    rows = str(tmp_path / "out/rows.jsonl")
    settings = RewardModelConfig(kind="process", rows=(rows,))
    reader = RowReader(settings, DataConfig(), byte_tokenizer(), 256)
    groups, complaints = reader.read_all(LOADERS["process"](settings.rows))
    assert not complaints
    text = groups[1].texts[0]
    assert text.labels.tolist() == [1.0, 0.0, 0.0]
    written = byte_tokenizer().decode(text.tokens)
    assert written == "2+3+4?\n" + WRONG + "\n"
    assert [written[: place + 1].count("\n") for place in text.places] == [2, 3, 4]


@pytest.mark.parametrize("chat", [False, True])
def test_a_prefix_follows_the_prompt_token_by_token(chat: bool) -> None:
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
    tree: dict[str, Any] = {
        "inputs": [str(world.write_rows("completions.jsonl", rows))],
        "model": str(world.folder / "model"),
        "num_samples": 3,
        "max_tokens": 6,
        "verifier": "train_worlds:even_text",
        "config": {"verification": {"num_workers": 1}, "engine": {"num_slots": 4}},
    }
    result = run_stage("label_steps", tree, world.folder / "labels")
    assert (result.rows, result.measured["steps"], result.measured["rollouts"]) == (4, 12, 24)
    first = world.folder / "labels/rows.jsonl"
    part = world.folder / "part.jsonl"
    part.write_text("\n".join(first.read_text().splitlines()[:2]) + "\n")
    again = run_stage("label_steps", {**tree, "labelled": str(part)}, world.folder / "again")
    assert again.measured["labelled before"] == 2 and again.measured["rollouts"] == 12
    assert written(world.folder / "again") == written(world.folder / "labels")
    labels = {label for row in written(world.folder / "again") for label in row["soft_labels"]}
    assert labels - {0.0, 1.0}


def load(inputs: list[str], folder: Path, **changes: Any) -> list[ToLabel]:
    asked = settings(inputs=tuple(inputs), **changes)
    with pytest.raises(DataError, match="no row left"), Output("label_steps", asked, folder) as out:
        found = load_judged(asked, out)
        assert out.manifest.rows_read >= len(found)
    return list(found)


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
    items = load([str(run)], world.folder)
    assert [one.completion.id for one in items] == ["p3#0/0", "p3#0/1"]
    assert items[0].problem.spec["answer"] == "4" and items[0].completion.text == "4"
    assert len(load([str(run)], world.folder, max_problems=1)) == 1


def test_rows_that_are_wrong_are_told_with_their_place(world: World) -> None:
    for row, text in (
        ({"completion": "x"}, "rows.jsonl:1 prompt: found none among"),
        ({"prompt": "q"}, "rows.jsonl:1 completion: found none"),
    ):
        file = world.write_rows("rows.jsonl", [row])
        with pytest.raises(DataError, match=text):
            run_stage("label_steps", {"inputs": [str(file)], "model": "tiny"}, world.folder / "out")


@pytest.mark.parametrize(
    "text", ["my notes\n", "my notes", '{"prompt": "p"}\n', '{"id": 1}\n[1]\n']
)
def test_a_foreign_file_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text(text)
    with pytest.raises(
        ConfigError, match=r"labelled .*notes\.jsonl: found .*; accepted: rows that"
    ):
        labelled_before(str(path), {})
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
    thinks = {"think": "opened", "think_close": "}"}
    levels = {"efforts": {"low": 3, "line": "Be brief."}, "effort": "low"}
    levels |= {"think_stop_text": "{close}"}
    tree = {
        "inputs": [str(world.write_rows("some.jsonl", rows))],
        "model": str(world.folder / "model"),
        "num_samples": 4,
        "max_tokens": 12,
        "verifier": "train_worlds:even_text",
        "config": {"verification": {"num_workers": 1}, "data": thinks, "sampling": levels},
    }
    run_stage("label_steps", tree, world.folder / "out")
    assert ["Be brief." in group.prompt.text for group in seen] == [False, True]
    assert all(one.num_injected == 0 for group in seen for one in group.completions)


def test_a_device_holds_no_earlier_labels() -> None:
    with pytest.raises(ConfigError, match="labelled /dev/full: found no file"):
        labelled_before("/dev/full", {})


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"split": ""}, 'label_steps split: found ""; accepted: text, not empty'),
        ({"temperature": float("inf")}, "label_steps temperature: found inf"),
        ({"url": "http://x/v1"}, "label_steps url: .*accepted: no url"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    tree = {"inputs": ["rows.jsonl"], "model": "no model", **change}
    with pytest.raises(ConfigError, match=text):
        run_stage("label_steps", tree, tmp_path / "out")


def test_a_recipe_names_the_transform(tmp_path: Path) -> None:
    tree = {"data": "label_steps", "inputs": ["@train", "more.jsonl"], "model": "m", "split": "."}
    stage = RecipeStage("labels", tree, "recipe.toml", {})
    found = settings_of_data(stage, {"train": "runs/train"})
    assert isinstance(found, StepLabelSettings) and found.inputs == ("runs/train", "more.jsonl")
    assert found.num_completions(5) is None and found.takes_runs
