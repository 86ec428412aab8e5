"""The number of threads of a decoding step: timed once, kept for the user and by the run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_fakes import GREEDY, engine_of, problem_of

from assay.generate import threads as threads_module
from assay.generate.threads import FILE, fastest_threads, on_threads, time_steps
from assay.testing import tiny_model


@pytest.fixture
def two_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two CPU threads, and a user of whom nothing is known yet; the file where that is kept."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with on_threads(2):
        yield tmp_path / "assay" / FILE


def pretend(monkeypatch: pytest.MonkeyPatch, one: float, all_: float) -> list[int]:
    """Let one thread and all threads take so many milliseconds; returns the rows that were timed."""
    timed: list[int] = []

    def time_steps(forward: Any, num_rows: int, numbers: tuple[int, int]) -> dict[int, float]:
        timed.append(num_rows)
        return dict(zip(numbers, (all_, one), strict=True))

    monkeypatch.setattr(threads_module, "time_steps", time_steps)
    return timed


@pytest.mark.parametrize(("one", "expected"), [(5.0, 1), (8.9, 1), (9.1, 2), (20.0, 2)])
def test_one_thread_is_taken_where_it_is_clearly_faster(
    two_threads: Path, monkeypatch: pytest.MonkeyPatch, one: float, expected: int
) -> None:
    pretend(monkeypatch, one, 10.0)
    engine = engine_of()
    assert engine.settings.threads == expected
    used: list[int] = []
    decode = engine._choice.forward.decode
    monkeypatch.setattr(
        engine._choice.forward,
        "decode",
        lambda *rest: (used.append(torch.get_num_threads()), decode(*rest))[1],
    )
    seen: list[int] = []
    problems = [problem_of(5), problem_of(9)]
    engine.generate(problems, GREEDY, 1, on_group=lambda _: seen.append(torch.get_num_threads()))
    assert set(seen) == {2}  # the taker's own work has them all
    assert set(used) == {expected}


def test_what_was_timed_is_kept(two_threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = pretend(monkeypatch, 1.0, 10.0)
    assert engine_of().settings.threads == 1
    pretend(monkeypatch, 10.0, 1.0)
    engine = engine_of()
    assert engine.settings.threads == 1 and timed == [8]
    (kept,) = json.loads(two_threads.read_text()).values()
    assert kept == {"threads": 1, "milliseconds": {"2": 10.0, "1": 1.0}}
    forward = engine._choice.forward
    assert fastest_threads(tiny_model(), forward, 16) == 2  # other rows, other products
    assert fastest_threads(tiny_model().bfloat16(), forward, 8) == 2
    two_threads.write_text("{")
    assert engine_of().settings.threads == 2
    assert len(json.loads(two_threads.read_text())) == 1


def test_where_it_cannot_be_kept_all_threads_are_used(
    two_threads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run decides alike the next time."""
    timed = pretend(monkeypatch, 1.0, 10.0)
    two_threads.parent.write_text("a file where the folder should be")
    assert engine_of().settings.threads == 2 and not timed


def test_one_thread_is_not_timed(two_threads: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = pretend(monkeypatch, 1.0, 10.0)
    with on_threads(1):
        assert engine_of().settings.threads == 1
    assert not timed and not two_threads.exists()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_steps_are_timed_on_the_models_own_way(two_threads: Path, family: str) -> None:
    forward = engine_of(tiny_model(family=family))._choice.forward
    found = time_steps(forward, 8, (2, 1))
    assert set(found) == {1, 2} and all(0 < value < 1e4 for value in found.values())
    assert not forward.cache.capacity and torch.get_num_threads() == 2
