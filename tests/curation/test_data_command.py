"""`assay data` as a stranger uses it: one line for what is wrong, and what was finished stays."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from assay import cli

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run one command in a new folder; return its exit code, and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", "data", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def write(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def problems(count: int = 4) -> str:
    return write(
        "problems.jsonl", [{"prompt": f"{n} + 1 =", "answer": n + 1} for n in range(count)]
    )


def completions(**keys: Any) -> str:
    rows = [{"prompt": f"{n}?", "completion": f"It is {n}.", **keys} for n in range(40)]
    return write("completions.jsonl", rows)


def test_two_stages_and_what_they_say(data: Command) -> None:
    code, out, _ = data("filter", problems(), "--out", "kept", "--set", "max_words=9")
    assert code == 0 and "filter: 4 rows in kept" in out
    code, out, _ = data("mix", "kept", "--out", "mixed", "--set", "output=parquet", "--json")
    assert code == 0 and json.loads(out)["rows"] == 4
    assert Path("mixed/rows.parquet").is_file()
    assert "collect" in data()[1] and "max_words" in data("filter")[1]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("filtr", "x"), 'data transform: found "filtr"; .*did you mean filter'),
        (("filter", "problems.jsonl"), "give --out, a new folder"),
        (("filter", "absent.jsonl", "--out", "out"), r"absent\.jsonl: found no such file"),
        (("filter", "--out", "out", "--set", "max_words=3"), "inputs: missing"),
        (("filter", "problems.jsonl", "--out", "out", "--set", "max_word=3"), "did you mean max_words"),
        (("filter", "problems.jsonl", "--out", "out", "--set", "output=csv"), '"jsonl" or "parquet"|jsonl'),
        (("filter", "problems.jsonl", "--out", "out", "--set", "max_words=1"), "no row left of 4.*words took 4"),
        (("filter", "problems.jsonl", "--out", "problems.jsonl"), "found a file"),
        (("filter", "problems.jsonl", "--out", "out", "--set", "min_pass_rate=0.5"), "label_difficulty first"),
        (("select", "problems.jsonl", "--out", "out"), r"problems\.jsonl:1 completion: found none"),
        (("select", "completions.jsonl", "--out", "out"), "verdict: found none.*set judge"),
        (("select", "completions.jsonl", "--out", "out", "--set", "judge=jugde"), "did you mean judge"),
        (("select", "completions.jsonl", "--out", "out", "--set", "judge=judge"), "the judge has no url"),
        (("collect", "problems.jsonl", "--out", "out", "--set", "model=no/such", "--set", "url=host"), "url"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    data: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    problems()
    completions()
    code, out, err = data(*arguments)
    assert code == 2 and not out
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert re.search(complaint, line), line
    assert {path.name for path in Path().iterdir()} == {"problems.jsonl", "completions.jsonl"}


def test_a_judge_that_does_not_answer_is_one_line(data: Command) -> None:
    options = {"url": "http://localhost:9", "model": "m", "retries": 0, "rubric": "helpfulness"}
    given = [f"--set=verification.options.judge.{key}={value}" for key, value in options.items()]
    code, _, err = data("select", completions(), "--out", "out", "--set", "judge=judge", *given)
    (line,) = err.splitlines()
    assert (
        code == 2 and "verifier judge: it judged no completion of the first 32 completions" in line
    )
    assert not Path("out").exists()


def test_a_full_disk_leaves_written_files_intact(tmp_path: Path) -> None:
    """The system itself refuses to write, in a process of its own; the exit code is 1."""
    program = """
        import resource, sys
        from assay import cli

        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        sys.argv = "assay data mix rows.jsonl --out out".split()
        cli.main()
        """
    rows = "".join(json.dumps({"prompt": "x" * 200, "id": n}) + "\n" for n in range(900))
    (tmp_path / "rows.jsonl").write_text(rows)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])},
    )
    kept = (tmp_path / "out" / "rows.jsonl.part").read_text().splitlines()
    assert done.returncode == 1 and 0 < len(kept) < 900
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"the disk is full; {len(kept)} rows are in out/rows.jsonl.part")
