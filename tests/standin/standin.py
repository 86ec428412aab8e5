"""A device of the machine's own memory, so that tests find device errors without a GPU.

`register` builds it once for this PyTorch and makes it known as ``standin``. It refuses what CUDA
refuses: an operation on tensors of two devices, a CPU generator, code that reads its addresses. It
counts where the host would wait for a GPU. PyTorch's backward pass counts devices when it first runs:
a process registers the device before it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import backend_registration

NAME = "standin"
SOURCE = Path(__file__).with_name("standin.cpp")
WAITS = ("item", "shape", "synchronize", "to_device", "to_host")
"""The kinds of counts at which the host waits for the device. The other one is ``queued``."""


def compiler() -> str | None:
    """Return the C++ compiler, None without one."""
    return shutil.which(os.environ.get("CXX") or "c++")


@cache
def register() -> ModuleType:
    """Build the device, once for all processes, and make it known to torch; return its module."""
    native = _load(_built())
    backend_registration.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module(native))
    backend_registration.generate_methods_for_privateuse1_backend()
    return native


def begin_process() -> None:
    """Register the device; one thread, so that sums are made in the same order every time."""
    torch.set_num_threads(1)
    register()


@dataclass
class Transfers:
    """How often each kind of transfer happened, and from which line of whose code."""

    kinds: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """How often the host waited for the device."""
        return sum(self.kinds[kind] for kind in WAITS)


@contextmanager
def counted(part: str = f"{os.sep}assay{os.sep}") -> Iterator[Transfers]:
    """Count transfers inside the context. part: of the files whose lines are named."""
    native, found = register(), Transfers()

    def hear(kind: str, name: str) -> None:
        found.kinds[kind] += 1
        frames = [f for f in traceback.extract_stack() if part in f.filename]
        place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"
        found.places[f"{kind} {name} {place}"] += 1

    native.listen(hear)
    try:
        yield found
    finally:
        native.listen(None)


def _built() -> Path:
    """Return the compiled device, compiled first if this PyTorch has none yet."""
    include = Path(torch.__file__).parent / "include"
    folders = [include, include / "torch/csrc/api/include", sysconfig.get_path("include")]
    libraries = Path(torch.__file__).parent / "lib"
    command = [compiler() or "c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-DTORCH_EXTENSION_NAME={NAME}_native", *(f"-I{one}" for one in folders)]
    linked = [f"-L{libraries}", "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    parts = (SOURCE.read_bytes(), *map(str.encode, (torch.__version__, sys.version, *command)))
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"assay-standin-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{key}.so"
    # Several test processes may come here at the same time.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.is_file():
            partial = built.with_suffix(".partial")
            done = subprocess.run(
                [*command, "-o", str(partial), str(SOURCE), *linked], capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"the stand-in device was not built:\n{done.stderr[-4000:]}")
            partial.replace(built)
    return built


def _load(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"{NAME}_native", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _device_module(native: ModuleType) -> ModuleType:
    """Return what torch.cuda is for CUDA, as far as torch itself asks for it."""
    generator = native.default_generator()

    class DeviceContext:
        def __init__(self, device: Any) -> None:
            pass

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: Any) -> None:
            pass

    module: Any = ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda device: None
    module.device = DeviceContext
    module.synchronize = lambda device=None: torch.accelerator.synchronize()
    module.get_amp_supported_dtype = lambda: [torch.float32, torch.bfloat16]
    module._is_in_bad_fork = lambda: False
    module.manual_seed = generator.manual_seed
    module.manual_seed_all = generator.manual_seed
    module.get_rng_state = lambda device=NAME: generator.get_state()
    module.set_rng_state = lambda state, device=NAME: generator.set_state(state)
    module.default_generators = (generator,)
    return module
