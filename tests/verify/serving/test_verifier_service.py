"""The service: verdicts whatever verifiers do, deadlines that kill, nothing left behind."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import gone

from assay.errors import VerifierError, WorkerDied
from assay.host import worker_process as process_module
from assay.testing import ScriptedGenerator
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Verdict
from assay.verify.answers.math_answer import judge_math
from assay.verify.base import resolve
from assay.verify.service import VerifierService

MATH = resolve("math")

REWARDS = '''
import ctypes, os, signal, sys, threading, time
from assay.types import StepScore, Verdict
from assay.host.imports import slow_import

def loads(problem, completion):
    with slow_import(): time.sleep(2)
    return 1.0

def mixed(problem, completion):
    """Does what the completion says."""
    text = completion.text
    if text == "hang": time.sleep(60)
    if text.startswith("begin "): open(text.removeprefix("begin "), "w").close()
    if text.startswith(("hang in C", "begin ")): sum(range(10**13))
    if text == "exit": os._exit(3)
    if text == "leave": sys.exit(4)
    if text == "segfault": ctypes.string_at(0)
    if text == "killed": os.kill(os.getpid(), signal.SIGKILL)
    if text == "raise": raise RuntimeError("planted")
    if text == "interrupt": raise KeyboardInterrupt
    if text == "nan": return float("nan")
    if text == "text": return "very good"
    if text == "none": return None
    if text == "big": return 1e6
    if text == "loud":
        print("x" * 5_000_000); os.write(1, b"y" * 5_000_000); os.write(2, b"z" * 5_000_000)
    if text == "memory": bytearray(10**15)
    if text == "children":
        import subprocess
        subprocess.Popen(["sleep", "61"]); time.sleep(60)
    return 1.0

def pid(problem, completion):
    return {"score": 1, "pid": os.getpid()}

def torchless(problem, completion):
    return float("torch" not in sys.modules)

def longest(problem, group):
    most = max(len(c.text) for c in group.completions)
    return [{"score": len(c.text) / most, "size": len(group.completions)} for c in group.completions]

def short_list(problem, group):
    return [1.0]

def group_hang(problem, group):
    time.sleep(60)

def sees(problem, completion):
    ok = completion.tokens.tolist() == [1, 2] and completion.think.mode == "free"
    return Verdict(score=float(ok), status="passed", verifier="x", step_scores=(StepScore(0.5, 1),),
                   extracted=problem.spec["answer"], detail=completion.finish_reason)

def slow(problem, completion):
    time.sleep(0.05)
    return {"score": 1, "pid": os.getpid()}
'''


PLANTED = ("planted_rewards", "planted_death", "planted_rewards.absent")


@pytest.fixture(scope="module")
def rewards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "planted_rewards.py").write_text(REWARDS)
    (folder / "planted_death.py").write_text("import os\nos._exit(5)\n")
    sys.path.insert(0, str(folder))
    yield "planted_rewards"
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def service(rewards: str) -> Iterator[VerifierService]:
    with VerifierService(num_workers=1, deadline=0.5, allow=PLANTED) as service:
        yield service


def group_of(texts: Sequence[str], expression: str | None = None, **spec: Any) -> Group:
    problem = Problem("p", "q", spec or {"answer": "5"}, verifier=expression)
    prompt = Prompt("q", np.zeros(1, np.int32))
    return Group(
        problem, prompt, tuple(Completion.from_text(t, f"p#0/{n}") for n, t in enumerate(texts))
    )


def judge(
    service: VerifierService, texts: Sequence[str], expression: str | None = None
) -> tuple[Verdict, ...]:
    return service.judge([group_of(texts, expression)])[0]


def test_verdicts_are_aligned_and_equal_to_plain_calls(service: VerifierService) -> None:
    groups = [group_of([f"{a + b}" for b in range(4)], answer=str(a + 1)) for a in range(5)]
    verdicts = service.judge(groups)
    assert len(verdicts) == 5
    for group, found in zip(groups, verdicts, strict=True):
        plain = [judge_math(group.problem, completion).value for completion in group.completions]
        assert [verdict.score for verdict in found] == plain == [0, 1, 0, 0]
        assert {verdict.verifier for verdict in found} == {MATH.label}
        assert all(verdict.reward == verdict.score for verdict in found)


def test_groups_are_judged_while_others_are_generated(service: VerifierService) -> None:
    problems = [Problem(f"p{n}", "q", {"answer": str(n)}) for n in range(6)]
    script = ScriptedGenerator(lambda p, s: p.spec["answer"] if s else "x")
    groups = script.generate(problems, None, 2)  # type: ignore[arg-type]

    def judged() -> int:
        return service.stats["verifiers"]["math"]["count"]

    judge(service, ["7"])
    before = judged()
    with service.judging() as judging:
        for group in reversed(groups[1:]):  # out of order
            judging.add(group)
        judge(service, ["8"])  # workers take what comes first before it
        assert judged() - before > 1, "some are judged before the last group comes"
        judging.add(groups[0])
        verdicts = judging.verdicts(groups)
    assert [[v.status for v in each] for each in verdicts] == [["failed", "passed"]] * 6


def test_a_generator_that_fails_leaves_a_working_service(service: VerifierService) -> None:
    with pytest.raises(ValueError, match="planted"), service.judging() as judging:
        judging.add(group_of(["5"]))
        raise ValueError("planted")
    assert judge(service, ["5"])[0].correct


def test_a_group_that_comes_twice_is_judged_once(service: VerifierService) -> None:
    group = group_of(["5"])
    assert len({id(one) for one in service.judge([group, group])}) == 1


def test_empty_groups_and_batches(service: VerifierService) -> None:
    assert service.judge([]) == []
    assert service.judge([group_of([])]) == [()]


@pytest.mark.parametrize("text", ["hang", "hang in C", "children"])
def test_only_the_culprit_of_a_hang_is_not_judged(
    service: VerifierService, rewards: str, text: str
) -> None:
    kills = service.stats["kills"]
    judge(service, ["warm"], f"{rewards}:mixed")
    verdicts = judge(service, ["a", text, "b", "c"], f"{rewards}:mixed")
    assert [v.status for v in verdicts] == ["passed", "not_judged", "passed", "passed"]
    assert verdicts[1].reason == "timeout"
    assert "killed" in verdicts[1].detail
    assert verdicts[1].seconds >= 0.5
    assert service.stats["kills"] == kills + 1
    if text == "children":
        listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert "sleep 61" not in listing.splitlines()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit", "exit code 3"),
        ("segfault", "SIGSEGV"),
        ("killed", "SIGKILL"),
        ("leave", "SystemExit"),
        ("raise", "RuntimeError: planted"),
        ("interrupt", "KeyboardInterrupt"),
        ("memory", "MemoryError"),
        ("nan", "finite"),
        ("text", "very good"),
        ("big", "0 to 1"),
    ],
)
def test_a_checker_that_fails_does_not_judge(
    service: VerifierService, rewards: str, text: str, words: str
) -> None:
    verdicts = judge(service, ["a", text, "b"], f"{rewards}:mixed")
    assert [v.status for v in verdicts] == ["passed", "not_judged", "passed"]
    assert (verdicts[1].reason, verdicts[1].reward) == ("error", None)
    assert words in verdicts[1].detail


def test_none_is_unavailable_and_prints_do_no_harm(service: VerifierService, rewards: str) -> None:
    verdicts = judge(service, ["none", "loud", "a"], f"{rewards}:mixed")
    assert [v.status for v in verdicts] == ["not_judged", "passed", "passed"]
    assert verdicts[0].reason == "unavailable"


def test_two_culprits_in_one_group(service: VerifierService, rewards: str) -> None:
    verdicts = judge(service, ["exit", "hang", "a", "exit"], f"{rewards}:mixed")
    assert [v.reason for v in verdicts] == ["error", "timeout", None, "error"]


def test_group_functions_see_the_group(service: VerifierService, rewards: str) -> None:
    verdicts = judge(service, ["12345", "5"], f"math + {rewards}:longest*0.5")
    name = f"{rewards}:longest"
    assert [v.components[name] for v in verdicts] == [1.0, 0.2]
    assert verdicts[1].components[f"{name}.size"] == 2.0
    assert verdicts[1].reward == pytest.approx(1.1)


def test_group_functions_that_fail(service: VerifierService, rewards: str) -> None:
    for name, reason in (("short_list", "error"), ("group_hang", "timeout")):
        verdicts = judge(service, ["5", "6"], f"math + {rewards}:{name}")
        assert [v.reason for v in verdicts] == [reason] * 2
        assert [v.components["math"] for v in verdicts] == [1.0, 0.0]
        ignored = judge(service, ["5", "6"], f"math + {rewards}:{name}*0")
        assert [v.reward for v in ignored] == [1.0, 0.0]


def test_user_functions_get_everything(service: VerifierService, rewards: str) -> None:
    floats = np.zeros(2, np.float32)
    completion = Completion(
        "c",
        "5",
        np.array([1, 2], np.int32),
        floats,
        sampled=np.ones(2, np.bool_),
        model_logprobs=floats,
        finish_reason="length",
        think=ThinkFormat("free"),
    )
    group = Group(
        Problem("p", "q", {"answer": "5"}, f"{rewards}:sees"),
        Prompt("q", completion.tokens),
        (completion,),
    )
    (verdict,) = service.judge([group])[0]
    assert (verdict.score, verdict.extracted, verdict.detail) == (1.0, "5", "length")
    assert verdict.step_scores[0].end == 1


def test_workers_import_no_torch(service: VerifierService, rewards: str) -> None:
    assert judge(service, ["5"], f"math + {rewards}:torchless")[0].reward == 2.0


def test_weights(service: VerifierService) -> None:
    verdict = judge(service, ["5"], "math + math*0.5 - think_format*0.25")[0]
    assert (verdict.reward, verdict.score) == (1.25, 1.0)
    assert verdict.components == {"math": 1.0, "think_format": 1.0}
    label = f"{MATH.label}*1 + {MATH.label}*0.5 + {resolve('think_format').label}*-0.25"
    assert verdict.verifier == label


@pytest.mark.parametrize(
    "expression",
    ["mth", "planted_rewards.absent:f", "planted_rewards:absent", "planted_death:f", "math@999"],
)
def test_an_expression_that_cannot_be_used(service: VerifierService, expression: str) -> None:
    with pytest.raises(VerifierError) as caught:
        service.check([None, expression])
    assert "\n" not in str(caught.value)
    verdict = judge(service, ["5"], expression)[0]
    assert (verdict.status, verdict.reason) == ("not_judged", "error")
    assert verdict.detail
    assert judge(service, ["5"])[0].correct


def test_a_problem_that_cannot_be_judged(service: VerifierService) -> None:
    missing = service.judge([group_of(["5"], test=1)])[0][0]
    assert (missing.reason, "answer" in missing.detail) == ("error", True)
    unpicklable = service.judge([group_of(["5"], answer="5", extra=lambda: 0)])[0][0]
    assert (unpicklable.reason, "sent" in unpicklable.detail) == ("error", True)


def test_describe_and_stats(service: VerifierService, rewards: str) -> None:
    judge(service, ["5"], f"math + {rewards}:pid")
    judge(service, ["hang"], f"{rewards}:mixed")
    described = service.describe()
    assert described["math"]["version"] == MATH.version
    assert len(described["math"]["hash"]) == len(described[f"{rewards}:pid"]["hash"]) == 12
    stats = service.stats["verifiers"]["math"]
    assert stats["count"] > 0
    assert 0 <= stats["p50"] <= stats["p95"] <= stats["p99"]
    assert service.stats["verifiers"][f"{rewards}:mixed"]["not_judged"]["timeout"] >= 1


def test_any_thread_may_judge(service: VerifierService) -> None:
    found: list[bool] = []

    def work(number: int) -> None:
        for _ in range(5):
            groups = [group_of([str(number), "x"], answer=str(number)) for _ in range(3)]
            found.append(all([v.score for v in each] == [1, 0] for each in service.judge(groups)))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20


def test_text_is_judged_in_order_and_streaming(service: VerifierService) -> None:
    drawn: list[int] = []

    def pairs() -> Iterator[tuple[Problem, str]]:
        for n in range(100):
            drawn.append(n)
            yield Problem(f"p{n}", "q", {"answer": str(n)}), str(n - n % 2)

    verdicts = service.judge_text(pairs(), window=10)
    next(verdicts)
    assert len(drawn) <= 11
    assert [v.correct for v in verdicts] == [n % 2 == 0 for n in range(1, 100)]


def test_several_workers_share_the_work(rewards: str) -> None:
    with VerifierService(f"{rewards}:slow", num_workers=3, deadline=5) as service:
        judge(service, ["a"])
        groups = [group_of(["a"] * 8) for _ in range(9)]
        verdicts = [v for each in service.judge(groups) for v in each]
        assert all(v.correct for v in verdicts)
        assert len({v.components[f"{rewards}:slow.pid"] for v in verdicts}) == 3


def test_events_name_the_verifier(rewards: str) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    with VerifierService(
        f"{rewards}:mixed",
        num_workers=1,
        deadline=0.5,
        on_event=lambda kind, **facts: events.append((kind, facts)),
    ) as service:
        judge(service, ["hang", "exit"])
    assert [kind for kind, _ in events] == ["worker_killed", "worker_died"]
    assert all(facts["verifier"] == f"{rewards}:mixed" for _, facts in events)


def test_an_idle_worker_that_dies_costs_nothing(rewards: str) -> None:
    with VerifierService(num_workers=1, allow=PLANTED) as service:
        assert judge(service, ["5"])[0].correct
        pid = int(judge(service, ["5"], f"{rewards}:pid")[0].components[f"{rewards}:pid.pid"])
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
        assert all(v.correct for v in judge(service, ["5.0", "5.00"]))
        assert service.stats["deaths"] == 1


def test_a_heavy_import_is_no_completions_fault(rewards: str) -> None:
    """An import that takes longer than the deadline, by a sleep: a busy machine changes nothing."""
    with VerifierService(f"{rewards}:loads", num_workers=1, deadline=1.2) as service:
        assert judge(service, ["5"])[0].status == "passed"


def test_a_formula_that_never_ends_is_killed() -> None:
    endless = r"\int_0^1 \frac{\sin(x^{17}+3x^{5}) \cdot e^{\cos x}}{\ln(x+2)+x^{13}} \, dx"
    with VerifierService(num_workers=1, deadline=0.7) as service:
        verdicts = service.judge([group_of([r"\boxed{x+1}", "0.3", "x"], answer=endless)])[0]
        assert service.stats["kills"] >= 1
        assert judge(service, ["5"])[0].correct
    assert "timeout" in [v.reason for v in verdicts]


def test_close_reaps_everything() -> None:
    service = VerifierService(num_workers=2)
    assert judge(service, ["5"])[0].correct
    processes = [worker.process for worker in service.engine.pool.workers]
    service.close()
    service.close()
    assert all(process.returncode is not None for process in processes)
    assert all(not Path(f"/proc/{process.pid}").exists() for process in processes)
    with pytest.raises(RuntimeError, match="closed"):
        judge(service, ["5"])


def run_script(body: str, **options: Any) -> subprocess.Popen[str]:
    code = textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("text", ["", "begin {}"], ids=["idle", "in C"])
def test_workers_end_with_a_killed_parent(rewards: str, tmp_path: Path, text: str) -> None:
    begun = tmp_path / "begun"
    parent = run_script(
        f"""
        import os, threading, time
        from assay.types import Problem
        from assay.verify.service import VerifierService
        service = VerifierService("{rewards}:mixed", num_workers=2, deadline=100)
        service.check([None])
        print(*[w.process.pid for w in service.engine.pool.workers], flush=True)
        pairs = [(Problem("p", "q"), "{text.format(begun)}")] * 2
        work = threading.Thread(target=lambda: list(service.judge_text(pairs)), daemon=True)
        work.start()
        while work.is_alive() and not os.path.exists("{begun}"):
            time.sleep(0.01)
        print("begun" if work.is_alive() else "judged", flush=True)
        time.sleep(60)
        """,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert parent.stdout.readline() == ("begun\n" if text else "judged\n")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    assert gone(pids)


def test_a_parent_that_forgets_to_close_leaves_nothing() -> None:
    parent = run_script(
        """
        from assay.verify.service import VerifierService
        service = VerifierService(num_workers=2)
        print(*[w.process.pid for w in service.engine.pool.workers], flush=True)
        """
    )
    out, _ = parent.communicate(timeout=30)
    assert parent.returncode == 0
    assert gone([int(pid) for pid in out.split()], 1.0)


def test_a_fork_gets_workers_of_its_own(service: VerifierService) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            score = judge(service, ["5"])[0].score
            os.write(writer, str(score).encode())
            service.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 10) == b"1.0"
    os.close(reader)
    assert judge(service, ["5"])[0].correct


def test_workers_that_cannot_start_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module.sys, "path", ["/nowhere"])
    monkeypatch.setattr(process_module.sys, "executable", "/bin/false")
    service = VerifierService(num_workers=1)
    with pytest.raises(WorkerDied, match="exit code 1"):
        judge(service, ["5"])
    service.close()


@pytest.mark.slow
def test_a_batch_costs_less_than_its_completions_one_by_one() -> None:
    think = ThinkFormat("opened")

    def group(number: int, size: int) -> Group:
        texts = [f"3+4=7 7+5=12</think>{12 + s % 3}" for s in range(size)]
        completions = tuple(Completion.from_text(t, think=think) for t in texts)
        problem = Problem(f"p{number}", "3+4+5=?", {"answer": "12"})
        return Group(problem, Prompt("q", np.zeros(1, np.int32), think), completions)

    def seconds(groups: list[Group]) -> float:
        started = time.perf_counter()
        service.judge(groups)
        return time.perf_counter() - started

    with VerifierService("math*1.0 + think_format*0.1", num_workers=1) as service:
        seconds([group(0, 8)])
        ratios = [seconds([group(n, 8) for n in range(16)]) / seconds([group(0, 1)]) for _ in range(30)]  # fmt: skip
    assert statistics.median(ratios) < 16 * 8
