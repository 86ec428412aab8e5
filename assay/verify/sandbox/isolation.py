"""Isolation of submissions, prepared once in the zygote and applied in each forked process.

`Isolation.separate` gives the zygote its own namespaces, with the zygote as the first process. The
end of the zygote also ends all processes forked from it. The function `Isolation.prepare` replaces
the zygote's view of the file system. `Isolation.enter` runs in each forked process before the
process reads anything from its parent. `Isolation.enter` gives the process a pid, mount and IPC
namespace, an empty small /tmp, an unprivileged user without capabilities, and Landlock rules.
`Isolation.confine` runs last, when the limits are known: it sets resource limits, then the system
call filter. The submission is executed after `Isolation.confine`.

The zygote loads this file without the package, so it imports the standard library only.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import sysconfig
import tempfile
from collections.abc import Callable
from typing import Any

from . import kernel, seccomp

SHARED = (
    kernel.NEWUSER | kernel.NEWPID | kernel.NEWNS | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNET
)
QUIET = kernel.MS_NOSUID | kernel.MS_NODEV
SUBMISSION_UID = 65534
DEVICES = ("null", "zero", "urandom", "random")
STACK_BYTES = 64 * 2**20
DESCRIPTORS = 64
# Bytes of address space for executed programs, in addition to the memory limit.
RESERVED = 64 * 2**30
# The C library's start-up code sets the address of thread-local data by arch_prctl.
EXECUTING = frozenset(("execve", "execveat", "arch_prctl"))
STARTING = frozenset(("fork", "vfork", "setpgid", "setsid"))
# Folder with the packages that submissions may import, inside the new root.
PACKAGES = "/packages"
# RLIMIT_NPROC counts all processes of a user, so the limit leaves room for the zygote and other
# sessions.
OTHER_TASKS = 8


class Isolation:
    """Isolation of one zygote.

    settings: settings from the worker.
    ask: function that sends a text to the worker and returns the worker's reply.
    """

    def __init__(self, settings: dict[str, Any], ask: Callable[[str], str]) -> None:
        self.settings, self.ask = settings, ask
        self.unsafe = bool(settings["unsafe"])
        self.filter: seccomp.Filter | None = None
        # Filters for executed commands: one without child processes, and one with child processes.
        self.filters: list[seccomp.Filter] = []
        self.own_pids = -1
        self.many_users = False
        self.landlock = 0
        self.base_bytes = 0
        self.folder = ""
        # Folder with the packages that submissions may import, or "".
        self.packages = ""
        self.own_memory = self.own_threads = -1

    def separate(self) -> None:
        """Fork. The child continues as the first process of new namespaces. The parent waits."""
        # The death signal is tied to the thread that started the process, not to the whole worker.
        if self.settings["with_thread"] and not self.unsafe:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        # The worker can have ended before the death signal was set in the child.
        if os.getppid() != self.settings["parent"]:
            os._exit(0)
        if self.unsafe:
            return
        self.filter = seccomp.Filter(kernel.MACHINE)
        if self.settings["toolchain"]:
            self.filters = [
                seccomp.Filter(kernel.MACHINE, EXECUTING),
                seccomp.Filter(kernel.MACHINE, EXECUTING | STARTING, processes=True),
            ]
        kernel.unshare(SHARED)
        self.many_users = self.ask("map") == "many"
        zygote = os.fork()
        if zygote:
            os.closerange(3, 1024)
            os.waitpid(zygote, 0)
            os._exit(0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)

    def prepare(self) -> dict[str, Any]:
        """Build the new root of the file system and return facts about the isolation.

        Raises OSError.
        """
        # These files are opened before the root changes, because the new root has no /proc.
        self.own_memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.own_threads = os.open("/proc/self/task", os.O_RDONLY | os.O_CLOEXEC)
        if self.unsafe:
            return {"mode": "unsafe: no isolation", "rlimits": True}
        self.own_pids = os.open("/proc/self/ns/pid_for_children", os.O_RDONLY | os.O_CLOEXEC)
        self.landlock = kernel.landlock_version()
        build_root(readable_folders(), self.settings["entries"], self.settings["toolchain"])
        self.packages = PACKAGES if self.settings["entries"] else ""
        socket.sethostname("sandbox")
        # Forked processes inherit the reduced bounding set.
        kernel.drop_capabilities_from_bounds()
        assert self.filter is not None
        return {
            "mode": "isolated",
            "namespaces": "user pid mount ipc uts net",
            "uid": SUBMISSION_UID,
            "uid_outside": SUBMISSION_UID if self.many_users else self.settings["uid"],
            "seccomp": f"{self.filter.size} instructions, calls allowed by name",
            "landlock": self.landlock or "not in this kernel",
            "capabilities": "none",
            "no_new_privs": True,
            "cgroup": "none: one process of bounded address space, and a small tmpfs, need none",
        }

    def measure(self) -> None:
        """Measure the memory with which each forked process starts. Raises OSError."""
        self.base_bytes = int(os.read(self.own_memory, 100).split()[0]) * resource.getpagesize()
        threads = len(os.listdir(self.own_threads))
        os.close(self.own_memory)
        os.close(self.own_threads)
        if threads != 1:
            # After a fork, the child has only the thread that called fork.
            # After a fork, a lock that another thread held would never be released in the child.
            raise OSError(f"the packages start {threads - 1} threads when they are imported")

    def before_fork(self) -> None:
        """Make the next forked process the first process of a new pid namespace."""
        if self.unsafe:
            self.folder = tempfile.mkdtemp(prefix="assay-sandbox-", dir=self.settings["temporary"])
            return
        # The zygote first returns to its own pid namespace, because a second unshare without this
        # return fails with EINVAL.
        kernel.setns(self.own_pids, kernel.NEWPID)
        kernel.unshare(kernel.NEWPID)

    def after_reap(self, folder: str) -> None:
        """Remove the temporary folder that a process without isolation used."""
        if folder:
            shutil.rmtree(folder, ignore_errors=True)

    def enter(self, execute: bool = False) -> Callable[[dict[str, Any]], None]:
        """Isolate this forked process.

        Return the function `confine`, which the process calls later.

        execute: whether the process may execute programs, also programs in its own folder.
        """
        if self.unsafe:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.chdir(self.folder)
            return self.confine
        # Without a session of its own, kill(0, ...) would reach the zygote's process group.
        os.setsid()
        kernel.unshare(kernel.NEWNS | kernel.NEWIPC)
        options = f"size={self.settings['file_bytes']},nr_inodes=1000,mode=0700"
        if self.many_users:
            options += f",uid={SUBMISSION_UID},gid={SUBMISSION_UID}"
        flags = QUIET | (0 if execute else kernel.MS_NOEXEC)
        kernel.mount("tmpfs", "/tmp", "tmpfs", flags, options)
        if self.many_users:
            os.setgroups([])
            os.setresgid(SUBMISSION_UID, SUBMISSION_UID, SUBMISSION_UID)
            os.setresuid(SUBMISSION_UID, SUBMISSION_UID, SUBMISSION_UID)
        kernel.drop_capabilities()
        os.mkdir("/tmp/work")
        os.chdir("/tmp/work")
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        # The process is made not dumpable, so that the host's core dump handler gets no core dump
        # of it.
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        # The death signal is set again, because a change of user clears it (prctl(2)).
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.landlock:
            kernel.landlock(self.landlock, "/tmp", execute)
        return self.confine

    def confine(self, limits: dict[str, Any]) -> None:
        """Set the limits of one submission and install the system call filter."""
        size = os.fstat(0).st_size
        if limits["stdin"] and not self.unsafe and size <= limits["file_bytes"] // 2:
            # /dev/stdin is a link to this file, because the sandbox's root has no /proc/self/fd.
            with open("/tmp/.stdin", "wb") as file:
                file.write(os.pread(0, size, 0))
        # Run-time systems such as Go's and Java's reserve far more address space than they use.
        executes = "executes" in limits
        space = limits["memory_mib"] * 2**20 + (0 if executes else self.base_bytes)
        reserved = RESERVED if executes else 0
        for name, value in (
            (resource.RLIMIT_AS, space + reserved),
            # RLIMIT_DATA replaces the soft limit that this process inherits from the worker.
            (resource.RLIMIT_DATA, space),
            (resource.RLIMIT_STACK, STACK_BYTES),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, DESCRIPTORS * (16 if executes else 1)),
            (resource.RLIMIT_CPU, limits["total_cpu_seconds"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_NPROC, limits["threads"] + OTHER_TASKS),
        ):
            if self.unsafe and name == resource.RLIMIT_NPROC:
                # Without isolation,
                # The kernel's limit of processes per user would also count the trainer's own
                # processes.
                continue
            # The worker's hard limit can be lower, and an ordinary user cannot raise it.
            _, hard = resource.getrlimit(name)
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(name, (bound, bound))
        chosen = self.filters[limits["executes"]] if executes and self.filters else self.filter
        if chosen is not None:
            chosen.install()


def readable_folders() -> list[str]:
    """Return the folders of Python's standard library, with resolved links."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    library |= {os.path.dirname(os.path.realpath(os.__file__))}
    return sorted({os.path.realpath(path) for path in library if path and os.path.isdir(path)})


def build_root(folders: list[str], packages: list[str], toolchain: list[str]) -> None:
    """Create a small read-only root with the folders ``folders``, four devices, and an empty /tmp.

    packages: files and folders that become visible below the folder `PACKAGES`.
    toolchain: folders of compilers, and links to these folders.
    """
    # The root becomes private, so that no later mount propagates to the host.
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", QUIET, "size=1m,mode=0755")
    os.mkdir("/tmp/.outside")
    kernel.pivot_root("/tmp", "/tmp/.outside")
    os.chdir("/")
    os.umask(0o022)
    for path in toolchain:
        source = f"/.outside{path}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.islink(source):
            os.symlink(os.readlink(source), path)
        elif os.path.isdir(source):
            os.makedirs(path, exist_ok=True)
            bind(source, path)
    for folder in folders:
        if any(folder.startswith(f"{path}/") for path in toolchain):
            continue
        os.makedirs(folder, exist_ok=True)
        bind(f"/.outside{folder}", folder)
        # An empty file system is mounted here, so that the host's installed packages are hidden.
        site = os.path.join(folder, "site-packages")
        if os.path.isdir(site):
            flags = QUIET | kernel.MS_RDONLY
            kernel.mount("tmpfs", site, "tmpfs", flags, "size=4k,mode=0755")
    if packages:
        os.makedirs(PACKAGES)
    for source in packages:
        target = os.path.join(PACKAGES, os.path.basename(source))
        if os.path.isdir(f"/.outside{source}"):
            os.mkdir(target)
        else:
            open(target, "w").close()
        bind(f"/.outside{source}", target)
    os.makedirs("/dev")
    for name in DEVICES:
        if os.path.exists(f"/.outside/dev/{name}"):
            open(f"/dev/{name}", "w").close()
            bind(f"/.outside/dev/{name}", f"/dev/{name}", devices=True)
    os.symlink("/tmp/.stdin", "/dev/stdin")
    os.makedirs("/tmp", exist_ok=True)
    kernel.unmount("/.outside")
    os.rmdir("/.outside")
    # The root becomes read-only in the last step, because earlier steps create folders in it.
    kernel.mount("none", "/", "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | QUIET)


def bind(source: str, target: str, devices: bool = False) -> None:
    """Mount ``source`` read-only at ``target``."""
    kernel.mount(source, target, "", kernel.MS_BIND)
    # In a user namespace, the kernel refuses a remount that drops a flag of the original mount.
    kept = os.statvfs(target).f_flag & (kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    flags = kernel.MS_NOSUID | (kernel.MS_NOEXEC if devices else kernel.MS_NODEV)
    kernel.mount(
        "none", target, "", kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kept | flags
    )
