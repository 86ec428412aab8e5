"""The filter of system calls: run here on made-up calls, for both machines, and held against the headers."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from assay.verify.base import Limits
from assay.verify.sandbox import Sandbox, seccomp
from assay.verify.sandbox.seccomp import ALLOW, ERRNO, KILL, MACHINES

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


def judge(
    program: list[seccomp.Instruction], architecture: int, number: int, *arguments: int
) -> int:
    """Interpret the filter as the kernel does."""
    words = {seccomp.OFFSET_NR: number, seccomp.OFFSET_ARCH: architecture}
    for index, value in enumerate(arguments):
        words[seccomp.OFFSET_ARGS + 8 * index] = value & 0xFFFFFFFF
    position, accumulator = 0, 0
    while True:
        code, yes, no, constant = program[position]
        position += 1
        assert 0 <= yes <= 255 and 0 <= no <= 255
        if code == seccomp.LOAD:
            accumulator = words.get(constant, 0)
        elif code == seccomp.AND:
            accumulator &= constant
        elif code == seccomp.EQUAL:
            position += yes if accumulator == constant else no
        elif code == seccomp.AT_LEAST:
            position += yes if accumulator >= constant else no
        else:
            assert code == seccomp.RETURN
            return constant


@pytest.mark.parametrize("machine", MACHINES)
def test_every_number_gets_what_its_table_says(machine: str) -> None:
    column, architecture = MACHINES[machine]
    program = seccomp.program(machine)
    allowed = set(seccomp.numbers(seccomp.ALLOWED, column).values())
    refused = set(seccomp.numbers(seccomp.REFUSED, column).values())
    checked = set(seccomp.numbers(seccomp.CHECKED, column).values())
    assert not allowed & refused and not allowed & checked and not refused & checked
    for number in range(1000):
        if number in checked:
            continue
        expected = ERRNO | errno.ENOSYS
        if number in allowed:
            expected = ALLOW
        elif number in refused:
            expected = ERRNO | errno.EPERM
        assert judge(program, architecture, number) == expected, number
    if machine == "x86_64":
        for number in (0x40000000, 0x40000001, 0xFFFFFFFF):  # the x32 calls
            assert judge(program, architecture, number) == KILL
    other = next(each for name, (_, each) in MACHINES.items() if name != machine)
    for foreign in (other, 0x40000003, 0):  # 32-bit calls of the same machine
        assert judge(program, foreign, min(allowed)) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_checked_calls_pass_by_their_arguments(machine: str) -> None:
    column, architecture = MACHINES[machine]
    program = seccomp.program(machine)
    number = seccomp.numbers(seccomp.CHECKED, column)

    def call(name: str, *arguments: int) -> int:
        return judge(program, architecture, number[name], *arguments)

    eperm = ERRNO | errno.EPERM
    thread = 0x3D0F00
    assert call("clone", thread) == ALLOW
    assert call("clone", 17) == call("clone", 0x4111) == eperm  # fork, vfork
    for shift in (7, 17, 25, 26, 27, 28, 29, 30):  # every namespace
        assert call("clone", thread | 1 << shift) == eperm
    assert call("socketpair", 1, 1) == call("socketpair", 1, 1 | 0o2004000) == ALLOW
    for family, kind in ((1, 2), (1, 5), (2, 1), (16, 3), (40, 1), (1 << 16 | 2, 1)):
        assert call("socketpair", family, kind) == eperm
    assert call("prctl", 15) == ALLOW
    for option in (1, 4, 8, 22, 24, 28, 38, 47):
        assert call("prctl", option) == eperm
    assert call("ioctl", 1, 0x5401) == ALLOW
    assert call("ioctl", 1, 0x5412) == ERRNO | errno.ENOTTY  # TIOCSTI
    assert call("fcntl", 1, 1030) == ALLOW
    assert (
        call("fcntl", 1, 6) == call("fcntl", 1, 8) == call("fcntl", 1, 1024) == ERRNO | errno.EINVAL
    )
    assert call("prlimit64", 0) == ALLOW and call("prlimit64", 5) == eperm


@pytest.mark.parametrize("machine", MACHINES)
def test_call_numbers_equal_the_kernel_headers(machine: str) -> None:
    header = next((Path(each) for each in HEADERS[machine] if Path(each).exists()), None)
    if header is None:
        pytest.skip(f"no header of the kernel's call numbers for {machine}")
    pattern = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", re.MULTILINE)
    known = {name: int(number) for name, number in pattern.findall(header.read_text())}
    known = {"newfstatat": known.get("fstatat", -1), **known}
    column = MACHINES[machine][0]
    for table in (seccomp.ALLOWED, seccomp.CHECKED, seccomp.REFUSED):
        for name, number in seccomp.numbers(table, column).items():
            assert known[name] == number, name


def test_the_kernel_and_the_table_refuse_the_same_calls(sandbox: Sandbox) -> None:
    machine = os.uname().machine
    if machine not in MACHINES:
        pytest.skip(f"no filter for {machine}")
    column = MACHINES[machine][0]
    refused = sorted(seccomp.numbers(seccomp.REFUSED, column).values())
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in {[*refused, 435, 500]}:
    print(number, libc.syscall(number, -1, 0, 0, 0, 0, 0), ctypes.get_errno())
"""
    outcome = sandbox.run(source, "", Limits(cpu_seconds=5.0))
    rows = [[int(word) for word in line.split()] for line in outcome.stdout.splitlines()]
    assert rows == [
        *([number, -1, errno.EPERM] for number in refused),
        *([number, -1, errno.ENOSYS] for number in (435, 500)),
    ]


def test_calls_that_escape_are_not_allowed() -> None:
    named = {entry.partition(":")[0] for entry in seccomp.ALLOWED.split()}
    for name in [
        "ptrace",
        "keyctl",
        "io_uring_setup",
        "memfd_create",
        "shmget",
        "msgget",
        "semget",
        "mount",
        "unshare",
        "setns",
        "clone3",
        "bpf",
        "perf_event_open",
        "userfaultfd",
        "socket",
        "connect",
        "execve",
        "execveat",
        "fork",
        "vfork",
        "process_vm_writev",
        "pidfd_open",
        "open_by_handle_at",
        "init_module",
        "kexec_load",
        "pivot_root",
        "chroot",
        "setuid",
        "add_key",
        "mq_open",
        "sendmsg",
        "recvmsg",
        "personality",
        "modify_ldt",
        "sched_setaffinity",
        "fanotify_init",
    ]:
        assert name not in named
