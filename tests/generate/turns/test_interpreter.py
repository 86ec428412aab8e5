"""The interpreter: variables stay for one completion, and nothing that code does ends a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from assay.config import ToolsConfig, TrainConfig, tool_settings
from assay.errors import ConfigError
from assay.generate.turns import interpreter as module
from assay.generate.turns.interpreter import interpreter
from assay.generate.turns.reply_controller import next_thread
from assay.generate.turns.tool import RunCall, ToolError
from assay.generate.turns.toolbox import open_tools
from assay.verify.sandbox import SandboxUnavailable
from assay.verify.sandbox.packages import find_packages


@pytest.fixture
def run() -> Iterator[RunCall]:
    try:
        call = interpreter(0.5).open()
        call({"code": "first = 1"})
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield call
    module._close()
    module._here.sandbox = None


def told(run: RunCall, code: str) -> str:
    try:
        return run({"code": code})
    except ToolError as error:
        return f"error: {error}"


def test_state_stays_for_a_completion(run: RunCall) -> None:
    assert told(run, "x = 3\nx * x") == "9"
    assert told(run, "print(x)\ny = x + 1") == "3"
    assert told(run, "def f(n):\n    return n * y\nf(5)") == "20"
    assert told(run, "z = 1") == "(no output)"
    other = interpreter(0.5).open()
    assert "NameError" in told(other, "x") and told(run, "x") == "3"


def test_errors_are_told_with_what_was_printed_before(run: RunCall) -> None:
    assert told(run, "print('here')\n1 / 0") == "error: here\nZeroDivisionError: division by zero"
    assert "SyntaxError" in told(run, "def f(:")
    assert "SyntaxError: '{' was never closed" in told(run, "x = {1: 2")
    assert told(run, "raise KeyError('{seconds}')") == "error: KeyError: '{seconds}'"
    assert "FileNotFoundError" in told(run, "open('/etc/passwd')")
    assert "surrogates" in told(run, "\ud800")
    assert told(run, "first") == "1"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("while True: pass", "it took more than 0.5 seconds"),
        ("import time; time.sleep(60)", "it took more than 0.5 seconds"),
        ("print('a' * 10_000_000)", "it wrote more than"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_process_that_ends_loses_its_last_call_alone(run: RunCall, code: str, words: str) -> None:
    told(run, "kept = 5")
    assert words in told(run, f"kept = 6\n{code}")
    assert told(run, "kept + first") == "6"


def test_repeated_calls_take_at_most_half_of_a_calls_seconds(run: RunCall) -> None:
    """Four calls of 0.1 s of processor each: all of them again would take the call's 0.5 s."""
    busy = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    for n in range(4):
        told(run, f"x{n} = {n}\n{busy}")
    assert "exit code 3" in told(run, "import os; os._exit(3)")
    assert told(run, "'x0' in globals()") == f"{module.LOST}False"
    assert told(run, "x0 = 7") == "(no output)" and told(run, "x0") == "7"


def test_a_call_that_ends_the_process_when_repeated_leaves_no_dead_interpreter(
    run: RunCall,
) -> None:
    run.__self__.done.append("import os; os._exit(4)")  # type: ignore[attr-defined]
    assert "exit code 3" in told(run, "import os; os._exit(3)")
    assert told(run, "1 + 1") == f"{module.LOST}2"
    assert told(run, "y = 5") == "(no output)" and told(run, "y") == "5"
    assert "exit code 3" in told(run, "import os; os._exit(3)")
    assert told(run, "y") == "5", "what came after is repeated again"


def test_processes_of_ended_completions_are_closed(run: RunCall) -> None:
    other = interpreter(0.5).open()
    told(other, "x = 1")
    session = other.__self__.session  # type: ignore[attr-defined]
    del other
    assert not session.closed
    told(interpreter(0.5).open(), "x = 1")
    assert session.closed


def test_a_process_of_a_run_is_closed_as_soon_as_its_completion_has_ended(run: RunCall) -> None:
    thread = next_thread()
    calls = [thread.submit(interpreter(0.5).open).result()]
    thread.submit(lambda: told(calls[0], "x = 1")).result()
    session = calls[0].__self__.session
    assert not session.closed
    calls.clear()
    thread.submit(lambda: None).result()  # what was asked before is done
    assert session.closed


def test_code_imports_listed_packages_only(run: RunCall) -> None:
    packages = find_packages(("numpy",))
    tool = interpreter(2.0, packages=packages)
    assert tool.description.endswith("It can import numpy.")
    call = tool.open()
    assert told(call, "import numpy as np\na = np.arange(4)\na.sum()") == "np.int64(6)"
    assert told(call, "a.tolist()") == "[0, 1, 2, 3]"
    assert "No module named 'sympy'" in told(call, "import sympy")
    # A process of another list of packages never answers.
    assert "No module named 'numpy'" in told(interpreter(2.0).open(), "import numpy")


def test_packages_of_the_tool_are_those_of_the_verifier_by_default() -> None:
    run = {"model": {"path": "m"}, "data": {"train": ["a.jsonl"]}, "rl": {}}
    options = {"code": {"packages": ["numpy", "sympy"]}}
    config = TrainConfig.model_validate({**run, "verification": {"options": options}})
    assert tool_settings(config).packages == ("numpy", "sympy")
    tools = ToolsConfig(packages=())
    assert tool_settings(config.model_copy(update={"tools": tools})).packages == ()
    assert tool_settings(TrainConfig.model_validate(run)).packages == ()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("zzq_absent",), "not installed on this machine; run: pip install zzq_absent"),
        (("numpyy",), "did you mean numpy?"),
        (("json",), "programs always have the standard library"),
        (("a b",), "accepted: names of installed packages"),
    ],
)
def test_tool_is_refused_without_its_packages(names: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=r"tools\.packages") as caught:
        open_tools(ToolsConfig(names=("python",), packages=names), None, in_chat=False)
    assert words in str(caught.value) and "\n" not in str(caught.value)
