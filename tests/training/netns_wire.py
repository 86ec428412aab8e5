"""Two network namespaces of this machine, and a wire between them that can be made bad.

The wire is this process: each end is a TUN device, moved into its namespace; a thread carries
packets from one to the other. So a packet can be lost or late without any module of the kernel, and
neither side is told. Needs root, ``ip`` and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
BIGGEST = 1 << 16  # bytes of a packet
HOSTS = ("10.77.0.1", "10.77.0.2")


def why_not() -> str | None:
    """Return why namespaces and their wire cannot be made here; None: they can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if not Path("/dev/net/tun").exists():
        return "needs /dev/net/tun"
    name = f"assay-try-{os.getpid()}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespace can be made here: {error}"
    return None


class Wire:
    """Namespaces 0 and 1, with `HOSTS`. loses: from which of them packets are lost.

    seconds: how late each packet is.
    """

    def __init__(self) -> None:
        self.names = [f"assay-{os.getpid()}-{n}" for n in (0, 1)]
        self.loses: set[int] = set()
        self.seconds = 0.0
        self.carried = self.lost = 0
        self._ends = [self._open_end(n) for n in (0, 1)]
        self._closed = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def within(self, number: int) -> list[str]:
        """Return what a command begins with that runs in a namespace."""
        return ["ip", "netns", "exec", self.names[number]]

    def close(self) -> None:
        """Delete both."""
        self._closed = True
        self._thread.join(10.0)
        for end in self._ends:
            os.close(end)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _open_end(self, number: int) -> int:
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        device, name = f"aw{os.getpid() % 10**6}n{number}", self.names[number]
        wanted = struct.pack("16sH", device.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(end, TUNSETIFF, wanted)
        peer = HOSTS[1 - number]
        for command in (
            f"ip netns add {name}",
            f"ip link set {device} netns {name}",
            f"ip -n {name} addr add {HOSTS[number]} peer {peer} dev {device}",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set {device} up",
        ):
            subprocess.run(command.split(), check=True, capture_output=True)
        return end

    def _carry(self) -> None:
        late: deque[tuple[float, int, bytes]] = deque()
        while not self._closed:
            wait = max(0.0, min(0.1, late[0][0] - time.monotonic())) if late else 0.1
            ready, _, _ = select.select(self._ends, [], [], wait)
            for end in ready:
                number = self._ends.index(end)
                with suppress(BlockingIOError):
                    packet = os.read(end, BIGGEST)
                    if number in self.loses:
                        self.lost += 1
                    else:
                        late.append((time.monotonic() + self.seconds, 1 - number, packet))
            while late and late[0][0] <= time.monotonic():
                _, to, packet = late.popleft()
                self.carried += 1
                with suppress(OSError):  # no room: lost, as on any wire
                    os.write(self._ends[to], packet)
