"""Thinking budgets: a policy that is trained with a budget, and a policy that is only truncated."""

from collections.abc import Sequence
from pathlib import Path

from assay.data.tasks import chain_sums
from assay.evaluation.frontier import frontier
from studies.campaign import Arm, Outcome, Panel, Study, Task, main
from studies.claims import Of, exceeds, not_below
from studies.pools import write_rows
from studies.world import cold_started, read_run, rl_config, trained

NUM_TERMS, OPERATORS = 3, "+"
TASK = f"num_terms={NUM_TERMS}&operators={OPERATORS}"
SUMS = f"assay.data.tasks:chain_sums?{TASK}"
BUDGETS = (22, 30, 38)
TIGHT = 30
MAX_TOKENS = 56
NUM_TRAINED = 20_000
NUM_TRACES = 6_500
NUM_MEASURED = 400
TRACES = (
    f"assay.data.tasks:imperfect_traces?{TASK}&corrupted=0.1&guessed=0.25&bare=1"
    "&links=;| so | and then | and after that "
)


def learn_and_measure(task: Task) -> Outcome:
    """Train by RL with the budgets of the arm, then measure at every budget and without a
    budget."""
    seed, quick = task.seed, task.quick
    heldout = [f"{SUMS}&split=heldout&size={8 if quick else NUM_MEASURED}&seed={seed}"]
    traces = [f"{TRACES}&size={60 if quick else NUM_TRACES}&seed={seed}"]
    unmeasured = {"data": {"heldout": heldout}, "evaluation": {"max_problems": 1}}
    cold = cold_started(task, traces, {"sft": {"tokens_per_step": 500}, **unmeasured})
    changes = {
        "data": {"train": [_trained_on(task, task.settings["budgets"])], "heldout": heldout},
        "sampling": {
            "max_tokens": MAX_TOKENS,
            "think_stop_text": "{close}",
            "efforts": {f"at_{budget}": budget for budget in BUDGETS},
        },
        "optimizer": {"learning_rate": 2e-4},
        "evaluation": {"max_problems": 1},
    }
    run = trained(rl_config(task, cold, changes)).run
    found = read_run(Path(run))
    frontier_of = frontier(
        run,
        heldout,
        budgets=[*BUDGETS, "none"],
        temperature=1.0,
        seed=seed,
        quiet=True,
    )
    values: dict[str, float] = {}
    for point in frontier_of.points:
        assert point.accuracy is not None, f"{run}: nothing was judged at {point.name}"
        values[f"accuracy_{point.name}"] = point.accuracy
        values[f"tokens_{point.name}"] = point.tokens
        values[f"stopped_{point.name}"] = point.injected
    names = {"accuracy": [(one.budget or MAX_TOKENS, one.accuracy) for one in frontier_of.points]}
    kept = {name: found.curves[name] for name in ("length", "passed") if name in found.curves}
    return Outcome(values, {**kept, **names})


def _trained_on(task: Task, budgets: Sequence[int]) -> str:
    """Write the problems of a seed with budgets in turn (0: none). Return the path as a source."""
    sums = chain_sums(
        60 if task.quick else NUM_TRAINED, task.seed, num_terms=NUM_TERMS, operators=OPERATORS
    )
    rows = [
        {"id": one.id, "prompt": one.prompt, "answer": one.spec["answer"], **_asked(budget)}
        for n, one in enumerate(sums)
        for budget in [budgets[n % len(budgets)]]
    ]
    return write_rows(task.folder / "problems.jsonl", rows)


def _asked(budget: int) -> dict[str, str]:
    return {"effort": f"at_{budget}"} if budget else {}


STUDY = Study(
    name="thinking_budget",
    title="Thinking budgets in training, or only in evaluation",
    source=(
        "A budget ends the think block and asks for the answer. Qwen3 (arXiv 2505.09388, section"
        " 4.3) and s1 (Muennighoff et al. 2025, arXiv 2501.19393) apply budgets to models that"
        " were not trained with them. L1 (Aggarwal and Welleck 2025, arXiv 2503.04697): a policy"
        " that learned lengths by reinforcement is more accurate at equal lengths than models with"
        " budgets that were not trained with budgets. Elastic Reasoning (Xu et al. 2025, arXiv"
        " 2505.05315): a policy trained with budgets is more accurate under tight budgets, and"
        " reasons shorter without a budget. AnytimeReasoner (Qi et al. 2025, arXiv 2505.13438)"
        " samples the budgets of training."
    ),
    setup=(
        "Each seed has a new 0.7M-parameter byte-level Llama, the model of `assay demo`. The"
        " model solves sums of three numbers, such as `3+5+2=`, in two steps between its think"
        f" tags. A supervised cold start trains it on {NUM_TRACES:,} written solutions: 25 % of"
        " the solutions are bare guesses, and in the other solutions 10 % of the steps are wrong."
        " In a solution, the two steps are linked by `;`, ` so `, ` and then ` or ` and after"
        " that `, a quarter each. A think block therefore has 26 to 44 tokens, tags included, and"
        " longer think blocks contain no more information. After the cold start, both arms train"
        " with GRPO on the same problems in the same order: steps of 16 problems x 8 completions"
        f" of at most {MAX_TOKENS} tokens at temperature 1, one optimizer step each, AdamW at a"
        " learning rate of 2e-4. A correct answer earns a reward of 1, and the right format 0.1."
        " When a budget ends a think block, `</think>` is injected. A think tag is eight tokens;"
        " if the policy has begun a tag when the budget ends, a whole tag follows the partial"
        f" tag. Both policies are measured at every budget, on the same {NUM_MEASURED} draws from"
        " the 212 sums that neither the cold start nor RL saw, with one completion each at"
        " temperature 1 and the same random numbers."
    ),
    run=learn_and_measure,
    common={"steps": 30},
    together=True,
    arms=(
        Arm("cut", "trained without a budget", {"budgets": [0]}),
        Arm(
            "trained",
            (
                f"trained with budgets of {', '.join(map(str, BUDGETS))} tokens and without one,"
                " for a quarter of the problems each; the prompt does not state the budget"
            ),
            {"budgets": [*BUDGETS, 0]},
        ),
    ),
    claims=(
        exceeds(
            (
                f"Under a tight budget of {TIGHT} tokens, the policy trained with budgets is more"
                " accurate."
            ),
            Of("trained", f"accuracy_{TIGHT}"),
            Of("cut", f"accuracy_{TIGHT}"),
            margin=0.03,
        ),
        not_below(
            ("Without a budget, the policy trained with budgets loses at most three points."),
            Of("trained", "accuracy_none"),
            Of("cut", "accuracy_none"),
            margin=0.03,
        ),
        exceeds(
            ("The policy trained with budgets reasons shorter, even without a budget."),
            Of("cut", "tokens_none"),
            Of("trained", "tokens_none"),
            margin=1.1,
            as_ratio=True,
        ),
    ),
    panels=(
        Panel("accuracy", "held-out accuracy", f"budget in tokens ({MAX_TOKENS}: none)", window=1),
        Panel("length", "tokens of training completions", window=5),
        Panel("passed", "training accuracy, under its budgets", window=5),
    ),
    columns={
        **{f"accuracy_{one}": f"accuracy under {one} tokens" for one in BUDGETS},
        "accuracy_none": "accuracy without a budget",
        f"tokens_{TIGHT}": f"tokens under {TIGHT}",
        "tokens_none": "tokens without a budget",
        f"stopped_{TIGHT}": f"stopped under {TIGHT}",
    },
    limits=(
        "Think blocks differ in length only by words without information, so a shorter think block"
        " loses no accuracy. If every token of a think block were needed, a budget could only"
        " reduce accuracy. The prompt does not state the budget, so the policy learns one behavior"
        " for all budgets. The study has one length of training. Token counts cover whole"
        " completions, including injected tokens."
    ),
    reading=(
        "All three claims of the study are inconclusive.\n"
        "\n"
        "- Under a budget of 30 tokens, the policy trained with budgets is three to five points"
        " more accurate. Only in the first run does the interval of this difference exclude 0.\n"
        "- Without a budget, the policy trained with budgets is six to nine points less"
        " accurate.\n"
        "- Without a budget, the completions of the policy trained without budgets are 1.10 and"
        " 1.09 times as long as those of the policy trained with budgets; the criterion asks for"
        " 1.1 times."
    ),
)

if __name__ == "__main__":
    main(STUDY)
