"""Checkpoints are whole or absent, and retention never takes the newest."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from run_fakes import FakeLearner
from safetensors import SafetensorError
from safetensors.torch import save_file

from assay.config import CheckpointConfig
from assay.errors import DiskFull, RunError
from assay.run.checkpoints import FORMAT, Checkpoints, find_damage, to_drop
from assay.run.random_state import GlobalRandomState


def make(folder: Path, **settings: object) -> Checkpoints:
    return Checkpoints(folder / "checkpoints", CheckpointConfig.model_validate(settings))


class Failing(FakeLearner):
    """A part that fails while saving, after it has written something."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def save_state(self, folder: Path) -> None:
        super().save_state(folder)
        raise self.error


def test_saves_and_restores(tmp_path: Path) -> None:
    checkpoints, learner = make(tmp_path), FakeLearner()
    learner.weights += 1.5
    folder = checkpoints.save(3, {"learner": learner, "model": FakeLearner()})
    assert folder.name == "step-000003"
    assert (folder / "weights.npy").is_file() and (folder / "learner" / "weights.npy").is_file()
    other = FakeLearner()
    checkpoints.restore(3, {"learner": other})
    assert other.weights.tobytes() == learner.weights.tobytes()
    assert checkpoints.newest_valid() == (3, [])


def test_restoring_a_part_that_was_not_saved_names_it(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    checkpoints.save(3, {"learner": FakeLearner()})
    with pytest.raises(RunError, match="no state of critic"):
        checkpoints.restore(3, {"learner": FakeLearner(), "critic": FakeLearner()})


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    checkpoints = make(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"learner": FakeLearner()})
    victim = checkpoints.path(2) / "learner" / "weights.npy"
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(data[:-1])
    elif damage == "remove":
        victim.unlink()
    else:
        (checkpoints.path(2) / "manifest.json").write_text("{")
    step, complaints = checkpoints.newest_valid()
    assert step == 1
    assert len(complaints) == 1 and "step-000002" in complaints[0]


def test_a_folder_of_another_name_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    folder = checkpoints.save(1, {})
    for name in ("step-000001-mine", "step-1", "damaged-step-000001"):
        folder = folder.rename(folder.with_name(name))
        assert checkpoints.steps() == []


def test_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    checkpoints = make(tmp_path, keep_last=2)
    for step in range(1, 6):
        checkpoints.save(step, {"learner": FakeLearner()}, best=2 if step >= 2 else None)
    assert checkpoints.steps() == [2, 4, 5]


def test_the_disk_budget_is_kept_while_saving_too(tmp_path: Path) -> None:
    first = make(tmp_path).save(0, {"learner": FakeLearner()})
    one = sum(path.stat().st_size for path in first.rglob("*") if path.is_file())
    checkpoints = make(tmp_path, keep_last=9, max_disk_gib=2.5 * one / 2**30)
    beside: list[int] = []

    class Watching(FakeLearner):
        def save_state(self, folder: Path) -> None:
            super().save_state(folder)
            beside.append(len(checkpoints.steps()))

    for step in range(1, 6):
        checkpoints.save(step, {"learner": Watching()})
    assert checkpoints.steps() == [4, 5]
    assert beside == [1] * 5


sizes = st.lists(st.integers(0, 100), min_size=1, max_size=12)


@given(sizes, st.integers(1, 5), st.integers(0, 12), st.none() | st.integers(1, 300), st.booleans())
def test_retention(
    num_bytes: list[int], keep_last: int, best: int, budget: int | None, keep_best: bool
) -> None:
    sizes = dict(enumerate(num_bytes))
    gib = budget and budget / 2**30
    config = CheckpointConfig(keep_last=keep_last, keep_best=keep_best, max_disk_gib=gib)
    left = sizes.keys() - {*to_drop(sizes, config, best)}
    newest = max(sizes)
    assert newest in left
    wanted = {*list(sizes)[-keep_last:]} | ({best} if keep_best else set())
    assert left <= wanted
    if budget is None:
        assert left == wanted & sizes.keys()
    else:
        assert sum(sizes[step] for step in left) <= budget or left == {newest}


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("SafetensorError: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(
    tmp_path: Path, error: Exception
) -> None:
    checkpoints = make(tmp_path)
    checkpoints.save(1, {"learner": FakeLearner()})
    with pytest.raises(
        DiskFull, match=r"step-000002.*disk is full.*step-000001, is usable.*--resume"
    ):
        checkpoints.save(2, {"learner": Failing(error)})
    assert checkpoints.newest_valid() == (1, [])
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-000001"]


def test_another_failure_is_not_called_a_full_disk(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save(2, {"learner": Failing(ZeroDivisionError())})
    assert not list(checkpoints.folder.iterdir())


class Refused(FakeLearner):
    """A part whose folder the kernel refuses, as safetensors reports it."""

    def save_state(self, folder: Path) -> None:
        super().save_state(folder)
        (folder / "a file").write_bytes(b"")
        save_file({"x": torch.zeros(1)}, folder / "a file" / "x.safetensors")


def test_a_refused_write_is_an_error_of_the_system_whatever_a_library_calls_it(
    tmp_path: Path,
) -> None:
    checkpoints = make(tmp_path)
    with pytest.raises(NotADirectoryError) as caught:
        checkpoints.save(4, {"learner": Refused()})
    assert caught.value.filename == str(checkpoints.path(4))
    assert caught.value.strerror == os.strerror(errno.ENOTDIR)
    assert checkpoints.steps() == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.EROFS, errno.ESTALE])
def test_an_error_of_the_system_without_a_file_names_the_checkpoint(
    tmp_path: Path, number: int
) -> None:
    text = f"I/O error: {os.strerror(number)} (os error {number})"
    for error in (OSError(number, os.strerror(number)), SafetensorError(text)):
        with pytest.raises(OSError, match="step-000004") as caught:
            make(tmp_path).save(4, {"learner": Failing(error)})
        assert caught.value.errno == number


def test_a_real_limit_is_a_full_disk_whatever_a_library_calls_it(tmp_path: Path) -> None:
    """The system itself refuses to write, in a process of its own."""
    program = """
        import resource, sys
        from pathlib import Path
        import numpy, torch
        from safetensors.torch import save_file
        from assay.config import CheckpointConfig
        from assay.errors import DiskFull
        from assay.run.checkpoints import Checkpoints

        class Part:
            def __init__(self, save):
                self.save_state = save

        zeros = numpy.zeros(10**6)
        savers = [
            lambda folder: numpy.save(folder / "x.npy", zeros),
            lambda folder: torch.save(torch.from_numpy(zeros), folder / "x"),
            lambda folder: save_file({"x": torch.from_numpy(zeros)}, folder / "x"),
        ]
        checkpoints = Checkpoints(Path(sys.argv[1]), CheckpointConfig())
        checkpoints.save(1, {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for saver in savers:
            try:
                checkpoints.save(2, {"learner": Part(saver)})
            except DiskFull as error:
                print(error)
        assert checkpoints.newest_valid() == (1, [])
        """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("step-000001, is usable") == 3, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000001"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    checkpoints = make(tmp_path)
    checkpoints.save(1, {})
    (checkpoints.folder / ".saving-000002-99").mkdir()
    (checkpoints.folder / ".removing-step-000000-99").mkdir()
    checkpoints.save(2, {})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "step-000001",
        "step-000002",
    ]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints, learner = make(tmp_path), FakeLearner()
    checkpoints.save(1, {"learner": learner})
    learner.weights += 1.0
    checkpoints.save(1, {"learner": learner})
    assert find_damage(checkpoints.path(1)) is None
    other = FakeLearner()
    checkpoints.restore(1, {"learner": other})
    assert np.array_equal(other.weights, learner.weights)


def test_global_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a cached second value
    np.random.standard_normal()
    GlobalRandomState().save_state(tmp_path)
    draws = [(random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist())]
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    GlobalRandomState().load_state(tmp_path)
    assert draws == [(random.gauss(0, 1), np.random.standard_normal(), torch.rand(3).tolist())]


def test_a_state_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    class Odd:
        def save_state(self, folder: Path) -> None:
            (folder / "odd.json").write_text("{}")

        def load_state(self, folder: Path) -> None:
            raise KeyError("torch")

    checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
    checkpoints.save(1, {"odd": Odd()})
    with pytest.raises(RunError, match=r"step-000001: the state of odd cannot be read \(KeyError"):
        checkpoints.restore(1, {"odd": Odd()})


def test_a_damaged_list_of_pins_drops_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(keep_last=1, keep_best=False))
    for step in (1, 2):
        if step == 2:
            checkpoints.pin(1, "mine")
        checkpoints.save(step, {"learner": FakeLearner()})
    (tmp_path / "pinned.json").write_text("{")
    checkpoints.save(3, {"learner": FakeLearner()})
    assert checkpoints.steps() == [1, 2, 3]
    with pytest.raises(RunError, match=r"pinned\.json: found a damaged file"):
        checkpoints.pin(3, "mine too")
    (tmp_path / "pinned.json").unlink()
    checkpoints.prune(None)
    assert checkpoints.steps() == [3]


def test_a_checkpoint_without_a_format_is_read_and_one_of_a_newer_format_is_refused(
    tmp_path: Path,
) -> None:
    checkpoints, learner = make(tmp_path), FakeLearner()
    manifest = checkpoints.save(1, {"learner": learner}) / "manifest.json"
    facts = json.loads(manifest.read_text())
    assert facts.pop("format") == FORMAT
    manifest.write_text(json.dumps(facts))
    checkpoints.restore(1, {"learner": learner})
    manifest.write_text(json.dumps({**facts, "format": FORMAT + 1}))
    # A newer checkpoint is not damaged: damaged ones are renamed when a run resumes.
    assert checkpoints.newest_valid() == (1, [])
    with pytest.raises(RunError, match=r"manifest\.json: found format 2; accepted: 1, .*; resume"):
        checkpoints.restore(1, {"learner": learner})


@pytest.mark.parametrize("parts", [5, {"a": []}, [["learner"]], None])
def test_a_manifest_with_damaged_parts_is_one_line(tmp_path: Path, parts: object) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointConfig())
    manifest = checkpoints.save(1, {"learner": FakeLearner()}) / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "parts": parts}))
    with pytest.raises(RunError, match="holds no state of learner"):
        checkpoints.restore(1, {"learner": FakeLearner()})


@pytest.mark.parametrize("name", ["x" * 5000, "\0", "\ud800"])
def test_a_manifest_of_impossible_names_is_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps({"files": {name: {}}}))
    assert find_damage(tmp_path) == f"{name} is missing"
