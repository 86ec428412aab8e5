"""Dr. GRPO's claim: division of a loss by the completion's length makes wrong completions grow."""

from studies.campaign import Arm, Panel, Study, main
from studies.claims import Of, equals, exceeds
from studies.world import SETUP, reinforce

STUDY = Study(
    name="length_bias",
    title="The length of wrong completions under GRPO and Dr. GRPO",
    source=(
        "Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783), section 3 and"
        " figure 5. GRPO divides the loss of a completion by its length. Under GRPO's division,"
        " each token of a long wrong completion is punished less, and wrong completions grow. Dr."
        " GRPO omits the division by length and the division by the standard deviation, and its"
        " wrong completions stay short, at equal accuracy."
    ),
    setup=SETUP,
    run=reinforce,
    common={
        "steps": 60,
        "config": {"sampling": {"max_tokens": 96}, "algorithm": {"kl_weight": 0.0}},
    },
    arms=(
        Arm(
            "grpo",
            "the loss is a mean over a completion's tokens",
            {"config": {"algorithm": {"name": "grpo"}}},
        ),
        Arm(
            "dr_grpo",
            (
                "the loss is a sum divided by the constant 96; advantages are not divided by the"
                " standard deviation"
            ),
            {"config": {"algorithm": {"name": "dr_grpo"}}},
        ),
    ),
    claims=(
        exceeds(
            "GRPO's wrong completions end longer than Dr. GRPO's.",
            Of("grpo", "wrong_length_end"),
            Of("dr_grpo", "wrong_length_end"),
            margin=1.0,
        ),
        equals(
            "GRPO and Dr. GRPO end equally accurate.",
            Of("grpo", "passed_end"),
            Of("dr_grpo", "passed_end"),
            margin=0.05,
        ),
    ),
    panels=(
        Panel("wrong_length", "tokens of a wrong completion"),
        Panel("right_length", "tokens of a right completion"),
        Panel("passed", "training accuracy"),
    ),
    columns={
        "wrong_length_end": "tokens of a wrong completion at the end",
        "right_length_end": "tokens of a right one",
        "passed_end": "training accuracy at the end",
        "accuracy": "held-out accuracy",
    },
    limits=(
        "Completions can grow (the limit is 96 tokens, and a full solution takes some 35 tokens)"
        " but have little reason to grow. The paper's models write thousands of tokens. As a"
        " policy learns, it fails on other problems than before, which also changes the mean"
        " length of wrong completions. The two changes of Dr. GRPO (length and deviation) are made"
        " together, as in the paper."
    ),
    reading=(
        "- GRPO's wrong completions end longer in both runs, by a quarter to four tenths of a"
        " token. The difference in length is far more than its error, and far less than the one"
        " token that the criterion asks for.\n"
        "- GRPO and Dr. GRPO end equally accurate.\n"
        "- In this task, a longer completion has no advantage."
    ),
)

if __name__ == "__main__":
    main(STUDY)
