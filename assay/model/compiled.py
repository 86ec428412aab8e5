"""Compile small C operations, and cache the libraries in the user's state folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import torch

from assay.host.files import state_folder
from assay.host.machine import c_compiler
from assay.host.removal import put_in_place
from assay.model.family import NotLean

CAPABILITY = torch.backends.cpu.get_cpu_capability()
# Number of float32 values in a vector register.
LANES = {"AVX512": 16, "AVX2": 8}.get(CAPABILITY, 4)
HEADER = Path(__file__).with_name("vectors.h")
MARCH = {"AVX2": ("-march=x86-64-v3",), "AVX512": ("-march=x86-64-v4",)}
# The compiler flags omit `-ffast-math`, which would allow the compiler to reorder sums.
FLAGS = ("-O3", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC", "-w")
KINDS = {torch.float32: (), torch.bfloat16: ("-DBFLOAT16",)}


def build(source: Path, dtype: torch.dtype) -> ctypes.CDLL:
    """Compile a C file for one tensor type, and load the library. Raises NotLean if the C code
    cannot be compiled or loaded."""
    compiler = c_compiler()
    if compiler is None or dtype not in KINDS:
        raise NotLean(f"no C compiler (cc), or no compiled functions for {dtype}")
    path, version = compiler
    # The C code is compiled for the instruction set that PyTorch uses on this machine.
    # `ATEN_CPU_CAPABILITY`, which restricts PyTorch's instruction set, also restricts the C code.
    command = [path, *MARCH.get(CAPABILITY, ()), f"-DLANES={LANES}", *FLAGS, *KINDS[dtype]]
    try:
        return ctypes.CDLL(str(_built(source, command, version)))
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise NotLean(f"{path}: {error}") from error


def _built(source: Path, command: list[str], version: str) -> Path:
    """Return the path of the compiled library; compile the library if it is not cached."""
    # The cache key contains every input of the compiler, so a cached library is never outdated.
    parts = [source.read_bytes(), HEADER.read_bytes(), *map(str.encode, (version, *command))]
    key = hashlib.sha256(b"\0".join(parts))
    name = source.stem.replace("_", "-")
    path = state_folder() / f"{name}-{key.hexdigest()[:16]}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may compile at once, so each process writes its own file and renames it.
        partial = path.with_suffix(f".{os.getpid()}.partial")
        command = [*command, f"-I{HEADER.parent}", "-o", str(partial), str(source)]
        subprocess.run(command, capture_output=True, check=True)
        put_in_place(partial, path)
    return path
