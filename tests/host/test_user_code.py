"""Modules that users name may do anything when they are imported; one line says what."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from assay.config import GuardConfig
from assay.data.sources import open_source
from assay.errors import AssayError, ConfigError, DataError
from assay.host import user_code
from assay.host.user_code import deadline, import_object
from assay.learn.algorithms import algorithm, preference
from assay.run.guard import Guard

MODULES = {
    "raises_it": "raise RuntimeError('no such page\\nand more')",
    "exits_it": "import sys\nsys.exit(3)",
    "is_broken": "def f(:\n",
    "quits_it": "raise SystemExit",
    "odd_error": "class E(Exception):\n    def __str__(self):\n        raise E\nraise E",
    "odd_names": "def __getattr__(name):\n    raise ZeroDivisionError(name)",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)


def test_an_object_is_imported() -> None:
    assert import_object("itertools:count", "here", DataError) is itertools.count
    assert import_object("itertools:chain.from_iterable", "here", DataError)


@pytest.mark.parametrize("name", [":", "a:", ":b", "a:b:c", "a b:c", "..:c", "no_such_module:f"])
def test_names_that_name_nothing(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"guard\.rules .*: found .*; accepted: package\.module:object"
    ):
        Guard(GuardConfig(rules=(name,)))


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("where", ["guard.rules", "algorithm.name", "preference.method", "source"])
def test_whatever_a_module_does_is_one_line(modules: None, module: str, where: str) -> None:
    use = {
        "guard.rules": lambda name: Guard(GuardConfig(rules=(name,))),
        "algorithm.name": algorithm,
        "preference.method": preference,
        "source": open_source,
    }[where]
    with pytest.raises(AssayError) as caught:
        use(f"{module}:f")
    assert caught.value.exit_code == 2
    assert f"{module}:f: found an import that fails (" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_complaint_of_an_import_names_the_line_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lacks_one.py").write_text("x = 1\nimport nothing_of_this_name\n")
    (tmp_path / "fails_inside.py").write_text("def f():\n    1 / 0\n\n\nf()\n")
    (tmp_path / "good_rewards.py").write_text("def concise(p, c): return 1.0\n")
    said = {
        "lacks_one:f": "ModuleNotFoundError: No module named 'nothing_of_this_name' in"
        " lacks_one.py:2); accepted: a module that can be imported; install nothing_of_this_name,",
        "fails_inside:f": "found an import that fails (ZeroDivisionError: division by zero in"
        " fails_inside.py:2); accepted: a module that can be imported; fix it",
        "good_reward:f": "found no module 'good_reward'; accepted: package.module:object; did you"
        " mean good_rewards?",
        "absent_here:f": "start in the folder of absent_here.py, or install absent_here",
        "good_rewards:concice": "found no 'concice' in good_rewards; accepted:"
        " package.module:object; did you mean concise?",
    }
    for name, words in said.items():
        with pytest.raises(ConfigError) as caught:
            import_object(name, "guard.rules", ConfigError)
        assert words in str(caught.value) and str(caught.value).startswith("guard.rules: found")


def test_a_source_that_exits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "exits_late.py").write_text(
        "import assay, sys\n@assay.source\ndef at_once():\n    sys.exit()\n@assay.source\ndef later():\n    yield 1\n    sys.exit(4)\n"
    )
    with pytest.raises(DataError, match="at_once: raised SystemExit"):
        open_source("exits_late:at_once")
    with pytest.raises(DataError, match="later: raised SystemExit: 4"):
        list(open_source("exits_late:later").scan())


def test_an_import_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(user_code, "IMPORT_SECONDS", 0.4)
    monkeypatch.setattr(user_code, "NOTICE_SECONDS", 0.1)
    (tmp_path / "hangs_it.py").write_text("while True:\n    pass\n")
    with pytest.raises(ConfigError, match=r"TimeoutError: not done after 0\.4 s"):
        Guard(GuardConfig(rules=("hangs_it:f",)))
    said = capfd.readouterr().err
    assert said.count("importing hangs_it: not done yet; given up after 0.4 s") == 1


def test_deadlines_nest_and_leave_nothing_behind() -> None:
    with (
        pytest.raises(TimeoutError, match=r"0\.05"),
        deadline(30.0, "outer"),
        deadline(0.05, "inner"),
    ):
        time.sleep(30)
    with pytest.raises(TimeoutError, match=r"0\.2"), deadline(0.2, "outer"):
        with deadline(30.0, "inner"):
            pass
        time.sleep(30)


def test_another_thread_has_no_deadline() -> None:
    done: list[bool] = []

    def work() -> None:
        with deadline(0.001, "work"):
            time.sleep(0.01)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize(
    "text",
    ["import os; os._exit(0)", "from os import _exit; _exit(0)", "import posix, os; os._exit(3)"],
)
def test_a_module_that_ends_the_process_is_reported(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own: without the check it would be this one that ends."""
    (tmp_path / "ends.py").write_text(text)
    program = (
        "from assay.errors import ConfigError; from assay.host.user_code import import_object\n"
        "import os; real = os._exit\n"
        "try: import_object('ends:tool', 'tools.names', ConfigError)\n"
        "except ConfigError as error: print(error, os._exit is real)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.getcwd()}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert re.search(r"SystemExit: os\._exit\([03]\).* in ends\.py:1.* True$", done.stdout.strip())
