"""Hostile programs, each with the outcome that it must have, and the sandbox as good as new after it."""

from __future__ import annotations

import sys

import pytest

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox

# name: (program, status, a part of its output or error)
PROGRAMS: dict[str, tuple[str, str, str]] = {
    # time
    "endless loop": ("while True: pass", "timeout", "CPU time"),
    "sleep": ("import time\ntime.sleep(1000)", "timeout", "did nothing"),
    "many short sleeps": ("import time\nwhile True: time.sleep(0.01)", "timeout", "did nothing"),
    "sleep in a thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        "timeout",
        "did nothing",
    ),
    "loop in a thread": (
        "import threading\ndef f():\n  while True: pass\nthreading.Thread(target=f, daemon=True).start()\nf()",
        "timeout",
        "CPU time",
    ),
    "loop in C": (
        "'a' * 30 and __import__('re').match('(a+)+$', 'a' * 40 + 'b')",
        "timeout",
        "CPU",
    ),
    "signals ignored": (
        "import signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n"
        "  except (OSError, ValueError): pass\nwhile True: pass",
        "timeout",
        "CPU time",
    ),
    "closed and looping": (
        "import os\nos.closerange(0, 64)\nwhile True: pass",
        "timeout",
        "CPU time",
    ),
    "exit function that loops": (
        "import atexit\n@atexit.register\ndef f():\n  while True: pass",
        "timeout",
        "CPU time",
    ),
    "waits for its channel": ("import os\nos.read(3, 1)", "timeout", "did nothing"),
    # memory, space, numbers
    "large list": ("x = [0] * 10**10", "memory", ""),
    "growing list": ("x = []\nwhile True: x.append(bytearray(10**6))", "memory", ""),
    "anonymous maps": ("import mmap\nx = [mmap.mmap(-1, 10**7) for _ in range(100)]", "memory", ""),
    "maps in threads": (
        "import threading\nx = []\nb = threading.Barrier(5)\ndef f():\n  b.wait()\n  while True: x.append(bytearray(10**6))\n"
        "t = [threading.Thread(target=f) for _ in range(4)]\n[i.start() for i in t]\nf()",
        "memory",
        "",
    ),
    "large number": ("x = 1 << (1 << 36)", "memory", ""),
    "large file": ("open('a', 'wb').write(bytes(20 * 2**20))", "exception", "OSError"),
    "many files": (
        "for i in range(40):\n  open(str(i), 'wb').write(bytes(2**20))",
        "exception",
        "No space",
    ),
    "many names": ("for i in range(10**5): open(str(i), 'w').close()", "exception", "No space"),
    "descriptors": ("x = [open('/dev/null') for _ in range(1000)]", "exception", "Too many open"),
    "thread bomb": (
        "import threading, time\nn = 0\nwhile True:\n"
        "  threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "exception",
        "can't start new thread",
    ),
    "small thread bomb": (
        "import threading, time\nthreading.stack_size(2**16)\nfor n in range(99):\n"
        "  threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        "exception",
        "can't start new thread",
    ),
    "fork bomb": ("import os\nwhile True: os.fork()", "exception", "PermissionError"),
    "processes": ("import multiprocessing as m\nm.Process(target=print).start()", "exception", ""),
    "recursion": ("def f(): f()\nf()", "exception", "RecursionError"),
    # From 3.12 on the interpreter counts C frames itself, whatever the limit is set to.
    "C stack": (
        "import sys\nsys.setrecursionlimit(10**8)\nclass A:\n  def __repr__(self): return repr(self)\nrepr(A())",
        *(("died", "SIGSEGV") if sys.version_info < (3, 12) else ("exception", "RecursionError")),
    ),
    "output": ("while True: print('x' * 1000)", "output", ""),
    "errors": ("import os\nwhile True: os.write(2, b'x' * 1000)", "output", ""),
    "output at once": ("print('x' * 10**6)", "output", ""),
    "large compile": ("(" * 10**5, "compile_error", ""),
    "deep compile": ("x = " + "-" * 10**6 + "1", "compile_error", ""),
    # ends
    "exit": ("import sys\nprint('a')\nsys.exit()", "ok", "a"),
    "exit 3": ("import sys\nsys.exit(3)", "exception", "SystemExit: 3"),
    "exit at once": ("import os\nos.write(1, b'a')\nos._exit(0)", "ok", "a"),
    "exit 3 at once": ("import os\nos._exit(3)", "died", "exit code 3"),
    "abort": ("import os\nos.abort()", "died", "SIG"),
    "null pointer": ("import ctypes\nctypes.string_at(0)", "died", "SIGSEGV"),
    "kill itself": ("import os\nos.kill(os.getpid(), 9)\nprint('alive')", "ok", "alive"),
    "kill its parent": ("import os\nos.kill(os.getppid(), 9)\nprint('alive')", "ok", "alive"),
    "kill all": ("import os\nos.kill(-1, 9)", "exception", "ProcessLookupError"),
    "kill its group": ("import os\nos.kill(0, 9)\nos.killpg(0, 9)\nprint('alive')", "ok", "alive"),
    "drops into its channel": (
        "import os, time\nos.write(3, b'\\0\\0\\x10\\0')\nwhile True:\n  os.write(3, b'x')\n  time.sleep(0.01)",
        "timeout",
        "did nothing",
    ),
    "flood of its channel": (
        "import os\nos.write(3, b'\\0\\0\\x70\\0')\nwhile True: os.write(3, b'x')",
        "timeout",
        "CPU time",
    ),
    "locks": (
        "import fcntl\nf = open('a', 'w')\nfor i in range(10**6): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * i)",
        "exception",
        "OSError",
    ),
    "grows its input": ("import os\nos.write(0, b'x')", "exception", "PermissionError"),
    "closed": ("import os\nos.closerange(0, 64)", "died", "exit code"),
    "garbage": (
        "import os\nfor i in range(3, 64): os.write(i, b'garbage' * 99)",
        "died",
        "invalid data",
    ),
    "long frame": ("import os\nos.write(3, b'\\xff\\xff\\xff\\xff')", "died", "invalid data"),
    "short frame": ("import os\nos.write(3, b'\\x10\\0\\0\\0ab')\nos._exit(0)", "ok", ""),
    "silent": ("import os\nos.dup2(0, 3)", "died", "exit code"),
    # reach
    "socket": ("import socket\nsocket.socket()", "exception", "PermissionError"),
    "vsock": (
        "import socket\nsocket.socket(40, socket.SOCK_STREAM)",
        "exception",
        "PermissionError",
    ),
    "netlink": (
        "import socket\nsocket.socket(16, socket.SOCK_RAW)",
        "exception",
        "PermissionError",
    ),
    "unix socket": ("import socket\nsocket.socket(socket.AF_UNIX)", "exception", "PermissionError"),
    "datagram pair": (
        "import socket\nsocket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "exception",
        "PermissionError",
    ),
    "program": ("import os\nos.execv('/bin/sh', ['sh'])", "exception", "PermissionError"),
    "subprocess": ("import subprocess\nsubprocess.run(['ls'])", "exception", "PermissionError"),
    "shell": ("import os\nprint(os.system('exit 0') != 0)", "ok", "True"),
    "passwords": ("open('/etc/passwd')", "exception", "FileNotFoundError"),
    "processes of the host": ("open('/proc/self/environ')", "exception", "FileNotFoundError"),
    "write to the root": ("open('/x', 'w')", "exception", "Read-only"),
    "write to the library": ("import os\nopen(os.__file__, 'w')", "exception", "Read-only"),
    "device": (
        "import os\nos.mknod('x', 0o20666, os.makedev(1, 1))",
        "exception",
        "PermissionError",
    ),
    "links out": (
        "import os\nos.symlink('/etc/passwd', 'x')\nopen('x')",
        "exception",
        "FileNotFound",
    ),
    "user": ("import os\nos.setuid(0)", "exception", "PermissionError"),
    "root": ("import os\nos.chroot('/tmp')", "exception", "PermissionError"),
    "host name": ("import socket\nsocket.sethostname('x')", "exception", "PermissionError"),
    "limits": (
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
        "exception",
        "ValueError",
    ),
    "packages": ("import numpy", "exception", "ModuleNotFoundError"),
    "project": ("import assay", "exception", "ModuleNotFoundError"),
    # names and hooks
    "built-ins": (
        "import builtins, sys, json\nfor n in 'len type isinstance print sum repr tuple getattr'.split():\n"
        "  setattr(builtins, n, None)\nsys.stdout.write('a')",
        "ok",
        "a",
    ),
    "modules": (
        "import sys\nsys.stdout.write('a')\nfor n in list(sys.modules): sys.modules[n] = None",
        "ok",
        "a",
    ),
    "import hooks": (
        "import sys\nclass F:\n  def find_spec(self, *a): raise SystemExit(9)\nsys.meta_path[:] = [F()]\n"
        "sys.path_hooks[:] = []\nprint('a')",
        "ok",
        "a",
    ),
    "audit hook": (
        "import sys, os\nsys.addaudithook(lambda *a: os._exit(5) if a[0] == 'never' else None)\nprint('a')",
        "ok",
        "a",
    ),
    "trace": ("import sys\nsys.settrace(lambda *a: 1/0)\nprint('a')", "exception", "ZeroDivision"),
    "last words": ("class A:\n  def __del__(self): print('a')\na = A()\ndel a", "ok", "a"),
    "exit function": ("import atexit\natexit.register(print, 'a')", "ok", "a"),
    "streams": ("import sys\nsys.stdout = sys.stderr = None", "ok", ""),
    "error of its own": (
        "class E(Exception):\n  def __str__(self): raise SystemExit(1)\nraise E",
        "exception",
        "E",
    ),
    "huge error": ("raise ValueError('x' * 10**7)", "exception", "ValueError: xxx"),
    "no text": ("\ud800", "compile_error", ""),
    "zero byte": ("a\0b", "compile_error", ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_hostile_program(sandbox: Sandbox, limits: Limits, name: str) -> None:
    source, status, words = PROGRAMS[name]
    outcome = sandbox.run(source, "", limits)
    assert outcome.status == status, outcome
    assert words in outcome.stdout + outcome.error, outcome
    assert len(outcome.stdout) <= 64 * 1024 and len(outcome.error) <= 1000
    if status == "timeout" and "CPU" in words:
        assert outcome.cpu_seconds > 1.0


def test_honest_programs_are_not_in_the_way(sandbox: Sandbox, limits: Limits) -> None:
    for source, output in {
        "print(input()[::-1])": "olleh\n",
        "print(open('/dev/stdin').read())": "hello\n\n",
        "import sys\nprint(sys.stdin.readline())": "hello\n\n",
        "print(open(0).read())": "hello\n\n",
        "import asyncio\nasync def f():\n  await asyncio.sleep(0.01)\n  return 3\nprint(asyncio.run(f()))": "3\n",
        "import threading\nt = threading.Thread(target=print, args=(1,))\nt.start()": "1\n",
        "from concurrent.futures import ThreadPoolExecutor as P\nprint(*P(4).map(abs, [-1, -2]))": "1 2\n",
        "import tempfile\nwith tempfile.TemporaryFile('w+') as f: print(f.write('abc'))": "3\n",
        "import hashlib, zlib, bz2, lzma, sqlite3, ctypes, unittest, decimal\nprint(1)": "1\n",
        "import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(50000))": "50000\n",
        "import threading\nthreading.stack_size(2**25)\nt = threading.Thread(target=print, args=(1,))\nt.start()": "1\n",
        "import signal\nsignal.signal(14, lambda *a: print(1))\nsignal.setitimer(0, 0.01)\nsignal.pause()": "1\n",
        "if __name__ == '__main__': print(__name__)": "__main__\n",
        "import dataclasses\n@dataclasses.dataclass\nclass A: x: int\nprint(A(1))": "A(x=1)\n",
        "import time, os\nprint(time.tzname[0], os.getcwd(), len(os.urandom(3)))": "UTC /tmp/work 3\n",
        "print('é ü', '\\ud800'.encode('utf-8', 'replace'))": "é ü b'?'\n",
        "print(1)\nexit()": "1\n",
    }.items():
        outcome = sandbox.run(source, "hello\n", limits)
        assert (outcome.status, outcome.stdout) == ("ok", output), (source, outcome)


def test_nothing_of_the_host_is_seen(
    sandbox: Sandbox, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_SECRET_FOR_TEST", "xyzzy plugh")
    look = """
import gc, os, sys
def is_open(i):
    try:
        os.fstat(i)
    except OSError:
        return False
    return True
found = []
for folder, _, names in os.walk("/"):
    if "/python3" not in folder:
        found += [os.path.join(folder, name) for name in names]
print(sorted(os.environ))
print([i for i in range(1024) if is_open(i)])
print(sorted(found))
print(os.getpid(), os.getppid(), os.getuid(), os.getgroups(), os.uname().nodename)
print("".join(["yzz", "y plugh"]) in repr([each for each in gc.get_objects() if type(each) in (dict, list, tuple)]))
"""
    outcome = sandbox.run(look, "", limits)
    assert outcome.status == "ok", outcome
    environment, descriptors, files, identity, secret = outcome.stdout.splitlines()
    assert "SECRET" not in environment and "PYTHONPATH" not in environment
    assert descriptors == "[0, 1, 2, 3]"
    assert (
        files
        == "['/dev/null', '/dev/random', '/dev/stdin', '/dev/urandom', '/dev/zero', '/tmp/.stdin']"
    )
    assert identity == "1 0 65534 [] sandbox"
    assert secret == "False"


def test_what_depends_on_addresses_and_seeds_is_always_the_same(limits: Limits) -> None:
    source = """
print(hash("a"), hash(None), list({None, 1, 2, "x", "y"}), set("abc"))
import random
print(random.random())
"""
    seen: set[str] = set()
    for _ in range(2):
        with Sandbox() as own:
            seen |= {own.run(source, "", limits).stdout for _ in range(2)}
    assert len(seen) == 1


def test_no_core_is_written(sandbox: Sandbox, limits: Limits) -> None:
    source = "import ctypes\nprint(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"  # PR_GET_DUMPABLE
    assert sandbox.run(source, "", limits).stdout == "0\n"


def test_no_state_from_one_to_the_next(sandbox: Sandbox, limits: Limits) -> None:
    leave = """
import builtins, math, os, random, sys, tempfile
open("left", "w").write("x")
open(os.path.join(tempfile.gettempdir(), "left2"), "w").write("x")
builtins.left = math.left = random.left = sys.left = 1
os.environ["LEFT"] = "1"
sys.modules["json"] = None
random.seed(99)
os.umask(0o777)
"""
    look = """
import builtins, json, math, os, random, sys
print(os.listdir("."), hasattr(builtins, "left"), hasattr(math, "left"), hasattr(sys, "left"))
print(os.environ.get("LEFT"), random.random(), hash("a"))
"""
    first = sandbox.run(look, "", limits)
    assert sandbox.run(leave, "", limits).status == "ok"
    second = sandbox.run(look, "", limits)
    assert first.status == "ok" and first.stdout == second.stdout
    assert first.stdout.startswith("[] False False False\nNone 0.8444218515250481 ")
