"""What a model wrote cannot drive the terminal that shows it, wherever it is shown."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from assay import cli
from assay.cli import console
from assay.errors import message
from assay.host.terminal import aligned, escaped, lined, one_line, say, say_progress, warn
from assay.report.listing import list_runs
from assay.run.progress import Progress
from assay.session.results import SampleResult
from assay.testing import save_tiny_model

EVIL = "\x1b]0;title\x07\x1b[2J\x9b1A\r\x08\x7f\u202e\u2028\ud800\U000e0041"
DRIVES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\ud800-\udfff]")


def test_what_drives_a_terminal_is_written_out() -> None:
    assert escaped("\x1b[2J\r\x7f\u202e\U000e0041") == (r"\u001b[2J\r\u007f\u202e\udb40\udc41")
    plain = "two\tcells\nÄ 数学 👩‍🔬 \\u001b  "
    assert escaped(plain) == plain


@given(st.text(st.characters(codec=None)))
def test_nothing_gets_through_and_json_stays_the_same(text: str) -> None:
    assert not DRIVES.search(escaped(text))
    assert escaped(escaped(text)) == escaped(text)
    assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text


@pytest.mark.parametrize("say", [warn, say, say_progress])
def test_lines_of_commands(say: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(say)
    say(f"note{EVIL}")
    assert not DRIVES.search(capsys.readouterr().err.removeprefix("\r"))


def test_results_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    sample = {"prompt": EVIL, "completion": EVIL, "tokens": 1, "finish_reason": "stop"}
    sample |= {"status": "not_judged", "components": {}, "detail": EVIL, "extracted": EVIL}
    result = SampleResult([sample])
    assert not DRIVES.search(str(result)) and r"\u001b[2J" in str(result)
    console.show(type("Result", (), {"__str__": lambda self: EVIL})(), as_json=False)
    assert not DRIVES.search(capsys.readouterr().out)
    file = io.StringIO()
    progress = Progress("run", 1, console=Console(file=file))
    progress("notes", {"text": f"warning: not judged: {EVIL}"})
    assert not DRIVES.search(file.getvalue()) and r"\u001b[2J" in file.getvalue()


def test_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrained model of bytes writes control characters of its own accord."""
    model = save_tiny_model(tmp_path / "model", max_positions=64)
    rows = tmp_path / "rows.jsonl"
    row = {"answer": "4", "completion": f"\\boxed{{{EVIL[:-2]}\x9b5}}"}
    rows.write_text(json.dumps(row) + "\n")
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({**row, "verifier": f"mth{EVIL[:-2]}"}) + "\n")

    def assay(*arguments: object) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        with pytest.raises(SystemExit):
            cli.main()
        said = capsys.readouterr()
        return said.out, said.err

    asked = (model, "--prompt", "1 + 1 =", "--answer", "2", "--num", 8, "--max-tokens", 40)
    samples = json.loads(assay("sample", *asked, "--json")[0])["samples"]
    assert any(DRIVES.search(one["completion"]) for one in samples)
    for out in (*assay("sample", *asked), *assay("verify", rows), *assay("verify", bad)):
        assert not DRIVES.search(out)


def test_a_line_cannot_become_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert one_line("a\nb\x1b\r") == r"a\nb\u001b\r"
    assert lined(["a\nb", "c"]) == "a\\nb\nc"
    assert [*aligned([("name", "n"), ("a\nb", "c")])] == ["name  n", "a\\nb  c"]
    warn(f"{EVIL}\nFORGED")
    say_progress("\nFORGED")
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and r"\nFORGED" in said
    assert message("a\nb", "c\n", "d") == r"a\nb: found c\n; accepted: d"


def test_a_run_in_a_folder_with_a_line_break_is_one_line_of_runs(tmp_path: Path) -> None:
    folder = tmp_path / "a\nFORGED  finished\x1b[2J"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    lines = str(list_runs(tmp_path)).splitlines()
    assert len(lines) == 3 and lines[1].startswith(r"a\nFORGED  finished\u001b[2J")


def test_tracebacks_and_warnings_of_python_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    program = (
        "import sys, threading, warnings; from assay.host.terminal import guarded_python\n"
        "def fail(): raise ValueError('\\x1b[2J')\n"
        "with guarded_python():\n"
        "    warnings.warn('\\x1b[3J')\n"
        "    thread = threading.Thread(target=fail); thread.start(); thread.join()\n"
        "    fail()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and not DRIVES.search(done.stderr)
    assert done.stderr.count(r"ValueError: \u001b[2J") == 2 and r"\u001b[3J" in done.stderr


def test_rows_stand_in_columns() -> None:
    rows = [("name", "n"), ("a", "1,000"), ("longer", "")]
    assert [*aligned(rows)] == ["name    n", "a       1,000", "longer"]
    assert [*aligned(rows, right=[1])] == ["name        n", "a       1,000", "longer"]
    assert [*aligned([])] == []
