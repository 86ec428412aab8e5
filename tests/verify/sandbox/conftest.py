"""One sandbox a test module; where this machine cannot isolate, its tests are skipped, with the reason."""

from __future__ import annotations

import subprocess
from collections.abc import Generator

import pytest

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, SandboxUnavailable


def namespaces_are_allowed() -> bool:
    """Whether this user may make a user namespace and mount in it, found without the sandbox's code."""
    script = "mount -t tmpfs none /tmp && echo yes"
    command = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "sh",
        "-c",
        script,
    ]
    return subprocess.run(command, capture_output=True, text=True).stdout == "yes\n"


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    try:
        made = Sandbox()
    except SandboxUnavailable as error:
        if namespaces_are_allowed():
            raise  # then it is no fault of the machine
        pytest.skip(f"{error}")
    with made:
        yield made


@pytest.fixture
def limits() -> Limits:
    return Limits(seconds=2.0, cpu_seconds=1.0, memory_mib=128, output_kib=64, processes=8)
