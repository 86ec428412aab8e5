"""Whatever a verifier does to its worker: the batch completes, the log says why, nothing
survives."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import gone, until

from assay.errors import VerifierError, WorkerDied
from assay.host.worker_process import Lost
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.service import VerifierService
from assay.verify.serving import process
from assay.verify.serving.process import Worker

VILLAINS = '''
import os, re, signal, socket, subprocess, sys, tempfile, threading, time
from assay.host.fields import Field
from assay.verify.base import (Limits, Verifier)

def descriptors():
    """All but the standard ones: the service's channel has the number that it has in the service."""
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]

def deeds(problem, completion):
    """Does what the completion says."""
    word, _, rest = completion.text.partition(" ")
    if word == "pid":
        return {"score": 1, "pid": os.getpid()}
    if word == "backtrack":
        re.match(r"(a|a)*$", "a" * 64 + "b")
    if word == "masked":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        time.sleep(60)
    if word == "daemon":  # leaves its group and its session, and its parent dies
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv("/bin/sleep", ["sleep", rest])
            os._exit(0)
        os.wait()
    if word == "children":
        for _ in range(3):
            subprocess.Popen(["/bin/sleep", rest])
    if word == "hang":
        time.sleep(1000)
    if word == "close":
        for descriptor in descriptors():
            try:
                os.close(descriptor)
            except OSError:
                pass
    if word == "forge":
        for descriptor in descriptors():
            try:
                with socket.socket(fileno=os.dup(descriptor)) as channel:
                    channel.sendall(bytes.fromhex(rest))
            except OSError:
                pass
    if word == "threads":
        for _ in range(20):
            threading.Thread(target=time.sleep, args=(1000,)).start()
    if word == "files":
        for _ in range(20):
            with tempfile.NamedTemporaryFile(delete=False) as file:
                file.write(b"left")
        os.mkdir(os.path.join(tempfile.mkdtemp(), "more"))
        return {"score": 1, "detail": tempfile.gettempdir()}
    if word == "slow":
        time.sleep(float(rest))
    if word == "begin":
        open(rest, "w").close()
        time.sleep(1000)
    if word == "until":
        end = time.monotonic() + 60
        while not os.path.exists(rest):
            if time.monotonic() > end:
                return 0.0
            time.sleep(0.01)
    return 1.0

def hungry(problem, completion):
    return float(len(bytearray(int(completion.text) * 2**20)) > 0)

BOUNDED = Verifier("bounded", 1, hungry, limits=Limits(memory_mib=200))
HASTY = Verifier("hasty", 1, deeds, limits=Limits(seconds=0.3))
'''


@pytest.fixture(scope="module")
def villains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("villains")
    (folder / "planted_villains.py").write_text(VILLAINS)
    sys.path.insert(0, str(folder))
    yield "planted_villains:deeds"
    sys.path.remove(str(folder))


class Log:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def service(villains: str, log: Log) -> Iterator[VerifierService]:
    with VerifierService(
        villains, num_workers=1, deadline=0.5, on_event=log, allow=["planted_villains"]
    ) as service:
        judge(service, ["warm"])
        yield service


def group_of(texts: Sequence[str], expression: str | None = None, **spec: Any) -> Group:
    problem = Problem("p", "q", spec, verifier=expression)
    completions = tuple(Completion.from_text(text, f"p#0/{n}") for n, text in enumerate(texts))
    return Group(problem, Prompt("q", np.zeros(1, np.int32)), completions)


def judge(
    service: VerifierService, texts: Sequence[str], expression: str | None = None, **spec: Any
) -> tuple[Verdict, ...]:
    return service.judge([group_of(texts, expression, **spec)])[0]


def num_judged(service: VerifierService) -> float:
    found = service.take_metrics()
    return found["verify/planted_villains:deeds/count"]


def running(words: str) -> bool:
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return any(line.strip() == words for line in listing.splitlines())


@pytest.mark.parametrize("text", ["backtrack", "masked"])
def test_work_that_ignores_signals_is_killed(service: VerifierService, log: Log, text: str) -> None:
    verdicts = judge(service, ["a", text, "b"])
    assert [v.reason for v in verdicts] == [None, "timeout", None]
    assert log.kinds() == ["worker_killed"]
    assert log.events[0][1]["verifier"] == "planted_villains:deeds"
    assert log.events[0][1]["seconds"] >= 0.5


def test_a_worker_that_the_system_kills(villains: str, log: Log, tmp_path: Path) -> None:
    """As when memory runs out: SIGKILL from outside, in the middle of a completion."""
    begun = tmp_path / "begun"

    def kill_once_begun() -> None:
        if until(begun.exists):
            os.kill(pid, signal.SIGKILL)

    with VerifierService(villains, num_workers=1, deadline=100, on_event=log) as service:
        pid = int(judge(service, ["pid"])[0].components["planted_villains:deeds.pid"])
        killer = threading.Thread(target=kill_once_begun)
        killer.start()
        verdicts = judge(service, ["a", f"begin {begun}", "a", "a"])
        killer.join()
    assert [v.reason for v in verdicts] == [None, "error", None, None]
    assert "SIGKILL" in verdicts[1].detail
    assert log.kinds() == ["worker_died"]
    assert "SIGKILL" in log.events[0][1]["detail"]


@pytest.mark.parametrize(
    "data",
    [
        "7b7d7b7d7b0a",  # a line that is no JSON
        "5b5d0a",  # an empty list
        "6e756c6c0a",  # null
        "00ff00",  # no line, before a real reply
        "5b227265706c79222c302c302c5b5d5d0a",  # the reply to another call
    ],
)
def test_a_forged_reply_costs_the_worker(service: VerifierService, log: Log, data: str) -> None:
    verdicts = judge(service, ["a", f"forge {data}", "b"])
    assert [v.status for v in verdicts[::2]] == ["passed", "passed"]
    assert verdicts[1].reason in ("error", "timeout")
    assert log.kinds() in (["worker_died"], ["worker_killed"])


def test_a_socket_that_is_closed_costs_the_worker(service: VerifierService, log: Log) -> None:
    verdicts = judge(service, ["a", "close", "b"])
    assert [v.reason for v in verdicts] == [None, "error", None]
    assert log.kinds() == ["worker_died"]


def test_memory_is_bounded(service: VerifierService) -> None:
    verdicts = judge(service, ["10", "400", "10"], "planted_villains:BOUNDED")
    assert [v.reason for v in verdicts] == [None, "error", None]
    assert "MemoryError" in verdicts[1].detail
    assert judge(service, ["a"])[0].correct  # a verifier without a bound has none again


def test_a_verifiers_own_limit_is_its_deadline(villains: str) -> None:
    with VerifierService(num_workers=1, deadline=1000, allow=["planted_villains"]) as service:
        judge(service, ["warm"], "planted_villains:HASTY")
        verdicts = judge(service, ["hang", "a"], "planted_villains:HASTY")
        assert [v.reason for v in verdicts] == ["timeout", None]


@pytest.mark.parametrize(("deed", "seconds"), [("children", 6101), ("daemon", 6102)])
def test_nothing_that_a_killed_worker_started_survives(
    service: VerifierService, deed: str, seconds: int
) -> None:
    words = f"sleep {seconds}" if deed == "daemon" else f"/bin/sleep {seconds}"
    verdicts = judge(service, [f"{deed} {seconds}", "a"])
    assert [v.status for v in verdicts] == ["passed", "passed"]
    assert until(lambda: running(words))
    assert judge(service, ["hang"])[0].reason == "timeout"
    assert until(lambda: not running(words))


@pytest.mark.parametrize(("deed", "seconds"), [("children", 6103), ("daemon", 6104)])
def test_no_process_survives_close(villains: str, deed: str, seconds: int) -> None:
    words = f"sleep {seconds}" if deed == "daemon" else f"/bin/sleep {seconds}"
    with VerifierService(villains, num_workers=2) as service:
        judge(service, [f"{deed} {seconds}"])
        assert until(lambda: running(words))
    assert not running(words)


def test_temporary_files_go_with_their_worker(villains: str) -> None:
    with VerifierService(villains, num_workers=1) as service:
        folder = Path(judge(service, ["files"])[0].detail)
        assert len(list(folder.iterdir())) == 21
    assert not folder.exists()


def test_threads_that_never_end_keep_nothing(villains: str) -> None:
    with VerifierService(villains, num_workers=1) as service:
        assert all(v.correct for v in judge(service, ["threads", "a", "threads", "b"]))


def end_without_closing(villains: str, texts: list[str], ending: str) -> list[list[str]]:
    """Judge some texts in a program of its own; returns its workers, their folders, and the
    watcher."""
    script = f"""
        import os, signal
        from assay.types import Problem
        from assay.verify.service import VerifierService
        service = VerifierService("{villains}", num_workers=2)
        verdicts = list(service.judge_text((Problem("p", "q"), text) for text in {texts}))
        pids = [int(v.components.get("{villains}.pid", 0)) for v in verdicts]
        print(*[pid for pid in pids if pid], flush=True)
        pool = service.engine.pool
        print(*[w.mark.folder for w in pool.workers], flush=True)
        watcher = pool.watcher.pid
        print(watcher, flush=True)
        {ending}
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
    )
    told = [line.split() for line in done.stdout.splitlines()]
    assert len(told) == 3 and all(told), done.stderr
    return told


KILL_PARENT = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("ending", ["pass", KILL_PARENT])
def test_a_parent_that_ends_without_closing_leaves_no_process(villains: str, ending: str) -> None:
    texts = ["children 6105", "daemon 6107", "pid", "a", "pid"]
    workers, folders, watcher = end_without_closing(villains, texts, ending)
    assert gone([*workers, *watcher])
    assert not running("/bin/sleep 6105")
    assert not running("sleep 6107"), "it left its group and its session"
    assert not any(map(os.path.exists, folders))


def test_a_later_run_clears_up_where_the_watcher_was_killed_too(villains: str) -> None:
    ending = f"os.kill(watcher, signal.SIGKILL); {KILL_PARENT}"
    workers, folders, _ = end_without_closing(villains, ["children 6108", "pid"], ending)
    assert gone(workers) and until(lambda: not running("/bin/sleep 6108"))
    with VerifierService(villains, num_workers=1) as other:
        judge(other, ["a"])
        own = other.engine.pool.workers[0].mark.folder
        assert os.path.isdir(own)
        assert not any(map(os.path.exists, folders))


def test_two_services_do_not_touch_each_other(villains: str) -> None:
    with VerifierService(villains, num_workers=1, deadline=0.5) as one:
        judge(one, ["children 6106"])
        with VerifierService(villains, num_workers=1, deadline=0.5) as other:
            assert [v.reason for v in judge(other, ["hang", "a"])] == ["timeout", None]
        assert running("/bin/sleep 6106")
        assert all(v.correct for v in judge(one, ["a", "b"]))
        assert one.stats["kills"] == 0
    assert not running("/bin/sleep 6106")


def test_eight_threads_and_an_event_loop_share_a_service(villains: str) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for turn in range(6):
            text = "hang" if number == 3 and turn == 2 else "a"
            found = judge(service, [str(number), text, "x"], answer=str(number))
            found += judge(service, [text, "a"], villains)
            expected = ["passed", "failed", "failed"]
            expected += ["not_judged" if text == "hang" else "passed", "passed"]
            if [v.status for v in found] != expected:
                wrong.append(f"{number}.{turn}: {found}")

    async def many() -> list[Any]:
        groups = [[group_of([str(n), "y"], answer=str(n))] for n in range(20)]
        return await asyncio.gather(*map(service.judge_async, groups))

    with VerifierService(
        "math", num_workers=2, deadline=1.0, allow=["planted_villains"]
    ) as service:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        found = asyncio.run(many())
        for thread in threads:
            thread.join()
        assert service.stats["kills"] == 1
    assert [[v.correct for v in each[0]] for each in found] == [[True, False]] * 20
    assert not wrong


def test_the_event_loop_runs_while_groups_are_judged(villains: str, tmp_path: Path) -> None:
    async def both() -> list[tuple[Verdict, ...]]:
        """The completion is judged once the loop has turned ten times."""
        groups = [group_of([f"until {tmp_path / 'ticked'}", "a"])]
        judging = asyncio.ensure_future(service.judge_async(groups))
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert not judging.done()
        (tmp_path / "ticked").touch()
        return await judging

    with VerifierService(villains, num_workers=1, deadline=100) as service:
        judge(service, ["warm"])
        verdicts = asyncio.run(both())
    assert all(v.correct for v in verdicts[0])


def test_a_cancelled_call_leaves_nothing_under_way(villains: str) -> None:
    async def give_up() -> None:
        groups = [group_of(["slow 0.05"] * 10) for _ in range(100)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.judge_async(groups), 0.3)

    with VerifierService(villains, num_workers=1) as service:
        judge(service, ["warm"])
        asyncio.run(give_up())
        assert judge(service, ["a"])[0].correct
        assert num_judged(service) < 500  # what a worker had is finished, the rest of 1000 is not


def test_a_worker_that_hangs_in_cancelled_work_is_replaced(villains: str) -> None:
    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(service.judge_async([group_of(["hang"] * 8)]), 0.2)

    with VerifierService(villains, num_workers=1, deadline=1000) as service:
        judge(service, ["warm"])
        asyncio.run(give_up())
        assert judge(service, ["a"])[0].correct
        assert service.stats["kills"] == service.stats["deaths"] == 0


def test_what_waits_is_not_pickled_ahead(villains: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge batch is sent as workers take it, not copied whole into the service's memory."""
    big = "x" * 100_000
    groups = [group_of([f"{n} {big}" for n in range(4)]) for _ in range(50)]
    with VerifierService(villains, num_workers=1) as service:
        judge(service, ["warm"])
        sent: list[int] = []
        send = process.Worker.send
        monkeypatch.setattr(
            process.Worker,
            "send",
            lambda self, n, *said: (sent.append(len(pickle.dumps(said))), send(self, n, *said)),
        )
        jobs = [service.submit(group) for group in groups]
        assert sum(sent) < sum(len(c.text) for group in groups[:20] for c in group.completions)
        assert all(service.finish(job)[0].correct for job in jobs)
        assert max(sent) < 4.1 * len(big), "no more than one of these groups is sent at once"
        assert len(sent) >= len(groups)


def test_text_that_nobody_reads_on_is_not_judged(villains: str) -> None:
    with VerifierService(villains, num_workers=1) as service:
        pairs = ((Problem("p", "q"), "slow 0.1") for _ in range(1000))
        verdicts = service.judge_text(pairs, window=200)
        assert next(verdicts).correct
        verdicts.close()
        judge(service, ["a"])
        assert num_judged(service) < 150  # of a window of 200


def test_metrics_are_of_what_was_judged_since(service: VerifierService) -> None:
    service.take_metrics()
    judge(service, ["a", "hang", "b"])
    found = service.take_metrics()
    name = "verify/planted_villains:deeds"
    assert found[f"{name}/count"] == 3
    assert found[f"{name}/not_judged_timeout"] == 1
    assert 0 < found[f"{name}/p50"] <= found[f"{name}/p95"] <= found[f"{name}/p99"]
    assert found[f"{name}/per_second"] > 0
    assert found["verify/kills"] == 1
    assert service.take_metrics() == {}


def test_a_module_whose_import_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("assay.host.worker_process.IMPORT_DEADLINE", 1.0)
    monkeypatch.setattr("assay.verify.service.NOTICE_SECONDS", 0.1)
    (tmp_path / "hangs_here.py").write_text("while True:\n    pass\n")
    refused = pytest.raises(VerifierError, match=r"module cannot be imported: killed after \d")
    with VerifierService("hangs_here:f", num_workers=1) as service, refused:
        service.check([None])
    assert "verifier hangs_here:f: its module is still being imported" in capsys.readouterr().err


class Unlucky(Worker):
    """Some are lost while they start, as where the machine of an actor goes down."""

    num_lost = 0

    def greet(self, options: dict[str, Any]) -> None:
        if Unlucky.num_lost:
            Unlucky.num_lost -= 1
            raise Lost("died", "its actor is lost: ActorDiedError", idle=True)
        super().greet(options)


def test_a_worker_that_is_lost_while_it_starts_is_no_modules_fault(villains: str) -> None:
    Unlucky.num_lost = 2
    with VerifierService(villains, num_workers=1, spawn_worker=Unlucky) as service:
        service.check([None])
    Unlucky.num_lost = 99
    refused = pytest.raises(WorkerDied, match=r"not start \(.*\): its actor is lost")
    with VerifierService(villains, num_workers=1, spawn_worker=Unlucky) as service, refused:
        service.check([None])


def test_more_workers_than_a_machine_can_have() -> None:
    with pytest.raises(VerifierError, match="worker processes: found 100000; accepted: at most"):
        VerifierService("exact", num_workers=100_000)
