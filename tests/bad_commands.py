"""Tables of bad inputs for the commands around a run: what a user gets wrong when typing them.

Each ends with exit code 2 and one line. `bad_inputs` has the tables for training and its files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tomli_w
from bad_settings import (
    PLANS,
    URL,
    BadCommand,
    Spoil,
    route_of,
    row_cases,
    server_cases,
    setting_cases,
    toml,
    written,
)

from assay.testing import save_tiny_model

RUN = "runs/done"
GGUF = ("model", "export", "merges", "model.gguf", "--format", "gguf")
GRPO = ("init", "grpo", "--data", "train.jsonl", "--model", "model", "--out", "new.toml")
RECIPE = ("recipe", "run", "two.toml", "--dry-run")
MERGE = ("model", "merge", "model", RUN, "--out")
EVAL = ("--problems", "heldout.jsonl", "--max-tokens", "4")
DRY = ("train", "run.toml", "--dry-run")
GOOD: dict[str, tuple[str, ...]] = {
    "gguf": GGUF,
    "init": GRPO,
    "recipe": RECIPE,
    "select": ("data", "select", "collected.jsonl", "--out", "made"),
    "mix": ("data", "mix", "train.jsonl", "heldout.jsonl", "--out", "made"),
    "tools": (*DRY, "--set", "tools.names=['calculator']"),
    "lora": (*DRY, "--set", "model.lora={rank = 2}"),
    "facts": ("plan", "--fact", "reward=answer", "--fact", "num_problems=100"),
    "compare": ("compare", RUN, "model", *EVAL),
}


def write_model_with_merges(folder: Path) -> None:
    """Write a tiny model that GGUF can hold: llama.cpp loads no vocabulary without merges."""
    save_tiny_model(folder, vocab_size=260)
    file = folder / "tokenizer.json"
    tree = json.loads(file.read_text())
    tree["model"]["vocab"]["on"] = 259
    tree["model"]["merges"] = [["o", "n"]]
    tree["pre_tokenizer"]["use_regex"] = True
    file.write_text(json.dumps(tree))


def write_more(folder: Path) -> None:
    """Write what the good commands of this module read beside what `bad_inputs` writes."""
    write_model_with_merges(folder / "merges")

    def rows(name: str, *found: dict[str, Any]) -> None:
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in found))

    verdict = {"score": 1.0, "status": "passed", "verifier": "exact"}
    rows("other.jsonl", {"prompt": "2 + 5 =", "answer": "7"})
    rows("collected.jsonl", {"prompt": "1 + 1 =", "completion": "2", "verdict": verdict})
    rows("steps.jsonl", {"prompt": "1 + 1 =", "steps": ["one", "two"], "labels": [True, True]})
    rows("marked.jsonl", {"prompt": "1 + 1 =", "completion": "2", "label": True})
    stages = {"start": {"model": "model"}, "fewer": FEWER, "cold": COLD}
    shared = {"data": {"train": ["train.jsonl"], "heldout": ["heldout.jsonl"]}}
    (folder / "two.toml").write_text(tomli_w.dumps({"shared": shared, "stage": stages}))
    (folder / "route.toml").write_text(tomli_w.dumps(route_of(URL)))
    (folder / "untyped.py").write_text(
        "def tool(x):\n    return x\n\ndef typed(x: int) -> int:\n    return x\n\nvalue = 3\n"
    )


FEWER: dict[str, Any] = {"data": "deduplicate", "inputs": ["traces.jsonl"]}
COLD: dict[str, Any] = {"model": {"path": "@start"}, "sft": {"traces": ["@fewer"]}}


def changed(name: str, **keys: Any) -> Spoil:
    """Return what gives keys of a JSON file other values; None takes a key away."""

    def spoil(folder: Path) -> None:
        tree = json.loads((folder / name).read_text())
        tree.update(keys)
        tree = {key: value for key, value in tree.items() if value is not None}
        (folder / name).write_text(json.dumps(tree))

    return spoil


EXPORTS: dict[tuple[str, ...], Spoil | None] = {
    ("model", "export", RUN): None,
    ("model", "export", RUN, "x", "--format", "ggml"): None,
    ("model", "export", RUN, "x", "--format", "GGUF"): None,
    ("model", "export", RUN, "x", "--format", ""): None,
    ("model", "export", RUN, "--push", "me/model", "--format", "gguf"): None,
    ("model", "export", RUN, "--push", "noowner"): None,
    ("model", "export", RUN, "x", "--push", "a/b/c"): None,
    ("model", "export", "merges", "train.jsonl", "--format", "gguf"): None,
    ("model", "export", "merges", "runs", "--format", "gguf"): None,
    ("model", "export", "merges", "train.jsonl/x.gguf", "--format", "gguf"): None,
    ("model", "export", f"{RUN}@7", "model.gguf", "--format", "gguf"): None,
    ("model", "export", f"{RUN}@bset", "plain"): None,
    ("model", "export", "runs/dnoe", "plain"): None,
    ("model", "export", "done", "plain"): None,
    ("model", "export", "train.jsonl", "plain"): None,
    ("model", "export", "runs", "plain"): None,
    ("model", "export", "merges", "a.gguf", "--format", "gguf"): lambda folder: (
        folder / "merges/tokenizer.json"
    ).unlink(),
    ("model", "export", "merges", "b.gguf", "--format", "gguf"): changed(
        "merges/config.json", model_type="gpt2"
    ),
    ("model", "export", "merges", "c.gguf", "--format", "gguf"): changed(
        "merges/config.json", model_type="nothing"
    ),
    ("model", "export", "merges", "d.gguf", "--format", "gguf"): changed(
        "merges/config.json", num_hidden_layers=0
    ),
    ("model", "export", "merges", "e.gguf", "--format", "gguf"): lambda folder: (
        folder / "merges/model.safetensors"
    ).unlink(),
    ("model", "export", "merges", "f.gguf", "--format", "gguf"): lambda folder: (
        folder / "merges/model.safetensors"
    ).write_bytes(b"0" * 100),
    ("model", "check-template", "model", "--set", "data.template=base"): None,
    ("model", "check-template", "nothing/here/at"): None,
    ("model", "check-template", "runs"): None,
    ("model", "merge", "model", "--out", "x"): None,
    ("model", "merge", "model", "model", "--out", "x"): None,
    (*MERGE, "runs"): None,
    (*MERGE, "x", "--method", "slurp"): None,
    (*MERGE, "x", "--method", "task_arithmetic"): None,
    (*MERGE, "x", "--base", "model"): None,
    (*MERGE, "x", "--weight", "1"): None,
    (*MERGE, "x", "--weight", "nan", "--weight", "1"): None,
    (*MERGE, "x", "--weight", "0", "--weight", "0"): None,
    (*MERGE, "x", "--problems", "none.jsonl"): None,
    (*MERGE, ""): None,
    ("model", "merge", "model", "nothing/here/at", "--out", "x"): None,
    ("model", "merge", "model", f"{RUN}@1", f"{RUN}@2", "--out", "x", "--method", "slerp"): None,
}

BY_NAME: tuple[tuple[str, ...], ...] = (
    *(
        ("eval", name, *EVAL)
        for name in (
            "runs/dnoe",
            "done",
            "runs/done@",
            "runs/done@0",
            "runs/done@-1",
            "runs/done@99",
            "runs/done@1.5",
            "runs/done@BEST",
            "runs/done@best@last",
            "@best",
            "runs/done/config.toml",
            "runs/done/checkpoints",
            "runs/done/checkpoints/step-000009",
            "runs/nothing@best",
            "run.toml",
            "Qwen/no such model",
            "model.gguf",
        )
    ),
    ("eval", RUN),
    ("eval", RUN, "--problems", "gym:chain_sm"),
    ("eval", RUN, "--problems", "rows.csv"),
    ("eval", RUN, *EVAL, "--think-budget", "4"),
    ("eval", RUN, *EVAL, "--effort", "higher"),
    ("eval", RUN, *EVAL, "--set", "rl.group_sise=4"),
    ("eval", RUN, *EVAL, "--samples", "2"),
    ("compare", RUN, "model"),
    ("compare", RUN, "runs/dnoe", *EVAL),
    ("compare", RUN, "model", *EVAL, "--judge", "none"),
    ("compare", "done.jsonl", "heldout.jsonl"),
    ("run", "compare", RUN),
    ("run", "compare", RUN, "runs/dnoe"),
    ("run", "compare", RUN, "model"),
    ("run", "compare", RUN, f"{RUN}@7"),
    ("gate", RUN),
    ("gate", RUN, *EVAL, "--against", "runs/dnoe"),
    ("gate", RUN, *EVAL, "--canaries", "maths"),
    ("gate", RUN, *EVAL, "--thresholds", "run.toml"),
    ("gate", RUN, *EVAL, "--thresholds", "none.toml"),
    ("gate", RUN, *EVAL, "--strong", "none"),
    ("gate", RUN, *EVAL),
    ("gate", RUN, "--problems", "other.jsonl", "--review", "none.jsonl"),
    ("gate", RUN, "--problems", "other.jsonl", "--out", "runs"),
    ("frontier", RUN, *EVAL, "--budget", "zero"),
    ("frontier", RUN, *EVAL, "--budget", "-1"),
    ("frontier", RUN, *EVAL, "--mode", "fast"),
    ("search", RUN, *EVAL, "--budget", "0"),
    ("search", RUN, *EVAL, "--budget", "16", "--method", "best-of-n"),
    ("search", RUN, *EVAL, "--budget", "16", "--scorer", "none"),
    ("search", RUN, *EVAL, "--budget", "16", "--method", "beam", "--step", ""),
    ("search", RUN, *EVAL, "--budget", "16", "--reduce", "max"),
    ("search", RUN, *EVAL, "--budget", "16", "--exploration", "nan"),
    ("sample", RUN),
    ("sample", "runs/dnoe", "--prompt", "1"),
    ("run", "rollouts", "runs/dnoe"),
    ("run", "rollouts", RUN, "0"),
    ("run", "rollouts", RUN, "--best", "--worst"),
    ("run", "rollouts", RUN, "--step", "99"),
    ("run", "rollouts", RUN, "--problem", "nobody"),
    ("run", "rollouts", RUN, "--problem", "nobody", "--flipped"),
    ("run", "list", "--directory", "nowhere"),
    ("run", "list", "--directory", "run.toml"),
    ("run", "list", "rl.stepz=2", "--compare"),
    ("run", "replay", RUN),
    ("run", "replay", RUN, "--step", "99"),
    ("run", "replay", RUN, "--step", "1", "--set", "rl.steps=3"),
    ("run", "rollback", RUN, "--to", "99"),
    ("run", "rollback", RUN, "--to", "two"),
    ("run", "audit", "runs/dnoe"),
    ("run", "audit", RUN, "--second", "none"),
    ("run", "audit", RUN, "--second", "exact", "--label"),
    ("run", "audit", RUN, "--at", "1"),
    ("run", "audit", RUN, "--steps", "exact", "--at", "99"),
    ("run", "audit", RUN, "--second", "exact", "--count", "1"),
    ("verifier", "drift", "done.jsonl"),
    ("verifier", "drift", "none.jsonl", "done.jsonl"),
    ("verifier", "drift", "run.toml", "done.jsonl"),
    ("train", "runz.toml"),
    ("train", "--resume", "runs/dnoe"),
    ("train", "--resume", "model"),
    ("train", "run.toml", "--resume", RUN),
    ("train",),
)

INITS: dict[tuple[str, ...], Spoil | None] = {
    ("init",): None,
    ("init", "gpro"): None,
    ("init", "GRPO2"): None,
    ("init", "distill"): None,
    ("init", ""): None,
    (*GRPO, "--data", "none.jsonl"): None,
    (*GRPO, "--data", "runs"): None,
    (*GRPO, "--data", ""): None,
    (*GRPO, "--data", "gym:none"): None,
    (*GRPO, "--heldout", "none.jsonl"): None,
    (*GRPO, "--heldout", "train.jsonl"): None,
    (*GRPO, "--heldout", "heldout.jsonl", "--heldout-share", "0.5"): None,
    (*GRPO, "--heldout-share", "0"): None,
    (*GRPO, "--heldout-share", "10%"): None,
    (*GRPO, "--heldout-share", "1"): None,
    (*GRPO, "--heldout-share", "nan"): None,
    (*GRPO, "--heldout-share", "0.000001"): None,
    (*GRPO, "--model", "./nothing"): None,
    (*GRPO, "--model", "train.jsonl"): None,
    (*GRPO, "--model", "runs"): None,
    (*GRPO, "--model", "runs/dnoe"): None,
    (*GRPO, "--model", ""): None,
    (*GRPO, "--verifier", "maths"): None,
    (*GRPO, "--verifier", "math*"): None,
    (*GRPO, "--verifier", "code"): None,
    (*GRPO, "--out", "run.toml"): None,
    (*GRPO, "--out", "runs"): None,
    (*GRPO, "--out", "train.jsonl/x.toml"): None,
    (*GRPO, "--out", ""): None,
    (*GRPO, "--out", "/proc/x.toml"): None,
    ("init", "dpo", "--data", "train.jsonl", "--model", "model", "--out", "new.toml"): None,
    ("init", "sft", "--data", "pairs.jsonl", "--model", "model", "--out", "new.toml"): None,
    ("init", "reward_model", "--data", "train.jsonl", "--model", "model"): None,
    ("init", "sft", "--data", "traces.jsonl", "--heldout-share", "0.5", "--out", "new.toml"): None,
    ("init", "code", "--data", "train.jsonl", "--model", "model", "--out", "code.toml"): None,
    ("init", "grpo", "--data", "empty.jsonl", "--model", "model"): written("empty.jsonl"),
    ("init", "grpo", "--data", "list.json", "--model", "model"): written(
        "list.json", '[{"prompt": "1", "answer": "1"},', "]"
    ),
    ("init", "grpo", "--data", "rows.csv", "--model", "model"): written(
        "rows.csv", "prompt,answer", "1,1"
    ),
    ("init", "grpo", "--data", "quoted.jsonl", "--model", "model"): written(
        "quoted.jsonl", "{'prompt': '1', 'answer': '1'}"
    ),
    ("init", "grpo", "--data", "unasked.jsonl", "--model", "model"): written(
        "unasked.jsonl", {"instruction": "1 + 1", "output": "2"}
    ),
    ("init", "grpo", "--data", "rows.parquet", "--model", "model"): written("rows.parquet", "PAR1"),
}


def two(**stages: Any) -> Spoil:
    """Return what writes the recipe with other stages."""
    tree = {"start": {"model": "model"}, "fewer": FEWER, "cold": COLD} | stages
    return toml("two.toml", {"stage": {name: one for name, one in tree.items() if one}})


SWEEPS: dict[tuple[str, ...], Spoil | None] = {
    ("sweep",): None,
    ("sweep", "none.toml"): None,
    ("sweep", "runs"): None,
    ("sweep", "run.toml"): None,
    ("sweep", "two.toml", "--dry-run"): None,
    ("sweep", "run.toml", "--parallel", "0"): None,
    ("ablate", RUN): None,
    ("ablate", RUN, "--terms"): None,
    ("ablate", RUN, "--terms", "--seeds", "0"): None,
    ("ablate", "runs/none", "--terms"): None,
    ("ablate", "model", "--terms"): None,
    ("ablate", RUN, "--terms", "--out", "none/ablate.toml"): None,
}
RECIPES: dict[tuple[str, ...], Spoil | None] = {
    ("recipe", "run"): None,
    ("recipe", "run", "r2"): None,
    ("recipe", "run", "none.toml"): None,
    ("recipe", "run", "run.toml"): None,
    ("recipe", "run", "runs"): None,
    ("recipe", "show", "r2"): None,
    ("recipe", "lst"): None,
    (*RECIPE, "--scale", "huge"): None,
    (*RECIPE, "--until", "warm"): None,
    (*RECIPE, "--set", "warm.sft.epochs=2"): None,
    (*RECIPE, "--set", "cold.sft.epoch=2"): None,
    (*RECIPE, "--set", "cold.sft.epochs=many"): None,
    (*RECIPE, "--set", "cold.sft.epochs=-1"): None,
    (*RECIPE, "--set", "cold=1"): None,
    (*RECIPE, "--set", "cold.sft"): None,
    (*RECIPE, "--set", "fewer.data=duplicate"): None,
    (*RECIPE, "--set", "fewer.inputs=['none.jsonl']"): None,
    (*RECIPE, "--set", "fewer.similarity=2"): None,
    (*RECIPE, "--set", "start.model=nothing/at/all"): None,
    (*RECIPE, "--set", "start.model=@cold"): None,
    (*RECIPE, "--directory", "run.toml"): None,
    ("recipe", "run", "--resume", "runs/dnoe"): None,
    ("recipe", "run", "--resume", RUN): None,
    ("recipe", "run", "--resume", "run.toml"): None,
    ("recipe", "run", "--resume", ""): None,
    (*RECIPE, "--resume", RUN): None,
    (*RECIPE, "--resume", "runs/dnoe"): None,
    ("recipe", "run", "two.toml", "--resume", RUN): None,
}
RECIPE_FILES: dict[str, Spoil] = {
    "no stages": toml("two.toml", {"about": "nothing"}),
    "stage is a list": toml("two.toml", {"stage": [1]}),
    "a stage is text": toml("two.toml", {"stage": {"one": "model"}}),
    "a key twice": toml("two.toml", "[stage.a]\nmodel = 'model'\n[stage.a]\nmodel = 'model'\n"),
    "an unknown table": toml("two.toml", {"stages": {"a": {"model": "model"}}}),
    "a stage without kind": two(cold={}, other={"run": {"seed": 1}}),
    "two kinds in one stage": two(cold={**COLD, "rl": {"steps": 2}}),
    "a later stage": two(start=None, cold={**COLD, "model": {"path": "@late"}}),
    "itself": two(cold={**COLD, "model": {"path": "@cold"}}),
    "an unknown data transform": two(fewer={"data": "dedup", "inputs": ["traces.jsonl"]}),
    "a transform without inputs": two(fewer={"data": "deduplicate"}),
    "a transform with an unknown key": two(fewer={**FEWER, "similar": 1}),
    "a model as rows": two(cold={**COLD, "sft": {"traces": ["@start"]}}),
    "rows as a model": two(cold={**COLD, "model": {"path": "@fewer"}}),
    "a checkpoint of rows": two(cold={**COLD, "sft": {"traces": ["@fewer@best"]}}),
    "a name with a slash": two(**{"a/b": {"model": "model"}}),
    "a name that leaves": two(**{"..": {"model": "model"}}),
    "a scale of text": toml("two.toml", {"stage": {"a": {"model": "model"}}, "scale": "small"}),
}

DATA: dict[tuple[str, ...], Spoil | None] = {
    ("data", "selct"): None,
    ("data", "selct", "train.jsonl", "--out", "made"): None,
    ("data", "select", "collected.jsonl"): None,
    ("data", "select", "--out", "made"): None,
    ("data", "select", "none.jsonl", "--out", "made"): None,
    ("data", "select", "runs", "--out", "made"): None,
    ("data", "select", "train.jsonl", "--out", "made"): None,
    ("data", "select", "collected.jsonl", "--out", "runs"): None,
    ("data", "select", "collected.jsonl", "--out", "train.jsonl"): None,
    ("data", "select", "collected.jsonl", "--out", "train.jsonl/x"): None,
    ("data", "select", "collected.jsonl", "--out", ""): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "keep=best"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "kep=any"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "min_score=2"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "keep"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "output=csv"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "filters=['none']"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "judge=none"): None,
    ("data", "select", "collected.jsonl", "--out", "made", "--set", "min_words=9", "--set", "max_words=2"): None,
    ("data", "mix", "train.jsonl", "heldout.jsonl", "--out", "made", "--set", "weights=[1]"): None,
    ("data", "mix", "train.jsonl", "--out", "made", "--set", "weights=[0]"): None,
    ("data", "mix", "train.jsonl", "--out", "made", "--set", "weights=1"): None,
    ("data", "mix", "train.jsonl", "--out", "made", "--set", "rows=0"): None,
    ("data", "mix", "train.jsonl", "--out", "made", "--set", "rows=1000"): None,
    ("data", "mix", "train.jsonl", "train.jsonl", "--out", "made", "--set", "weights=[inf, 1]"): None,
    ("data", "deduplicate", "train.jsonl", "--out", "made", "--set", "similarity=0.1"): None,
    ("data", "deduplicate", "train.jsonl", "--out", "made", "--set", "n=0"): None,
    ("data", "deduplicate", "train.jsonl", "--out", "made", "--set", "compare=answer"): None,
    ("data", "filter", "train.jsonl", "--out", "made", "--set", "min_pass_rate=0.9", "--set", "max_pass_rate=0.1"): None,
    ("data", "filter", "train.jsonl", "--out", "made", "--set", "min_pass_rate=0.5"): None,
    ("data", "filter", "train.jsonl", "--out", "made", "--set", "without=['choice']"): None,
    ("data", "balance", "train.jsonl", "--out", "made"): None,
    ("data", "decontaminate", "train.jsonl", "--out", "made"): None,
    ("data", "decontaminate", "train.jsonl", "--out", "made", "--set", "against=['none.jsonl']"): None,
    ("data", "pairs", "train.jsonl", "--out", "made"): None,
    ("data", "rank", "train.jsonl", "--out", "made"): None,
    ("data", "vary", "train.jsonl", "--out", "made"): None,
    ("data", "tag", "train.jsonl", "--out", "made", "--set", "by=chance"): None,
    ("data", "mine", "train.jsonl", "--out", "made"): None,
    ("data", "rewrite", "collected.jsonl", "--out", "made"): None,
    ("data", "label_difficulty", "train.jsonl", "--out", "made"): None,
    ("data", "write_tests", "train.jsonl", "--out", "made"): None,
    ("data", "collect", "train.jsonl", "--out", "made"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=./nothing"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=m", "--set", "url=localhost:8000"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=m", "--set", "url=ftp://a"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=model", "--set", "num_samples=0"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=model", "--set", "temperature=0"): None,
    ("data", "collect", "train.jsonl", "--out", "made", "--set", "model=model", "--set", "verifier=none"): None,
    ("data", "select", "odd.jsonl", "--out", "made"): written("odd.jsonl", {"prompt": "1", "completion": 3}),
    ("data", "select", "bad.jsonl", "--out", "made"): written(
        "bad.jsonl", {"prompt": "1", "completion": "2", "verdict": "won"}
    ),
    ("data", "select", "scored.jsonl", "--out", "made"): written(
        "scored.jsonl", {"prompt": "1", "completion": "2", "verdict": {"reward": "high", "status": "passed"}}
    ),
}  # fmt: skip


def bad_commands() -> list[BadCommand]:
    """Return every case; names are unique."""
    found: list[BadCommand] = []
    for table in (EXPORTS, INITS, RECIPES, SWEEPS, DATA):
        for arguments, spoil in table.items():
            found.append(BadCommand(" ".join(arguments), arguments, spoil or (lambda folder: None)))
    for arguments in (*BY_NAME, *PLANS):
        found.append(BadCommand(" ".join(arguments), arguments))
    for name, spoil in RECIPE_FILES.items():
        found.append(BadCommand(f"recipe: {name}", RECIPE, spoil))
    found += [*server_cases(), *setting_cases(), *row_cases()]
    return found
