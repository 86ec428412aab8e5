"""Search at test time: seven methods with one learned process model, at equal numbers of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from assay.config.toml_text import merged
from assay.evaluation.test_time.methods import METHODS
from assay.evaluation.test_time.search import search
from assay.host.files import read_rows
from assay.init.tiny_model import make_model
from assay.recipes.demo import cold_start
from assay.training import api
from assay.types import Completion, Problem, ThinkFormat
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, once
from studies.chain_steps import judge_steps
from studies.claims import Claim, Of, exceeds
from studies.pools import write_rows
from studies.world import trained

SHAPE = "num_terms=5&max_number=4"
PROBLEMS = f"assay.data.tasks:chain_sums?{SHAPE}"
NUM_TRACES = 6000
TRACES = f"assay.data.tasks:imperfect_traces?{SHAPE}&corrupted=0.05&guessed=0.1&bare=1"
LONGEST = 56  # tokens of a completion
LEAST, MIDDLE, MOST = BUDGETS = (112, 224, 448)
NUM_LABELLED = {"learned": 2400, "checked": 240}
NUM_SEARCHED = 64
BASE, VOTES = "one_sample", "self_consistency"
GUIDED = [method for method in METHODS if method != VOTES]
SAMPLING = ["run.threads=1", "engine.num_slots=192", f"sampling.max_tokens={LONGEST}"]


def policy(task: Task) -> str:
    """Return the checkpoint of a seed's cold start on the longer sums of this study."""
    folder = task.shared / f"search-cold-{task.seed}"
    size = 60 if task.quick else NUM_TRACES
    tree = merged(
        cold_start(folder, folder / "model", task.seed),
        {
            "run": {"threads": 1},
            "sft": {"traces": [f"{TRACES}&size={size}&seed={task.seed}"]},
        },
    )

    def make() -> Mapping[str, Any]:
        make_model(folder / "model", task.seed)
        return {"checkpoint": trained(tree).checkpoint}

    return once(folder, {"sft": tree["sft"], "optimizer": tree["optimizer"]}, make)["checkpoint"]


def process_model(task: Task) -> Mapping[str, Any]:
    """Return the process model of a seed and its AUC. The model is the cold start with a head
    for steps.

    The model learns from one completion of the cold start per problem whether each step is right.
    The AUC is measured on the steps of other problems.
    """
    checkpoint, folder = policy(task), task.shared / f"search-model-{task.seed}"
    counts = {"learned": 24, "checked": 24} if task.quick else NUM_LABELLED
    source = f"{PROBLEMS}&split=train&size={sum(counts.values())}&seed={1000 + task.seed}"
    tree = _process_configuration(task, folder, checkpoint)
    key = {"source": source, "settings": tree["reward_model"], "optimizer": tree["optimizer"]}

    def make() -> Mapping[str, Any]:
        out = folder / "completions.jsonl"
        api.evaluate(
            checkpoint,
            [source],
            num_samples=1,
            temperature=1.0,
            verifier="math",
            seed=task.seed,
            out=out,
            overrides=SAMPLING,
        )
        rows = iter([labelled(row) for row in read_rows(out)])
        for name, count in counts.items():
            write_rows(folder / f"{name}.jsonl", [*islice(rows, count)])
        result = trained(tree)
        evaluations = list(read_rows(Path(result.run) / "evaluations.jsonl"))
        return {"model": result.checkpoint, "auc": evaluations[-1].get("eval/auroc")}

    return once(folder, key, make)


def labelled(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sampled completion with a label for each of its steps, from `chain_steps`."""
    problem = Problem(row["id"], row["prompt"], {"answer": row["answer"]})
    completion = Completion.from_text(row["completion"], think=ThinkFormat("free"))
    labels = [step.score for step in judge_steps(problem, completion).step_scores]
    return {"prompt": row["prompt"], "completion": row["completion"], "labels": labels}


def _process_configuration(task: Task, folder: Path, checkpoint: str) -> dict[str, Any]:
    """Return the configuration that trains the process model on the labelled rows of a folder."""
    return {
        "run": {"name": "process", "directory": str(folder), "seed": task.seed, "threads": 1},
        "model": {"path": checkpoint},
        "data": {"on_bad_row": "skip"},  # steps that are not written as steps
        "reward_model": {
            "kind": "process",
            "rows": [str(folder / "learned.jsonl")],
            "heldout": [str(folder / "checked.jsonl")],
            "epochs": 1.0,
            "rows_per_step": 32,
            "split": ";",
            "format": "plain",
            "plain_template": "{prompt}{completion}",
        },
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 20, "schedule": "linear"},
        "checkpoint": {"every": 1_000_000, "keep_last": 1, "keep_best": False},
    }


def found_by_all(task: Task) -> Mapping[str, Any]:
    """Return the rows of all methods and budgets with a seed's models. The search runs once."""
    model, checkpoint = process_model(task)["model"], policy(task)
    size = 6 if task.quick else NUM_SEARCHED
    source = f"{PROBLEMS}&split=heldout&size={size}&seed={2000 + task.seed}"
    reduce = task.settings["reduce"]
    key = {"source": source, "budgets": BUDGETS, "model": model, "methods": [*METHODS]}

    def make() -> Mapping[str, Any]:
        found = search(
            checkpoint,
            [source],
            list(METHODS),
            budgets=BUDGETS,
            scorer=model,
            reduce=reduce,
            verifier="math",
            seed=task.seed,
            overrides=SAMPLING,
            quiet=True,
        )
        return found.as_dict()

    return once(task.shared / f"search-{reduce}-{task.seed}", key, make)


def run_arm(task: Task) -> Outcome:
    """Return the curves of one method, from the search that all arms share."""
    rows: list[Mapping[str, Any]] = found_by_all(task)["rows"]
    method = task.settings["method"]
    accuracy = {(row["method"], row["budget"]): row["accuracy"] for row in rows}
    own = {row["budget"]: row for row in rows if row["method"] == method}
    values: dict[str, float] = {}
    curves: dict[str, list[tuple[float, float]]] = {"accuracy": [], "over_votes": [], "score": []}
    for budget in BUDGETS:
        row = own.get(budget) or own[None]  # one sample costs the same at every budget
        values[f"accuracy_{budget}"] = row["accuracy"]
        values[f"over_votes_{budget}"] = row["accuracy"] - accuracy[VOTES, budget]
        values[f"tokens_{budget}"] = row["tokens"]
        curves["accuracy"].append((budget, row["accuracy"]))
        curves["over_votes"].append((budget, values[f"over_votes_{budget}"]))
        if method in GUIDED:
            values[f"score_{budget}"] = row["score"]
            curves["score"].append((budget, row["score"]))
    auc = process_model(task)["auc"]
    if method == BASE and auc is not None:  # a quick run's cold start gets nothing right
        values["auc"] = auc
    return Outcome(values, {name: points for name, points in curves.items() if points})


def _arm(method: str, says: str) -> Arm:
    return Arm(method, says, {"method": method})


def _beats(method: str, other: str, budget: int, margin: float) -> Claim:
    """Claim that a method is right more often than another at the same budget."""
    value = f"accuracy_{budget}"
    says = f"*{method}* beats *{other}* at a budget of {budget} tokens per problem."
    return exceeds(says, Of(method, value), Of(other, value), margin)


STUDY = Study(
    name="search",
    title="Search at test time with a learned process model",
    source=(
        "Snell et al. 2024, Scaling LLM test-time compute optimally (arXiv 2408.03314), sections"
        " 5.1 and 5.2: with a process model, beam search beats best of n at small budgets. At"
        " large budgets, beam search over-optimizes the process model and falls behind. Wang et"
        " al. 2023, Self-consistency (arXiv 2203.11171): majority votes beat one sample. Gao et"
        " al. 2022, Scaling laws for reward model overoptimization (arXiv 2210.10760): with more"
        " samples, selection by a learned score becomes worse in the end."
    ),
    setup=(
        "Each seed has a new 0.7M-parameter byte-level Llama, the model of `assay demo`. The"
        " model solves sums of five numbers up to 4, such as `3+1-2+4-0=`, step by step. A"
        f" supervised cold start trains it on {NUM_TRACES} written solutions: 10 % of the"
        " solutions are bare guesses, and in the other solutions 5 % of the steps are wrong. The"
        " process model is the same network with a head that scores steps. The process model is"
        f" trained on {NUM_LABELLED['learned']} completions of the cold start, one per problem; a"
        " rule labels each step as correct or wrong. All methods then search for the answers of"
        f" {NUM_SEARCHED} problems that neither the policy nor the process model has seen, with"
        " the same budgets of generated tokens, at temperature 1. A completion has at most"
        f" {LONGEST} tokens. A single sample cannot spend a larger budget, so plain sampling has"
        " two arms: *one_sample*, a mean over many samples, and *self_consistency*, which spends"
        " the same tokens as the other methods and needs no scorer."
    ),
    run=run_arm,
    common={"reduce": "last"},
    together=True,
    arms=(
        _arm(VOTES, "whole samples; the most frequent answer"),
        _arm("best_of_n", "whole samples; the highest score"),
        _arm("weighted_vote", "whole samples; the answer with the largest sum of scores"),
        _arm("beam", "step by step, from the prefixes with the best scores"),
        _arm("dvts", "beam search in separate trees"),
        _arm("lookahead", "beam search; a prefix is scored after one more greedy step"),
        _arm("mcts", "one tree, by PUCT"),
        _arm("oracle", "whole samples; correct if any of them is (an upper bound)"),
        _arm(BASE, "one sample, no search"),
        _arm("greedy", "the greedy completion, no search"),
    ),
    claims=(
        _beats(VOTES, BASE, MOST, margin=0.05),
        *(_beats(method, BASE, LEAST, margin=0.05) for method in GUIDED),
        *(_beats(method, VOTES, LEAST, margin=0.02) for method in GUIDED),
        *(_beats(method, VOTES, MOST, margin=0.02) for method in GUIDED),
        _beats("beam", "best_of_n", LEAST, margin=0.01),
        _beats("beam", "best_of_n", MOST, margin=0.01),
        _beats("mcts", "beam", MOST, margin=0.01),
        _beats("weighted_vote", "greedy", MOST, margin=0.02),
        exceeds(
            (f"Best of n selects higher scores with a larger budget: {MOST} tokens over {LEAST}."),
            Of("best_of_n", f"score_{MOST}"),
            Of("best_of_n", f"score_{LEAST}"),
            margin=0.01,
        ),
        exceeds(
            (
                "Best of n over-optimizes the process model: with the larger budget, best of n is"
                " correct less often."
            ),
            Of("best_of_n", f"accuracy_{LEAST}"),
            Of("best_of_n", f"accuracy_{MOST}"),
            margin=0.01,
        ),
    ),
    panels=(
        Panel("accuracy", "accuracy of the answers", "generated tokens", window=1),
        Panel("over_votes", "accuracy over plain votes", "generated tokens", window=1),
        Panel("score", "the process model's score", "generated tokens", window=1),
    ),
    columns={
        **{f"accuracy_{budget}": f"accuracy, {budget} tokens" for budget in BUDGETS},
        **{f"over_votes_{budget}": f"over plain votes, {budget} tokens" for budget in BUDGETS},
        **{f"score_{budget}": f"score, {budget} tokens" for budget in (LEAST, MOST)},
        f"tokens_{MOST}": f"tokens spent of {MOST}",
        "auc": "AUC of the process model",
    },
    reading=(
        "- With two completions, selection by the highest score is correct a little more often"
        " than one sample. Majority votes over two completions gain little.\n"
        "- With five completions, selection by score is no better than one sample, and with ten"
        " completions it is far worse, for whole completions and for trees. The score of the"
        " selected completion keeps rising with the budget: the search finds wrong completions"
        " that the process model scores highly.\n"
        "- Majority votes keep improving with the budget, and weighting the votes by score adds"
        " nothing.\n"
        "- The greedy completion, of 42 tokens, is correct more often than any search method at"
        " 448 tokens. Majority votes only recover the accuracy that sampling at temperature 1"
        " loses.\n"
        "- The AUC of the process model is measured over the steps of many problems, but a search"
        " needs a model that separates the completions of one problem."
    ),
    limits=(
        "A completion has four steps and an answer, so trees are shallow, and a wrong step can"
        " seldom be corrected. A rule labels the steps, so the labels have no errors. The AUC is"
        f" measured over the steps of {NUM_LABELLED['checked']} completions that the process model"
        " was not trained on. All arms of a seed share the same plain samples. The study has one"
        " search width, one PUCT constant and one way to reduce step scores to a score. The"
        " budgets of the comparisons were chosen after a pilot with a ninth seed, when the cold"
        " starts of the eight seeds had begun and none had been searched."
    ),
)


if __name__ == "__main__":
    main(STUDY)
