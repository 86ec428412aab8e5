"""Tables of bad inputs for servers and plans, and of settings that no run can have."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

Spoil = Callable[[Path], Any]
URL = {"url": "http://localhost:9/v1", "model": "m"}


@dataclass(frozen=True)
class BadCommand:
    """A command that cannot be followed. spoil: what is done to the good world before."""

    name: str
    arguments: tuple[str, ...]
    spoil: Spoil = lambda folder: None


def written(name: str, *rows: Any) -> Spoil:
    """Return what writes a file of rows, each an object or the line itself."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return lambda folder: (folder / name).write_text("\n".join([*lines, ""]))


def toml(name: str, tree: dict[str, Any] | str) -> Spoil:
    text = tree if isinstance(tree, str) else tomli_w.dumps(tree)
    return lambda folder: (folder / name).write_text(text)


def route_of(cheap: Any, **rule: Any) -> dict[str, Any]:
    strong = {"url": "http://localhost:9/v1", "model": "large"}
    return {"route": {"by": "length", "threshold": 10, **rule}, "cheap": cheap, "strong": strong}


@dataclass
class Taken:
    """A port that something else listens at, for as long as this process lives."""

    socket: socket.socket | None = None

    @property
    def port(self) -> str:
        if self.socket is None:
            self.socket = socket.create_server(("127.0.0.1", 0))
        return str(self.socket.getsockname()[1])


TAKEN = Taken()
SERVE = ("verifier", "serve", "--workers", "1", "--port", "0")
SERVES: tuple[tuple[str, ...], ...] = (
    (*SERVE, "--verifier", "maths"),
    (*SERVE, "--verifier", "math*"),
    (*SERVE, "--verifier", ""),
    (*SERVE, "--verifier", "no_module:f"),
    (*SERVE, "--verifier", "raises:f"),
    (*SERVE, "--verifier", "exits:f"),
    (*SERVE, "--verifier", "none_judged:g"),
    (*SERVE, "--host", "0.0.0.0"),
    (*SERVE, "--host", "no.such.host.invalid"),
    (*SERVE, "--host", ""),
    (*SERVE, "--port", "70000"),
    (*SERVE, "--port", "http"),
    (*SERVE, "--workers", "0"),
    (*SERVE, "--workers", "100000"),
    (*SERVE, "--deadline", "0"),
    (*SERVE, "--deadline", "nan"),
    (*SERVE, "--max-waiting", "0"),
    (*SERVE, "--set", "math"),
    (*SERVE, "--set", "math.timeout=soon"),
    (*SERVE, "--set", "maths.timeout=1"),
    (*SERVE, "--verifier", "judge"),
    (*SERVE, "--verifier", "remote:nothing"),
)

ROUTES: dict[str, dict[str, Any] | str] = {
    "empty": "",
    "not TOML": "route = [",
    "no strong": {"route": {"by": "length", "threshold": 1}, "cheap": URL},
    "no route": {"cheap": URL, "strong": URL},
    "route is text": {"route": "length", "cheap": URL, "strong": URL},
    "by a slip": route_of(URL, by="lenght"),
    "by a module that is not there": route_of(URL, by="no_module:f"),
    "by a module that raises": route_of(URL, by="raises:f"),
    "by nothing": route_of(URL, by=""),
    "a threshold in words": route_of(URL, threshold="high"),
    "no finite threshold": route_of(URL, threshold=float("nan")),
    "no threshold": {"route": {"by": "length"}, "cheap": URL, "strong": URL},
    "levels twice": route_of(URL, by="label", levels=["easy", "easy"]),
    "reads the answer": route_of(URL, reads="answer"),
    "nobody may wait": route_of(URL, max_waiting=0),
    "an unknown key": route_of(URL, treshold=3),
    "no address": route_of({"model": "m"}),
    "an address without scheme": route_of({**URL, "url": "localhost:8000"}),
    "an address of files": route_of({**URL, "url": "file:///etc/passwd"}),
    "an address with spaces": route_of({**URL, "url": "http://a b/v1"}),
    "no name of a model": route_of({"url": URL["url"]}),
    "an empty model": route_of({**URL, "model": ""}),
    "no time": route_of({**URL, "timeout": 0}),
    "a negative price": route_of({**URL, "price_input": -1}),
    "a request of text": route_of({**URL, "request": "high"}),
    "a variable of no name": route_of({**URL, "api_key_env": ""}),
}

PLANS: tuple[tuple[str, ...], ...] = (
    ("plan", "none.toml"),
    ("plan", "runs"),
    ("plan", "--fact", "reward=answer", "--fact", "reward"),
    ("plan", "--fact", "rewards=answer"),
    ("plan", "--fact", "reward="),
    ("plan", "--fact", "=answer"),
    ("plan", "--fact", "pass_at_1=2"),
    ("plan", "--fact", "pass_at_1=40%"),
    ("plan", "--fact", "group_size=0"),
    ("plan", "--fact", "group_size=1.5"),
    ("plan", "--fact", "num_problems=-5"),
    ("plan", "--fact", "num_problems=1e400"),
    ("plan", "--fact", "hours=nan"),
    ("plan", "--fact", "can_sample=perhaps"),
    ("plan", "--fact", "passes=3"),
    ("plan", "--fact", "passes=[[1]]"),
    ("plan", "--fact", "passes=[[2, 3]]"),
    ("plan", "--fact", "memory_mib=lots"),
    ("plan", "run.toml", "--measure", "x"),
    ("plan", "run.toml", "--measure", "0", "--set", "rl.group_size=1"),
    ("plan", "run.toml", "--measure", "0", "--set", "model.path=runs/dnoe"),
    ("plan", "dpo.toml", "--measure", "0", "--set", "preference.pairs=['none.jsonl']"),
    ("plan", "rm.toml", "--measure", "0", "--set", "reward_model.rows=['train.jsonl']"),
    ("plan", "sft.toml", "--measure", "0", "--set", "sft.traces=['']"),
    ("plan", "run.toml", "--measure", "0", "--out", "run.toml"),
    ("plan", "run.toml", "--measure", "0", "--out", ""),
    ("plan",),
)

SETTINGS: dict[str, tuple[str, ...]] = {
    # a configuration, and values of one key that no run can have
    "dpo preference.method": ("dppo", "grpo", "no_module:f", "os:sep"),
    "dpo preference.beta": ("0", "-1", "nan", "[0.1]"),
    "dpo preference.label_smoothing": ("0.5", "-0.1"),
    "dpo preference.beta_schedule": ("[[0, 0]]", "[[5, 0.1], [1, 0.1]]", "0.1"),
    "dpo preference.pairs": ("['run:nowhere']", "['run:']", "['verdicts:none.jsonl']", "['verdicts:run.toml']",
                             "['train.jsonl']", "['texts.jsonl']", "['run:model']"),
    "dpo preference.heldout": ("['none.jsonl']",),
    "dpo preference.epochs": ("0", "nan", "1e300"),
    "dpo preference.pairs_per_step": ("0",),
    "dpo preference.max_tokens": ("1", "0"),
    "dpo preference.reference_every": ("1",),
    "dpo preference.judge": ("pairwise", "human"),
    "dpo preference.group_size": ("1",),
    "dpo rl": ("{steps = 2}",),
    "rm reward_model.kind": ("outcome", "process", "proces"),
    "rm reward_model.rows": ("[]", "['none.jsonl']", "['marked.jsonl']", "['steps.jsonl']", "['texts.jsonl']"),
    "rm reward_model.heldout": ("['none.jsonl']", "['marked.jsonl']"),
    "rm reward_model.every_token": ("true",),
    "rm reward_model.loss": ("squared",),
    "rm reward_model.split": ("blank_line",),
    "rm reward_model.format": ("chat", "xml"),
    "rm reward_model.plain_template": ("{prompt}",),
    "rm reward_model.centering": ("-1", "nan"),
    "rm reward_model.max_tokens": ("1",),
    "rm reward_model.rows_per_step": ("0",),
    "rm model.lora": ("{rank = 2}",),
    "run tools.names": ("['pyhton']", "['search']", "['no_module:f']", "['raises:f']", "['untyped:tool']",
                        "['untyped:value']", "['untyped:nothing']", "['calculator', 'calculator']", "calculator", "[1]"),
    "run tools.environment": ("no_module:f", "raises:f", "broken:f", "untyped:tool", "untyped:value", "calculator"),
    "tools tools.call": ("{tool}", "<call>{input}</call>", "{call}{tool}", "no place"),
    "tools tools.result": ("done", "{result}{result}"),
    "tools tools.seconds": ("0", "nan"),
    "tools tools.max_calls": ("0", "-1"),
    "tools tools.max_output": ("0", "-1"),
    "tools tools.environment": ("untyped:tool",),
    "tools scale.generator": ("vlm",),
    "run model.lora": ("true", "1", "{r = 16}", "{rank = 1.5}", "{rank = -1}", "{alpha = 0}", "{alpha = nan}",
                       "{targets = ['q_prj']}", "{targets = ['lm_head']}", "{targets = 'q_proj'}", "{targets = ['']}",
                       "{rank = 4, dropout = 0.1}"),
    "sft model.lora": ("{targets = ['nothing']}", "{rank = 0}"),
}  # fmt: skip


def setting_cases() -> Iterator[BadCommand]:
    """Yield values of keys that no run can have."""
    for place, values in SETTINGS.items():
        config, key = place.split()
        for value in values:
            changes = [f"{key}={value}"]
            if config == "tools" and key != "tools.names":
                changes.insert(0, "tools.names=['calculator']")
            file = "run.toml" if config == "tools" else f"{config}.toml"
            arguments = ["train", file, "--dry-run"]
            for change in changes:
                arguments += ["--set", change]
            yield BadCommand(f"{config}: {key}={value}", tuple(arguments))


def row_cases() -> Iterator[BadCommand]:
    """Yield rows that no preference or reward model can be learned from."""
    pair = {"prompt": "1 + 1 =", "chosen": "2", "rejected": "3"}
    pairs = {
        "no rejected": {"prompt": "1", "chosen": "2"},
        "nothing chosen": {**pair, "chosen": ""},
        "both the same": {**pair, "rejected": "2"},
        "a number": {**pair, "chosen": 2},
        "a list": {**pair, "prompt": ["1 + 1"]},
        "null": {**pair, "rejected": None},
    }
    steps = {
        "fewer labels": {"prompt": "1", "steps": ["a", "b"], "labels": [True]},
        "labels in words": {"prompt": "1", "steps": ["a"], "labels": ["good"]},
        "no labels": {"prompt": "1", "steps": ["a"]},
        "no steps": {"prompt": "1", "steps": [], "labels": []},
        "ends beyond": {"prompt": "1", "completion": "ab", "step_ends": [99], "labels": [True]},
    }
    labels = {
        "a label above 1": {"prompt": "1", "completion": "a", "label": 2},
        "a label in words": {"prompt": "1", "completion": "a", "label": "yes"},
        "no label": {"prompt": "1", "completion": "a"},
    }
    process = ("--set", "reward_model.kind=process", "--set", "reward_model.rows=['bad.jsonl']")
    outcome = ("--set", "reward_model.kind=outcome", "--set", "reward_model.rows=['bad.jsonl']")
    for name, row in pairs.items():
        change = ("--set", "preference.pairs=['bad.jsonl']")
        command = ("train", "dpo.toml", "--dry-run", *change)
        yield BadCommand(f"dpo: a pair with {name}", command, written("bad.jsonl", row))
    for found, kind in ((steps, process), (labels, outcome)):
        for name, row in found.items():
            command = ("train", "rm.toml", "--dry-run", *kind)
            yield BadCommand(f"rm: a row with {name}", command, written("bad.jsonl", row))


def server_cases() -> Iterator[BadCommand]:
    """Yield servers that cannot start."""
    for arguments in SERVES:
        yield BadCommand(" ".join(arguments), arguments)
    for name, tree in ROUTES.items():
        command = ("model", "route", "bad_route.toml", "--port", "0")
        yield BadCommand(f"route: {name}", command, toml("bad_route.toml", tree))
    yield BadCommand("route: nowhere", ("model", "route", "none.toml"))
    for command in (SERVE[:4], ("model", "route", "route.toml")):
        taken = (*command, "--port", TAKEN.port)
        yield BadCommand(f"{command[1]}: a port that is taken", taken)
