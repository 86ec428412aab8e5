"""Compile every kernel of a decoding step for an architecture, without a device: run by test_fused.

It calls the launchers with tensors of real sizes, and compiles what they would launch.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from assay.generate import triton_decode as kernels

NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.int64: "i64", torch.float16: "fp16"}
NAMES[torch.float64] = "fp64"
OPTIONS = {"num_warps", "num_stages", "enable_fp_fusion"}


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{NAMES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"


def launches(dtype: torch.dtype, width: int, queries: int, normed: bool) -> None:
    """Launch each kernel as a step does."""
    rows, keys, layers = 4, 2, 1
    norm = (torch.zeros(width, dtype=dtype), 1e-6)
    heads = kernels.Heads(keys, queries, width, (norm, norm) if normed else None)
    fused = torch.zeros(rows, (queries + 2) * keys * width, dtype=dtype)
    positions = torch.zeros(rows, dtype=torch.int64)
    stores = torch.zeros(layers, 2, rows, keys, 64, width, dtype=dtype)[0].unbind()
    rotary = (torch.zeros(8, width, dtype=dtype),) * 2
    parts = kernels.Rows(positions, positions, positions, 1, 2)
    hidden = torch.zeros(rows, 896, dtype=dtype)
    weight = torch.zeros(896, dtype=dtype)
    kernels.add_norm(hidden, None, (weight, 1e-6))
    kernels.add_norm(hidden, hidden, (weight, 1e-6))
    kernels.gated(torch.zeros(rows, 2 * 4864, dtype=dtype))
    kernels.rotate(heads, fused, rotary, stores, positions, positions)
    kernels.rotate(heads, fused, rotary, tuple(one[0] for one in stores), positions)
    kernels.attend(heads, 0, fused, stores, parts, 0.1)


def compile_all(capability: int) -> int:
    """Compile for one architecture; return the number of compiled kernels."""
    target, seen = GPUTarget("cuda", capability, 32), set()

    def compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {name: value for name, value in named.items() if name in OPTIONS}
        constants = {name: value for name, value in named.items() if name not in OPTIONS}
        values = dict(zip(kernel.arg_names, args, strict=False))
        signature = {name: type_of(value) for name, value in values.items()}
        signature |= dict.fromkeys(constants, "constexpr")
        key = (kernel.__name__, str(signature), str(constants))
        if key not in seen:
            seen.add(key)
            places = {(kernel.arg_names.index(name),): one for name, one in constants.items()}
            source = ASTSource(kernel, signature, places)
            assert triton.compile(source, target=target, options=options).asm["cubin"]

    JITFunction.run = compiled
    # On a CPU products would be in float32, as in the interpreter.
    kernels.dot_type = lambda fused: getattr(tl, str(fused.dtype).removeprefix("torch."))
    for shape in ((64, 7, False), (128, 4, True), (80, 1, False)):
        launches(torch.bfloat16, *shape)
    launches(torch.float32, 64, 2, True)
    return len(seen)


if __name__ == "__main__":
    for number in sys.argv[1:]:
        print(number, compile_all(int(number)))
