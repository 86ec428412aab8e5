"""A cache of a teacher's top-k logits is written, read again, and refused for another teacher."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from test_distill import SIZES, distill_tree, save_other_tokens
from train_worlds import World, rows_of

from assay.errors import ConfigError, DataError, UserError
from assay.learn.teacher import TeacherModel
from assay.run.metrics import is_timing
from assay.session import teachers
from assay.training import teacher_cache as cache_module
from assay.training.api import dry_run, train
from assay.types import Completion, Group, Problem, Prompt


def kept_tree(world: World, name: str = "run", **distill: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "traces": [str(world.folder / "traces.jsonl")],
        "keep": str(world.folder / "kept"),
        "keep_top": 16,
    }
    tree = distill_tree(world, distill={**given, **distill}, run={"name": name})
    tree["data"]["heldout"] = []
    return tree


def losses(run: Any) -> list[dict[str, Any]]:
    rows = rows_of(run.run, "metrics")
    return [{key: one for key, one in row.items() if not is_timing(key)} for row in rows]


def test_all_tokens_kept_are_the_teacher_itself(world: World) -> None:
    """Of 259 tokens all are kept: each step is that of a run with the teacher beside it."""
    kept = train(kept_tree(world, keep_top=259), quiet=True)
    tree = kept_tree(world, "beside")
    del tree["distill"]["keep"], tree["distill"]["keep_top"]
    beside = train(tree, quiet=True)
    pairs = list(zip(losses(kept), losses(beside), strict=True))
    assert len(pairs) > 2
    for one, other in pairs:
        assert one["loss/divergence"] == pytest.approx(other["loss/divergence"], rel=1e-4)


def test_few_tokens_teach_too_and_the_teacher_is_asked_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(kept_tree(world, epochs=8), quiet=True)
    rows = losses(first)
    assert rows[-1]["loss/divergence"] < rows[0]["loss/divergence"] / 1.5
    (path,) = (world.folder / "kept").iterdir()
    with pq.ParquetFile(path) as file:
        table = file.read()
        about = json.loads(file.schema_arrow.metadata[b"assay"])
    assert about["top_k"] == 16 and about["teacher"] == str(world.folder / "teacher")
    row = {name: table.column(name)[0].as_py() for name in table.column_names}
    assert len(row["tokens"]) == len(row["logprobs"]) == 16 * len(row["rest"])
    monkeypatch.setattr(teachers, "load_model", lambda *_: pytest.fail("the teacher was loaded"))
    tree = kept_tree(world, "again", epochs=8)
    del tree["teacher"]
    assert losses(train(tree, quiet=True)) == rows


class Killed(BaseException):
    """What ends a process at once, as far as a run can tell."""


def test_a_killed_run_goes_on_where_it_was(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the same bits: what was kept is not asked again, and the rest is asked in the same
    parts."""
    monkeypatch.setattr(cache_module, "PART", 3)
    whole = train(kept_tree(world, "whole"), quiet=True)
    files = sorted((world.folder / "kept").iterdir())
    bits = [path.read_bytes() for path in files]
    assert len(bits) == 4
    shutil.rmtree(world.folder / "kept")
    write = cache_module.LogitCache._write

    def killed(self: Any, *args: Any) -> None:
        write(self, *args)
        if len(list(self.folder.iterdir())) == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.LogitCache, "_write", killed)
        with pytest.raises(Killed):
            train(kept_tree(world, "part"), quiet=True)
    asked: list[int] = []
    top_k = TeacherModel.top_k

    def counted(self: Any, batch: Any, *args: Any) -> Any:
        asked.append(batch.num_rows)
        return top_k(self, batch, *args)

    monkeypatch.setattr(TeacherModel, "top_k", counted)
    again = train(resume=world.folder / "runs" / "part", quiet=True)
    assert asked == [3, 1]
    assert [path.read_bytes() for path in files] == bits
    assert losses(again) == losses(whole)
    weights = [Path(run.checkpoint or "") / "model.safetensors" for run in (whole, again)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_an_interrupt_while_the_teacher_is_asked_ends_at_the_next_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked is kept, no step is taken, and the run goes on to what it would have been."""
    monkeypatch.setattr(cache_module, "PART", 3)
    whole = train(kept_tree(world, "whole"), quiet=True)
    files = sorted((world.folder / "kept").iterdir())
    bits = [path.read_bytes() for path in files]
    shutil.rmtree(world.folder / "kept")
    write = cache_module.LogitCache._write

    def interrupted(self: Any, *args: Any) -> None:
        write(self, *args)
        if len(list(self.folder.iterdir())) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(cache_module.LogitCache, "_write", interrupted)
        ended = train(kept_tree(world, "part"), quiet=True)
    assert ended.ended == "interrupted"
    assert not (Path(ended.run) / "metrics.jsonl").exists(), "no step is taken"
    assert [path.read_bytes() for path in files if path.exists()] == bits[:2]
    again = train(resume=world.folder / "runs" / "part", quiet=True)
    assert [path.read_bytes() for path in files] == bits
    assert losses(again) == losses(whole)


def complaint(tree: dict[str, Any]) -> str:
    runs = sorted((Path(tree["run"]["directory"])).glob("*"))
    with pytest.raises(UserError) as error:
        train(tree, quiet=True)
    assert sorted((Path(tree["run"]["directory"])).glob("*")) == runs, "no run is begun"
    assert "\n" not in str(error.value)
    return str(error.value)


def test_cached_logits_of_another_setting_are_refused(world: World) -> None:
    train(kept_tree(world), quiet=True)
    place = world.folder / "kept" / "part-000000.parquet"
    head = f"distill.keep {place}: found "
    changes = {
        "temperature 1.0, and not 2.0": {"temperature": 2.0},
        "top_k 16, and not 8": {"keep_top": 8},
    }
    for found, change in changes.items():
        assert complaint(kept_tree(world, **change)).startswith(head + found + "; accepted: ")
    tree = kept_tree(world)
    tree["teacher"]["revision"] = "v2"
    assert "teacher@v2; accepted: " in complaint(tree)
    tree = kept_tree(world)
    tree["teacher"]["path"] = str(world.folder / "model")
    assert f"and not {world.folder / 'model'}; accepted: cached logits of the same" in complaint(
        tree
    )
    save_other_tokens(world.folder / "other", **SIZES)
    tree = kept_tree(world)
    tree["model"] = {"path": str(world.folder / "other")}
    assert complaint(tree).startswith(f"{head}tokenizer ")


def test_a_changed_template_is_distinguished_from_a_changed_file(world: World) -> None:
    """The tokens of a trace are what it is found by."""
    train(kept_tree(world), quiet=True)
    tree = kept_tree(world)
    del tree["teacher"]
    tree["data"]["prompt_template"] = "Question: {question}\n"
    assert complaint(tree) == (
        f"distill.keep {world.folder / 'kept'}: found no logits of {world.folder / 'traces.jsonl'}:1"
        " as rendered by this template; accepted: a folder with logits of every trace, or add [teacher]"
    )


def test_a_disk_bound_that_is_too_small_is_told_before_the_teacher_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "load_model", lambda *_: pytest.fail("the teacher was loaded"))
    said = complaint(kept_tree(world, keep_gib=1e-6))
    assert said.startswith("distill.keep_gib: found 1e-06 GiB for ")
    assert said.endswith(
        " logits; accepted: at least 3.81e-06; raise it, or lower distill.keep_top"
    )
    assert not (world.folder / "kept").exists()


def test_more_tokens_than_there_are(world: World) -> None:
    assert complaint(kept_tree(world, keep_top=300)) == (
        "distill.keep_top: found 300; accepted: at most the 259 tokens of both models"
    )


def test_a_damaged_file_is_named(world: World) -> None:
    train(kept_tree(world), quiet=True)
    place = world.folder / "kept" / "part-000000.parquet"
    place.write_bytes(place.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"part-000000\.parquet: found a damaged file, or one"):
        dry_run(kept_tree(world))


def test_own_completions_are_not_kept(world: World) -> None:
    tree = kept_tree(world)
    del tree["distill"]["traces"]
    with pytest.raises(ConfigError, match=r'keep: found ".*kept" without traces; accepted: none'):
        train(tree, quiet=True)


def given(*texts: str) -> list[Group]:
    """Groups of one completion each, as traces are laid out."""
    tokens = [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]
    prompt = Prompt("", np.zeros(1, np.int32))
    return [
        Group(Problem(f"p{n}", ""), prompt, (Completion.from_tokens(f"p{n}/0", one, text),))
        for n, (one, text) in enumerate(zip(tokens, texts, strict=True))
    ]


def saying(value: float, asked: list[int]) -> cache_module.Ask:
    """A teacher that says the same of every token."""

    def ask(groups: Any) -> Any:
        asked.append(len(groups))
        lengths = [len(group.completions[0].tokens) for group in groups]
        return [(torch.ones(n, 1), torch.full((n, 1), value), torch.zeros(n)) for n in lengths]

    return ask


def test_a_trace_that_stands_twice_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that after a kill, too, the rest is asked in the same parts."""
    monkeypatch.setattr(cache_module, "PART", 2)
    groups, asked = given("ab", "cd", "ab", "ef", "cd", "gh"), list[int]()
    assert cache_module.LogitCache(tmp_path, {}).lacks(groups) == [0, 1, 3, 5]
    kept = cache_module.LogitCache(tmp_path, {})
    kept.fill(groups[:2], saying(-1.0, asked))
    assert kept.lacks(groups) == [3, 5] and asked == [2]
    kept.fill(groups, saying(-2.0, asked))
    assert asked == [2, 2]
    found = kept.of(groups, torch.device("cpu"))[1][::2, 0].tolist()  # of each trace's first token
    assert found == [-1.0, -1.0, -1.0, -2.0, -1.0, -2.0]


def test_a_folder_that_was_made_anew_is_read_anew(tmp_path: Path) -> None:
    """In one process: a notebook that removes what a wrong teacher said."""
    groups, place = given("ab"), tmp_path / "kept"
    for value in (-1.0, -2.0):
        kept = cache_module.LogitCache(place, {})
        kept.fill(groups, saying(value, []))
        assert kept.of(groups, torch.device("cpu"))[1][0, 0].item() == value
        shutil.rmtree(place)
