"""Executors beside the workers: threads, a device's batches, inline arithmetic; none holds up another."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import planted_verifiers
import pytest
from processes import until

from assay.errors import VerifierError
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.service import VerifierService
from assay.verify.serving import executors as executors_module

HERE = Path(__file__).parent


pytestmark = pytest.mark.usefixtures("planted")


def group_of(texts: Sequence[str], expression: str | None = None, **spec: Any) -> Group:
    problem = Problem("p", "q", spec, verifier=expression)
    completions = tuple(Completion.from_text(text, f"p#0/{n}") for n, text in enumerate(texts))
    return Group(problem, Prompt("q", np.zeros(1, np.int32)), completions)


def judge(
    service: VerifierService, texts: Sequence[str], expression: str | None = None, **spec: Any
) -> tuple[Verdict, ...]:
    return service.judge([group_of(texts, expression, **spec)])[0]


@pytest.mark.parametrize("expression", ["threaded", "inlined", "device", "threaded + share"])
def test_no_worker_is_started_where_none_is_needed(expression: str) -> None:
    with VerifierService(expression) as service:
        judge(service, ["good", "bad"])
        assert not service.engine.pool.workers


def test_threads_wait_together() -> None:
    with VerifierService("threaded", options={"threaded": {"concurrency": 6}}) as service:
        verdicts = judge(service, ["meet"] * 12)  # six at a time, or none goes on
        assert all(verdict.correct for verdict in verdicts)
        assert judge(service, ["sleep 0.1"])[0].seconds >= 0.1
    assert threading.main_thread().name not in planted_verifiers.threads


def test_concurrency_is_bounded() -> None:
    with VerifierService("threaded", options={"threaded": {"concurrency": 1}}) as service:
        started = time.monotonic()
        judge(service, ["sleep 0.05"] * 6)
        assert time.monotonic() - started >= 0.3


def test_a_thread_that_raises_does_not_judge() -> None:
    with VerifierService("threaded") as service:
        verdicts = judge(service, ["good", "raise", "leave", "down", "good", "interrupt"])
        reasons = [None, "error", "error", "unavailable", None, "error"]
        assert [v.reason for v in verdicts] == reasons
        assert "RuntimeError: planted" in verdicts[1].detail
        assert "SystemExit" in verdicts[2].detail
        assert judge(service, ["good"])[0].correct


def test_a_slow_thread_holds_up_no_other_group() -> None:
    with VerifierService("math", num_workers=1) as service:
        service.check(["math"])
        done: list[Verdict] = []
        slow = threading.Thread(target=lambda: done.extend(judge(service, ["wait"], "threaded")))
        slow.start()
        judge(service, ["5"], answer="5")
        for _ in range(20):
            assert judge(service, ["5"], answer="5")[0].correct
        assert not done
        planted_verifiers.release.set()
        slow.join(10)
        assert done[0].correct


def test_a_call_that_never_returns_is_given_up() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    service = VerifierService(
        "hasty",
        options={"hasty": {"concurrency": 2}},
        on_event=lambda kind, **facts: events.append((kind, facts)),
    )
    with service:
        verdicts = judge(service, ["wait", "good", "wait", "good", "good"])
        assert [v.reason for v in verdicts] == ["timeout", None, "timeout", None, None]
        assert "given up" in verdicts[0].detail
    assert {kind for kind, _ in events} == {"verifier_call_lost"}
    assert sum(facts["calls"] for _, facts in events) == 2


def test_a_lane_that_loses_every_thread_is_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executors_module, "MAX_LOST", 2)
    with VerifierService("hasty") as service:
        judge(service, ["wait", "wait"])
        (verdict,) = judge(service, ["good"])
        assert verdict.reason == "unavailable"
        assert "never came back" in verdict.detail


def test_a_late_reply_of_a_call_that_was_given_up_changes_nothing() -> None:
    with VerifierService("hasty") as service:
        assert judge(service, ["wait"])[0].reason == "timeout"
        planted_verifiers.release.set()
        time.sleep(0.1)
        assert [v.correct for v in judge(service, ["good", "bad"])] == [True, False]
        assert service.stats["verifiers"]["hasty"]["count"] == 3


def test_a_device_gets_batches_across_groups() -> None:
    groups = [group_of(["x" * n for n in range(5)], "threaded + device*0.1") for _ in range(8)]
    with VerifierService("device", options={"device": {"batch_size": 16}}) as service:
        for verdicts in service.judge(groups):
            assert [v.components["device"] for v in verdicts] == [0, 1, 2, 3, 4]
    sizes = [size for size in planted_verifiers.calls if isinstance(size, int)]
    assert sum(sizes) == 40
    assert max(sizes) == 16
    assert len(sizes) < 8


def test_one_thread_drives_a_device() -> None:
    with VerifierService("math + device*0.1", num_workers=1) as service:
        work = [
            threading.Thread(target=lambda: judge(service, ["5", "6"], answer="5"))
            for _ in range(4)
        ]
        for each in work:
            each.start()
        for each in work:
            each.join()
    assert planted_verifiers.threads == {"assay-device"}


@pytest.mark.parametrize(("text", "words"), [("raise", "planted"), ("short", "0 results")])
def test_only_the_culprit_of_a_batch_is_not_judged(text: str, words: str) -> None:
    with VerifierService("threaded + device*0.1") as service:
        verdicts = judge(service, ["good", text, "good", "x"])
        assert [v.reason for v in verdicts] == [None, "error", None, None]
        assert words in verdicts[1].detail
        assert judge(service, ["good"])[0].judged


def test_a_batch_that_always_fails_is_given_up() -> None:
    with VerifierService("device") as service:
        verdicts = judge(service, ["raise"] * 30)
        assert {(v.reason, v.detail) for v in verdicts} == {("error", "RuntimeError: planted")}
        assert planted_verifiers.calls == [30] + [1] * 8


def test_the_checkpoint_that_judges_is_described(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"name": "{name}"}}')
    described: list[str] = []
    for path in (str(tmp_path / "one"), [str(tmp_path / "one"), str(tmp_path / "two")]):
        with VerifierService(
            "threaded + device*0.1", options={"device": {"path": path}}
        ) as service:
            described.append(service.describe()["device"]["checkpoint"])
            assert "checkpoint" not in service.describe()["threaded"]
    one, both = described
    assert len(one) == 12
    assert both.split("+")[0] == one != both.split("+")[1]


def test_inline_verifiers_read_the_first_terms_verdicts() -> None:
    with VerifierService("threaded + share") as service:
        verdicts = judge(service, ["good", "bad", "good", "bad"])
        assert [v.components["share"] for v in verdicts] == [0.5] * 4
        assert [v.reward for v in verdicts] == [1.25, 0.25, 1.25, 0.25]
        assert planted_verifiers.calls[-1] == [1.0, 0.0, 1.0, 0.0]


def test_not_judged_siblings_reach_a_verifier_of_verdicts() -> None:
    with VerifierService("threaded + share") as service:
        verdicts = judge(service, ["good", "down"])
        assert [v.status for v in verdicts] == ["passed", "not_judged"]
        assert planted_verifiers.calls[-1] == [1.0, None]


def test_an_inline_verifier_that_raises_does_not_judge() -> None:
    with VerifierService("inlined + share") as service:
        verdicts = judge(service, ["good", "raise"])
        assert [v.reason for v in verdicts] == ["error", "error"]  # share raises for the group
        assert [v.correct for v in judge(service, ["good", "x"])] == [True, False]


@pytest.mark.parametrize("expression", ["share", "threaded|share", "threaded + inlined|share"])
def test_verdicts_must_come_from_a_first_term(expression: str) -> None:
    with (
        VerifierService("threaded") as service,
        pytest.raises(VerifierError, match="a later term"),
    ):
        service.check([expression])


def test_users_verifiers_run_in_workers_whatever_they_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_verifiers.py").write_text(
        textwrap.dedent(
            """
            import os
            from assay.host.fields import Field
            from assay.verify.base import (Part, Verifier)

            def one(problem, completion):
                return {"score": 1, "pid": os.getpid(), "told": problem.spec.get("told", 0)}

            def many(pairs):
                return [{"score": 1, "pid": os.getpid(), "size": len(pairs)} for _ in pairs]

            def after(problem, group, parts):
                return [{"score": part.value or 0, "pid": os.getpid()} for part in parts]

            FIELDS = (Field("told", "a number"), Field("need", "text", needed=True))
            ONE = Verifier("one", 2, one, executor="thread", fields=FIELDS, weight=0.5)
            MANY = Verifier("many", 1, many, executor="device", takes="batch")
            AFTER = Verifier("after", 1, after, executor="inline", takes="verdicts")
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    expression = (
        "inlined + their_verifiers:ONE + their_verifiers:MANY*0.5 + their_verifiers:AFTER*2"
    )
    options = {"their_verifiers:ONE": {"told": 7}}
    with VerifierService(expression, num_workers=1, options=options) as service:
        good, bad = judge(service, ["good", "bad"], need="x")
        pids = {value for name, value in good.components.items() if name.endswith("pid")}
        assert len(pids) == 1 and os.getpid() not in pids
        assert good.components["their_verifiers:ONE.told"] == 7
        assert good.components["their_verifiers:MANY.size"] == 2
        assert (good.reward, bad.reward) == (1 + 0.5 + 0.5 + 2, 0.5 + 0.5)
        with pytest.raises(VerifierError, match="need"):
            service.check_problem(Problem("p", "q", {}))
        assert service.describe()["one"]["options"]
    wrong = {"their_verifiers:ONE": {"tld": 7}}
    with (
        VerifierService(expression, num_workers=1, options=wrong) as service,
        pytest.raises(
            VerifierError, match=r"their_verifiers:ONE\.tld: unknown key; did you mean told"
        ),
    ):
        service.check([None])


def test_threads_judge_groups_while_others_are_generated() -> None:
    groups = [group_of([f"sleep {0.01 * n}", "bad"]) for n in range(4)]
    with VerifierService("threaded") as service, service.judging() as judging:
        for group in groups:
            judging.add(group)
        assert until(lambda: len(planted_verifiers.calls) == 8)
        found = judging.verdicts(groups)
    assert [[v.correct for v in each] for each in found] == [[True, False]] * 4


def test_a_fork_while_threads_judge_gets_its_own_executors() -> None:
    """A thread of the parent holds the service's lock most of the time; the child must not wait for it."""
    with VerifierService("threaded") as service:
        waiting = threading.Thread(target=lambda: judge(service, ["wait"] * 3))
        waiting.start()
        assert until(lambda: planted_verifiers.calls)
        for _ in range(5):
            child = os.fork()
            if child == 0:  # pragma: no cover - another process
                code = 1
                try:
                    code = 0 if judge(service, ["good", "sleep 0.01"])[1].correct else 2
                    service.close()
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(wait_for(child)) == 0
        planted_verifiers.release.set()
        waiting.join(10)
        assert judge(service, ["good"])[0].correct


def wait_for(pid: int) -> int:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize("closing", ["service.close(); thread.join()", "pass"])
def test_an_interpreter_ends_while_threads_still_wait(closing: str) -> None:
    script = f"""
        import sys, threading, time
        sys.path.insert(0, {str(HERE)!r})
        import planted_verifiers
        from assay.types import Problem
        from assay.verify.expression import BUILT_IN
        BUILT_IN.update(planted_verifiers.NAMES)
        from assay.verify.service import VerifierService
        service = VerifierService("threaded + device*0.1")
        pairs = [(Problem("p", "q"), "wait")] * 4
        def work():
            try:
                list(service.judge_text(pairs))
            except RuntimeError as error:
                print("told", error, flush=True)
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while planted_verifiers.calls.count("wait") < 4:  # all of them
            time.sleep(0.01)
        {closing}
        print("end", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "end"
    assert ("told the verifier service was closed" in done.stdout) == (closing != "pass")
