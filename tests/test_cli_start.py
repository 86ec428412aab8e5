"""The first moments of a command: signals, and what is refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys


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
