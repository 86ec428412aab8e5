"""Accuracy of the demo's student after each method of distillation, and that of its teacher.

    python -m bench.teach --work DIR [--seed 0] [--only FORM]... [--quick] [--json]

The student is the demo's cold start, and the teacher is the result of the demo's RL. Results in DIR
are not measured again. Seconds are processor seconds of one thread, for the student's training and
its evaluations.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.host.files import read_rows
from assay.recipes.demo import PRESENTATION, PROBLEMS, demo
from assay.session.results import read_result
from assay.training import api

WRITTEN, RIGHT = "written.jsonl", "right.jsonl"
ROWS = f"{PROBLEMS}&split=train&size=20000"


def on_traces(stage: str, traces: str, epochs: float, **more: Any) -> dict[str, Any]:
    """Return the settings of a stage that trains on the teacher's completions."""
    given = {"traces": [traces], "epochs": epochs, "tokens_per_step": 450}
    rate = {"learning_rate": 1e-3, "schedule": "linear"}
    return {stage: given | more, "optimizer": rate}


def on_policy(**settings: Any) -> dict[str, Any]:
    """Return the settings of a stage in which the student samples and the teacher scores."""
    steps = {"steps": 60, "num_prompts": 32, "group_size": 2}
    return {
        "data": {"train": [ROWS]},
        "distill": steps | settings,
        "optimizer": {"learning_rate": 1e-3, "schedule": "linear"},
    }


def as_policy_gradient(verifier: str) -> dict[str, Any]:
    """Return the settings of an [rl] stage whose reward comes from the teacher."""
    return {
        "data": {"train": [ROWS], "verifier": verifier},
        "rl": {"steps": 80, "num_prompts": 16, "group_size": 8},
        "algorithm": {"name": "on_policy_distillation"},
        "optimizer": {"learning_rate": 4e-4, "warmup_steps": 10, "schedule": "linear"},
    }


FORMS: Mapping[str, Mapping[str, Any]] = {
    "traces, all": on_traces("sft", WRITTEN, 2.0),
    "traces, verified": on_traces("sft", RIGHT, 4.0),
    "forward_kl": on_traces("distill", WRITTEN, 2.0, divergence="forward_kl"),
    "forward_kl, verified traces": on_traces("distill", RIGHT, 4.0, divergence="forward_kl"),
    "forward_kl, temperature 2": on_traces("distill", WRITTEN, 2.0, temperature=2.0),
    "forward_kl, skew 0.1": on_traces("distill", WRITTEN, 2.0, skew=0.1),
    "forward_kl, half cross-entropy": on_traces("distill", WRITTEN, 2.0, cross_entropy=0.5),
    "forward_kl, 8 tokens kept": on_traces("distill", WRITTEN, 2.0, keep="kept", keep_top=8),
    "reverse_kl": on_traces("distill", WRITTEN, 2.0, divergence="reverse_kl"),
    "jsd": on_traces("distill", WRITTEN, 2.0, divergence="jsd"),
    "on policy, reverse_kl": on_policy(divergence="reverse_kl"),
    "on policy, forward_kl": on_policy(divergence="forward_kl"),
    "on policy, jsd": on_policy(divergence="jsd"),
    "policy gradient, teacher alone": as_policy_gradient("constant"),
    "policy gradient, beside the verifier": as_policy_gradient("math*1.0 + think_format*0.1"),
}


def make_teacher(work: Path, seed: int, quick: bool) -> tuple[Path, Path]:
    """Return the demo's cold start and its RL run. Write completions of the latter."""
    top = work / "demo"
    if not (work / RIGHT).is_file():
        small = ["cold_start.sft.epochs=0.01", "reinforce.rl.steps=2"] if quick else []
        run = Path(demo(top, seed=seed, quiet=True, overrides=small).run)
        (work / "teacher").write_text(str(run), encoding="utf-8")
        size = 12 if quick else 1500
        source = f"{PROBLEMS}&split=train&size={size}&seed={seed + 1}"
        asked = {"num_samples": 2, "temperature": 1.0, "seed": seed}
        api.evaluate(str(run), [source], out=work / WRITTEN, **asked)
        rows = list(read_rows(work / WRITTEN))
        right = [row for row in rows if row["status"] == "passed"] or rows[:1] * quick
        unique = {row["completion"]: row for row in right}.values()
        text = "".join(json.dumps(row) + "\n" for row in unique)
        (work / RIGHT).write_text(text, encoding="utf-8")
    run = Path((work / "teacher").read_text(encoding="utf-8"))
    return run.parent / "cold_start", run


def teach(work: Path, form: str, student: Path, teacher: Path, quick: bool) -> dict[str, float]:
    """Train the student with one method. Return its accuracies and seconds, which the folder
    keeps."""
    folder = work / form.replace(", ", "-").replace(" ", "_")
    kept = folder / "found.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    given = FORMS[form]
    size = 8 if quick else 200
    tree: dict[str, Any] = {
        "run": {"name": "student", "directory": str(folder), "seed": 0, "threads": 1},
        "model": {"path": f"{student}@last"},
        "sampling": {"max_tokens": 48},
        "evaluation": {"temperatures": [0.0, 1.0]},
        **given,
    }
    heldout = {"heldout": [f"{PROBLEMS}&split=heldout&size={size}"], "near_duplicates": "ignore"}
    judged = {"verifier": "math*1.0 + think_format*0.1"}
    tree["data"] = {**PRESENTATION, **heldout, **judged, **given.get("data", {})}
    stage = next(name for name in ("sft", "distill", "rl") if name in tree)
    tree[stage] = dict(tree[stage])
    if "traces" in tree[stage]:
        tree[stage]["traces"] = [str(work / one) for one in tree[stage]["traces"]]
        tree[stage]["epochs"] = 0.1 if quick else tree[stage]["epochs"]
    elif quick:
        tree[stage]["steps"] = 2
    if "keep" in tree[stage]:
        tree[stage]["keep"] = str(folder / tree[stage]["keep"])
    if stage != "sft":
        tree["teacher"] = {"path": f"{teacher}@last"}
    if stage == "rl":  # a reward of a constant says nothing about right and wrong
        tree["guard"] = {"options": {"reward_against_correctness": {"action": "note"}}}
    started = time.process_time()
    run = api.train(tree, quiet=True).run
    found = {"seconds": time.process_time() - started}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):  # by one verifier in all forms
        asked = {"temperature": temperature, **judged, "quiet": True}
        found[name] = api.evaluate(run, heldout["heldout"], **asked).pass_at_1
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=FORMS)
    parser.add_argument("--quick", action="store_true", help="a step or two of each form")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    student, teacher = make_teacher(given.work.resolve(), given.seed, given.quick)
    result = read_result(teacher)
    most = {"greedy": result.accuracy("after", 0.0), "sampled": result.accuracy("after", 1.0)}
    asked = given.only or list(FORMS)
    found = {
        form: teach(given.work.resolve(), form, student, teacher, given.quick) for form in asked
    }
    if given.json:
        print(json.dumps({"teacher": most, "forms": found}, indent=1))
        return
    print("| form | greedy | of the teacher's | temperature 1 | processor, s |")
    print(
        f"|---|---:|---:|---:|---:|\n| teacher | {most['greedy']:.1%} | | {most['sampled']:.1%} | |"
    )
    for form, row in found.items():
        share = row["greedy"] / most["greedy"] if most["greedy"] else float("nan")
        cells = f"{row['greedy']:.1%} | {share:.0%} | {row['sampled']:.1%} | {row['seconds']:.0f}"
        print(f"| {form} | {cells} |")


if __name__ == "__main__":
    main()
