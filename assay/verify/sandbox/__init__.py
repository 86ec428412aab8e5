"""Where untrusted Python programs run: fresh, isolated, bounded, and heard only as plain data.

    worker (`Sandbox`, `Session`, `Process`)           holds the tests and the verdict; decides
      `- launcher                                       waits, so that its namespaces end with it
           `- zygote (`zygote`, `isolation`)             one thread, started before any test exists
                `- one process a submission (`agent`)   executes it, answers requests

A process is forked from the zygote, walls itself in, and only then reads what to execute. Requests
and replies are frames of typed plain data (`values`, `codec`) over a socket pair.

What is believed: nothing that a process says. The submission shares its interpreter with the agent,
so it can find the socket, the frames and the objects of the agent, and may answer in its place.
That gains it nothing: a reply holds a returned value, which the submission chooses anyway; expected
values, later arguments and verdicts are never there; each reply names the fresh nonce of its
request, so that none can be written ahead. The kernel's words (CPU clock, wait status, sizes of
files) decide on limits.

    threat                           what answers it                               where
    -------------------------------  --------------------------------------------  ---------------
    files of the host, secrets       an own root: the standard library read-only,  isolation
                                     devices, 16 MiB of tmpfs; Landlock over it    kernel.landlock
    environment, worker's memory     a fresh interpreter that never held any       sandbox, zygote
    state left for the next one      fork, own tmpfs, pid and IPC namespace each   isolation.enter
    network                          an empty network namespace; no socket()       seccomp
    signals, tracing of others       pid namespace, own session and group; ptrace  isolation.enter
                                     and its like refused; Landlock scopes
    new processes, fork bombs        clone only with CLONE_THREAD; RLIMIT_NPROC    seccomp
    kernel bugs behind rare calls    calls allowed by name, all others refused;    seccomp
                                     clone3 does not exist
    privileges                       user 65534, no capability, no_new_privs, a    isolation.enter
                                     user namespace around the zygote itself
    endless loops                    the process's CPU clock, read here; SIGKILL;  process.check
                                     RLIMIT_CPU, should the worker be gone
    sleeping, waiting, dripping      time neither run nor waited for a processor,  count_idle
                                     so that a busy machine changes no verdict
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
                                     first process of a pid namespace takes all
    core dumps                       RLIMIT_CORE 0, not dumpable                   isolation
    chance                           fixed hash seed, random seed, addresses, UTC  sandbox, zygote

Not answered: bugs of the kernel in what is allowed; reading time and the processor's side channels;
what several submissions at once may learn from each other's use of the machine.

It works as root and as an ordinary user where user namespaces are allowed; `probe` tries the walls
from inside at the first start, and where one does not stand, `SandboxUnavailable` names it. The
interpreter must be readable for the user that runs. ``unsafe=True`` waives the walls and keeps the
limits.
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
