"""RL with a tool: a model that cannot multiply, with and without a calculator."""

from pathlib import Path
from typing import Any

from assay.config.toml_text import merged
from assay.init.tiny_model import make_model
from assay.recipes.file import find_recipe, read_recipe
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, once
from studies.claims import Of, exceeds
from studies.world import read_run, trained

NUM_HELDOUT = 500


def call_and_learn(task: Task) -> Outcome:
    """Run the recipe's cold start, and the RL stage that the arm names."""
    folder = task.shared / f"tool-use-cold-{task.seed}"
    tree = _stage(task, "cold", folder, str(folder / "model"))

    def make() -> dict[str, Any]:
        make_model(folder / "model", task.seed)
        return {"checkpoint": trained(tree).checkpoint}

    cold = once(folder, {"sft": tree["sft"], "optimizer": tree["optimizer"]}, make)
    stage = _stage(task, task.settings["stage"], task.folder, cold["checkpoint"])
    return read_run(Path(trained(stage).run))


def _stage(task: Task, name: str, folder: Path, model: str) -> dict[str, Any]:
    """Return a stage of the recipe as a separate run. The seed applies to all random draws."""
    tree = dict(read_recipe(find_recipe("tool_use")).stages[name].tree)
    size = 8 if task.quick else NUM_HELDOUT
    heldout = f"assay.data.tool_tasks:products?digits=3&split=heldout&size={size}&seed={task.seed}"
    changes: dict[str, Any] = {
        "run": {"name": name, "directory": str(folder), "seed": task.seed, "threads": 1},
        "model": {"path": model},
        "data": {"heldout": [heldout]},
        "evaluation": {"temperatures": [1.0]},
    }
    if name == "cold":
        traces = [f"{source}&seed={task.seed}" for source in tree["sft"]["traces"]]
        changes["sft"] = {"traces": traces, "epochs": 0.01 if task.quick else 1.0}
        changes["evaluation"] = {"max_problems": 1}
    else:
        changes["data"]["train"] = [f"{one}&seed={task.seed}" for one in tree["data"]["train"]]
        changes["rl"] = {"steps": 2} if task.quick else {}
    return merged(tree, changes)


STUDY = Study(
    name="tool_use",
    title="Reinforcement learning with and without a calculator",
    source=(
        "Li et al. 2025, ToRL (arXiv 2503.23383): reinforcement learning with a code interpreter"
        " ends far above reinforcement learning without one, and models call the interpreter"
        " increasingly often."
    ),
    setup=(
        "Each seed has a new 0.7M-parameter byte-level Llama, the model of `assay demo`. The model"
        " computes products of two three-digit numbers, such as `482*937=`. The stages are those"
        " of the recipe [`tool_use`](../recipes/tool_use.md). A supervised cold start trains the"
        " model on 24 000 traces: 30 % of the traces call a calculator, a fifth of these calls"
        " with a wrong digit, and the other traces guess. After the cold start, both arms train on"
        " the same problems in the same order: 40 steps of 16 problems x 8 completions. Only the"
        " correct answer is rewarded. Held-out accuracy is measured on 500 problems, with one"
        " completion each at temperature 1."
    ),
    run=call_and_learn,
    arms=(
        Arm("tool", "the calculator answers calls", {"stage": "with_tool"}),
        Arm("none", "calls get no answer", {"stage": "without_tool"}),
    ),
    claims=(
        exceeds(
            "With the tool, accuracy ends higher than without the tool.",
            Of("tool", "accuracy"),
            Of("none", "accuracy"),
            margin=0.2,
        ),
        exceeds(
            ("The policy learns to call the tool: after RL, accuracy is higher than before RL."),
            Of("tool", "accuracy"),
            Of("tool", "accuracy_before"),
            margin=0.2,
        ),
    ),
    panels=(
        Panel("passed", "training accuracy", window=5),
        Panel("length", "tokens a completion", window=5),
        Panel("entropy", "entropy, nats a token", window=5),
    ),
    columns={
        "accuracy_before": "after the cold start",
        "accuracy": "after RL",
        "tokens": "tokens a completion",
    },
    reading=(
        "- Without the tool, this model never computes a correct product, so no completion is"
        " rewarded.\n"
        "- With the calculator, one product in five is correct at temperature 1 after the cold"
        " start, and about three in four after RL, in 24 training runs.\n"
        "- The policy learns to call the tool and to copy both numbers without an error.\n"
        "- With greedy decoding, the recipe's cold start is already as accurate as the policy"
        " after RL. RL therefore improves sampled answers, not greedy answers."
    ),
    limits=(
        "The tool solves the whole problem: the policy learns to call the tool and to copy numbers"
        " without an error. No product is correct by chance, so without the tool nothing is ever"
        " rewarded."
    ),
)

if __name__ == "__main__":
    main(STUDY)
