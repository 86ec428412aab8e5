"""Distillation from traces (verified or not), from distributions, and on policy; compared with
RL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.config.toml_text import merged
from assay.host.files import read_rows
from assay.init.tiny_model import make_model
from assay.recipes.file import find_recipe, read_recipe
from assay.training import api
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, once
from studies.claims import Of, exceeds
from studies.pools import passed, write_rows
from studies.world import trained

NUM_HELDOUT = 500
STUDENT_WIDTH = 64
NUM_WRITTEN, SAMPLES = 1500, 2
RIGHT, WRITTEN = "right.jsonl", "written.jsonl"


def learn(task: Task) -> Outcome:
    """Train the teacher and the student of a seed once, then train the student by the arm's
    method."""
    teacher = _checkpoint(task, ("base", "zero"), hidden_size=128, seed=task.seed)
    student = _checkpoint(task, ("student",), hidden_size=STUDENT_WIDTH, seed=1000 + task.seed)
    written = _written(task, teacher["checkpoint"])
    tree = _stage(task, task.settings["stage"], task.folder, student["checkpoint"])
    tree["optimizer"]["learning_rate"] = task.settings["learning_rate"]
    section = next(name for name in ("sft", "distill", "rl") if name in tree)
    if "traces" in tree[section]:
        tree[section]["traces"] = [str(written / task.settings["traces"])]
        tree[section]["epochs"] = 0.01 if task.quick else task.settings["epochs"]
    if "teacher" in tree:
        tree["teacher"] = {"path": teacher["checkpoint"]}
    wall, cpu = time.perf_counter(), time.process_time()
    result = trained(tree)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall)  # of a processor
    rows = list(read_rows(Path(result.run) / "metrics.jsonl"))
    values = {
        "accuracy": _accuracy(result),
        "accuracy_before": student["accuracy"],
        "teacher": teacher["accuracy"],
        "train_seconds": share * sum(row["time/step"] for row in rows),
        "tokens_trained": sum(row["tokens/trained"] for row in rows),
    }
    kinds = {"passed": "verdict/passed", "nll": "loss/nll", "divergence": "loss/divergence"}
    curves = {
        name: [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        for name, key in kinds.items()
    }
    return Outcome(values, {name: points for name, points in curves.items() if points})


def _checkpoint(
    task: Task, stages: Sequence[str], *, hidden_size: int, seed: int
) -> Mapping[str, Any]:
    """Return the checkpoint and the accuracy of a fresh model after stages of the recipe."""
    folder = task.shared / f"teachers-{stages[-1]}-{task.seed}"
    trees = [_stage(task, name, folder, "") for name in stages]

    def make() -> Mapping[str, Any]:
        make_model(folder / "fresh", seed, hidden_size=hidden_size)
        path, found = str(folder / "fresh"), 0.0
        for tree in trees:
            tree["model"] = {"path": path}
            result = trained(tree)
            path, found = str(result.checkpoint), _accuracy(result)
        return {"checkpoint": path, "accuracy": found}

    return once(folder, {"stages": trees}, make)


def _written(task: Task, teacher: str) -> Path:
    """Return the folder with the teacher's completions, and with those that are right."""
    folder = task.shared / f"teachers-written-{task.seed}"
    size = 12 if task.quick else NUM_WRITTEN
    source = f"assay.data.tasks:chain_sums?num_terms=4&split=train&size={size}&seed={task.seed}"

    def make() -> Mapping[str, Any]:
        api.evaluate(
            teacher,
            [source],
            num_samples=SAMPLES,
            temperature=1.0,
            seed=task.seed,
            out=folder / WRITTEN,
            overrides=["run.threads=1", "engine.num_slots=128"],
        )
        rows = list(read_rows(folder / WRITTEN))
        formed = [one for one in rows if passed(one) and one["components"]["think_format"] == 1.0]
        once_each = list({one["completion"]: one for one in formed}.values())
        write_rows(folder / RIGHT, once_each or rows[:1] * task.quick)
        return {"right": len(once_each)}

    once(folder, {"source": source, "samples": SAMPLES, "teacher": teacher}, make)
    return folder


def _stage(task: Task, name: str, folder: Path, model: str) -> dict[str, Any]:
    """Return a stage of the recipe as a separate run. The seed applies to all random draws."""
    tree = dict(read_recipe(find_recipe("r1_distill")).stages[name].tree)
    size = 8 if task.quick else NUM_HELDOUT
    heldout = f"assay.data.tasks:chain_sums?num_terms=4&split=heldout&size={size}&seed={task.seed}"
    changes: dict[str, Any] = {
        "run": {"name": name, "directory": str(folder), "seed": task.seed, "threads": 1},
        "model": {"path": model},
        "data": {"heldout": [heldout]},
        "evaluation": {"temperatures": [1.0]},
    }
    if "train" in tree["data"]:
        changes["data"]["train"] = [f"{one}&seed={task.seed}" for one in tree["data"]["train"]]
    if "sft" in tree:
        sources = [f"{one}&seed={task.seed}" for one in tree["sft"]["traces"]]
        changes["sft"] = {"traces": sources, **({"epochs": 0.01} if task.quick else {})}
    elif task.quick and "traces" not in tree.get("distill", {}):
        changes["rl" if "rl" in tree else "distill"] = {"steps": 2}
    return merged(tree, changes)


def _accuracy(result: Any) -> float:
    return result.accuracy("after", 1.0)


def _arm(name: str, says: str, stage: str, rate: float, traces: str = "") -> Arm:
    settings: dict[str, Any] = {"stage": stage, "learning_rate": rate}
    if traces:  # about as many tokens: half of what was written is right
        settings |= {"traces": traces, "epochs": 4.0 if traces == RIGHT else 2.0}
    return Arm(name, says, settings)


STUDY = Study(
    name="teachers",
    title="Learning from a teacher compared with reinforcement learning",
    source=(
        "DeepSeek-AI 2025, DeepSeek-R1 (arXiv 2501.12948), section 4.1: a small model that"
        " imitates a stronger one ends far above the same model after its own reinforcement"
        " learning; section 2.3.3: wrong traces are left out. Agarwal et al. 2024, GKD (arXiv"
        " 2306.13649), and the Qwen team 2025, Qwen3 (arXiv 2505.09388), section 4.5: a student"
        " learns more from a teacher on the student's own completions than on the teacher's."
        " Hinton et al. 2015 (arXiv 1503.02531): a student learns more from the teacher's"
        " distributions than from samples of the distributions."
    ),
    setup=(
        "The models are those of the recipe [`r1_distill`](../recipes/r1_distill.md), new for"
        " each seed: a teacher of 0.7M parameters after 80 steps of RL, and a student of 0.18M"
        " parameters that was trained on texts of the same kind. Teacher and student solve sums"
        f" of four numbers. The teacher writes {SAMPLES} completions for each of {NUM_WRITTEN}"
        " problems at temperature 1. Each arm starts from the same student and uses the recipe's"
        " settings. The learning rates were the best of two to four values on two other seeds:"
        " 2e-4 for RL, 2e-3 on policy, 1e-3 for all other arms. Held-out accuracy is measured on"
        f" {NUM_HELDOUT} problems, with one completion each at temperature 1."
    ),
    run=learn,
    arms=(
        _arm("rl", "RL, 80 steps of 16 problems x 8 completions", "rl", 2e-4),
        _arm("unverified", "all of the teacher's completions, two epochs", "any", 1e-3, WRITTEN),
        _arm("verified", "the teacher's correct completions, four epochs", "traces", 1e-3, RIGHT),
        _arm(
            "logits",
            "the teacher's distributions (forward KL) on its correct completions",
            "logits",
            1e-3,
            RIGHT,
        ),
        _arm(
            "off_policy",
            "the teacher's distributions on all of its completions",
            "logits",
            1e-3,
            WRITTEN,
        ),
        _arm(
            "on_policy",
            (
                "the teacher's distributions (reverse KL) on the student's own completions, 80"
                " steps of 32 x 2"
            ),
            "on_policy",
            2e-3,
        ),
    ),
    claims=(
        exceeds(
            ("A student that imitates verified traces ends above the same student after RL (R1)."),
            Of("verified", "accuracy"),
            Of("rl", "accuracy"),
            margin=0.03,
        ),
        exceeds(
            "Imitation takes less training time than RL.",
            Of("rl", "train_seconds"),
            Of("verified", "train_seconds"),
            margin=1.5,
            as_ratio=True,
        ),
        exceeds(
            "Verified traces teach more than all traces.",
            Of("verified", "accuracy"),
            Of("unverified", "accuracy"),
            margin=0.01,
        ),
        exceeds(
            "The teacher's distributions teach more than the same verified traces.",
            Of("logits", "accuracy"),
            Of("verified", "accuracy"),
            margin=0.01,
        ),
        exceeds(
            "The teacher's distributions teach more than unverified traces.",
            Of("off_policy", "accuracy"),
            Of("unverified", "accuracy"),
            margin=0.01,
        ),
        exceeds(
            ("The student learns more on its own completions than on the teacher's (GKD, Qwen3)."),
            Of("on_policy", "accuracy"),
            Of("off_policy", "accuracy"),
            margin=0.01,
        ),
        exceeds(
            "On-policy distillation ends above RL (Qwen3).",
            Of("on_policy", "accuracy"),
            Of("rl", "accuracy"),
            margin=0.03,
        ),
        exceeds(
            "On-policy distillation takes a tenth of the time of RL (Qwen3).",
            Of("rl", "train_seconds"),
            Of("on_policy", "train_seconds"),
            margin=10.0,
            as_ratio=True,
        ),
    ),
    panels=(
        Panel("accuracy", "held-out accuracy at the end", is_value=True),
        Panel("train_seconds", "the processor's seconds of training", is_value=True),
    ),
    columns={
        "teacher": "teacher",
        "accuracy_before": "student before",
        "accuracy": "student after",
        "tokens_trained": "tokens trained on",
        "train_seconds": "CPU seconds of training",
    },
    reading=(
        "- Of all data, the teacher's correct completions teach the student most. Trained on them,"
        " the student ends at 0.51 and 0.48 in the two runs, against 0.33 and 0.35 after RL, in"
        " less than a quarter of the time (without the teacher's own RL and the writing of its"
        " completions). At temperature 1, a student trained on correct completions even ends above"
        " its teacher (0.45 and 0.44), because the verifier has removed the teacher's mistakes.\n"
        "- The gain comes from verification. Trained on all of the teacher's completions, the"
        " student ends at 0.35 and 0.34, no higher than by RL.\n"
        "- The teacher's distributions teach three to four points more than unverified traces, and"
        " eight to eleven points less than verified traces. The distributions include the"
        " teacher's mistakes.\n"
        "- On its own completions the student learns two to three points more than on the"
        " teacher's. In one of the two runs, the interval of this difference includes 0.\n"
        "- On-policy distillation takes three fifths to three quarters of the time of RL, not a"
        " tenth. In this study RL samples few and short completions; Qwen3's runs were far longer."
    ),
    limits=(
        "The study has one pair of model sizes, one setting per arm and one family of problems. At"
        " temperature 1 half of the teacher's completions are wrong, and so are the teacher's"
        " distributions; the teachers in the papers are correct far more often. The seconds count"
        " the student's training, without the training and the sampling of the teacher."
    ),
)

if __name__ == "__main__":
    main(STUDY)
