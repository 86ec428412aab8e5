"""An evaluation that was killed goes on: no completion is sampled twice, and the result is the
same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer
from model_server import ModelServer, said
from train_worlds import REWARD, World

from assay.cli import main
from assay.errors import AssayError, UserError
from assay.evaluation.compare import compare
from assay.generate.engine import Engine
from assay.testing import save_tiny_model
from assay.training.api import evaluate


@pytest.fixture
def server(world: World) -> Iterator[ModelServer]:
    server = ModelServer(world.folder / "model")
    with server:
        yield server


def measured(world: World, out: Path, **more: Any) -> Any:
    model, problems = str(world.folder / "model"), [str(world.folder / "train.jsonl")]
    given: dict[str, Any] = {"max_tokens": 8, "verifier": REWARD, "quiet": True}
    given |= {"overrides": ["engine.num_slots=2", "server.retries=0", "server.concurrency=1"]}
    return evaluate(model, problems, out=out, **{**given, **more})


class Killed(BaseException):
    """What ends an evaluation in the middle, as a signal does."""


def kill_after(monkeypatch: pytest.MonkeyPatch, count: int) -> list[str]:
    """End the engine once it has finished so many completions; list the finished ones."""
    done: list[str] = []
    take_out = Engine._take_out

    def counted(self: Engine, *rest: Any) -> Any:
        if len(done) == count:
            raise Killed
        group = take_out(self, *rest)
        done.append(group.problem.id)
        return group

    monkeypatch.setattr(Engine, "_take_out", counted)
    return done


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_killed_evaluation_goes_on_to_the_same_result(
    world: World, monkeypatch: pytest.MonkeyPatch, num_samples: int
) -> None:
    asked: dict[str, Any] = {"num_samples": num_samples, "temperature": float(num_samples > 1)}
    whole = measured(world, world.folder / "whole.jsonl", **asked)
    out = world.folder / "out.jsonl"
    part = world.folder / "out.jsonl.part"
    with monkeypatch.context() as patch:
        kill_after(patch, 10 * num_samples // 2)
        with pytest.raises(Killed):
            measured(world, out, **asked)
    kept = part.read_text().splitlines()
    assert 1 < len(kept) <= 1 + 10 * num_samples // 2
    with open(part, "a") as file:
        file.write('{"part": "", "id": "p9#0/0", "tex')  # a line that was not finished
    with monkeypatch.context() as patch:
        sampled = kill_after(patch, 10**6)
        found = measured(world, out, **asked)
    assert len(sampled) == 10 * num_samples - (len(kept) - 1)
    assert out.read_bytes() == (world.folder / "whole.jsonl").read_bytes()
    timed = {"seconds": 0, "verifier_seconds": 0}
    assert found.as_dict() | timed == whole.as_dict() | timed
    assert not part.exists()


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "length": ({"max_tokens": 7}, r"sampling\.max_tokens = 8, and not 7"),
    "temperature": ({"temperature": 0.5}, r"sampling\.temperature = 0\.0, and not 0\.5"),
    "samples": ({"num_samples": 2, "temperature": 1.0}, "sampled with "),
    "seed": ({"seed": 3}, "seed = 0, and not 3"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_settings_are_refused(
    world: World, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    out = world.folder / "out.jsonl"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        measured(world, out)
    changes, complaint = OTHERS[case]
    before = (world.folder / "out.jsonl.part").read_bytes()
    with pytest.raises(UserError, match=complaint) as error:
        measured(world, out, **changes)
    assert "out.jsonl.part: found" in str(error.value) and "\n" not in str(error.value)
    assert (world.folder / "out.jsonl.part").read_bytes() == before


def test_another_model_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    out = world.folder / "out.jsonl"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        measured(world, out)
    save_tiny_model(world.folder / "model", max_positions=64, seed=1)
    with pytest.raises(UserError, match="sampled with other weights in the same folder"):
        measured(world, out)


def test_changed_prompts_are_sampled_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    out = world.folder / "out.jsonl"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 6)
        measured(world, out)
    rows = [json.loads(line) for line in (world.folder / "train.jsonl").read_text().splitlines()]
    rows[0]["prompt"] = "7 + 7 ="
    world.write_rows("train.jsonl", rows)
    found = measured(world, out)
    fresh = measured(world, world.folder / "fresh.jsonl")
    assert found.by_problem == fresh.by_problem
    assert out.read_bytes() == (world.folder / "fresh.jsonl").read_bytes()


def test_only_what_a_server_did_not_give_is_asked_again(
    world: World, server: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {"num_samples": 2, "temperature": 1.0, "server": server.url}
    whole = measured(world, world.folder / "whole.jsonl", **asked)
    assert whole.num_not_judged == 0 and len(server.completed) == 21
    out, gone = world.folder / "out.jsonl", said({"error": {"message": "gone"}}, 500)
    rows = [{"id": f"m{n}", "prompt": f"{n} + 3 =", "answer": "1"} for n in range(60)]
    many = [str(world.write_rows("many.jsonl", rows))]
    model, settings = str(world.folder / "model"), {"max_tokens": 4, "quiet": True, **asked}
    settings["overrides"] = ["server.retries=0", "server.concurrency=1"]
    server.change = lambda asked, number, answer: (
        gone if number == 21 + 6 or number > 21 + 9 else answer
    )
    with pytest.raises(AssayError, match="no reply to 32 requests in a row"):
        evaluate(model, many, out=out, **settings)
    shown = capsys.readouterr().err
    assert "completions are kept in" in shown and "goes on from there" in shown
    kept = len((world.folder / "out.jsonl.part").read_text().splitlines()) - 1
    assert kept == 7  # of 9 requests one was the first, and one failed
    before = len(server.completed)
    server.change = lambda asked, number, answer: answer
    found = evaluate(model, many, out=out, **settings)
    assert len(server.completed) - before == 1 + 120 - kept
    fresh = evaluate(model, many, out=world.folder / "fresh.jsonl", **settings)
    assert found.by_problem == fresh.by_problem
    lines = [Path(path).read_bytes() for path in (out, world.folder / "fresh.jsonl")]
    assert lines[0] == lines[1]


def test_a_killed_comparison_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [str(world.folder / "model"), str(world.folder / "other")]
    save_tiny_model(world.folder / "other", max_positions=64, seed=1)
    sets = [str(world.folder / name) for name in ("train.jsonl", "heldout.jsonl")]
    asked: dict[str, Any] = {"max_tokens": 6, "verifier": REWARD, "quiet": True}
    asked |= {"overrides": ["engine.num_slots=2"]}
    whole = compare(models[0], models[1], sets, out=world.folder / "whole.jsonl", **asked)
    out = world.folder / "out.jsonl"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 13 + 5)  # in the second model
        compare(models[0], models[1], sets, out=out, **asked)
    with monkeypatch.context() as patch:
        sampled = kill_after(patch, 10**6)
        found = compare(models[0], models[1], sets, out=out, **asked)
    assert len(sampled) < 13
    assert out.read_bytes() == (world.folder / "whole.jsonl").read_bytes()
    assert [one.gain for one in found.sets] == [one.gain for one in whole.sets]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        kill_after(patch, 4)
        compare(models[0], models[1], sets, out=out, **asked)
    with pytest.raises(UserError, match=r"A\.model\.path = .*model\", and not .*other\""):
        compare(models[1], models[0], sets, out=out, **asked)


def test_a_command_killed_by_a_signal_goes_on(
    world: World, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = world.folder / "out.jsonl"
    server.change = lambda asked, number, answer: Answer(answer.body, delay=0.3)
    line = ["eval", str(world.folder / "model")]
    line += ["--problems", str(world.folder / "train.jsonl"), "--verifier", "math"]
    line += ["--max-tokens", "8", "--out", str(out), "--server", server.url]
    line += ["--set", "server.concurrency=1"]
    command = [sys.executable, "-m", "assay.cli", *line]
    killed = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    part = world.folder / "out.jsonl.part"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (
        part.exists() and len(part.read_bytes().splitlines()) > 3
    ):
        time.sleep(0.02)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    kept = len([one for one in part.read_bytes().split(b"\n")[1:-1] if one])
    assert kept >= 2
    server.change = lambda asked, number, answer: answer
    before = len(server.completed)
    monkeypatch.setattr(sys, "argv", ["assay", *line])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert len(server.completed) - before == 1 + 10 - kept
    measured(world, world.folder / "whole.jsonl", verifier="math")
    assert out.read_bytes() == (world.folder / "whole.jsonl").read_bytes()
