"""One sandboxed process as the worker sees it: frames, clocks, output and termination."""

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
# Maximum number of seconds between two checks of the clocks.
POLL_SECONDS = 0.1
# Short idle intervals do not count, because waking up a process takes time.
MIN_IDLE_SECONDS = 0.01
# Maximum bytes of output that are read per process: two streams of 16 MiB (FILE_BYTES).
MAX_OUTPUT = 32 * 2**20


class Ended(Exception):
    """The sandboxed process has ended or must end.

    The arguments ``status`` and ``text`` become fields of the Outcome.

    by_itself: whether the process ended by itself, so that its wait status has the reason.
    """

    def __init__(self, status: str, text: str, by_itself: bool = False) -> None:
        super().__init__(status, text)
        self.status, self.text, self.by_itself = status, text, by_itself


class Process:
    """A forked process.

    number: pid of the process in the zygote's namespace.
    pidfd: descriptor of the process in the worker. The attribute `pid` is the process's pid in the
        worker's namespace.
    channel: socket to the process.
    output: descriptors of the files with its standard output and standard error.
    """

    def __init__(
        self, number: int, pidfd: int, channel: socket.socket, output: tuple[int, int]
    ) -> None:
        self.number, self.pidfd, self.channel, self.output = number, pidfd, channel, output
        self.pid = _pid_here(pidfd)
        self.channel.setblocking(False)
        self.buffer = bytearray()
        # Whether the process has closed the channel.
        self.at_end = False
        self.clock = _cpu_clock(self.pid)
        self.idle = 0.0
        # Wall time and CPU seconds at the start of the current check interval.
        self.mark = (time.monotonic(), 0.0)
        # Seconds in which the process, and the worker, waited for a processor.
        self.waited = [0.0, _waited_here()]
        self.cpu_limit = self.cpu_start = 0.0
        self.idle_limit = 10.0
        self.output_limit = 2**20
        # Number of bytes of each output file that were already reported.
        self.seen = [0, 0]
        # Number of output bytes read. A process can truncate its output file and write it again.
        self.taken = 0
        self.next_look = 0.0
        self.poller = select.poll()
        self.poller.register(self.pidfd, select.POLLIN)

    # Accounts of time.

    def cpu(self) -> float:
        """Return the CPU seconds of the process so far, by the kernel's clock."""
        try:
            return time.clock_gettime(self.clock)
        except OSError:
            # The clock of a reaped process does not exist any more.
            return 0.0

    def begin(
        self, cpu_seconds: float, idle_seconds: float, output_bytes: int, used: float = 0.0
    ) -> None:
        """Start the time account of one request. used: CPU seconds of the process before the
        request."""
        self.cpu_start, self.cpu_limit = used, cpu_seconds
        self.idle_limit, self.output_limit = idle_seconds, output_bytes
        self.resume()

    def resume(self) -> None:
        """Start an interval.

        The time before the current interval is charged to the worker, not to the process.
        """
        self.mark = (time.monotonic(), self.cpu())
        self.next_look = self.mark[0] + self.pause()

    def count_idle(self) -> None:
        """Add to `idle` the time in which the process neither ran nor waited for a processor.

        Time in which the worker waited for a processor does not count, because the reply may have
        arrived meanwhile.
        """
        now, cpu = time.monotonic(), self.cpu()
        quiet = (now - self.mark[0]) - max(0.0, cpu - self.mark[1])
        self.mark = (now, cpu)
        if quiet < MIN_IDLE_SECONDS:
            return
        before, self.waited = sum(self.waited), [self._waited(), _waited_here()]
        quiet -= max(0.0, sum(self.waited) - before)
        # The machine may have been suspended, so an interval is counted as at most two regular
        # pauses.
        self.idle += min(max(0.0, quiet), 2 * POLL_SECONDS)

    def check_idle(self) -> None:
        if self.idle > self.idle_limit:
            raise Ended("timeout", f"did nothing for {self.idle_limit:g} s")

    def _waited(self) -> float:
        """Return the seconds in which threads of the process waited for a processor."""
        try:
            tasks = os.listdir(f"/proc/{self.pid}/task")
            return sum(_waited(f"/proc/{self.pid}/task/{task}/schedstat") for task in tasks)
        except OSError:
            return 0.0

    def look(self) -> None:
        """Check the limits of the process if a check is due. Raises Ended."""
        # The limits are also checked while data arrives: otherwise a process could avoid the checks
        # by writing.
        if time.monotonic() >= self.next_look:
            self.check()
            self.next_look = time.monotonic() + self.pause()

    def check_cpu(self) -> None:
        if self.cpu() - self.cpu_start > self.cpu_limit:
            raise Ended("timeout", f"more than {self.cpu_limit:g} s of CPU time")

    def check(self) -> None:
        """Raise Ended if the sandboxed process exceeds a limit."""
        self.check_cpu()
        self.count_idle()
        self.check_idle()
        self.check_output()

    def check_output(self) -> None:
        for descriptor, seen in zip(self.output, self.seen, strict=True):
            if os.fstat(descriptor).st_size - seen > self.output_limit:
                raise Ended("output", f"wrote more than {self.output_limit} bytes")

    def pause(self) -> float:
        """Return the number of seconds until the next limit check.

        The pause before the next check is short if the process is near its limit of CPU time.
        """
        # Near its limit, a process could exceed the limit by a whole pause between two checks.
        left = self.cpu_limit - (self.cpu() - self.cpu_start)
        return min(POLL_SECONDS, max(0.002, left / 4))

    # Frames of the channel.

    def send(self, data: bytes) -> None:
        """Write one frame. The process may read slowly. Raises Ended."""
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
        """Read one frame.

        Raises Ended if a limit is exceeded, the process ended, or the frame is too large.
        """
        while True:
            self.look()
            if len(self.buffer) >= 4:
                size = U32.unpack(bytes(self.buffer[:4]))[0]
                # The length is limited, because the submission can write any length and could fill
                # the worker's memory.
                if size > MAX_BYTES:
                    raise Ended("died", "it sent invalid data")
                if len(self.buffer) >= size + 4:
                    frame = bytes(self.buffer[4 : size + 4])
                    del self.buffer[: size + 4]
                    self.count_idle()
                    self.check_idle()
                    return frame
            if not self.read():
                self.wait(select.POLLIN)

    def read(self) -> bool:
        """Read the data that the process has sent so far.

        Return False if no data from the process has arrived.
        """
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
        """Wait until the channel is ready or the process ends, but no longer than until the next
        check."""
        if not self.at_end:
            self.poller.register(self.channel, events)
        ready = dict(self.poller.poll(1000 * self.pause()))
        if not self.at_end:
            self.poller.unregister(self.channel)
        # The last data of an ended process is read before the end of the process is reported.
        if self.pidfd in ready and not self.read():
            raise self.end()

    def silent(self) -> bool:
        """Return whether the channel is open and no unrequested data has arrived."""
        return not self.buffer and not self.read() and not self.at_end

    def end(self) -> Ended:
        """Return the exception that describes why a process ended by itself."""
        return Ended("died", "its process ended", by_itself=True)

    # Output.

    def take_output(self) -> tuple[str, str]:
        """Return the output since the last call, truncated at the limit."""
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

    # Termination.

    def kill(self) -> None:
        """Kill the process and its namespace, and wait until it has ended."""
        with contextlib.suppress(ProcessLookupError):
            # The signal is sent by file descriptor, because the kernel can have given the pid to
            # another process.
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
    """Return the pid that a pidfd's process has in the namespace of the calling process."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        return next(int(line[4:]) for line in file if line.startswith("Pid:"))


def _waited(path: str) -> float:
    """Return the seconds that a thread waited for a processor (kernel docs: sched-stats)."""
    try:
        with open(path) as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _waited_here() -> float:
    return _waited("/proc/thread-self/schedstat")


def _cpu_clock(pid: int) -> int:
    """Return the id of a process's CPU clock, which counts all its threads."""
    # The clock id is computed as the kernel encodes it. Python lacks clock_getcpuclockid(3).
    return (~pid << 3) | 2


def memory_file(name: str, data: bytes | None = None) -> int:
    """Return the descriptor of an anonymous in-memory file.

    data: content of the file, which no process can change. The value None provides an empty
        writable file.
    """
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    if data is not None:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
        # The file is sealed, so that no process can change content that another process reads.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    return descriptor
