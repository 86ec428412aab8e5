"""The filter of system calls that a submission runs under (seccomp, classic BPF, built here).

Everything is refused that is not named: ALLOWED calls pass, CHECKED ones pass by their arguments, REFUSED
ones are "not permitted", and any other, newer ones included, "does not exist", so that a C library falls
back. The tables say ``name:number on x86_64:number on aarch64`` (Linux, asm/unistd_64.h and
asm-generic/unistd.h). The zygote loads this file without the package: standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys

ALLOWED = """
    read:0:63 write:1:64 open:2:- openat:257:56 openat2:437:437 close:3:57 close_range:436:436
    stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 poll:7:- ppoll:271:73 lseek:8:62
    mmap:9:222 mprotect:10:226 munmap:11:215 brk:12:214 mremap:25:216 msync:26:227 mincore:27:232
    madvise:28:233 rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139
    rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132
    pread64:17:67 pwrite64:18:68 readv:19:65 writev:20:66 preadv:295:69 pwritev:296:70 access:21:-
    faccessat:269:48 faccessat2:439:439 pipe:22:- pipe2:293:59 select:23:- pselect6:270:72
    sched_yield:24:124 dup:32:23 dup2:33:- dup3:292:24 pause:34:- nanosleep:35:101
    clock_nanosleep:230:115 getitimer:36:102 setitimer:38:103 alarm:37:- getpid:39:172
    gettid:186:178 getppid:110:173 exit:60:93 exit_group:231:94 kill:62:129 tgkill:234:131
    tkill:200:130 uname:63:160 flock:73:32 fsync:74:82 fdatasync:75:83 truncate:76:45
    ftruncate:77:46 getdents:78:- getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50
    rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:- mkdirat:258:34 rmdir:84:- creat:85:-
    link:86:- linkat:265:37 unlink:87:- unlinkat:263:35 symlink:88:- symlinkat:266:36 readlink:89:-
    readlinkat:267:78 chmod:90:- fchmod:91:52 fchmodat:268:53 umask:95:166 gettimeofday:96:169
    getrlimit:97:163 getrusage:98:165 sysinfo:99:179 times:100:153 getuid:102:174 getgid:104:176
    geteuid:107:175 getegid:108:177 getpgid:121:155 getpgrp:111:- getsid:124:156 getgroups:115:158
    getresuid:118:148 getresgid:120:150 utime:132:- utimes:235:- utimensat:280:88 futimesat:261:-
    statfs:137:43 fstatfs:138:44 sched_getparam:143:121 sched_getscheduler:145:120
    sched_get_priority_max:146:125 sched_get_priority_min:147:126 sched_getaffinity:204:123
    getpriority:140:141 set_tid_address:218:96 set_robust_list:273:99 get_robust_list:274:100
    futex:202:98 rseq:334:293 membarrier:324:283 epoll_create:213:- epoll_create1:291:20
    epoll_ctl:233:21 epoll_wait:232:- epoll_pwait:281:22 eventfd2:290:19 timerfd_create:283:85
    timerfd_settime:286:86 timerfd_gettime:287:87 clock_gettime:228:113 clock_getres:229:114
    getrandom:318:278 sendto:44:206 recvfrom:45:207 shutdown:48:210 getsockopt:55:209
    setsockopt:54:208 getsockname:51:204 getpeername:52:205 sendfile:40:71 fadvise64:221:223
    fallocate:285:47 restart_syscall:219:128 wait4:61:260 waitid:247:95 getcpu:309:168 time:201:-
"""

# Refused by name, for an error that reads well: "Operation not permitted".
REFUSED = """
    fork:57:- vfork:58:- execve:59:221 execveat:322:281 socket:41:198 connect:42:203 bind:49:200
    listen:50:201 accept:43:202 accept4:288:242 sendmsg:46:211 recvmsg:47:212 sendmmsg:307:269
    recvmmsg:299:243 ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271
    process_madvise:440:440 kcmp:312:272 pidfd_open:434:434 pidfd_getfd:438:438
    pidfd_send_signal:424:424 keyctl:250:219 add_key:248:217 request_key:249:218
    io_uring_setup:425:425 io_uring_enter:426:426 io_uring_register:427:427 memfd_create:319:279
    memfd_secret:447:447 shmget:29:194 shmat:30:196 shmctl:31:195 shmdt:67:197 semget:64:190
    semop:65:193 semctl:66:191 semtimedop:220:192 msgget:68:186 msgsnd:69:189 msgrcv:70:188
    msgctl:71:187 mq_open:240:180 mq_unlink:241:181 mount:165:40 umount2:166:39 pivot_root:155:41
    chroot:161:51 unshare:272:97 setns:308:268 open_tree:428:428 move_mount:429:429 fsopen:430:430
    fsconfig:431:431 fsmount:432:432 fspick:433:433 mount_setattr:442:442 bpf:321:280
    perf_event_open:298:241 userfaultfd:323:282 name_to_handle_at:303:- open_by_handle_at:304:-
    init_module:175:105 finit_module:313:273 delete_module:176:106 kexec_load:246:104
    kexec_file_load:320:294 reboot:169:142 swapon:167:224 swapoff:168:225 quotactl:179:60
    acct:163:89 setuid:105:146 setgid:106:144 setreuid:113:145 setregid:114:143 setresuid:117:147
    setresgid:119:149 setgroups:116:159 setfsuid:122:151 setfsgid:123:152 capset:126:91
    sethostname:170:161 setdomainname:171:162 personality:135:92 syslog:103:116 settimeofday:164:170
    clock_settime:227:112 clock_adjtime:305:266 adjtimex:159:171 iopl:172:- ioperm:173:- mknod:133:-
    mknodat:259:33 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54 setpriority:141:140
    sched_setscheduler:144:119 sched_setparam:142:118 sched_setattr:314:274
    sched_setaffinity:203:122 mlock:149:228 mlock2:325:284 mlockall:151:230 setsid:112:157
    setpgid:109:154 ioprio_set:251:30 mbind:237:235 set_mempolicy:238:237 migrate_pages:256:238
    move_pages:279:239 fanotify_init:300:262 inotify_init1:294:26 inotify_init:253:-
    lookup_dcookie:212:18 vhangup:153:58 setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7
    splice:275:76 vmsplice:278:75 tee:276:77 modify_ldt:154:- seccomp:317:277
    landlock_create_ruleset:444:444 landlock_add_rule:445:445 landlock_restrict_self:446:446
    timer_create:222:107 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
"""

# Passed by their arguments: see `checks`. clone3 cannot be looked into: its argument is in memory.
CHECKED = """
    clone:56:220 prctl:157:167 ioctl:16:29 fcntl:72:25 socketpair:53:199 prlimit64:302:261
"""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column, AUDIT_ARCH
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
OFFSET_NR, OFFSET_ARCH, OFFSET_ARGS = 0, 4, 16
X32_BIT = 0x40000000

CLONE_THREAD = 0x00010000
CLONE_NEW = 0x7E020080  # every flag that makes a namespace
AF_UNIX, SOCK_STREAM = 1, 1
IOCTLS = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS FIONREAD FIONBIO FIONCLEX FIOCLEX
FCNTLS = (
    0,
    1,
    2,
    3,
    4,
    1030,
    1032,
)  # duplicate, flags, pipe size read; locks are memory of the kernel
PRCTLS = (3, 15, 16, 21, 23, 39, 0x53564D41)  # names and questions; never death signal or dumpable

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def numbers(table: str, column: int) -> dict[str, int]:
    """Return the numbers of one machine; a call that it lacks is left out."""
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[1 + column]) for row in rows if row[1 + column] != "-"}


def argument(index: int) -> Instruction:
    """Load the low half of an argument."""
    return (LOAD, 0, 0, OFFSET_ARGS + 8 * index)


def refuse(code: int) -> Instruction:
    return (RETURN, 0, 0, ERRNO | code)


def one_of(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    """Allow where an argument is one of ``values``."""
    steps = [argument(index)]
    for value in values:
        steps += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [*steps, refuse(otherwise)]


def checks() -> dict[str, list[Instruction]]:
    """Return what decides on each call of CHECKED, once its number is known."""
    eperm = errno.EPERM
    return {
        # threads, never processes, never a namespace
        "clone": [
            argument(0),
            (AND, 0, 0, CLONE_THREAD | CLONE_NEW),
            (EQUAL, 0, 1, CLONE_THREAD),
            (RETURN, 0, 0, ALLOW),
            refuse(eperm),
        ],
        # event loops wake themselves through a pair; no socket that reaches anything
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


def program(machine: str) -> list[Instruction]:
    """Return the filter's instructions for a machine of `MACHINES`.

    A binary search over the numbers: the kernel runs the filter once for every call when it is installed.
    """
    column, architecture = MACHINES[machine]
    steps: list[Instruction] = [
        (LOAD, 0, 0, OFFSET_ARCH),
        (EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, OFFSET_NR),
    ]
    if machine == "x86_64":
        steps += [(AT_LEAST, 0, 1, X32_BIT), (RETURN, 0, 0, KILL)]
    actions: dict[int, list[Instruction]] = {}
    decide = checks()
    for number in numbers(ALLOWED, column).values():
        actions[number] = [(RETURN, 0, 0, ALLOW)]
    for number in numbers(REFUSED, column).values():
        actions[number] = [refuse(errno.EPERM)]
    for name, number in numbers(CHECKED, column).items():
        actions[number] = decide[name]
    return steps + search(segments(actions))


def segments(actions: dict[int, list[Instruction]]) -> list[tuple[int, list[Instruction]]]:
    """Return (first number, action) of each run of numbers with one action; the last run is open."""
    unknown = [refuse(errno.ENOSYS)]
    found: list[tuple[int, list[Instruction]]] = []
    for number in range(max(actions) + 2):
        action = actions.get(number, unknown)
        if not found or found[-1][1] != action:
            found.append((number, action))
    return found


def search(runs: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return the instructions that find a number's run; each jump is at most 255 long."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = search(runs[:middle]), search(runs[middle:])
    if len(below) > 255:
        raise ValueError("the filter needs a jump that is too long")
    return [(AT_LEAST, len(below), 0, runs[middle][0]), *below, *above]


class Filter:
    """The filter of this machine, assembled once and installed in each forked process."""

    def __init__(self, machine: str) -> None:
        if machine not in MACHINES or sys.byteorder != "little":
            raise OSError(f"no filter of system calls for {machine}")
        steps = program(machine)
        self.size = len(steps)
        self.code = ctypes.create_string_buffer(
            b"".join(struct.pack("<HBBI", *step) for step in steps)
        )
        address = ctypes.addressof(self.code)
        self.header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), address))
        self.prctl = ctypes.CDLL(None, use_errno=True).prctl
        self.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4

    def install(self) -> None:
        """Confine this process, for ever. Raises OSError."""
        for arguments in (
            (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self.header), 0, 0),
        ):
            if self.prctl(*arguments) != 0:
                raise OSError(ctypes.get_errno(), "seccomp")
