"""One sandboxed process as the worker sees it: frames, clocks, output, and its certain end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import time

from assay.verify.sandbox.codec import MAX_BYTES, U32

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
POLL_SECONDS = 0.1  # longest pause between two looks at the clocks
MIN_IDLE_SECONDS = 0.01  # less, between two looks, is how long waking up takes
MAX_OUTPUT = 32 * 2**20  # bytes read of one process: what an honest one can write


class Ended(Exception):
    """The process has ended, or must; ``status`` and ``text`` make the Outcome.

    by_itself: nobody here decided it, so its wait status tells more.
    """

    def __init__(self, status: str, text: str, by_itself: bool = False) -> None:
        super().__init__(status, text)
        self.status, self.text, self.by_itself = status, text, by_itself


class Process:
    """A forked process: ``pidfd`` and ``pid`` name it here, ``number`` in its zygote's namespace.

    output: two files that it writes its standard output and errors to.
    """

    def __init__(
        self, number: int, pidfd: int, channel: socket.socket, output: tuple[int, int]
    ) -> None:
        self.number, self.pidfd, self.channel, self.output = number, pidfd, channel, output
        self.pid = _pid_here(pidfd)
        self.channel.setblocking(False)
        self.buffer = bytearray()
        self.at_end = False  # of the channel
        self.clock = _cpu_clock(self.pid)
        self.idle = 0.0
        self.mark = (time.monotonic(), 0.0)  # time and CPU seconds at the start of a stretch
        self.waited = [0.0, _waited_here()]  # for a processor: by the process, by us
        self.cpu_limit = self.cpu_start = 0.0
        self.idle_limit = 10.0
        self.output_limit = 2**20
        self.seen = [0, 0]  # bytes of output already reported
        self.taken = 0  # bytes of output read: a file can be cut and written again
        self.next_look = 0.0
        self.poller = select.poll()
        self.poller.register(self.pidfd, select.POLLIN)

    # time

    def cpu(self) -> float:
        """CPU seconds that the process has used so far, by the kernel's count."""
        try:
            return time.clock_gettime(self.clock)
        except OSError:  # it was reaped
            return 0.0

    def begin(
        self, cpu_seconds: float, idle_seconds: float, output_bytes: int, used: float = 0.0
    ) -> None:
        """Start the account of one request; ``used``: CPU seconds that are none of its."""
        self.cpu_start, self.cpu_limit = used, cpu_seconds
        self.idle_limit, self.output_limit = idle_seconds, output_bytes
        self.resume()

    def resume(self) -> None:
        """Start watching: time until now was ours."""
        self.mark = (time.monotonic(), self.cpu())
        self.next_look = self.mark[0] + self.pause()

    def count_idle(self) -> None:
        """Count the time since the mark that the process neither ran nor waited for a processor.

        Where it was us who waited for one, its answer may have been here already: that is not
        counted.
        """
        now, cpu = time.monotonic(), self.cpu()
        quiet = (now - self.mark[0]) - max(0.0, cpu - self.mark[1])
        self.mark = (now, cpu)
        if quiet < MIN_IDLE_SECONDS:
            return
        before, self.waited = sum(self.waited), [self._waited(), _waited_here()]
        quiet -= max(0.0, sum(self.waited) - before)
        self.idle += min(max(0.0, quiet), 2 * POLL_SECONDS)  # a machine may have stood still

    def check_idle(self) -> None:
        if self.idle > self.idle_limit:
            raise Ended("timeout", f"did nothing for {self.idle_limit:g} s")

    def _waited(self) -> float:
        """Seconds in which a thread of the process waited for a processor."""
        try:
            tasks = os.listdir(f"/proc/{self.pid}/task")
            return sum(_waited(f"/proc/{self.pid}/task/{task}/schedstat") for task in tasks)
        except OSError:
            return 0.0

    def look(self) -> None:
        """Check the limits where it is time to, also while data flows. Raises Ended."""
        if time.monotonic() >= self.next_look:
            self.check()
            self.next_look = time.monotonic() + self.pause()

    def check_cpu(self) -> None:
        if self.cpu() - self.cpu_start > self.cpu_limit:
            raise Ended("timeout", f"more than {self.cpu_limit:g} s of CPU time")

    def check(self) -> None:
        """Raise Ended where the process is over a limit."""
        self.check_cpu()
        self.count_idle()
        self.check_idle()
        self.check_output()

    def check_output(self) -> None:
        for descriptor, seen in zip(self.output, self.seen, strict=True):
            if os.fstat(descriptor).st_size - seen > self.output_limit:
                raise Ended("output", f"wrote more than {self.output_limit} bytes")

    def pause(self) -> float:
        """Seconds until the next look: short when the limit is near."""
        left = self.cpu_limit - (self.cpu() - self.cpu_start)
        return min(POLL_SECONDS, max(0.002, left / 4))

    # frames

    def send(self, data: bytes) -> None:
        """Write one frame, however slowly the process reads. Raises Ended."""
        view = memoryview(U32.pack(len(data)) + data)
        while view:
            self.look()
            try:
                view = view[self.channel.send(view) :]
            except BlockingIOError:
                self.wait(select.POLLOUT)
            except OSError:
                raise self.end() from None

    def receive(self) -> bytes:
        """Read one frame. Raises Ended: over a limit, process gone, more than a frame can hold."""
        while True:
            self.look()
            if len(self.buffer) >= 4:
                size = U32.unpack(bytes(self.buffer[:4]))[0]
                if size > MAX_BYTES:
                    raise Ended("died", "its channel spoke nonsense")
                if len(self.buffer) >= size + 4:
                    frame = bytes(self.buffer[4 : size + 4])
                    del self.buffer[: size + 4]
                    self.count_idle()
                    self.check_idle()
                    return frame
            if not self.read():
                self.wait(select.POLLIN)

    def read(self) -> bool:
        """Take what has arrived; False when nothing has."""
        if self.at_end:
            return False
        try:
            chunk = self.channel.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        self.buffer += chunk
        self.at_end = not chunk
        return bool(chunk)

    def wait(self, events: int) -> None:
        """Wait for the channel or the end of the process, at most until the next look."""
        if not self.at_end:
            self.poller.register(self.channel, events)
        ready = dict(self.poller.poll(1000 * self.pause()))
        if not self.at_end:
            self.poller.unregister(self.channel)
        if self.pidfd in ready and not self.read():
            raise self.end()

    def silent(self) -> bool:
        """Whether nothing has arrived that nobody asked for."""
        return not self.buffer and not self.read() and not self.at_end

    def end(self) -> Ended:
        """What a process makes that went by itself."""
        return Ended("died", "its process ended", by_itself=True)

    # output

    def take_output(self) -> tuple[str, str]:
        """Return what was written since the last time, cut at the limit."""
        texts: list[str] = []
        for index, descriptor in enumerate(self.output):
            size = os.fstat(descriptor).st_size
            start = min(self.seen[index], size)
            room = min(self.output_limit, MAX_OUTPUT - self.taken)
            data = os.pread(descriptor, max(0, min(size - start, room)), start)
            self.taken += len(data)
            self.seen[index] = size
            texts.append(data.decode("utf-8", "replace"))
        return texts[0], texts[1]

    # end

    def kill(self) -> None:
        """End the process, and with it its namespace; returns when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        waiter = select.poll()
        waiter.register(self.pidfd, select.POLLIN)
        waiter.poll(5000)

    def close(self) -> None:
        self.channel.close()
        os.close(self.pidfd)
        for descriptor in self.output:
            os.close(descriptor)


def _pid_here(pidfd: int) -> int:
    """The number, among the processes that we see, of the one that a descriptor names."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(int(line[4:]) for line in file if line.startswith("Pid:"))


def _waited(path: str) -> float:
    """Seconds that a thread waited for a processor (Documentation/scheduler/sched-stats)."""
    try:
        with open(path) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _waited_here() -> float:
    return _waited("/proc/thread-self/schedstat")


def _cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time, of all its threads (clock_getcpuclockid(3))."""
    return (~pid << 3) | 2


def memory_file(name: str, data: bytes | None = None) -> int:
    """Return a descriptor of a nameless file in memory; with ``data``: of just this, for ever."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if data is not None:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor
