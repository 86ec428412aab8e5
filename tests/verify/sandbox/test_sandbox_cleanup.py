"""Nothing is left: no process, file, mount, shared memory, descriptor, whoever ends first and however."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import gone

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, SandboxUnavailable


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``, by the parents that /proc names."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found: set[int] = set()
    new = {pid}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in new} - found
    return found - {pid}


def host_state() -> tuple[list[str], list[str], str, list[str]]:
    return (
        sorted(os.listdir("/proc/self/fd")),
        sorted(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else [],
        Path("/proc/self/mountinfo").read_text(),
        sorted(name for name in os.listdir("/tmp") if "left-by-submission" in name),
    )


MESS = """
import os, mmap, threading, time
open("/tmp/left-by-submission", "w").write("x")
m = mmap.mmap(-1, 10**6)
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
"""


@pytest.mark.usefixtures("sandbox")
def test_nothing_is_left_of_many_submissions(limits: Limits) -> None:
    with Sandbox() as first:  # what the first one opens for good is not a leak
        first.run("", "", limits)
    before, running = host_state(), descendants(os.getpid())
    with Sandbox() as own:
        zygote = descendants(os.getpid()) - running
        inside = (sorted(os.listdir("/proc/self/fd")), len(zygote))
        endings = ("", "1/0", "\nos._exit(0)", "\nos.abort()", "\nos.closerange(0, 64)", "x = (")
        for _ in range(3):
            for ending in endings:
                own.run(MESS + ending, "text", limits)
                with own.load(MESS + ending, limits) as session:
                    session.call("f")
        quick = Limits(cpu_seconds=0.1)
        assert own.run("while True: pass", "", quick).status == "timeout"
        abandoned = own.load("x = 1", limits)
        assert len(descendants(os.getpid()) - running) == inside[1] + 1
        abandoned.close()
        assert (sorted(os.listdir("/proc/self/fd")), inside[1]) == inside
        assert descendants(os.getpid()) - running == zygote
        open_session = own.load("x = 1", limits)
        pids = descendants(os.getpid()) - running
    assert gone(pids)
    open_session.close()
    assert host_state() == before


PARENT = """
import sys, threading
from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox
def work():
    with Sandbox(unsafe=sys.argv[2] == "unsafe") as sandbox:
        session = sandbox.load("def f():\\n  while True: pass", Limits(cpu_seconds=1000.0))
        print("ready", flush=True)
        session.call("f")
if sys.argv[1] == "thread":
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
else:
    work()
"""


@pytest.mark.parametrize("mode", ["isolated", "unsafe"])
@pytest.mark.parametrize("where", ["main", "thread"])
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_everything_ends_with_a_killed_worker(
    sandbox: Sandbox, tmp_path: Path, where: str, mode: str, group: bool
) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", PARENT, where, mode],
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert worker.stdout is not None
    with worker.stdout:
        assert worker.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        below = descendants(worker.pid)
        assert len(below) == (3 if mode == "isolated" else 2)
        if group:
            os.killpg(worker.pid, signal.SIGKILL)
        else:
            worker.kill()
        worker.wait()
    assert gone(below)
    if not (mode == "unsafe" and group):  # then nobody is left who could remove a folder
        assert os.listdir(tmp_path) == []


def test_sessions_of_one_sandbox_live_side_by_side(sandbox: Sandbox, limits: Limits) -> None:
    source = "import os\ndef write(x): open('file', 'w').write(x)\ndef files(): return os.listdir('.')\ndef pids(): return os.getpid()"
    with sandbox.load(source, limits) as one, sandbox.load(source, limits) as two:
        one.call("write", ("x",))
        assert one.call("files").value == ["file"] and two.call("files").value == []
        assert one.call("pids").value == two.call("pids").value == 1


def test_a_closed_sandbox_says_so(limits: Limits, sandbox: Sandbox) -> None:
    own = Sandbox()
    session = own.load("def f(): return 1", limits)
    session.close()
    assert session.call("f").status == "died"
    own.close()
    own.close()  # twice is no harm


def test_verdicts_do_not_depend_on_the_load(sandbox: Sandbox) -> None:
    """A program well inside its CPU time, on a machine with four times as many busy loops as cores."""
    source = "x = 0\nfor i in range(2 * 10**6): x += i\nprint(x)"
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        outcome = sandbox.run(source, "", Limits(seconds=1.0, cpu_seconds=2.0))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert outcome.status == "ok", outcome


def test_impossible_isolation_is_refused(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    from assay.verify.sandbox import sandbox as module

    def refuse(pid: int) -> str:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(module, "_map_users", refuse)
    with pytest.raises(SandboxUnavailable, match=r"not permitted.*--unsafe-no-sandbox"):
        Sandbox()
    with Sandbox(unsafe=True) as unsafe:
        assert unsafe.facts["mode"].startswith("unsafe")
        assert unsafe.run("print(1)", "", limits).stdout == "1\n"
        assert unsafe.run("while True: pass", "", limits).status == "timeout"
        assert unsafe.run("x = bytearray(10**9)", "", limits).status == "memory"


REFUSING = """
import ctypes, errno, struct, sys
from assay.verify.sandbox import Sandbox, SandboxUnavailable, seccomp
number = {"x86_64": 272, "aarch64": 97}[sys.argv[1]]  # unshare, as in a container's usual profile
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)]
filter = seccomp.Filter(sys.argv[1])
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
filter.header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
filter.install()
try:
    Sandbox()
except SandboxUnavailable as error:
    print(error)
"""


def test_a_host_that_forbids_namespaces_is_refused(sandbox: Sandbox) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING, os.uname().machine], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "unshare: Operation not permitted" in done.stdout
    assert "--unsafe-no-sandbox" in done.stdout and "\n" not in done.stdout.strip()


def test_a_wall_that_does_not_stand_is_named(
    monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    from assay.verify.sandbox import probe
    from assay.verify.sandbox import sandbox as module

    monkeypatch.setattr(module, "_probed", set[tuple[int, int]]())
    monkeypatch.setattr(
        probe, "PROGRAM", probe.PROGRAM.replace('"network": socket,', '"network": lambda: True,')
    )
    with pytest.raises(SandboxUnavailable, match="broken isolation measures: network"):
        Sandbox()
    monkeypatch.setattr(probe, "PROGRAM", "1/0")
    with pytest.raises(SandboxUnavailable, match="ZeroDivisionError"):
        Sandbox()
