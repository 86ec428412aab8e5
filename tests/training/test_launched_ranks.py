"""Learner ranks that a launcher starts: forks with the variables that torchrun sets."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_commands import import_commands, patience, run_command
from ray_nodes import free_port
from test_learner_ranks import TWO, check_same_training, weights_of
from test_stage_ranks import fail_checkpoints_after
from train_worlds import World, rows_of

from assay.config import build
from assay.errors import ConfigError
from assay.scale import launched, launched_ranks
from assay.scale.cluster import environment
from assay.scale.launched import launch
from assay.session.stage import Stage
from assay.sweep.run import Runner, run_sweep
from assay.training.api import run_stage, train

pytestmark = pytest.mark.filterwarnings("ignore")


@contextmanager
def place(rank: int, size: int, port: int) -> Iterator[None]:
    """The variables of a rank, as torchrun sets them on one machine."""
    numbers = {"RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
    variables = {name: str(number) for name, number in numbers.items()}
    with environment({**variables, "MASTER_ADDR": "127.0.0.1"}):
        yield


def run_ranks(world: World, arguments: list[str], size: int = 2) -> list[tuple[int, str]]:
    """Run the command in forks; return the exit code and the output of each."""
    import_commands()
    port, ranks, ended = free_port(), list[int](), dict[int, int]()
    for rank in range(size):
        with place(rank, size, port):
            ranks.append(fork(arguments, world.folder, rank))
    until = time.monotonic() + 4 * patience()
    while len(ended) < size and time.monotonic() < until:
        for pid in {*ranks} - {*ended}:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                ended[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for pid in {*ranks} - {*ended}:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    files = [[world.folder / f"{rank}.{name}" for name in ("out", "err")] for rank in range(size)]
    said = ["".join(file.read_text(encoding="utf-8") for file in of_rank) for of_rank in files]
    return [(ended.get(pid, -9), text) for pid, text in zip(ranks, said, strict=True)]


def fork(arguments: list[str], folder: Path, rank: int) -> int:
    """Run the command in a fork."""
    if child := os.fork():
        return child
    code = 70
    try:
        code = run_command(arguments, folder, rank)
    finally:
        os._exit(code)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


def refuse(*_: Any) -> Any:
    raise MemoryError("no room here")


def tree_of(world: World, name: str, **sections: Any) -> dict[str, Any]:
    tree = world.sft_tree(**sections)
    tree["run"]["name"] = name
    return tree


def test_ranks_of_a_launcher_train_as_one_process(world: World) -> None:
    plain = Path(train(tree_of(world, "plain"), quiet=True).run)
    config = str(world.config_file(tree_of(world, "whole", scale=TWO)))
    found = run_ranks(world, ["train", config, "--json"])
    assert [code for code, _ in found] == [0, 0] and found[1][1] == ""
    check_same_training(plain.with_name("whole"), plain)


@pytest.mark.slow
def test_resumed_ranks_of_a_launcher_have_equal_bits(world: World) -> None:
    for name in ("whole", "part"):
        config = str(world.config_file(tree_of(world, name, scale=TWO)))
        more = [] if name == "whole" else ["--max-minutes", "1e-9"]
        run_ranks(world, ["train", config, *more])
    run = world.folder / "runs" / "part"
    assert len(rows_of(run, "metrics")) == 1
    resumed = run_ranks(world, ["train", "--resume", str(run), "--set", "run.max_minutes="])
    assert [code for code, _ in resumed] == [0, 0]
    mine, wanted = weights_of(run), weights_of(run.with_name("whole"))
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)


WRONG = [
    ({"scale": {"learner_ranks": 3}}, "scale.learner_ranks: found 3, in 2 processes (WORLD_SIZE)"),
    ({}, "scale.learner_ranks: found 1, in 2 processes (WORLD_SIZE); accepted: 2; set scale."),
    ({"scale": TWO, "model": {"path": "nowhere"}}, "nowhere"),
    ({"scale": {"learner_ranks": 0}}, "scale.learner_ranks: found 0"),
]


@pytest.mark.parametrize(("sections", "words"), WRONG)
def test_a_wrong_configuration_is_one_line_of_rank_0_and_ends_all_ranks(
    world: World, sections: dict[str, Any], words: str
) -> None:
    tree = tree_of(world, "wrong", **sections)
    (code, said), other = run_ranks(world, ["train", str(world.config_file(tree))])
    assert code == 2 and words in said and len(said.splitlines()) == 1, said
    assert other == (0, "")


def test_a_failed_rank_is_named_by_rank_0(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.session.placement._build_rank", refuse)
    config = world.config_file(tree_of(world, "failed", scale=TWO))
    (code, said), other = run_ranks(world, ["train", str(config), "--json"])
    assert code == 1 and said.count("learner rank 1: MemoryError: no room here") == 1
    assert "--resume" in said and len(said.splitlines()) == 1 and other == (0, "")


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(errno.ENOTDIR, 2), (errno.ENOSPC, 1), slow(errno.EACCES, 2), slow(errno.EIO, 1)],
)  # fmt: skip
def test_a_checkpoint_that_cannot_be_written_is_one_line_with_the_exit_code_of_one_process(
    world: World, number: int, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_checkpoints_after(2, number, monkeypatch)
    found: list[tuple[int, str]] = []
    for size in (1, 2):
        scale = TWO if size > 1 else {}
        tree = tree_of(world, f"failed-{size}", scale=scale)
        arguments = ["train", str(world.config_file(tree)), "--json"]
        (code, said), *others = run_ranks(world, arguments, size)
        assert code == exit_code and others == [(0, "")] * (size - 1), said
        assert len(said.splitlines()) == 1, said
        found.append((code, re.sub(rf"failed-{size}|-\d+/", "", said)))
        left = world.folder / "runs" / f"failed-{size}" / "checkpoints"
        assert [one.name for one in left.iterdir()] == ["step-000002"]
    assert found[0] == found[1]


def test_the_place_of_a_process_is_that_of_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launched.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert launch() is None
    with place(1, 3, 5):
        found = launch()
        assert found is not None and (found.rank, found.size) == (1, 3)
    with place(0, 1, 5):
        assert launch() is None
    with place(2, 2, 5), pytest.raises(ConfigError, match="RANK: found 2; accepted: less than"):
        launch()
    with place(0, 2, 5):
        monkeypatch.setenv("WORLD_SIZE", "two")
        with pytest.raises(ConfigError, match="WORLD_SIZE: found 'two'; accepted: a number"):
            launch()


def test_other_commands_than_train_are_refused(world: World) -> None:
    """A recipe would run once in every process, in the same folder."""
    stage = Stage(build(tree_of(world, "recipe", scale=TWO)), quiet=True)
    with place(0, 2, 5), pytest.raises(ConfigError, match=r"torchrun: found 2 processes"):
        run_stage(stage)


def test_a_sweep_is_refused(world: World) -> None:
    """Each of its runs would inherit the variables, and wait for a rank 0 that never comes."""
    runner = Runner((), 1, print)
    with place(0, 2, 5), pytest.raises(ConfigError, match=r"2 processes .* of a sweep"):
        run_sweep(world.folder / "sweep.toml", runner)


def test_variables_of_the_launcher_are_hidden_from_what_rank_0_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("LOCAL_RANK", "0")
    # Ranks of an earlier test in this process may have set it, and then nothing is set.
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with place(0, 2, 5):
        found = launch()
        assert found is not None and found.environment
        with launched.hidden(found):
            left = {*os.environ} & {*launched.VARIABLES, "LOCAL_RANK"}
            assert not left and "TORCHELASTIC_USE_AGENT_STORE" not in os.environ
            assert launch() is found and found.environment
        assert os.environ["RANK"] == "0" and os.environ["LOCAL_RANK"] == "0"


def test_a_second_training_of_a_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched_ranks, "_have_led", {os.getpid()})
    refused = pytest.raises(ConfigError, match="a program that trains twice")
    with place(0, 2, 5), refused, launched_ranks.leading():
        pytest.fail("the other ranks are gone")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_torchrun_has_the_bits_of_ranks_in_ray(world: World) -> None:
    sections = {"scale": TWO, "rl": {"num_prompts": 4}}
    names = ("ray", "torchrun")
    trees = [{**world.tree(**sections), "run": {**world.tree()["run"], "name": n}} for n in names]
    run = Path(train(trees[0], quiet=True).run)
    config = str(world.config_file(trees[1]))
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*launcher, "-m", "assay.cli", "train", config],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    mine, wanted = weights_of(run.with_name("torchrun")), weights_of(run)
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)
