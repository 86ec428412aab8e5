"""The check of a CUDA machine: parts that fail or hang are reported, and the others go on."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from bench import gpu_check
from bench.gpu_check import ROOT, Part, as_line, check, main, parts_of

HANGS = """
import pathlib, subprocess, sys, time
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(helper.pid))
print("half way", flush=True)
time.sleep(600)
"""


def python(text: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", text, *arguments]


def is_gone(pid: int) -> bool:
    """Whether a process has ended, within a while; one that nobody has waited for counts."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_each_part_is_on_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, helper, file = tmp_path / "figures.json", tmp_path / "helper", tmp_path / "out.json"
    writes = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"speed\": 7}')"
    parts = [
        Part("fails", python("import sys; print('sorry'); sys.exit(3)"), 60),
        Part("hangs", python(HANGS, str(helper)), 1.5),
        Part("is not there", [str(tmp_path / "no-such-program")], 60),
        Part("writes", python(writes, str(figures)), 60, figures),
        Part("sees", python("import os; print(os.environ['SEEN'])"), 60),
    ]
    found = check(parts, {"device": "fake"}, file, {"SEEN": "as it is given"})
    assert [one.exit_code for one in found] == [3, None, None, 0, 0]
    assert [one.error for one in found][:2] == ["exit code 3", "not done after 2 s"]
    assert found[2].error.startswith("cannot be started: ")
    assert found[0].last_lines == ["sorry"] and found[1].last_lines == ["half way"]
    assert found[3].figures == {"speed": 7} and found[4].last_lines == ["as it is given"]
    assert is_gone(int(helper.read_text())), "what a part has started ends with it"
    report = json.loads(file.read_text())
    assert report["device"] == "fake"
    assert [one["name"] for one in report["parts"]] == [part.name for part in parts]
    said = capsys.readouterr().out
    assert "fails: FAILED after" in said and "    sorry" in said and "writes: passed in" in said


def test_the_file_is_there_before_the_next_part_begins(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    reads = "import json, sys; print(len(json.load(open(sys.argv[1]))['parts']))"
    parts = [Part("first", python(""), 60), Part("second", python(reads, str(file)), 60)]
    assert check(parts, {}, file, {})[1].last_lines == ["1"]


def test_no_part_begins_when_the_time_is_up(tmp_path: Path) -> None:
    marks = python("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()", str(tmp_path / "mark"))
    (one,) = check([Part("late", marks, 60)], {}, None, {}, seconds_in_all=0.0)
    assert one.exit_code is None and "no time was left" in as_line(one)
    assert not (tmp_path / "mark").exists()


def test_without_cuda_it_says_so_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["--json", str(tmp_path / "out.json")]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("gpu-check: found no CUDA device") and said.err.count("\n") == 1
    assert said.out == "" and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("fails", ["is_available", "get_device_name", "get_device_properties"])
def test_a_device_that_tells_nothing_costs_no_part(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fails: str,
) -> None:
    import torch

    def broken(*_: object) -> None:
        raise RuntimeError("CUDA driver initialization failed")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(torch.cuda, fails, broken)
    part = Part("one", python(""), 60)
    monkeypatch.setattr(gpu_check, "parts_of", lambda *_: [part])
    file = tmp_path / "out.json"
    assert main(["--json", str(file)]) == 0
    report = json.loads(file.read_text())
    assert report["device_error"] == "RuntimeError: CUDA driver initialization failed"
    assert report["device"] in ("CUDA", "a device") and len(report["parts"]) == 1
    assert "tells no facts" in capsys.readouterr().err


def test_parts_run_in_order_and_the_peer_only_where_present(tmp_path: Path) -> None:
    parts = parts_of("cuda", tmp_path, "/trl/python")
    names = ["doctor", "gpu tests", "bench.gpu", "demo", "bench.vs_trl"]
    assert [part.name for part in parts] == names
    command = list(parts[1].command)
    files = command[command.index("gpu") + 1 :]
    assert "tests/training/test_devices.py" in files and "tests/model/test_flash.py" in files
    assert all((ROOT / file).is_file() for file in files)
    assert "cuda" in parts[-1].command and "--tiny" not in parts[2].command
    assert [part.name for part in parts_of("cuda", tmp_path, None)] == names[:-1]


def test_the_exit_code_shows_failed_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    for code in (0, 1):
        part = Part("one", python(f"import sys; sys.exit({code})"), 60)
        monkeypatch.setattr(gpu_check, "parts_of", lambda *_, part=part: [part])
        assert main(["--device", "cpu", "--json", str(file)]) == code
    report = json.loads(file.read_text())
    assert report["device"] == "CPU" and report["versions"]["torch"] and report["date"]


@pytest.mark.slow
def test_every_part_runs_on_the_cpu(tmp_path: Path) -> None:
    """At tiny scale; the doctor may find fault with the machine, which is not this test's matter."""
    file = tmp_path / "out.json"
    assert main(["--device", "cpu", "--json", str(file)]) in (0, 1)
    parts = {one["name"]: one for one in json.loads(file.read_text())["parts"]}
    for name in ("gpu tests", "bench.gpu", "demo"):
        assert parts[name]["exit_code"] == 0, os.linesep.join(parts[name]["last_lines"])
    assert parts["bench.gpu"]["figures"]["shapes"][0]["engine"]["seconds"] > 0
