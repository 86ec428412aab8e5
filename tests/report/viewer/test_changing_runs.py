"""Runs that are damaged, being written, rolled back or deleted while the viewer has them open."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
from run_fakes import FakeLearner, make_config, make_rollouts, take_steps
from viewing import TOKEN, Reply, get, make_run

from assay.report.rollout_index import RolloutIndex
from assay.report.selection import Selection
from assay.report.viewer.token_text import piecewise
from assay.report.viewer.view_server import ViewServer
from assay.run.directory import Run
from assay.run.rollout_log import RolloutLog


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path)


@pytest.fixture
def app(folder: Path) -> Iterator[ViewServer]:
    made = ViewServer([folder.parent], TOKEN)
    yield made
    made._closing.set()
    made._threads.shutdown(wait=True)


def show(app: ViewServer, page: str, folder: Path, **parameters: object) -> Reply:
    return get(app, f"{page}?{urlencode({'run': folder, **parameters})}")


def test_a_damaged_run_opens_as_far_as_it_is_whole(app: ViewServer, folder: Path) -> None:
    (folder / "config.toml").write_text("[rl\n")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('"step": 2', '"step": "two"')
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:2], "\0garbage", lines[2], '{"st']))
    (folder / "events.jsonl").write_bytes(b"\xff\xfe\n")
    shard = RolloutLog(folder / "rollouts").path(2)
    shard.write_bytes(shard.read_bytes()[:-200])
    page = show(app, "run", folder)
    assert page.status == 200
    for said in (
        "config.toml cannot be read",
        "metrics.jsonl:2 step",
        "metrics.jsonl:3: a damaged",
    ):
        assert said in page.text
    # The incomplete last line may still be in the writing.
    assert "metrics.jsonl:5" not in page.text and "events.jsonl:1: a damaged line" in page.text
    run = show(app, "curves", folder).json["runs"][0]
    charts = {chart["title"]: chart for chart in run["charts"]}
    assert charts["Reward"]["traces"][0]["x"] == [1, 3]
    rollouts = show(app, "rollouts", folder).text
    assert "<b>24</b> of 24 rollouts" in rollouts and "step-000002.parquet" in rollouts
    assert show(app, "step", folder, step=2).status == 404
    assert show(app, "step", folder, step=3).status == 200
    assert "step-000002.parquet" in show(app, "problem", folder, id="p1").text


def test_a_run_that_is_written_is_followed(tmp_path: Path) -> None:
    with Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach(learner=(learner := FakeLearner()))
        app = ViewServer([run.folder], TOKEN)
        assert "running" in get(app, "").text
        assert show(app, "step", run.folder).status == 200
        assert "No rollout matches" in show(app, "rollouts", run.folder).text
        first = show(app, "curves", run.folder)
        take_steps(run, learner, 1)
        groups, verdicts = make_rollouts(2)
        run.record(groups, verdicts)
        # Step 2 is sampled and not learned from, so it has no advantages yet.
        assert "<b>24</b> of 24 rollouts" in show(app, "rollouts", run.folder).text
        assert "advantage" not in show(app, "rollouts", run.folder, step=2).text
        run.finish_step(learner.learn(groups, verdicts))
        second = show(app, "curves", run.folder)
        assert first.headers["etag"] != second.headers["etag"]
        assert second.json["runs"][0]["step"] == 2
        take_steps(run, learner, 1)
        assert "advantage" in show(app, "rollouts", run.folder, step=2).text


def test_rolled_back_and_deleted_runs_break_no_page(app: ViewServer, folder: Path) -> None:
    assert "<b>36</b> of 36" in show(app, "rollouts", folder).text
    link = {"step": 3, "id": "p1#3/0"}
    assert show(app, "rollout", folder, **link).status == 200
    RolloutLog(folder / "rollouts").discard_after(2)
    assert "<b>24</b> of 24" in show(app, "rollouts", folder).text
    assert show(app, "rollout", folder, **link).status == 404
    shutil.rmtree(folder)
    for page in ("run", "rollouts", "step", "problem", "rollout", "compare"):
        reply = show(app, page, folder, **link)
        assert reply.status == 404 and "<h1>Not found</h1>" in reply.text
    assert show(app, "curves", folder).json == {"runs": [], "gone": [str(folder)]}
    assert "no run yet" in get(app, "").text


def test_rows_of_a_replaced_shard_are_left_out(folder: Path) -> None:
    index = RolloutIndex(folder / "rollouts")
    index.refresh()
    places = Selection(step=2).places(index).tolist()
    log = RolloutLog(folder / "rollouts")
    shutil.copy(log.path(3), log.path(2))
    assert index.rows(places, ["text"]) == [None] * 12
    index.refresh()
    found = index.rows(Selection(step=2).places(index).tolist(), ["text", "step"])
    assert len(found) == 12 and all(row is not None for row in found)


def test_an_index_in_parts_equals_one_at_once(folder: Path) -> None:
    whole, parts = RolloutIndex(folder / "rollouts"), RolloutIndex(folder / "rollouts")
    whole.refresh()
    parts.refresh(0.0)
    # The newest step comes first, so that a reader waits for one file only.
    assert parts.pending == 2 and parts.table.column("step").unique().to_pylist() == [3]
    while parts.pending:
        assert parts.refresh(0.0)
    assert parts.table.equals(whole.table) and not parts.refresh()
    np.testing.assert_array_equal(parts.contains("3"), whole.contains("3"))


def test_token_pieces_join_to_the_decoded_text() -> None:
    """A character of several bytes belongs to the token that completes it."""
    said = "größe 🙂 <b>"
    raw = said.encode()

    def decode(ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")

    pieces = list(piecewise(decode, list(raw)))
    assert len(pieces) == len(raw) and "".join(pieces) == said
    assert [piece for piece in pieces if piece] == [*said]
    assert "".join(piecewise(decode, list(raw[:-6]))) == decode(list(raw[:-6]))


def test_turns_and_tokens_are_told_apart(app: ViewServer, folder: Path) -> None:
    """Without a tokenizer, text and turns are shown, and no color is claimed."""
    text = show(app, "rollout", folder, step=1, id="p1#1/0").text
    assert '<div class="turn assistant">' in text and "Color:" not in text
    assert not re.search(r'class="[^"]* t ', text)
