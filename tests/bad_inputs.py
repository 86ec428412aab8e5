"""Tables of bad inputs: every command, with every way in which what it reads may be wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from bad_commands import GOOD, bad_commands, write_more

RUN = "runs/done"
CHECKPOINT = f"{RUN}/checkpoints/step-000002"


@dataclass(frozen=True)
class Case:
    """One bad input.

    spoil: what is done to a copy of the good world. tolerant: it may also succeed. code: how it
    must end; None: 1 or 2.
    """

    name: str
    arguments: tuple[str, ...]
    spoil: Callable[[Path], Any] = lambda folder: None
    tolerant: bool = False
    code: int | None = None


def write_world(folder: Path) -> None:
    """Write all that the good commands read, but for the model and the run."""

    def rows(name: str, *found: dict[str, Any]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in found))

    rows("train.jsonl", *({"prompt": f"{n} + {n} =", "answer": str(2 * n)} for n in range(6)))
    rows("heldout.jsonl", {"prompt": "1 + 12 =", "answer": "13"})
    rows("traces.jsonl", {"prompt": "1 + 1 =", "completion": "2"})
    rows("texts.jsonl", {"text": "one and one is two"})
    rows("pairs.jsonl", {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"})
    rows("labels.jsonl", {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"})
    rows("done.jsonl", {"prompt": "1 + 1 =", "completion": "one\ntwo\n2", "answer": "2"})
    whole: dict[str, Any] = {
        "run": {"name": "done"},
        "model": {"path": "model"},
        "data": {"train": ["train.jsonl"], "heldout": ["heldout.jsonl"]},
        "sampling": {"max_tokens": 4},
        "engine": {"num_slots": 4},
        "verification": {"num_workers": 1},
        "checkpoint": {"every": 1},
        "rl": {"steps": 2, "num_prompts": 2, "group_size": 2},
    }
    write_more(folder)
    stages = {
        "run": {},
        "sft": {"sft": {"traces": ["traces.jsonl"]}},
        "pretrain": {"pretrain": {"texts": ["texts.jsonl"]}},
        "distill": {"distill": {"traces": ["traces.jsonl"]}, "teacher": {"path": "model"}},
        "dpo": {"preference": {"pairs": ["pairs.jsonl"]}},
        "rm": {"reward_model": {"rows": ["labels.jsonl"]}},
    }
    for name, stage in stages.items():
        tree = {key: value for key, value in whole.items() if key != "rl" or not stage}
        (folder / f"{name}.toml").write_text(tomli_w.dumps({**tree, **stage}))


FEW = ("--max-tokens", "4")
LABELLED = ("--set", "model=model", "--set", "num_samples=1", "--set", "max_tokens=4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "train": ("train", "run.toml"),
    "dry-run": ("train", "run.toml", "--dry-run"),
    "sft": ("train", "sft.toml"),
    "pretrain": ("train", "pretrain.toml"),
    "distill": ("train", "distill.toml"),
    "dpo": ("train", "dpo.toml"),
    "rm": ("train", "rm.toml"),
    "resume": ("train", "--resume", RUN, "--set", "rl.steps=3"),
    "eval": ("eval", "model", "--problems", "heldout.jsonl", *FEW),
    "eval run": ("eval", RUN, "--problems", "heldout.jsonl"),
    "sample": ("sample", "model", "--problems", "heldout.jsonl", "--num", "1", *FEW),
    "prompt": ("sample", "model", "--prompt", "1 + 1 =", "--num", "1", *FEW),
    "label": ("data", "label_steps", "done.jsonl", "--out", "labels", *LABELLED),
    "label run": ("data", "label_steps", RUN, "--out", "labels", *LABELLED),
    "export": ("model", "export", RUN, "plain"),
    "verify": ("verify", "done.jsonl", "--workers", "1"),
    "rescore": ("verify", "--rescore", RUN, "--workers", "1"),
    "redteam": ("redteam", "--verifier", "exact", "--problems", "heldout.jsonl", "--workers", "1"),
    "plan": ("plan", "run.toml", "--measure", "0"),
    "report": ("run", "report", RUN),
    **GOOD,
}

READS: dict[str, tuple[str, ...]] = {
    "train": ("run.toml", "train.jsonl", "heldout.jsonl"),
    "dry-run": ("run.toml", "model/config.json"),
    "sft": ("traces.jsonl",),
    "pretrain": ("texts.jsonl",),
    "distill": ("traces.jsonl",),
    "dpo": ("pairs.jsonl",),
    "rm": ("labels.jsonl",),
    "eval": ("heldout.jsonl", "model/model.safetensors", "model/tokenizer.json"),
    "sample": ("heldout.jsonl",),
    "label": ("done.jsonl",),
    "verify": ("done.jsonl",),
    "redteam": ("heldout.jsonl",),
    "plan": ("run.toml",),
}
RUN_FILES = (
    "config.toml",
    "environment.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "events.jsonl",
    "rollouts/step-000002.parquet",
)
CHECKPOINT_FILES = ("manifest.json", "random/random.json", "config.json", "model.safetensors")
READS_RUN = {
    "resume": RUN_FILES,
    "report": RUN_FILES,
    "rescore": ("config.toml", RUN_FILES[-1]),
    "label run": ("config.toml", RUN_FILES[-1]),
    "eval run": ("config.toml",),
    "export": ("config.toml",),
}
READS_CHECKPOINT = ("resume", "eval run", "export")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _cut_off(path: Path) -> None:
    """Cut a file within a line: at the end of a line, what is left of a TOML file is TOML."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 3 // 5].rstrip()[:-1])


FILE_FAULTS: dict[str, Callable[[Path], Any]] = {
    "missing": Path.unlink,
    "a folder": _folder,
    "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "empty": lambda path: path.write_bytes(b""),
    "not UTF-8": lambda path: path.write_bytes(b'{"prompt": "\xff\xfe", "answer": "1"}\n'),
    "cut off": _cut_off,
    "brackets": lambda path: path.write_text("x = " * path.name.endswith("toml") + "[" * 100_000),
    "other values": lambda path: path.write_text(
        '{"step": "x", "prompt": 1, "versions": 7, "files": {"a": 1}, "parts": 3, "python": [1]}\n'
    ),
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}

TOLERANT = {
    # what a run is without, as one that was killed while it was made
    *(
        (command, RUN_FILES[1], fault)
        for command in ("resume", "report")
        for fault in ("missing", "a dangling link")
    ),
    *(
        (command, name, fault)
        for command in ("resume", "report")
        for name in RUN_FILES[2:5]
        for fault in ("missing", "empty", "cut off", "a dangling link")
    ),
    *(
        (command, RUN_FILES[5], fault)
        for command in ("resume", "report", "rescore", "label run")
        for fault in FILE_FAULTS
    ),
    # a checkpoint is all that is exported
    *(("export", "config.toml", fault) for fault in FILE_FAULTS),
    # all that resume needs is an older whole checkpoint; a single row may be cut off in its answer
    *(("resume", name, fault) for name in CHECKPOINT_FILES for fault in FILE_FAULTS),
}


def file_cases() -> Iterator[Case]:
    """Yield each file of each command, spoilt in each way."""
    reads = [(command, name, name) for command, names in READS.items() for name in names]
    reads += [
        (command, name, f"{RUN}/{name}") for command, names in READS_RUN.items() for name in names
    ]
    reads += [
        (command, name, f"{CHECKPOINT}/{name}")
        for command in READS_CHECKPOINT
        for name in CHECKPOINT_FILES
        if command == "resume" or "/" not in name
    ]
    times: Counter[str] = Counter()
    for command, name, place in reads:
        read_before, times[place] = times[place], times[place] + 1
        for number, (fault, spoil) in enumerate(FILE_FAULTS.items()):
            if read_before and number % 3 != read_before % 3:
                continue  # another command reads it alike: a third of the faults is enough
            yield Case(
                f"{command}: {name} is {fault}",
                COMMANDS[command],
                lambda folder, place=place, spoil=spoil: spoil(folder / place),
                (command, name, fault) in TOLERANT,
            )


VALUES: dict[str, tuple[str, ...]] = {
    "run.threads": ("0", "-1", "100000", "1000000000000000000000", "1.5", "many"),
    "run.seed": ("-1", "1e400", "99999999999999999999"),
    "run.device": ("cuda:99", "tpu", ""),
    "run.max_minutes": ("0", "-1", "nan", "inf"),
    "run.name": ("a/b", "..", "x" * 300, "a\\u0000b"),
    "run.directory": ("train.jsonl", "train.jsonl/x", "/proc/nowhere", "/dev/null"),
    "model.path": ("./nothing", "train.jsonl", "runs", "..//..", "a" * 5000),
    "model.dtype": ("float8", "1"),
    "model.tokenizer": ("./nothing", "runs"),
    "model.lora": ("{rank = 0}", "{rank = 1000000000}", "{targets = []}"),
    "data.train": ("[]", "[1]", "['']", "['none.jsonl']", "['.']", "['/dev/zero']", "['gym:none']",
                   "['gym:chain_sum?size=x']", "['no_module:f']", "['raises:f']", "['exits:f']",
                   "['exits:rows']", "['os:getcwd']", "['broken:f']"),
    "data.verifier": ("mathh", "math*", "math*nan", "math*1e999", "raises:f", "exits:f", "broken:f",
                      "hangs:f", ":", "a:", ":b", "math@99", "(" * 3000),
    "data.template": ("none", "chat"),
    "data.prompt_template": ("no question",),
    "data.think_open": ("</think>",),
    "data.max_prompt_tokens": ("0", "1"),
    "sampling.temperature": ("0", "-1", "nan", "inf", "1e300", "1e-300", "hot"),
    "sampling.top_p": ("0", "2", "nan"),
    "sampling.top_k": ("0", "-1"),
    "sampling.max_tokens": ("0", "-5", "1000000000000", "1e9"),
    "engine.num_slots": ("0", "-1", "1000000000"),
    "engine.max_kv_mib": ("0", "1e-9", "inf"),
    "rl.steps": ("0", "-1", "1.5"),
    "rl.num_prompts": ("0", "1000000000"),
    "rl.group_size": ("1", "1000000000"),
    "rl.num_minibatches": ("0", "99"),
    "rl.temperature_schedule": ("[[0, 1e300]]", "[[0]]", "x"),
    "algorithm.name": ("none", ":", "raises:f", "exits:f", "broken:f", "hangs:f", "os:getcwd"),
    "optimizer.learning_rate": ("0", "-1", "nan", "1e400"),
    "optimizer.betas": ("[1, 2]", "[0.1]"),
    "evaluation.temperatures": ("[]", "[-1]", "[inf]"),
    "evaluation.num_samples": ("0", "1000000000"),
    "checkpoint.max_disk_gib": ("0", "nan"),
    "verification.num_workers": ("0", "100000"),
    "verification.deadline": ("0", "-1", "nan"),
    "verification.options": ("1", "{math = 1}", "{none = {}}", "{math = {none = 1}}"),
    "guard.rules": ("[':']", "['raises:f']", "['exits:f']", "['broken:f']", "['hangs:f']", "['os:sep']"),
    "guard.max_not_judged": ("2", "nan"),
    "nothing.at_all": ("1",),
    "rl": ("1", "[" * 3000),
}  # fmt: skip


def value_cases() -> Iterator[Case]:
    """Yield a run's settings, each with values that it cannot have."""
    for key, values in VALUES.items():
        for value in values:
            name = f"train: {key}={value[:40]}"
            if (key, value) == ("run.device", ""):
                continue
            yield Case(name, (*COMMANDS["train"], "--set", f"{key}={value}"))
    for change in ("", "=", "rl.steps", "rl.steps.x=1", "..=1", "rl=\x00"):
        yield Case(f"train: --set {change!r}", (*COMMANDS["train"], "--set", change))


ARGUMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "train": (("--max-minutes", "0"), ("--max-minutes", "-1"), ("--max-minutes", "nan"), ("--resume", "x")),
    "resume": (("--set", "data.train=['none.jsonl']"), ("--max-minutes", "0")),
    "eval": (
        ("--temperature", "inf"), ("--temperature", "nan"), ("--temperature", "-1"), ("--temperature", "1e-300"),
        ("--samples", "4"), ("--samples", "0"), ("--samples", "1000000000", "--temperature", "1"),
        ("--max-tokens", "0"), ("--max-tokens", "100000"), ("--max-problems", "0"), ("--problems", "none.jsonl"),
        ("--verifier", "none"), ("--verifier", "raises:f"), ("--verifier", "hangs:f"), ("--verifier", "exits:f"),
        ("--out", "runs"), ("--out", "train.jsonl/x"), ("--out", "none/x"), ("--out", "/proc/x"), ("--out", ""),
        ("--seed", "-1"), ("--seed", "99999999999999999999"), ("--device", "tpu"), ("--device", "cuda:77"),
        ("--set", "data.template=chat"),
    ),
    "sample": (("--temperature", "inf"), ("--num", "0"), ("--prompt", "both"), ("--num", "1000000000")),
    "prompt": (
        ("--prompt", "\udcff\udcfe"), ("--prompt", ""), ("--prompt", " "), ("--answer", "\udcff"),
        ("--prompt", "x" * 100_000), ("--temperature", "1e-300"),
    ),
    "label": (
        ("--set", 'split=""'), ("--set", "num_samples=0"), ("--set", "num_samples=1000000000"), ("--out", "."),
        ("--out", "train.jsonl"), ("--out", "model/model.safetensors"), ("--out", "train.jsonl/x"),
        ("--out", ""), ("--set", "temperature=0"), ("--set", "temperature=inf"), ("--set", "temperature=nan"),
        ("--set", "max_problems=0"), ("--set", "verifier=none"), ("--out", "/dev/full"), ("--set", "url=http://x/v1"),
        ("--set", "labelled=none"), ("--set", "labelled=train.jsonl"), ("--set", "labelled=/dev/full"),
    ),
    "verify": (
        ("--verifier", "none"), ("--verifier", "hangs:f"), ("--verifier", "raises:f"), ("--verifier", "exits:f"),
        ("--workers", "0"), ("--workers", "100000"), ("--deadline", "nan"), ("--deadline", "inf"), ("--deadline", "0"),
        ("--out", "runs"), ("--out", "none/x"), ("--out", "/dev/full"), ("--out", ""), ("--set", "judge.url=1"),
        ("--set", "x"), ("--rescore", RUN), ("--set", "math.timeout=nan"),
    ),
    "rescore": (("--verifier", "none"), ("--out", "runs"), ("--workers", "100000"), ("--deadline", "nan")),
    "redteam": (("--verifier", "none"), ("--suite", "none"), ("--workers", "100000"), ("--deadline", "inf")),
    "plan": (
        ("--measure", "-1"), ("--fact", "x"), ("--fact", "reward=none"), ("--fact", "num_problems=nan"),
        ("--out", "runs"), ("--out", "train.jsonl"), ("--out", "none/x"), ("--set", "rl.steps=x"),
    ),
    "report": (("extra",),),
}  # fmt: skip

PLACES: dict[str, tuple[str, ...]] = {
    # a command, and {} where a path of each fault stands
    "train": ("train", "{}"),
    "resume": ("train", "--resume", "{}"),
    "eval": ("eval", "{}", "--problems", "heldout.jsonl", *FEW),
    "sample": ("sample", "{}", "--prompt", "1", *FEW),
    "label": ("data", "label_steps", "{}", "--out", "labels", *LABELLED),
    "export": ("model", "export", "{}", "plain"),
    "export to": ("model", "export", RUN, "{}"),
    "verify": ("verify", "{}"),
    "rescore": ("verify", "--rescore", "{}"),
    "report": ("run", "report", "{}"),
    "plan": ("plan", "{}"),
    "demo": ("demo", "--directory", "{}"),
}
PATHS = ("", "nowhere", "train.jsonl/x", "runs", "\udcff", "x" * 5000, "/dev/null", "a\tb\x1b[31m")


def argument_cases() -> Iterator[Case]:
    """Yield arguments that no command can follow."""
    for command, several in ARGUMENTS.items():
        for arguments in several:
            tolerant = arguments in (
                (("--deadline", "inf")),
                ("--seed", "-1"),
                ("--set", "data.template=chat"),
            )
            name = f"{command}: {' '.join(arguments)[:60]!r}"
            yield Case(name, (*COMMANDS[command], *arguments), tolerant=tolerant)
    for command, arguments in PLACES.items():
        for path in PATHS:
            if command in ("demo", "export to") and path in (
                "",
                "nowhere",
                "runs",
                "a\tb\x1b[31m",
                "\udcff",
            ):
                continue
            chosen = tuple(path if one == "{}" else one for one in arguments)
            yield Case(f"{command}: path {path[:20]!r}", chosen)


def _in_the_way(name: str) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        place = folder / name
        if place.is_dir():
            shutil.rmtree(place)
        place.write_text("in the way")

    return spoil


def _template(text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / "model" / "chat_template.jinja").write_text(text)


def _rows(name: str, *rows: Any) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(
        "".join(json.dumps(row) + "\n" for row in rows)
    )


def _fifo(name: str) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return spoil


def other_cases() -> Iterator[Case]:
    """Yield worlds that are wrong in ways of their own."""
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    for command in ("train", "eval", "prompt"):
        yield Case(f"{command}: a template that loops", COMMANDS[command], _template(loops))
        yield Case(
            f"{command}: a template that is broken", COMMANDS[command], _template("{% for %}")
        )
        yield Case(
            f"{command}: a template that raises",
            COMMANDS[command],
            _template("{{ raise_exception('no') }}"),
        )
    long = {"prompt": "12 + " * 6_000_000, "answer": "1"}
    rows = [("an empty object", {}), ("a list", [1]), ("no answer", {"prompt": "1"}), ("a long question", long),
            ("a long answer", {"prompt": "1", "answer": "9" * 1_000_000}),
            ("half a character", {"prompt": "\ud800", "answer": "1"}),
            ("a number", {"prompt": 1, "answer": "1"}), ("an unknown verifier", {"prompt": "1", "answer": "1", "verifier": "none"}),
            ("a strange id", {"id": [], "prompt": "1", "answer": "1"})]  # fmt: skip
    for command, name in (
        ("train", "train.jsonl"),
        ("eval", "heldout.jsonl"),
        ("sample", "heldout.jsonl"),
    ):
        for fault, row in rows:
            tolerant = fault in ("a long answer", "no answer")
            yield Case(
                f"{command}: {name} with {fault}", COMMANDS[command], _rows(name, row), tolerant
            )
    for command in ("resume", "report", "export", "eval run"):
        for name in (RUN, f"{RUN}/checkpoints"):
            yield Case(
                f"{command}: {name} is a file",
                COMMANDS[command],
                _in_the_way(name),
                command == "report" and "/" in name[5:],
            )
    yield Case("resume: rollouts is a file", COMMANDS["resume"], _in_the_way(f"{RUN}/rollouts"))
    yield Case(
        "report: report.html is a folder",
        COMMANDS["report"],
        lambda folder: _replace_report(folder),
    )
    for command, name in (
        ("train", "run.toml"),
        ("train", "train.jsonl"),
        ("verify", "done.jsonl"),
        ("report", f"{RUN}/config.toml"),
    ):
        yield Case(f"{command}: {name} is a pipe", COMMANDS[command], _fifo(name))
    yield Case("train: runs is a file", COMMANDS["train"], _in_the_way("runs"))
    yield Case("demo: --directory is a file", ("demo", "--directory", "train.jsonl"))
    yield Case("export: into a file", ("model", "export", RUN, "train.jsonl"))
    yield Case("export: into a full folder", ("model", "export", RUN, "model"))
    yield Case("eval: nothing judged", (*COMMANDS["eval"], "--verifier", "none_judged:f"))
    for module in ("raises", "exits", "hangs", "broken"):
        yield Case(
            f"dpo: preference.method={module}:f",
            (*COMMANDS["dpo"], "--set", f"preference.method={module}:f"),
            tolerant=False,
        )
        yield Case(
            f"train: rows name {module}:f",
            COMMANDS["train"],
            _rows("train.jsonl", {"prompt": "1", "answer": "1", "verifier": f"{module}:f"}),
        )


def _replace_report(folder: Path) -> None:
    page = folder / RUN / "report.html"
    page.unlink(missing_ok=True)
    page.mkdir()


MODULES = {
    "raises": "raise RuntimeError('it is broken')\n",
    "exits": "import assay, sys\n@assay.source\ndef rows():\n    sys.exit()\nsys.exit(0)\n",
    "hangs": "import time\nwhile True:\n    time.sleep(1)\n",
    "broken": "def f(:\n",
    "none_judged": "def f(problem, completion):\n    return None\n",
}


def cases() -> list[Case]:
    """Return every case; names are unique."""
    typed = (Case(one.name, one.arguments, one.spoil, code=2) for one in bad_commands())
    return [*file_cases(), *value_cases(), *argument_cases(), *other_cases(), *typed]
