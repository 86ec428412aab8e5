"""Thinking budgets: a policy that is trained under one, and a policy that is only cut."""

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
    """Reinforce under the arm's budgets, then measure at every budget and without one."""
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
        values[f"stopped_{point.name}"] = point.given
    names = {"accuracy": [(one.budget or MAX_TOKENS, one.accuracy) for one in frontier_of.points]}
    kept = {name: found.curves[name] for name in ("length", "passed") if name in found.curves}
    return Outcome(values, {**kept, **names})


def _trained_on(task: Task, budgets: Sequence[int]) -> str:
    """Write the seed's problems, each with the next of the budgets, 0 for none; returns their
    source."""
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
    title="A policy that was trained with thinking budgets, and one that is only cut",
    source=(
        "A budget ends a thought and asks for the answer: Qwen3 (arXiv 2505.09388, section 4.3) and"
        " s1 (Muennighoff et al. 2025, arXiv 2501.19393) cut models that were not trained for it."
        " L1 (Aggarwal and Welleck 2025, arXiv 2503.04697): a policy that learned lengths by"
        " reinforcement beats such cuts at equal lengths. Elastic Reasoning (Xu et al. 2025, arXiv"
        " 2505.05315): a policy that is cut in training too is more accurate under tight budgets,"
        " and thinks shorter where nothing cuts it. AnytimeReasoner (Qi et al. 2025, arXiv"
        " 2505.13438) draws the budgets of training."
    ),
    setup=(
        "a 0.7M-parameter Llama over bytes (that of `assay demo`), new for each seed. It solves"
        " sums of three numbers, such as `3+5+2=`, in two steps between its tags. First it learns"
        f" from {NUM_TRACES:,} written solutions (a supervised cold start). 25 % of them are bare"
        " guesses, and in the others 10 % of the steps are wrong. What links the two steps is"
        " `;`, ` so `, ` and then ` or ` and after that `, a quarter each. So a thought has 26 to"
        " 44 tokens, tags included, and the longer ones say nothing more. Then both arms get the"
        " same problems in the same order: steps of 16 problems x 8 completions of at most"
        f" {MAX_TOKENS} tokens at temperature 1, one optimizer step each, AdamW at a learning rate"
        " of 2e-4, GRPO; the right answer earns 1, and the form 0.1. A thought that its budget ends"
        " is given `</think>`. A tag is eight tokens here; one that is half written then is"
        " followed by a whole one. Both are measured at every budget, on the same"
        f" {NUM_MEASURED} draws from the 212 sums that neither stage saw, with one completion each"
        " at temperature 1 and the same random numbers"
    ),
    run=learn_and_measure,
    common={"steps": 30},
    together=True,
    arms=(
        Arm("cut", "reinforced without a budget", {"budgets": [0]}),
        Arm(
            "trained",
            f"reinforced with budgets of {', '.join(map(str, BUDGETS))} tokens and none, a quarter"
            " of the problems each; the prompt does not say which",
            {"budgets": [*BUDGETS, 0]},
        ),
    ),
    claims=(
        exceeds(
            f"Under a tight budget of {TIGHT} tokens the policy that was trained with budgets is"
            " more accurate.",
            Of("trained", f"accuracy_{TIGHT}"),
            Of("cut", f"accuracy_{TIGHT}"),
            margin=0.03,
        ),
        not_below(
            "Without a budget it loses at most three points.",
            Of("trained", "accuracy_none"),
            Of("cut", "accuracy_none"),
            margin=0.03,
        ),
        exceeds(
            "It thinks shorter, also where nothing cuts it.",
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
        "How long a thought is differs here by words that carry nothing, so that a shorter one"
        " costs no accuracy. Where every token is needed, a budget can only cost. The prompt does"
        " not name the budget: the policy learns one way to think for all. One length of training;"
        " the tokens are those of whole completions, given ones too."
    ),
)

if __name__ == "__main__":
    main(STUDY)
