"""Compute a model of a 16-bit type in float32, without a float32 copy of the whole model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """For inference, run the forward pass of every module in float32.

    Hooks convert the parameters of a module before its call, and restore them afterwards. Only the
    parameters of one module exist twice at a time; a float32 copy of the model would take twice its
    size.
    """
    kept: dict[int, tuple[nn.Parameter, Tensor]] = {}
    handles: list[Any] = []

    def widen(module: nn.Module, *_: Any) -> None:
        for one in module.parameters(recurse=False):
            if one.is_floating_point() and id(one) not in kept:
                kept[id(one)] = one, one.data
                one.data = one.data.to(torch.promote_types(one.dtype, torch.float32))

    def narrow(module: nn.Module, *_: Any) -> None:
        for one in module.parameters(recurse=False):
            if id(one) in kept:
                one.data = kept.pop(id(one))[1]

    for module in model.modules():
        if next(module.parameters(recurse=False), None) is not None:
            handles.append(module.register_forward_pre_hook(widen))
            handles.append(module.register_forward_hook(narrow))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        # If the call of a module raised an exception, its 16-bit parameters are restored here.
        for one, data in kept.values():
            one.data = data
