"""The stand-in refuses what CUDA refuses, and counts where the host would wait for a GPU."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import standin
import torch

DEVICE = standin.NAME
MIXES: dict[str, Callable[[], Any]] = {
    "add": lambda: torch.ones(2, device=DEVICE) + torch.ones(2),
    "add in place": lambda: torch.ones(2).add_(torch.ones(2, device=DEVICE)),
    "product": lambda: torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2),
    "concatenation": lambda: torch.cat([torch.ones(2, device=DEVICE), torch.ones(2)]),
    "stack of scalars": lambda: torch.stack([torch.tensor(1.0, device=DEVICE), torch.tensor(1.0)]),
    "lookup": lambda: torch.ones(3, 2, device=DEVICE)[torch.tensor([0, 1])],
    "gather": lambda: torch.ones(1, 3, device=DEVICE).gather(1, torch.tensor([[2]])),
    "numpy": lambda: torch.ones(2, device=DEVICE).numpy(),
    "CPU generator": lambda: torch.rand(2, device=DEVICE, generator=torch.Generator()),
    "device generator": lambda: torch.rand(2, generator=torch.Generator(DEVICE)),
}
WAITS: dict[str, tuple[str, Callable[[torch.Tensor], Any]]] = {
    "item": ("item", lambda x_N: x_N[0].item()),
    "bool": ("item", lambda x_N: bool((x_N > 0).all())),
    "tolist": ("to_host", lambda x_N: x_N.tolist()),
    "cpu": ("to_host", lambda x_N: x_N.cpu()),
    "nonzero": ("shape", lambda x_N: x_N.nonzero()),
    "mask": ("shape", lambda x_N: x_N[x_N > 1]),
    "repeat": ("shape", lambda x_N: torch.repeat_interleave(x_N, x_N.long())),
    "unique": ("shape", lambda x_N: x_N.unique()),
    "equal": ("shape", lambda x_N: torch.equal(x_N, x_N.clone())),
    "synchronize": ("synchronize", lambda _: torch.accelerator.synchronize()),
}


def refusal_of(name: str) -> str:
    try:
        MIXES[name]()
    except (RuntimeError, TypeError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", MIXES)
def test_mixed_devices_are_refused(on_device: Any, name: str) -> None:
    assert "device" in on_device(refusal_of, name)


def kinds_of(name: str) -> dict[str, int]:
    x_N = torch.arange(3.0, device=DEVICE)
    with standin.counted() as found:
        WAITS[name][1](x_N)
    return dict(found.kinds)


@pytest.mark.parametrize("name", WAITS)
def test_waits_of_the_host_are_counted(on_device: Any, name: str) -> None:
    assert on_device(kinds_of, name)[WAITS[name][0]] >= 1


def work_without_waits() -> int:
    x_NN = torch.arange(9.0, device=DEVICE).view(3, 3)
    with standin.counted() as found:
        y_NN = (x_NN @ x_NN.T).softmax(-1).masked_fill_(x_NN > 1, 0.0)
        y_NN.gather(1, y_NN.argmax(-1, keepdim=True)).cumsum(0).index_select(0, x_NN[0].long())
    return found.total


def test_operations_on_the_device_are_not_counted_as_waits(on_device: Any) -> None:
    assert on_device(work_without_waits) == 0


def signal_of_a_reader() -> int:
    """Return the signal that ends a process whose C code reads a device address."""
    address = torch.ones(4, device=DEVICE).data_ptr()
    child = os.fork()
    if child == 0:
        ctypes.string_at(address, 4)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def test_code_that_reads_a_device_address_is_stopped(on_device: Any) -> None:
    assert on_device(signal_of_a_reader) in (signal.SIGSEGV, signal.SIGBUS)


def gradients_of(device: str) -> list[list[float]]:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.SiLU(), torch.nn.Linear(8, 3))
    layers.to(device)
    x_NI = torch.arange(24.0).view(4, 6).sin().to(device)
    targets_N = torch.tensor([0, 2, 1, 1], device=device)
    loss = torch.nn.functional.cross_entropy(layers(x_NI), targets_N)
    gradients = torch.autograd.grad(loss, list(layers.parameters()))
    return [gradient.flatten().tolist() for gradient in gradients]


def test_gradients_have_the_bits_of_the_cpu(on_device: Any) -> None:
    assert on_device(gradients_of, DEVICE) == on_device(gradients_of, "cpu")


def draws() -> tuple[list[float], list[float], float]:
    torch.manual_seed(3)
    first = torch.rand(4, device=DEVICE).tolist()
    on_cpu = torch.rand(4).tolist()
    torch.manual_seed(3)
    torch.rand(4)
    return first, on_cpu, torch.rand(1, device=DEVICE).item()


def test_the_device_has_a_random_stream_of_its_own(on_device: Any) -> None:
    first, on_cpu, after_a_draw_on_the_cpu = on_device(draws)
    assert first == on_cpu
    assert after_a_draw_on_the_cpu == first[0]


def bytes_of_resized() -> tuple[int, list[float]]:
    x_N = torch.arange(4.0, device=DEVICE)
    out_NN = torch.empty(0, device=DEVICE)
    torch.outer(x_N, x_N, out=out_NN)
    before = torch.accelerator.memory_allocated()
    x_N.untyped_storage().resize_(0)
    return before - torch.accelerator.memory_allocated(), out_NN[2].tolist()


def test_memory_is_counted_and_outputs_are_resized(on_device: Any) -> None:
    assert on_device(bytes_of_resized) == (16, [0.0, 2.0, 4.0, 6.0])


def exhaust(mib: int) -> str:
    native = standin.register()
    native.set_memory(mib * 2**20)
    try:
        torch.empty(mib * 2**20, device=DEVICE)
    except torch.OutOfMemoryError as error:
        return str(error)
    finally:
        native.set_memory(8 * 2**30)
    return ""


def test_memory_ends(on_device: Any) -> None:
    assert "out of memory" in on_device(exhaust, 1)
