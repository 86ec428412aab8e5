"""The first moments of a command: signals, and what is refused before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from assay import __version__
from assay.cli import command  # noqa: F401
from assay.cli.console import MOVED, TASKS, app


def test_an_interruption_that_left_an_exec_does_not_end_python_by_a_signal() -> None:
    program = (
        "import os, signal\nfrom assay.cli import signals_interrupt\nwith signals_interrupt():\n"
        "    try:\n        exec('os.kill(os.getpid(), signal.SIGINT)')\n"
        "    except KeyboardInterrupt:\n        pass\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_greedy_siblings_are_refused_before_anything_is_imported() -> None:
    program = (
        "import sys\nfrom assay.cli import main\n"
        "sys.argv = 'assay eval m --problems p.jsonl --samples 4'.split()\n"
        "try:\n    main()\nexcept SystemExit as end:\n"
        "    sys.exit(f'{end.code} {\"torch\" in sys.modules}')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.startswith("error: temperature: found 0 with several samples")
    assert done.stderr.endswith("2 False\n")


def assay(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `assay` by its name, as a shell that completes it does."""
    program = "import sys\nsys.argv[0] = 'assay'\nfrom assay.cli import main\nmain()\n"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_version_is_printed() -> None:
    done = assay("--version")
    assert (done.stdout, done.returncode) == (f"assay {__version__}\n", 0)


def test_a_shell_completes_commands_and_options() -> None:
    words = {"COMP_WORDS": "assay re", "COMP_CWORD": "1", "_ASSAY_COMPLETE": "complete_bash"}
    assert {"redteam", "recipe"} <= set(assay(**words).stdout.split())
    words |= {"COMP_WORDS": "assay train --res", "COMP_CWORD": "2"}
    assert assay(**words).stdout.split() == ["--resume"]


def test_the_help_lists_each_command_under_its_task() -> None:
    untasked = [each.name for each in app.registered_commands if each.rich_help_panel not in TASKS]
    assert not untasked, "give the command its rich_help_panel"
    shown = assay("--help", COLUMNS="100").stdout
    places = [shown.index(f"─ {task} ") for task in TASKS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["verify", "--workers", "0", "x"], "assay verify: Invalid value for '--workers'"),
        (["verify", "--foo"], "No such option: --foo"),
        (["verifi"], "No such command 'verifi'"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], words: str) -> None:
    done = assay(*arguments)
    assert words in done.stderr and done.stderr.endswith("--help\n")
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_an_earlier_name_of_a_command_is_answered_with_the_new_one() -> None:
    done = assay("runs", "--state", "ended")
    assert (done.stderr, done.returncode) == (
        "error: assay runs: the command is now `assay run list`\n",
        2,
    )
    for new in MOVED.values():
        group, name = new.split()
        listed = ["data"] if group == "data" else [group, "--help"]
        shown = assay(*listed, COLUMNS="200").stdout
        assert f" {name} " in f" {shown}".replace("\n", " "), new


def test_at_most_twenty_names_stand_at_the_top() -> None:
    assert len(app.registered_commands) + len(app.registered_groups) <= 20
