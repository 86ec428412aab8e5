"""One sandbox a test module; where this machine cannot isolate, its tests are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, SandboxUnavailable


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    try:
        made = Sandbox()
    except SandboxUnavailable as error:
        pytest.skip(f"{error}")
    with made:
        yield made


@pytest.fixture
def limits() -> Limits:
    return Limits(seconds=2.0, cpu_seconds=1.0, memory_mib=128, output_kib=64, processes=8)
