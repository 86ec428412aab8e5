"""As an ordinary user, with an interpreter that this user may read: the same walls, the same outcomes."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
USER = 12345
# A program started by setpriv may still be read by root's right; one that it starts itself may not.
TRIAL = """
import subprocess, sys
open(sys.argv[1]).close()
subprocess.run([sys.executable, "-c", ""], check=True)
"""
PROGRAM = """
import json
from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, sandbox_report
limits = Limits(seconds=2.0, cpu_seconds=1.0, memory_mib=128, output_kib=64, processes=8)
programs = {
    "identity": "import os; print(os.getpid(), os.getuid(), os.listdir('.'), os.path.exists('/etc'))",
    "loop": "while True: pass",
    "memory": "x = bytearray(10**9)",
    "sleep": "import time; time.sleep(99)",
    "socket": "import socket; socket.socket()",
    "fork": "import os; os.fork()",
    "threads": "import threading, time\\nthreading.stack_size(2**16)\\nfor n in range(99): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "group": "import os; os.kill(0, 9); print(os.getpgid(0), os.getsid(0))",
    "capabilities": "import os; os.close(os.open('x', os.O_CREAT, 0)); open('x')",
    "core": "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))",
    "write": "open('/x', 'w')",
    "file": "open('left-by-submission', 'w').write('x'); print(1)",
}
with Sandbox() as sandbox:
    rows = {name: sandbox.run(source, "", limits) for name, source in programs.items()}
    with sandbox.load("def f(x): return x + 1", limits) as session:
        value = session.call("f", (1,)).value
    facts = sandbox.facts
print(json.dumps([{name: (row.status, row.stdout, row.error) for name, row in rows.items()}, value, facts,
    [row[1] for row in sandbox_report()]]))
"""


def interpreter() -> list[str]:
    """The command of an ordinary user's Python, of our version; skips where none can be had."""
    if os.geteuid() != 0:
        return [sys.executable]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed, so no other user can be become")
    become = [setpriv, "--reuid", f"{USER}", "--regid", f"{USER}", "--clear-groups"]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (
        sys.executable,
        f"/usr/bin/python{version}",
        f"/usr/local/bin/python{version}",
    ):
        tried = subprocess.run(
            [*become, candidate, "-c", TRIAL, str(ROOT / "pyproject.toml")],
            capture_output=True,
            cwd="/",
        )
        if tried.returncode == 0:
            return [*become, candidate]
    pytest.skip(f"no Python {version} and checkout that an ordinary user may read")


def test_an_ordinary_user_is_isolated_as_well() -> None:
    command = interpreter()
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [*command, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=120,
    )
    if "SandboxUnavailable" in done.stderr and "not permitted" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    rows, value, facts, report = json.loads(done.stdout)
    assert rows["identity"][:2] == ["ok", "1 65534 [] False\n"]
    assert facts["mode"] == "isolated" and facts["uid_outside"] == (os.geteuid() or USER)
    expected = {
        "loop": ("timeout", "CPU time"),
        "memory": ("memory", ""),
        "sleep": ("timeout", "did nothing"),
        "socket": ("exception", "PermissionError"),
        "fork": ("exception", "PermissionError"),
        "threads": ("exception", "can't start new thread"),
        "write": ("exception", "Read-only"),
        "file": ("ok", ""),
        "group": ("ok", ""),
        "capabilities": ("exception", "PermissionError"),
        "core": ("ok", ""),
    }
    for name, (status, words) in expected.items():
        assert rows[name][0] == status and words in rows[name][2], (name, rows[name])
    assert rows["group"][1] == "1 1\n"  # a group of its own, so that kill(0, ...) stays inside
    assert rows["core"][1] == "0\n"
    assert value == 2 and all(report)
