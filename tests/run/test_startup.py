"""What a command shows before a run exists."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from assay.host import heartbeat
from assay.host.startup import doing
from assay.run import startup
from assay.run.startup import end_startup, show_startup


class Shown:
    """A display that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.heard = threading.Event()
        self.closed = False

    def __call__(self, kind: str, row: dict[str, Any]) -> None:
        assert kind == "progress"
        self.rows.append(row["what"])
        self.heard.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    found = Shown()
    monkeypatch.setattr(heartbeat, "SECONDS", 0.01)
    monkeypatch.setattr(startup, "Progress", lambda *_, **__: found)
    return found


def test_startup_names_the_work_at_hand_until_a_run_takes_over(shown: Shown) -> None:
    with show_startup():
        with doing("loading the model"):
            assert shown.heard.wait(60)
        assert set(shown.rows) == {"loading the model"}
        end_startup()
        assert shown.closed


def test_work_outside_a_startup_shows_nothing(shown: Shown) -> None:
    with doing("loading the model"):
        assert not shown.heard.wait(0.05)


def test_a_gone_terminal_does_not_end_the_heartbeat(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, twice = list[str](), threading.Event()

    def gone(self: Shown, kind: str, row: dict[str, Any]) -> None:
        calls.append(kind)
        if len(calls) == 2:
            twice.set()
        raise BrokenPipeError

    monkeypatch.setattr(Shown, "__call__", gone)
    with show_startup(), doing("probing the layers"):
        assert twice.wait(60)
