"""A run is one's own where its configuration carries the signature of one's own key, and only there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from assay.run.signature import key_path, why_not_own, write_config

TEXT = '[data]\ntrain = ["my_rows:rows"]\n'


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    write_config(path, TEXT)
    return path


def test_what_this_user_wrote_is_known_wherever_it_lies(path: Path, tmp_path: Path) -> None:
    assert why_not_own(path) == ""
    assert path.read_text().endswith(TEXT)
    other = tmp_path / "moved.toml"
    os.rename(path, other)
    assert why_not_own(other) == ""


def test_an_edited_or_unsigned_configuration_is_not(path: Path) -> None:
    signed = path.read_bytes()
    for other in (
        signed.replace(b"my_rows", b"no_rows"),
        signed + b"\n",
        signed.partition(b"\n")[2],
        b"",
    ):
        path.write_bytes(other)
        assert why_not_own(path) == "you did not make it on this machine, or it was edited since"


def test_another_users_signature_is_not_ones_own(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert "you did not make it" in why_not_own(path)


def test_the_key_is_the_users_alone(path: Path) -> None:
    assert stat.S_IMODE(key_path().stat().st_mode) == 0o600
    key_path().chmod(0o644)
    assert "can be read by others; delete it" in why_not_own(path)
    key_path().chmod(0o600)
    key_path().write_bytes(b"")
    assert "is damaged; delete it" in why_not_own(path)


def test_without_a_place_for_a_key_nothing_is_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a run is written all the same."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    write_config(tmp_path / "config.toml", TEXT)
    assert (tmp_path / "config.toml").read_text() == TEXT
    why = why_not_own(tmp_path / "config.toml")
    assert why.startswith("you have no key to tell your own runs by: ") and "Not a dir" in why


def test_processes_that_start_together_share_one_key(tmp_path: Path, state: Path) -> None:
    program = "from assay.run.signature import write_config; import sys, pathlib\n"
    program += "write_config(pathlib.Path(sys.argv[1]), 'a = 1\\n')"
    paths = [tmp_path / f"{n}.toml" for n in range(4)]
    running = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for path in paths]
    assert [one.wait() for one in running] == [0] * 4
    assert [why_not_own(path) for path in paths] == [""] * 4
    assert [one.name for one in (state / "assay").iterdir()] == ["key"]
