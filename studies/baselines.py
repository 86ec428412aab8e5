"""Baselines of learning from feedback, and GRPO, at the same number of sampled completions."""

from studies.campaign import Arm, Outcome, Panel, Study, Task, main
from studies.claims import Of, exceeds, not_below
from studies.pools import GROUP_SIZE, NUM_PROBLEMS, imitate, measured, passed, pool
from studies.world import SETUP, cold_started, reinforce

GOOD, BAD = "good ", "bad "


def run_baseline(task: Task) -> Outcome:
    """Train by ``task.settings["method"]``, on a pool of 960 x 8 completions or on as many new
    ones."""
    method = task.settings["method"]
    if method == "best_of_n":
        found = measured(task, cold_started(task), k=8)
        return Outcome({**found.values, "accuracy": found.values["pass_at_k"]})
    if method == "cold_start":
        return measured(task, cold_started(task))
    rows = [row for group in pool(task, "train", NUM_PROBLEMS, GROUP_SIZE) for row in group]
    rows = [row for row in rows if row["completion"].strip()]
    if method == "feedme":
        kept = [{key: row[key] for key in ("prompt", "completion")} for row in rows if passed(row)]
        kept = kept or [{"prompt": "1+1=", "completion": "2"}]  # of a quick run, nothing is right
        return imitate(task, kept, epochs=3.0)
    marked = [
        {
            "prompt": (GOOD if passed(row) else BAD) + row["prompt"],
            "completion": row["completion"],
        }
        for row in rows
    ]
    return imitate(task, marked, epochs=1.0, prompt_template=GOOD + "{question}")


STUDY = Study(
    name="baselines",
    title="Best-of-n, binary FeedME, reward conditioning and GRPO",
    source=(
        "Dubois et al. 2023, AlpacaFarm (arXiv 2305.14387), table 2. Reinforcement learning and"
        " best-of-n improve on supervised fine-tuning. Binary FeedME (fine-tuning on positives)"
        " and binary reward conditioning do not improve on supervised fine-tuning."
    ),
    setup=SETUP,
    run=run_baseline,
    arms=(
        Arm(
            "cold start", "the checkpoint from which all other arms start", {"method": "cold_start"}
        ),
        Arm(
            "best of 8",
            "eight completions per held-out problem; the verifier selects the best",
            {"method": "best_of_n"},
        ),
        Arm(
            "binary FeedME",
            "fine-tuned on the correct completions among 960 x 8",
            {"method": "feedme"},
        ),
        Arm(
            "conditioning",
            (
                "fine-tuned on all 960 x 8 completions, each after the word good or bad; sampled"
                " after good"
            ),
            {"method": "conditioning"},
        ),
        Arm(
            "grpo",
            "60 steps of 16 x 8 completions, as many as the other arms",
            {
                "steps": 60,
                "config": {
                    "data": {"verifier": "math*1.0"},
                    "algorithm": {"name": "grpo", "kl_weight": 0.0},
                },
            },
            run=reinforce,
        ),
    ),
    claims=(
        exceeds(
            "Reinforcement learning beats binary FeedME.",
            Of("grpo", "accuracy"),
            Of("binary FeedME", "accuracy"),
            margin=0.02,
        ),
        exceeds(
            "Reinforcement learning beats reward conditioning.",
            Of("grpo", "accuracy"),
            Of("conditioning", "accuracy"),
            margin=0.02,
        ),
        exceeds(
            "Best-of-8 beats the policy that it samples from.",
            Of("best of 8", "accuracy"),
            Of("cold start", "accuracy"),
            margin=0.02,
        ),
        not_below(
            "Binary FeedME does not improve on the supervised policy.",
            Of("cold start", "accuracy"),
            Of("binary FeedME", "accuracy"),
            margin=0.05,
        ),
        not_below(
            "Reward conditioning does not improve on the supervised policy.",
            Of("cold start", "accuracy"),
            Of("conditioning", "accuracy"),
            margin=0.05,
        ),
    ),
    panels=(Panel("accuracy", "held-out accuracy", is_value=True),),
    columns={"accuracy": "held-out accuracy", "tokens": "tokens a completion"},
    limits=(
        "An exact verifier gives the feedback, and held-out accuracy measures the same quantity as"
        " the feedback. AlpacaFarm's feedback is noisy, and expresses preferences that fine-tuning"
        " already meets well. Best-of-8 by the verifier is an upper bound, because it needs the"
        " answer at test time. Quark is not among the arms, because with binary rewards Quark"
        " equals repeated reward conditioning."
    ),
    reading=(
        "In this study the verifier is exact, and a quarter of the cold start's samples pass.\n"
        "\n"
        "- Binary FeedME, which fine-tunes on the passed completions, ends three points above GRPO"
        " with the same number of completions. The difference between FeedME and GRPO exceeds its"
        " error in the first run only. FeedME and GRPO both double the accuracy of the cold"
        " start.\n"
        "- Each method had one setting: three epochs over its traces for FeedME, one optimizer"
        " step per batch for GRPO.\n"
        "- Reward conditioning gains three to five points. In the first run, the gain of reward"
        " conditioning is not significant.\n"
        "- Best-of-8 shows how much can be gained: in seven of eight problems, at least one of"
        " eight samples is correct.\n"
        "- AlpacaFarm found FeedME below reinforcement learning. AlpacaFarm's feedback is noisy,"
        " and its starting model was already fine-tuned on the requested behavior."
    ),
)

if __name__ == "__main__":
    main(STUDY)
