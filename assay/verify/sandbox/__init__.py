"""Sandbox for untrusted Python programs: fresh processes, isolation, limits, plain data only.

    worker (`Sandbox`, `Session`, `Process`)           holds the tests and the verdict; decides
      `- launcher                                       waits; its end closes the namespaces
           `- zygote (`zygote`, `isolation`)             one thread, started before any test exists
                `- one process a submission (`agent`)   executes it, answers requests

A process is forked from the zygote, isolates itself, and only then reads the code to execute.
Requests and replies are frames of typed plain data (`values`, `codec`) over a socket pair.

The sandbox trusts nothing that a process sends. The submission runs in the agent's interpreter, so
it can find the socket, the frames and the agent's objects, and can reply in the agent's place. The
submission gains nothing by a forged reply, because it chooses the returned value anyway. Expected
values, later arguments and verdicts never reach the submission's process. Each reply repeats the
fresh nonce of its request, so replies cannot be prepared. Limits are decided by data of the kernel:
CPU clock, wait status, sizes of files.

    threat                           defense                                       module
    -------------------------------  --------------------------------------------  ---------------
    files of the host, secrets       an own root: the standard library read-only,  isolation
                                     devices, 16 MiB of tmpfs; Landlock over it    kernel.landlock
    environment, worker's memory     a fresh interpreter that never held any       sandbox, zygote
    packages that run code           listed ones only, read-only, loaded before any  packages
                                     test exists; arrays are sent as plain data    arrays
    state left for the next one      fork, own tmpfs, pid and IPC namespace each   isolation.enter
    network                          an empty network namespace; no socket()       seccomp
    signals, tracing of others       pid namespace, own session and group; ptrace  isolation.enter
                                     and the like refused; Landlock scopes
    new processes, fork bombs        clone only with CLONE_THREAD; RLIMIT_NPROC    seccomp
    kernel bugs in rare calls        calls allowed by name, all others refused;    seccomp
                                     clone3 does not exist
    privileges                       user 65534, no capability, no_new_privs, a    isolation.enter
                                     user namespace around the zygote itself
    endless loops                    the process's CPU clock, read by the worker;  process.check
                                     SIGKILL; RLIMIT_CPU if the worker is gone
    sleeping, waiting, slow output   limit on time neither running nor waiting     count_idle
                                     for a processor, so that load changes nothing
    memory, threads, maps            RLIMIT_AS of the one process; bounded tmpfs   isolation
                                     and files; no memfd, System V IPC, locks
    output                           files in memory, RLIMIT_FSIZE                 memory_file
    catching signals                 SIGKILL through a pidfd                       process.kill
    forged, early, endless replies   nonce, one reply a request, the shape of its  session, codec
                                     question, capped frames and values
    values that run code or stall    exact types, subclasses as their plain base,  values, codec
                                     bounded depth, digits and equal hashes
    patched built-ins and modules    the agent has its own built-in names          zygote.load
    a worker that is killed          end of its socket, PR_SET_PDEATHSIG, the      separate
                                     end of a pid namespace kills its processes
    core dumps                       RLIMIT_CORE 0, not dumpable                   isolation
    nondeterminism                   fixed hash seed, random seed, addresses, UTC  sandbox, zygote

The sandbox does not cover kernel bugs in allowed calls, or side channels of clocks and the
processor. Concurrent submissions can also observe each other's use of the machine.

The sandbox works for root, and for an ordinary user if user namespaces are allowed. `probe` tests
the isolation from inside at the first start, and `SandboxUnavailable` names the measures that fail.
The sandbox's user must be able to read the Python interpreter's files. The setting ``unsafe=True``
disables isolation and keeps the limits.
"""

from assay.verify.sandbox.outcome import (
    Answer,
    Outcome,
    SandboxTrouble,
    SandboxUnavailable,
    SubmissionError,
)
from assay.verify.sandbox.sandbox import Sandbox, sandbox_report
from assay.verify.sandbox.session import Session
from assay.verify.sandbox.values import Handle, Iterator, Record

__all__ = [
    "Answer",
    "Handle",
    "Iterator",
    "Outcome",
    "Record",
    "Sandbox",
    "SandboxTrouble",
    "SandboxUnavailable",
    "Session",
    "SubmissionError",
    "sandbox_report",
]
