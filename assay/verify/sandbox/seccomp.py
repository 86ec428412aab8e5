"""The system call filter for submissions (seccomp, classic BPF, assembled here).

Calls in ALLOWED are permitted, and calls in CHECKED are permitted for some arguments. The calls in
REFUSED fail with EPERM ("not permitted"). All other system calls, including newer ones, fail with
ENOSYS ("does not exist"), so that a C library falls back to older calls. The tables are in
``system_calls.txt``. The zygote loads this file without the package, so it imports the standard
library only.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from pathlib import Path

_TEXT = Path(__file__).with_name("system_calls.txt").read_text(encoding="ascii")
ALLOWED, REFUSED, CHECKED = (part.partition("\n")[2] for part in _TEXT.split("# ")[1:])
# Values are (column of the table, AUDIT_ARCH constant) by architecture.
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16
X32_BIT = 0x40000000

CLONE_THREAD = 0x00010000
# All flags of the system call clone that create a namespace.
CLONE_NEW = 0x7E020080
AF_UNIX, SOCK_STREAM = 1, 1
# Permitted ioctl requests: TCGETS FIONREAD FIONBIO FIONCLEX FIOCLEX.
IOCTLS = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
# Permitted fcntl commands: duplicate, flags, pipe size. Locks would use kernel memory.
FCNTLS = (0, 1, 2, 3, 4, 1030, 1032)
# prctl options that a submission may use: thread names and queries, but not the death signal or
# dumpable.
PRCTLS = (3, 15, 16, 21, 23, 39, 0x53564D41)

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

# A BPF instruction is a tuple (code, jump if true, jump if false, constant).
Instruction = tuple[int, int, int, int]


def numbers(table: str, column: int) -> dict[str, int]:
    """Return {name: number} of a table's system calls that an architecture has."""
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def argument(index: int) -> Instruction:
    """Return the seccomp instruction that loads the low 32 bits of a system call's argument."""
    return (LOAD, 0, 0, OFFSET_ARGS + 8 * index)


def refuse(code: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)


def one_of(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    """Return instructions that allow a call if one argument is in ``values``.

    otherwise: error number that the filter returns for all other values.
    """
    steps = [argument(index)]
    for value in values:
        steps += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [*steps, refuse(otherwise)]


def checks(processes: bool = False) -> dict[str, list[Instruction]]:
    """Return seccomp instructions that check the arguments of each call in CHECKED.

    processes: clone may also create processes, in the same namespaces.
    """
    eperm = errno.EPERM
    return {
        # clone may create threads, processes if allowed, and never namespaces.
        "clone": [
            argument(0),
            (AND, 0, 0, CLONE_NEW | (0 if processes else CLONE_THREAD)),
            (EQUAL, 0, 1, 0 if processes else CLONE_THREAD),
            (RETURN, 0, 0, ALLOW),
            refuse(eperm),
        ],
        # Event loops wake themselves up through a socket pair of AF_UNIX.
        # All other types of sockets are refused, because they could reach other processes.
        "socketpair": [
            argument(0),
            (EQUAL, 1, 0, AF_UNIX),
            refuse(eperm),
            argument(1),
            (AND, 0, 0, 0xF),
            (EQUAL, 1, 0, SOCK_STREAM),
            refuse(eperm),
            (RETURN, 0, 0, ALLOW),
        ],
        "prctl": one_of(0, PRCTLS, eperm),
        "ioctl": one_of(1, IOCTLS, errno.ENOTTY),
        "fcntl": one_of(1, FCNTLS, errno.EINVAL),
        "prlimit64": one_of(0, (0,), eperm),
    }


def program(
    machine: str, more: frozenset[str] = frozenset(), processes: bool = False
) -> list[Instruction]:
    """Return the filter's instructions for an architecture in `MACHINES`.

    more: names of calls in REFUSED that this filter allows.
    processes: see `checks`.

    The instructions are a binary search over the call numbers, because the kernel runs the filter
    at every call.
    """
    column, architecture = MACHINES[machine]
    steps: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (EQUAL, 1, 0, architecture),
        # System calls of another architecture have other numbers, so none of them can be checked.
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, OFFSET_NR),
    ]
    # The x32 interface sets a high bit in the call numbers, which would escape the search.
    if machine == "x86_64":
        steps += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    actions: dict[int, list[Instruction]] = {}
    decide = checks(processes)
    for number in numbers(ALLOWED, column).values():
        actions[number] = [(RETURN, 0, 0, ALLOW)]
    for name, number in numbers(REFUSED, column).items():
        allowed = [(RETURN, 0, 0, ALLOW)]
        actions[number] = allowed if name in more else [refuse(errno.EPERM)]
    for name, number in numbers(CHECKED, column).items():
        actions[number] = decide[name]
    return steps + search(segments(actions))


def segments(actions: dict[int, list[Instruction]]) -> list[tuple[int, list[Instruction]]]:
    """Return (first number, action) of each range of consecutive call numbers with the same
    action."""
    unknown = [refuse(errno.ENOSYS)]
    found: list[tuple[int, list[Instruction]]] = []
    for number in range(max(actions) + 2):
        action = actions.get(number, unknown)
        if not found or found[-1][1] != action:
            found.append((number, action))
    return found


def search(runs: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return seccomp instructions that find the range of a system call number by binary search.

    Raises ValueError if a jump spans more than 255 instructions, the limit of classic BPF.
    """
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = search(runs[:middle]), search(runs[middle:])
    if len(below) > 255:
        raise ValueError("the filter needs a jump that is too long")
    return [(AT_LEAST, len(below), 0, runs[middle][0]), *below, *above]


class Filter:
    """The filter for this machine, assembled once and installed in each forked process."""

    def __init__(
        self, machine: str, more: frozenset[str] = frozenset(), processes: bool = False
    ) -> None:
        if machine not in MACHINES or sys.byteorder != "little":
            raise OSError(f"no filter of system calls for {machine}")
        steps = program(machine, more, processes)
        self.size = len(steps)
        self.code = ctypes.create_string_buffer(
            b"".join(struct.pack("<HBBI", *step) for step in steps)
        )
        address = ctypes.addressof(self.code)
        self.header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), address))
        self.prctl = ctypes.CDLL(None, use_errno=True).prctl
        self.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def install(self) -> None:
        """Install the system call filter permanently in this process. Raises OSError."""
        for arguments in (
            (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self.header), 0, 0),
        ):
            if self.prctl(*arguments) != 0:
                raise OSError(ctypes.get_errno(), "seccomp")
