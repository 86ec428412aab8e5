"""Commands as processes: how many at a time, failures, stops, and none that is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import gone, until

from assay.sweep.processes import JobEnd, TrainingJob, run_jobs

LOGGED = "echo begin $1 >> order; sleep 0.2; echo end $1 >> order"


def jobs(count: int, script: str = LOGGED) -> list[TrainingJob]:
    return [
        TrainingJob(f"j{n}", ["sh", "-c", script, "sh", str(n)], Path("logs") / f"{n}.txt")
        for n in range(count)
    ]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_at_a_time_they_run_in_order() -> None:
    told: list[str] = []
    ends, is_interrupted = run_jobs(jobs(3), 1, lambda end: told.append(end.job.name))
    assert not is_interrupted and [end.code for end in ends] == [0, 0, 0]
    lines = Path("order").read_text().splitlines()
    assert lines == ["begin 0", "end 0", "begin 1", "end 1", "begin 2", "end 2"]
    assert told == ["j0", "j1", "j2"]


def test_no_more_run_at_a_time_than_asked() -> None:
    run_jobs(jobs(5), 2, lambda end: None)
    now = most = 0
    for line in Path("order").read_text().splitlines():
        now += 1 if line.startswith("begin") else -1
        most = max(most, now)
    assert most == 2


def test_a_failure_stops_no_other_and_its_words_are_in_the_log() -> None:
    script = 'echo said $1; test "$1" != 1'
    ends, _ = run_jobs(jobs(3, script), 1, lambda end: None)
    assert [end.code for end in ends] == [0, 1, 0]
    assert Path("logs/1.txt").read_text() == "said 1\n"


def test_a_file_of_output_is_there_only_after_success() -> None:
    def job(name: str, code: int) -> TrainingJob:
        command = ["sh", "-c", f"echo out; echo err >&2; exit {code}"]
        return TrainingJob(name, command, Path("log.txt"), Path(f"{name}.json"))

    run_jobs([job("good", 0), job("bad", 3)], 2, lambda end: None)
    assert Path("good.json").read_text() == "out\n" and not Path("bad.json").exists()
    assert Path("log.txt").read_text() == "err\nerr\n"


def test_a_first_signal_ends_commands_cleanly_and_starts_no_more() -> None:
    script = "trap 'echo stopped >> order; exit 7' TERM; echo begin $1 >> order; while :; do sleep 0.05; done"
    here = os.getpid()
    sender = os.fork()
    if sender == 0:
        until(lambda: Path("order").exists())
        os.kill(here, signal.SIGTERM)
        os._exit(0)
    ends, is_interrupted = run_jobs(jobs(3, script), 1, lambda end: None)
    os.waitpid(sender, 0)
    assert is_interrupted and [(end.job.name, end.code) for end in ends] == [("j0", 7)]
    assert Path("order").read_text() == "begin 0\nstopped\n"


def test_an_error_of_the_caller_ends_the_running_commands() -> None:
    def fail(end: JobEnd) -> None:
        raise ValueError(end.job.name)

    slow = TrainingJob("slow", ["sh", "-c", "echo $$ > pid; sleep 60"], Path("slow.txt"))
    quick = TrainingJob(
        "quick", ["sh", "-c", "while ! test -s pid; do sleep 0.02; done"], Path("q.txt")
    )
    with pytest.raises(ValueError, match="quick"):
        run_jobs([slow, quick], 2, fail)
    assert gone([Path("pid").read_text().strip()])


def test_a_killed_parent_leaves_no_command_behind() -> None:
    program = (
        "from pathlib import Path\nfrom assay.sweep.processes import TrainingJob, run_jobs\n"
        "job = TrainingJob('a', ['sh', '-c', 'echo $$ > pid; sleep 300'], Path('log.txt'))\n"
        "run_jobs([job], 1, print)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as parent:
        assert until(lambda: Path("pid").exists() and Path("pid").read_text().strip())
        pid = Path("pid").read_text().strip()
        assert Path(f"/proc/{pid}").exists()
        time.sleep(0.1)
        parent.kill()
    assert gone([pid])
