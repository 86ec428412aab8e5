"""Features that meet: every pair works, with what each of them is for, or is refused in one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from combination_cells import CELLS, REFUSED, is_slow, settings
from taught import teach
from train_killer import fingerprint
from train_worlds import World, rows_of
from vllm_fake import SamplingEngine, fake_vllm

from assay.config import load
from assay.errors import UserError
from assay.evaluation.replay import replay
from assay.generate import vllm_engine
from assay.run.directory import Run
from assay.scale.listening import bind
from assay.scale.serve import VerifierServer
from assay.testing import save_tiny_model
from assay.training.api import train
from assay.verify.service import VerifierService

QUESTIONS = [f"{n} * 7 = " for n in range(10, 20)]
CALLS = [("<calculator>6*7</calculator>", True), ("=42;", False), ("42", True)]
ASKED = [*QUESTIONS, *(f"{question}{{" for question in QUESTIONS)]
PARTS = ("short", "usual")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the calculator once, and answers 42."""
    return teach(tmp_path_factory.mktemp("caller") / "model", CALLS, ASKED)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of verifiers."""
    uvicorn = pytest.importorskip("uvicorn", reason='needs uvicorn: pip install "assay-rl[serve]"')
    pytest.importorskip("httpx2")
    with (
        VerifierService("exact", num_workers=1) as service,
        bind("127.0.0.1", 0, None) as listening,
    ):
        config = uvicorn.Config(VerifierServer(service), log_level="error", lifespan="off")
        running = uvicorn.Server(config)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        running.should_exit = True
        thread.join()


def completions_of(run: Path) -> Rows:
    shards = sorted((run / "rollouts").glob("*"))
    return [row for shard in shards for row in pq.ParquetFile(shard).read().to_pylist()]


def shows_given(run: Path, rows: Rows) -> bool:
    """Some tokens were given, and nothing is learned from them."""
    given = [row for row in rows if not all(row["sampled"])]
    advantages = [np.array(row["advantages"])[~np.array(row["sampled"])] for row in given]
    return bool(given) and not any(map(np.any, advantages))


def shows_metric(name: str, run: Path, rows: Rows) -> bool:
    return any(name in row for row in rows_of(run, "metrics"))


def shows_older(run: Path, rows: Rows) -> bool:
    """Some completions of the second step are from before the first update."""
    return any(row["step"] == 2 and row["policy_version"] == 0 for row in rows)


def shows_growth(run: Path, rows: Rows) -> bool:
    return all(sum(one["group_id"] == row["group_id"] for one in rows) == 6 for row in rows)


def shows_stop(run: Path, rows: Rows) -> bool:
    return any("!}" in row["text"] for row in rows)


def shows_more(run: Path, rows: Rows) -> bool:
    return all("}" not in row["text"][:8] for row in rows)


def shows_adapter(run: Path, rows: Rows) -> bool:
    return any((run / "checkpoints").rglob("adapter_model.safetensors"))


def shows_teacher(run: Path, rows: Rows) -> bool:
    return all(row["ref_logprobs"] is not None for row in rows)


def shows_siblings(run: Path, rows: Rows) -> bool:
    return any("kimi_length" in dict(row["components"]) for row in rows)


def shows_remote(run: Path, rows: Rows) -> bool:
    return all(
        row["verifier"].startswith("remote:") and row["status"] != "not_judged" for row in rows
    )


def shows_second(run: Path, rows: Rows) -> bool:
    """All passes have a second verdict, and all second verdicts were judged."""
    asked = [row for row in rows if row["second_status"] or row["status"] == "passed"]
    return bool(asked) and {row["second_status"] for row in asked} <= {"passed", "failed"}


def shows_parts(run: Path, rows: Rows) -> bool:
    """Each part has a prompt of both steps, and the first its shorter completions."""
    limit = load(run / "config.toml").data.mixture[PARTS[0]].max_tokens
    short = [row for row in rows if row["tags"] == [PARTS[0]]]
    groups = {(row["step"], row["tags"][0], row["group_id"]) for row in rows}
    named = sorted((step, tag) for step, tag, _ in groups)
    return named == [(step, tag) for step in (1, 2) for tag in sorted(PARTS)] and all(
        sum(row["sampled"]) <= limit for row in short
    )


def shows_weights_apart(run: Path, rows: Rows) -> bool:
    return all(row["model_logprobs"] is None for row in rows)


def shows_ranks(run: Path, rows: Rows) -> bool:
    return any(
        row["kind"] == "learner_ranks" and row["size"] == 2 for row in rows_of(run, "events")
    )


SHOWS: Mapping[str, Callable[[Path, Rows], bool]] = {
    "vllm": shows_weights_apart,
    "actors": partial(shows_metric, "time/rollout_actor_1"),
    "ahead": shows_older,
    "ranks": shows_ranks,
    "tools": shows_given,
    "environment": shows_given,
    "budget": shows_stop,
    "min_think": shows_more,
    "growing": shows_growth,
    "oversample": partial(shows_metric, "oversample/groups"),
    "mixture": shows_parts,
    "lora": shows_adapter,
    "teacher": shows_teacher,
    "siblings": shows_siblings,
    "remote": shows_remote,
    "audit": shows_second,
}
"""How a run shows that a feature did what it is for."""


def tree_of(world: World, names: tuple[str, ...], request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the configuration of a run of two steps with some features."""
    asked = settings(*names)
    save_tiny_model(world.folder / "model", max_positions=192)
    if "tools" in names:
        asked["model"] = {**asked.get("model", {}), "path": str(request.getfixturevalue("caller"))}
        rows = [{"id": f"q{n}", "prompt": q, "answer": "42"} for n, q in enumerate(QUESTIONS)]
        world.write_rows("train.jsonl", rows)
    if "mixture" in names:
        path = world.folder / "train.jsonl"
        given = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        world.write_rows(
            "train.jsonl", [{**row, "tags": [PARTS[n % 2]]} for n, row in enumerate(given)]
        )
        shorter = {"group_size": 2, "max_tokens": asked["sampling"]["max_tokens"] - 4}
        asked["data"]["mixture"] = {PARTS[0]: shorter, PARTS[1]: {}}
    if "teacher" in names:
        save_tiny_model(world.folder / "teacher", seed=5, max_positions=512)
        asked["teacher"] = {"path": str(world.folder / "teacher")}
    if "remote" in names:
        url = {"url": request.getfixturevalue("server"), "patience": 60.0}
        asked["verification"] = {"options": {"remote": url}}
    rl = {"steps": 2, "num_prompts": 2, "group_size": 4, **asked.pop("rl", {})}
    data = {"heldout": [], "prompt_template": "{question}", **asked.pop("data")}
    rest = {"checkpoint": {"every": 1}, "optimizer": {"learning_rate": 1e-4}, **asked}
    rest["verification"] = {"num_workers": 1, "trial_seconds": 0, **rest.get("verification", {})}
    tree = world.tree(rl=rl, data=data, **rest)
    del tree["evaluation"]
    return tree


def check_resume(
    world: World, tree: dict[str, Any], patch: pytest.MonkeyPatch, whole: Path
) -> None:
    """A run that is interrupted after its first step goes on to the same bits."""
    tree.setdefault("scale", {})
    tree["run"] = {**tree["run"], "name": "cut"}
    with patch.context() as cut:
        cut.setattr(Run, "stop_reason", property(lambda run: "interrupted" if run.step else None))
        part = Path(train(tree, quiet=True).run)
    assert len(rows_of(part, "metrics")) == 1
    train(resume=part, quiet=True)
    if tree["scale"].get("steps_ahead"):  # nothing was sampled ahead of the step after a start
        assert [row["step"] for row in rows_of(part, "metrics")] == [1, 2]
        return
    for each in (whole, part):
        (each / "evaluations.jsonl").touch()
    one, other = fingerprint(whole), fingerprint(part)
    assert [key for key in {*one, *other} if one.get(key) != other.get(key)] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, marks=[pytest.mark.slow] if is_slow(*cell) else [], id="-".join(cell))
        for cell in CELLS
    ],
)
def test_a_pair_of_features_works_or_is_refused(
    cell: tuple[str, str],
    world: World,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "ahead" in cell and "ranks" not in cell:
        # Actors in threads sample as Ray's actors do, and also with the fake of vLLM.
        request.getfixturevalue("in_threads")
    elif is_slow(*cell):
        request.getfixturevalue("cluster")
    fake = fake_vllm(engine=SamplingEngine)
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: fake)
    tree = tree_of(world, cell, request)
    if words := REFUSED.get(frozenset(cell)):
        monkeypatch.setattr("assay.session.assemble.load_model", None)
        with pytest.raises(UserError) as told:
            train(tree, quiet=True)
        assert words in str(told.value) and "\n" not in str(told.value)
        return
    run = Path(train(tree, quiet=True).run)
    rows, metrics = completions_of(run), rows_of(run, "metrics")
    assert [row["step"] for row in metrics] == [1, 2]
    assert all(np.isfinite(value) for row in metrics for value in row.values())
    assert [name for name in cell if name in SHOWS and not SHOWS[name](run, rows)] == []
    if "resume" in cell:
        check_resume(world, tree, monkeypatch, run)
    if "replay" in cell:
        found = replay(run, 2, trust_run=True)
        assert {one.outcome for one in found.again} == {"equal"}, str(found)
