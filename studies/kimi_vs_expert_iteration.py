"""Kimi k1.5's mirror descent and expert iteration: the effect of negative examples."""

from typing import Any

from studies.campaign import Arm, Panel, Study, main
from studies.claims import Of, exceeds
from studies.world import SETUP, reinforce


def _row(name: str) -> dict[str, Any]:
    return {"config": {"algorithm": {"name": name}}}


STUDY = Study(
    name="kimi_vs_expert_iteration",
    title="Kimi's policy mirror descent and expert iteration",
    source=(
        "Kimi Team 2025, Kimi k1.5 (arXiv 2501.12599), section 3.5 and figure 10: learning from"
        " wrong completions too is far more sample-efficient than ReST, which learns only from"
        " correct completions."
    ),
    setup=SETUP,
    run=reinforce,
    common={
        "steps": 40,
        "config": {
            "data": {"verifier": "math*1.0"},
            "algorithm": {"kl_weight": 0.0},
            "rl": {"num_minibatches": 4},
        },
    },
    arms=(
        Arm(
            "kimi",
            "mirror descent; the reference is the policy that sampled, tau = 1",
            _row("kimi"),
        ),
        Arm("expert iteration", "log-likelihood of the passed completions", _row("rft")),
    ),
    claims=(
        exceeds(
            "Kimi's method is ahead early (training accuracy, steps 11 to 30).",
            Of("kimi", "passed_early"),
            Of("expert iteration", "passed_early"),
            margin=0.02,
        ),
        exceeds(
            "Kimi's method ends more accurate than expert iteration.",
            Of("kimi", "accuracy"),
            Of("expert iteration", "accuracy"),
            margin=0.02,
        ),
    ),
    panels=(
        Panel("passed", "training accuracy", window=5),
        Panel("entropy", "entropy, nats a token"),
        Panel("length", "tokens a completion"),
    ),
    columns={
        "passed_early": "training accuracy, steps 11 to 30",
        "passed_end": "at the end",
        "accuracy": "held-out accuracy",
        "entropy_end": "entropy at the end",
    },
    limits=(
        "Each batch has four optimizer steps, because with one optimizer step the mirror term"
        " would have no effect. In this study, expert iteration is online (a new batch at each"
        " step). ReST in the paper collects larger batches."
    ),
    reading=(
        "Both claims of the study are inconclusive.\n"
        "\n"
        "- Early in training, Kimi's method and expert iteration do not differ.\n"
        "- At the end Kimi's method is two to three points ahead in both runs, but both intervals"
        " include 0.\n"
        "- Half of the samples soon pass. If half of the samples pass, wrong completions add"
        " little information. The paper's claim is about hard problems, where most samples fail."
    ),
)

if __name__ == "__main__":
    main(STUDY)
