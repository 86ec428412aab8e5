"""Shaping terms in groups without a right completion, where all advantages come from shaping."""

from typing import Any

from studies.campaign import Arm, Panel, Study, main
from studies.claims import Of, exceeds
from studies.world import SETUP, reinforce


def _gate(on: bool) -> dict[str, Any]:
    return {"config": {"algorithm": {"outcome_gate": on}}}


STUDY = Study(
    name="outcome_gate",
    title="A shaped length reward with and without the outcome gate",
    source=(
        "The claim is an observation without a paper. Under plain GRPO, a shaped length reward"
        " reduced accuracy from 0.715 to 0.10 over three seeds. When the length reward counted"
        " only in groups with a correct completion, accuracy stayed at 0.75. The shaping is the"
        " length reward of Kimi k1.5 (arXiv 2501.12599, section 2.3.3). The authors of Kimi k1.5"
        " leave the length reward out of early training, because it can slow training down."
    ),
    setup=SETUP,
    run=reinforce,
    common={
        "steps": 60,
        "config": {
            "data": {"verifier": "math*1.0 + kimi_length*1.0"},
            "algorithm": {"name": "grpo", "kl_weight": 0.0},
        },
    },
    arms=(
        Arm("plain", "the length reward counts in every group", _gate(False)),
        Arm(
            "gated",
            "the length reward counts only in groups with a correct completion",
            _gate(True),
        ),
        Arm(
            "no shaping",
            "correctness is the only reward",
            {"config": {"data": {"verifier": "math*1.0"}}},
        ),
    ),
    claims=(
        exceeds(
            "GRPO with the gate ends more accurate than plain GRPO.",
            Of("gated", "accuracy"),
            Of("plain", "accuracy"),
            margin=0.05,
        ),
        exceeds(
            "With the length reward, plain GRPO ends less accurate than it began.",
            Of("plain", "accuracy_before"),
            Of("plain", "accuracy"),
            margin=0.05,
        ),
    ),
    panels=(
        Panel("passed", "training accuracy"),
        Panel("length", "tokens a completion"),
        Panel("all_fail", "share of groups with nothing right"),
    ),
    columns={
        "accuracy_before": "held-out accuracy before",
        "accuracy": "held-out accuracy after",
        "length_end": "tokens a completion at the end",
        "all_fail_end": "groups with nothing right at the end",
    },
    limits=(
        "The study has one shaping term at one weight. If nearly all groups of eight had a correct"
        " completion, the gate would have no effect. The last column of the table shows the share"
        " of groups without a correct completion."
    ),
    reading=(
        "- With the gate, accuracy ends 19 to 28 points higher on average.\n"
        "- Without the gate, a seed ends in one of two ways. In each of the two runs, three seeds"
        " of eight fall to about 3 % (seeds 0 and 2 in both). The other five seeds of a run learn"
        " nearly as well as without shaping. The mean therefore does not decide whether plain GRPO"
        " ends below its start.\n"
        "- Groups without a correct completion cause the collapse: they teach the policy to be"
        " short. Shorter completions leave more groups without a correct completion, until nearly"
        " every completion is a bare guess.\n"
        "- With the gate no seed collapses. With the gate, two seeds of the second run learn"
        " slowly (to 0.31 and 0.33). Kimi's authors warn that early length rewards slow learning"
        " down."
    ),
)

if __name__ == "__main__":
    main(STUDY)
