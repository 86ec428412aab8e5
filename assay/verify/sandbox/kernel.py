"""System calls that the standard library lacks (ctypes): mounts, namespaces, capabilities.

The zygote loads this file without the package, so it imports the standard library only. The
constants are those of the kernel headers linux/*.h.
"""

from __future__ import annotations

import ctypes
import os
import struct

NEWNS, NEWUTS, NEWIPC, NEWUSER = 0x20000, 0x4000000, 0x8000000, 0x10000000
NEWPID, NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2
ADDR_NO_RANDOMIZE = 0x40000
PR_SET_DUMPABLE = 4
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITY_VERSION = 0x20080522
# Landlock's system calls have the same numbers on every architecture.
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPSET = {"x86_64": 126, "aarch64": 91}
MACHINE = os.uname().machine

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(what: str, number: int, *arguments: object) -> int:
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    arguments = [ctypes.c_ulong(each) for each in (value, third, 0, 0)]
    _checked(_libc.prctl(ctypes.c_int(option), *arguments), "prctl")


def same_addresses() -> bool:
    """Disable address randomization for the next program that this process executes.

    The result is False if address randomization is already disabled or cannot be disabled.
    """
    now = _libc.personality(ctypes.c_ulong(0xFFFFFFFF))
    if now < 0 or now & ADDR_NO_RANDOMIZE:
        return False
    return _libc.personality(ctypes.c_ulong(now | ADDR_NO_RANDOMIZE)) >= 0


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, flags: int) -> None:
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        f"mount {target}",
    )


def unmount(target: str) -> None:
    _checked(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    _call("pivot_root", PIVOT_ROOT[MACHINE], os.fsencode(new), os.fsencode(old))


def drop_capabilities_from_bounds() -> None:
    """Drop all capabilities from the bounding set, so that no executed program can gain one."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            # The capability's number is above the kernel's last capability, or the call is not
            # permitted.
            break


def drop_capabilities() -> None:
    """Drop all capabilities of this process."""
    header = struct.pack("<Ii", CAPABILITY_VERSION, 0)
    _call("capset", CAPSET[MACHINE], header, bytes(24))


def landlock_version() -> int:
    """Return the version of the kernel's Landlock interface.

    Returns 0 if the kernel has no Landlock.
    """
    try:
        return _call("landlock", LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def landlock(version: int, writable: str, execute: bool = False) -> None:
    """Allow reading everywhere, and writing only below the folder ``writable``.

    version: result of `landlock_version`.
    execute: whether readable files may also be executed.
    """
    # The first Landlock version has 13 access rights.
    # Landlock versions 2, 3 and 5 add one access right each.
    rights = (1 << 13) - 1
    for since, bit in ((2, 13), (3, 14), (5, 15)):
        rights |= (1 << bit) if version >= since else 0
    # Landlock version 4 adds rights for bind and connect.
    # No Landlock rule grants the rights that bind and connect need, so both calls fail.
    network = 0b11 if version >= 4 else 0
    # Landlock version 6 adds scopes: no abstract sockets and no signals outside this domain.
    scopes = 0b11 if version >= 6 else 0
    attributes = struct.pack("<QQQ", rights, network, scopes)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _call("landlock", LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    read = (1 << 2) | (1 << 3) | int(execute)
    # Rights below ``writable``: all except execution, device files, and ioctl on devices.
    write = rights & ~((1 << 0) | (1 << 6) | (1 << 11) | (1 << 15))
    for path, allowed in (("/", read), (writable, write), ("/dev", read | (1 << 1))):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", allowed & rights, descriptor)
        _call("landlock", LANDLOCK_ADD, rules, 1, rule, ctypes.c_uint(0))
        os.close(descriptor)
    _call("landlock", LANDLOCK_RESTRICT, rules, ctypes.c_uint(0))
    os.close(rules)
