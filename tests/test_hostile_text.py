"""Foreign text in every command's output: it cannot drive the terminal, nor begin a line of its own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import tomli_w

from assay import cli
from assay.testing import save_tiny_model

DRIVES = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Colors, an OSC 8 link, a title with BEL, C1, CR, backspace, bidi controls, separators, a line break.
EVIL = (
    "x\x1b[2J\x1b]8;;http://e\x1b\\\x1b]0;t\x07\x9b1A\r\x08\x7f\u202e\u2066\u061c\u200f\u2028\x85"
    "\nFORGED line"
)
NAME = EVIL.replace("/", "")
RUN = f"runs/{NAME}"
MODULE = f"""
raise_at = {EVIL!r}
def reward(problem, completion):
    if completion.text.count("\\n") % 2 or not completion.text:
        raise ValueError(raise_at)
    return len(completion.text) % 3 / 2
"""
FEW = ("--max-tokens", "4")
LABELLED = ("--set", "model=model", "--set", "num_samples=1", "--set", "max_tokens=4")

COMMANDS: list[tuple[str, ...]] = [
    ("train", "run.toml"),
    ("train", "run.toml", "--dry-run"),
    ("train", f"{NAME}.toml"),
    ("train", "run.toml", "--set", f"model.path={NAME}"),
    ("train", "run.toml", "--set", "data.verifier=evil_import:reward"),
    ("train", "run.toml", "--set", f"data.train=['{NAME}.jsonl']"),
    ("train", "--resume", RUN),
    ("plan", "run.toml", "--measure", "0"),
    ("init", NAME, "--model", "model"),
    (
        "run",
        "list",
    ),
    ("run", "list", NAME),
    ("run", "list", "--directory", NAME),
    ("run", "report", RUN),
    ("run", "rollouts", RUN),
    ("run", "rollouts", RUN, "--problem", NAME),
    ("run", "rollouts", RUN, "--terms"),
    ("run", "replay", RUN),
    ("run", "compare", RUN, RUN),
    ("eval", RUN, "--problems", "heldout.jsonl"),
    ("eval", "model", "--problems", f"{NAME}.jsonl"),
    ("compare", RUN, "model", "--problems", "heldout.jsonl", *FEW),
    ("sample", RUN, "--problems", "heldout.jsonl", "--num", "1", *FEW),
    ("sample", "model", "--prompt", EVIL.replace("\n", ""), "--answer", EVIL, "--num", "1", *FEW),
    ("search", "model", "--problems", "heldout.jsonl", *FEW),
    ("gate", RUN, "--problems", "heldout.jsonl", "--out", "gate.jsonl", *FEW),
    ("verify", "done.jsonl", "--verifier", "exact"),
    ("verify", "done.jsonl", "--verifier", "evil:reward", "--allow", "evil"),
    ("verify", "done.jsonl", "--verifier", "evil_import:reward", "--allow", "evil_import"),
    ("verify", "done.jsonl", "--verifier", NAME),
    ("verify", "--rescore", RUN),
    ("redteam", "--verifier", "exact", "--problems", "heldout.jsonl"),
    ("redteam", "--verifier", "evil:reward", "--problems", "heldout.jsonl", "--allow", "evil"),
    ("run", "audit", RUN, "--second", "exact"),
    ("verifier", "drift", "done.jsonl", NAME),
    ("run", "rollback", RUN, "--to", "9"),
    ("data", "label_steps", "done.jsonl", "--out", f"{NAME}.out", *LABELLED),
    ("model", "export", RUN, NAME),
    ("model", "export", RUN, NAME),
    ("model", "check-template", NAME),
    ("model", "merge", "model", NAME, "--out", "merged"),
    ("recipe", "show", NAME),
    ("recipe", "run", f"{NAME}.toml"),
    ("data", "balance", "rows.jsonl", "--out", NAME),
    ("data", "deduplicate", "rows.jsonl", "--out", f"{NAME}2"),
    ("data", NAME),
    ("doctor", "--directory", NAME),
    ("verifier", "serve", "--verifier", NAME),
    ("model", "route", f"{NAME}.toml"),
    (NAME,),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    save_tiny_model(folder / "model")
    rows = [
        {
            "id": f"{n}{EVIL}",
            "prompt": f"{n}+{n}=\x1b[2J\u202e",
            "answer": f"{n}{EVIL}",
            "tags": [EVIL],
        }
        for n in range(3)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    other = [{**row, "prompt": f"9{row['prompt']}"} for row in rows]
    (folder / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    bad = [*rows, {"prompt": 1, EVIL: EVIL}]
    (folder / f"{NAME}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in bad))
    done = [{**row, "completion": f"one\ntwo\n\\boxed{{{EVIL[:20]}}}"} for row in rows]
    (folder / "done.jsonl").write_text("".join(json.dumps(row) + "\n" for row in done))
    (folder / f"{NAME}.toml").write_text(f"[{json.dumps(NAME[:5])}]\nx = 1\n")
    (folder / "evil.py").write_text(MODULE)
    (folder / "evil_import.py").write_text(f"raise ValueError({EVIL!r})\n")
    tree = {
        "model": {"path": "model"},
        "data": {
            "train": ["rows.jsonl"],
            "heldout": ["heldout.jsonl"],
            "verifier": "evil:reward*1 + exact",
        },
        "sampling": {"max_tokens": 4},
        "engine": {"num_slots": 4},
        "verification": {"num_workers": 1},
        "rl": {"steps": 1, "num_prompts": 2, "group_size": 2},
        "run": {"directory": "runs", "name": "first"},
    }
    (folder / "run.toml").write_text(tomli_w.dumps(tree))
    return folder


@pytest.mark.slow
def test_foreign_text_drives_nothing_and_forges_no_line(
    world: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(world)
    monkeypatch.setenv("PAGER", "cat")
    faults: list[str] = []
    shown = 0
    for command in COMMANDS:
        monkeypatch.setattr(sys, "argv", ["assay", *command])
        with pytest.raises(SystemExit):
            cli.main()
        if command == COMMANDS[0]:
            (world / "runs/first").rename(world / RUN)
        said = capfd.readouterr()
        for text in (said.out, said.err):
            text = text.replace("\r", "\n", 1) if text.startswith("\r") else text
            shown += r"\u001b" in text
            found = DRIVES.search(text)
            if found or re.search(r"^\W*FORGED", text, re.MULTILINE) or "Traceback" in text:
                faults.append(f"{' '.join(command)!r}: {text!r}")
    assert not faults, "\n".join(faults)
    assert shown > len(COMMANDS) / 2
