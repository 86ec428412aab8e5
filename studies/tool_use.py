"""A tool in reinforcement learning: a model that cannot multiply, with a calculator and without."""

from pathlib import Path
from typing import Any

from assay.init.tiny_model import make_model
from assay.recipes.file import find_recipe, read_recipe
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, merge, once
from studies.claims import Of, exceeds
from studies.world import read_run, trained

NUM_HELDOUT = 500


def call_and_learn(task: Task) -> Outcome:
    """Run the recipe's cold start, and that of its RL stages which the arm names."""
    folder = task.shared / f"tool-use-cold-{task.seed}"
    tree = _stage(task, "cold", folder, str(folder / "model"))

    def make() -> dict[str, Any]:
        make_model(folder / "model", task.seed)
        return {"checkpoint": trained(tree).checkpoint}

    cold = once(folder, {"sft": tree["sft"], "optimizer": tree["optimizer"]}, make)
    stage = _stage(task, task.settings["stage"], task.folder, cold["checkpoint"])
    return read_run(Path(trained(stage).run))


def _stage(task: Task, name: str, folder: Path, model: str) -> dict[str, Any]:
    """Return a stage of the recipe as a run of its own, with the seed in all that is drawn."""
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
    return merge(tree, changes)


STUDY = Study(
    name="tool_use",
    title="Reinforcement learning with a calculator, and without",
    source=(
        "Li et al. 2025, ToRL (arXiv 2503.23383): reinforcement learning with an interpreter ends"
        " far above the same without one, and models call it more and more often."
    ),
    setup=(
        "a 0.7M-parameter Llama over bytes (that of `assay demo`), new for each seed, and products"
        " of two numbers of three digits, such as `482*937=`. The stages are those of the recipe"
        " [`tool_use`](../recipes/tool_use.md). First the model learns from 24 000 traces (a"
        " supervised cold start): 30 % of them call a calculator, of which every fifth with a wrong"
        " digit, and the others guess. Then both arms reinforce on the same problems in the same"
        " order: 40 steps of 16 problems x 8 completions, the right answer as the only reward."
        f" Held-out accuracy is measured on {NUM_HELDOUT} problems, with one completion each at"
        " temperature 1"
    ),
    run=call_and_learn,
    arms=(
        Arm("tool", "calls are answered", {"stage": "with_tool"}),
        Arm("none", "nobody answers a call", {"stage": "without_tool"}),
    ),
    claims=(
        exceeds(
            "With a tool it ends higher.",
            Of("tool", "accuracy"),
            Of("none", "accuracy"),
            margin=0.2,
        ),
        exceeds(
            "It learns to call it: it ends higher than it began.",
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
        "In short: without a tool this model never gets a product right, so there is nothing to"
        " reinforce. With the calculator the cold start is right in one product of five at"
        " temperature 1, and RL makes it about three of four, in 24 runs. What it learns is to"
        " call at all, and to copy both numbers without a slip. Greedily the recipe's cold start"
        " is right as often before RL as after it, so this is a gain of sampled answers."
    ),
    limits=(
        "The tool does the whole of the problem: what is learned is to call it, and to copy without"
        " a slip. No product is right by chance, so that without a tool nothing is ever rewarded."
    ),
)

if __name__ == "__main__":
    main(STUDY)
