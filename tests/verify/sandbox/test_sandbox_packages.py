"""Attacks that third-party packages open, and all hostile programs again with packages loaded."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any

import pytest

import assay.verify.sandbox.sandbox as sandbox_module
from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, SandboxUnavailable
from assay.verify.sandbox.arrays import Array
from assay.verify.sandbox.codec import Decoder, encode
from assay.verify.sandbox.packages import find_packages
from assay.verify.sandbox.values import Malformed
from tests.verify.sandbox.conftest import namespaces_are_allowed
from tests.verify.sandbox.test_sandbox_attacks import PROGRAMS

PACKAGES = find_packages(("numpy", "sympy"))


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    try:
        made = Sandbox(packages=PACKAGES)
    except SandboxUnavailable as error:
        if namespaces_are_allowed():
            raise  # then it is no fault of the machine
        pytest.skip(f"{error}")
    with made:
        yield made


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "packages"])
def test_hostile_program_with_packages(sandbox: Sandbox, limits: Limits, name: str) -> None:
    source, status, words = PROGRAMS[name]
    outcome = sandbox.run(source, "", limits)
    assert outcome.status == status, outcome
    assert words in outcome.stdout + outcome.error, outcome


# name: (program, status, a part of its output or error)
ATTACKS: dict[str, tuple[str, str, str]] = {
    "ctypes of numpy": (
        "import numpy as np\nlibc = np.ctypeslib.ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.system(b'true') != 0, libc.fork(), libc.socket(2, 1, 0))",
        "ok",
        "True -1 -1",
    ),
    "address out of range": (
        "import numpy as np\nnp.ctypeslib.as_array((np.ctypeslib.ctypes.c_char * 9).from_address(8))[0]",
        "died",
        "SIGSEGV",
    ),
    "program of a pickle": (
        "import numpy as np, os\nclass E:\n  def __reduce__(self): return os.execv, ('/bin/sh', ['sh'])\n"
        "np.save('a.npy', np.array([E()], dtype=object), allow_pickle=True)\nnp.load('a.npy', allow_pickle=True)",
        "exception",
        "PermissionError",
    ),
    "socket of a pickle": (
        "import numpy as np, socket\nclass E:\n  def __reduce__(self): return socket.socket, ()\n"
        "np.save('a.npy', np.array([E()], dtype=object), allow_pickle=True)\nnp.load('a.npy', allow_pickle=True)",
        "exception",
        "PermissionError",
    ),
    "program of an expression": (
        "import sympy\nsympy.sympify(\"__import__('os').execv('/bin/sh', ['sh'])\")",
        "exception",
        "not permitted",
    ),
    "file of an expression": (
        "from sympy.parsing.sympy_parser import parse_expr\nparse_expr(\"open('/etc/passwd').read()\")",
        "exception",
        "No such file",
    ),
    "endless expression": (
        "import sympy\nsympy.sympify('9**9**9**9**9')",
        "timeout",
        "CPU time",
    ),
    "code of lambdify": (
        "import sympy\nsympy.lambdify([], \"__import__('socket').socket()\")()",
        "exception",
        "PermissionError",
    ),
    "compiler of autowrap": (
        "import sympy\nfrom sympy.utilities.autowrap import autowrap\nautowrap(sympy.Symbol('x'), backend='cython')",
        "exception",
        "",
    ),
    "memory of numpy": ("import numpy as np\nx = np.ones(10**10)", "memory", ""),
    "growing arrays": (
        "import numpy as np\nx = []\nwhile True: x.append(np.ones(10**6))",
        "memory",
        "",
    ),
    "memory that is not touched": ("import numpy as np\nx = np.empty(2**36)", "memory", ""),
    "large map": (
        "import numpy as np\nx = np.memmap('a', dtype='b', mode='w+', shape=2**26)",
        "exception",
        "OSError",
    ),
    "large power": (
        "import numpy as np\na = np.random.rand(1500, 1500)\nwhile True: a = a @ a",
        "timeout",
        "CPU time",
    ),
    "threads of numpy": (
        "import numpy as np, threading\ndef f():\n  a = np.random.rand(300, 300)\n  while True: a @ a\n"
        "for _ in range(3): threading.Thread(target=f, daemon=True).start()\nf()",
        "timeout",
        "CPU time",
    ),
    "threads of BLAS": (
        "import ctypes, glob, numpy as np\n"
        "blas = ctypes.CDLL(glob.glob('/packages/numpy.libs/*openblas*')[0])\n"
        "set_threads = blas.scipy_openblas_set_num_threads64_\nset_threads(64)\n"
        "a = np.random.rand(400, 400)\nwhile True: a @ a",
        "timeout|died|memory",
        "",
    ),
    "write to a package": (
        "import numpy\nopen(numpy.__file__, 'a')",
        "exception",
        "PermissionError",
    ),
    "new module in a package": ("open('/packages/numpy/evil.py', 'w')", "exception", "Read-only"),
    "other packages": ("import torch", "exception", "ModuleNotFoundError"),
    "other packages by their path": (
        "import sys, os, numpy\nprint(sorted(os.listdir('/')), [p for p in sys.path if 'site' in p])",
        "ok",
        "'packages'",
    ),
    "project": ("import assay", "exception", "ModuleNotFoundError"),
    "patched numpy": (
        "import numpy as np\nnp.array_equal = np.allclose = np.all = lambda *a, **k: True\nprint('a')",
        "ok",
        "a",
    ),
    "built by a compiler": ("import numpy.f2py\nnumpy.f2py.compile('x')", "exception", ""),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_through_a_package(sandbox: Sandbox, limits: Limits, name: str) -> None:
    source, status, words = ATTACKS[name]
    outcome = sandbox.run(source, "", limits)
    assert outcome.status in status.split("|"), outcome
    assert words in outcome.stdout + outcome.error, outcome
    # The next program finds the sandbox unchanged.
    after = sandbox.run("import numpy as np\nprint(np.array_equal([1], [2]))", "", limits)
    assert after.stdout == "False\n", after


def test_files_that_a_program_sees(sandbox: Sandbox, limits: Limits) -> None:
    look = "import os\nprint(sorted(os.listdir('/packages')), os.path.exists('/work'), sorted(os.environ))"
    outcome = sandbox.run(look, "", limits)
    entries = sorted(entry.rpartition("/")[2] for entry in PACKAGES.entries)
    assert outcome.stdout.startswith(f"{entries} False")


def test_probe_runs_again_with_packages(monkeypatch: pytest.MonkeyPatch, limits: Limits) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(sandbox_module, "_probed", set())
    monkeypatch.setattr(
        sandbox_module.probe, "isolation_faults", lambda outcome: tried.append(outcome) or ""
    )
    for packages in (find_packages(()), PACKAGES, PACKAGES):
        with Sandbox(packages=packages):
            pass
    assert len(tried) == 2 and all(each.stdout == "" for each in tried)


def test_packages_without_isolation() -> None:
    with Sandbox(unsafe=True, packages=PACKAGES) as sandbox:
        limits = Limits(cpu_seconds=5.0, memory_mib=128)
        assert sandbox.run("import numpy as np\nprint(np.ones(2).sum())", "", limits).stdout == (
            "2.0\n"
        )
        assert "ModuleNotFoundError" in sandbox.run("import networkx", "", limits).error


def test_package_that_starts_a_thread_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "zzq_threads.py"
    module.write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()"
    )
    info = tmp_path / "zzq_threads-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zzq_threads\nVersion: 1.0\n")
    (info / "RECORD").write_text("zzq_threads.py,,\nzzq_threads-1.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    packages = find_packages(("zzq_threads",))
    assert packages.versions == (("zzq-threads", "1.0"),)
    with pytest.raises(SandboxUnavailable, match="start 1 threads when they are imported"):
        Sandbox(packages=packages)


# Messages.


def array_bytes(dtype: Any, shape: Any, items: Any) -> bytes:
    """The bytes of an array with any parts."""
    parts = encode((dtype, shape, items), _refuse)
    return b"n" + parts


def _refuse(value: Any) -> Any:
    raise AssertionError(value)


def test_arrays_survive_a_message() -> None:
    for array in (
        Array("<f8", (2, 2), [1.0, 2.0, 3.0, float("inf")]),
        Array("|O", (2,), [[1], None]),
        Array("<i8", (), [-(2**63)]),
        Array("<u8", (1,), [2**64 - 1]),
        Array("<U3", (0, 4), []),
    ):
        back = Decoder(encode(array, _refuse), _refuse).message()
        assert (back.dtype, back.shape, back.items) == (array.dtype, array.shape, array.items)


@pytest.mark.parametrize(
    "parts",
    [
        ("<f8", (2,), [1.0]),
        ("<f8", (-1,), [1.0]),
        ("<f8", (1.0,), [1.0]),
        ("<f8", (1,), [1]),
        ("<f8", (1,), ["1"]),
        ("<i1", (1,), [128]),
        ("<u1", (1,), [-1]),
        ("<i8", (1,), [True]),
        ("<M8", (1,), [1]),
        ("f8", (1,), [1.0]),
        ("<f8)" + "x", (1,), [1.0]),
        ("<f8", (1,) * 33, [1.0]),
        ("<f8", (0, 10**9), []),
        ("<f8", (10**9, 0), []),
        ("<f8", [1], [1.0]),
        (b"<f8", (1,), [1.0]),
    ],
)
def test_malformed_array_is_refused(parts: tuple[Any, Any, Any]) -> None:
    with pytest.raises(Malformed):
        Decoder(array_bytes(*parts), _refuse).message()


def test_array_is_no_key() -> None:
    data = b"Z" + b"l" + struct.pack("<I", 1) + encode(Array("<i8", (1,), [1]), _refuse)
    with pytest.raises(Malformed):
        Decoder(data, _refuse).message()
