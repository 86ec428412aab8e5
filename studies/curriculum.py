"""Curricula: uniform draws, draws within a band of pass rates, and draws in proportion to
failure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.host.files import read_rows
from studies.campaign import Arm, Outcome, Panel, Study, Task, main
from studies.claims import Of, exceeds
from studies.world import (
    PROBLEMS,
    TERMS,
    TRACES,
    cold_started,
    read_run,
    rl_config,
    trained,
)

LENGTHS = (2, 3, 4, 5, 6)
WRITTEN = (7000, 6000, 4000, 2000, 1000)
"""Solutions that the cold start shows of each length: the longer a sum, the fewer."""
NUM_PROBLEMS = 400
NUM_MEASURED = 1000
MAX_TOKENS = 72
"""A sum of six numbers takes up to 64 tokens where all its steps are right."""


def _mixed(source: str, sizes: Sequence[int], seed: int) -> list[str]:
    """Return one source of problems per length, each with its own seed, so that ids are unique."""
    return [
        f"{source.replace(TERMS, f'num_terms={length}')}&size={size}&seed={100 * seed + length}"
        for length, size in zip(LENGTHS, sizes, strict=True)
    ]


def _equal(size: int) -> list[int]:
    return [size // len(LENGTHS)] * len(LENGTHS)


def draw_and_learn(task: Task) -> Outcome:
    """Train by RL on sums of two to six numbers, with the curriculum of the arm."""
    seed, quick = task.seed, task.quick
    traces = _mixed(TRACES, _equal(60) if quick else WRITTEN, seed)
    held = _mixed(f"{PROBLEMS}&split=heldout", _equal(10 if quick else NUM_MEASURED), seed)
    drawn = _mixed(f"{PROBLEMS}&split=train", _equal(40 if quick else NUM_PROBLEMS), seed)
    changes = {
        **task.settings["config"],
        "data": {"train": drawn, "heldout": held},
        "sampling": {"max_tokens": MAX_TOKENS},
    }
    folder = Path(trained(rl_config(task, cold_started(task, traces), changes)).run)
    found = read_run(folder)
    *_, last = read_rows(folder / "evaluations.jsonl")
    by_length = {f"accuracy_{length}": last["eval/by_tag"][f"terms-{length}"] for length in LENGTHS}
    return Outcome({**found.values, **by_length}, found.curves)


def _drawn(**settings: Any) -> dict[str, Any]:
    return {"config": {"curriculum": settings}}


STUDY = Study(
    name="curriculum",
    title="Problems drawn uniformly, within a band of pass rates, and by failure",
    source=(
        "Kimi Team 2025, Kimi k1.5 (arXiv 2501.12599), section 2.3.3: problems are sampled in"
        " proportion to 1 - success rate. Bae et al. 2025, Online Difficulty Filtering (arXiv"
        " 2504.03380): training on problems with medium pass rates learns faster and ends with"
        " higher accuracy."
    ),
    setup=(
        "Each seed has a new 0.7M-parameter byte-level Llama, the model of `assay demo`. A"
        f" supervised cold start trains it on {sum(WRITTEN):,} written solutions of sums:"
        f" {WRITTEN[0]:,} sums of two numbers, and {', '.join(f'{n:,}' for n in WRITTEN[1:])} of"
        " three to six, so that long sums are hard for it. 40 % of the solutions are bare"
        " guesses, and in the others 10 % of the steps are wrong. Every arm has the same 400"
        " problems: 80 sums of each length. A step of GRPO has 16 problems x 8 completions of at"
        " most 72 tokens at temperature 1, and one optimizer step of AdamW at a learning rate of"
        " 1e-4. All arms sample the same number of completions, which is 3.2 epochs of the"
        " problems. Held-out accuracy is measured on 1,000 sums, 200 of each length, with one"
        " completion each at temperature 1."
    ),
    run=draw_and_learn,
    common={"steps": 80},
    arms=(
        Arm("uniform", "every problem once per epoch", _drawn(order="uniform")),
        Arm(
            "band",
            (
                "draws in proportion to the probability that a problem's pass rate is between 0.2"
                " and 0.8"
            ),
            _drawn(order="band"),
        ),
        Arm("prioritized", "draws in proportion to 1 - pass rate", _drawn(order="prioritized")),
    ),
    claims=(
        exceeds(
            "Drawing problems within a band of pass rates ends with higher accuracy than uniform"
            " draws.",
            Of("band", "accuracy"),
            Of("uniform", "accuracy"),
            margin=0.02,
        ),
        exceeds(
            "Drawing problems in proportion to failure ends with higher accuracy than uniform"
            " draws.",
            Of("prioritized", "accuracy"),
            Of("uniform", "accuracy"),
            margin=0.02,
        ),
        exceeds(
            "A band draws more mixed groups (some completions pass, some fail).",
            Of("band", "mixed_end"),
            Of("uniform", "mixed_end"),
            margin=0.05,
        ),
    ),
    panels=(
        Panel("mixed", "share of mixed groups", window=5),
        Panel("passed", "training accuracy, on what is drawn", window=5),
        Panel("entropy", "entropy, nats a token"),
    ),
    columns={
        "accuracy": "held-out accuracy",
        **{f"accuracy_{length}": f"of {length} numbers" for length in LENGTHS},
        "mixed_end": "mixed groups at the end",
    },
    limits=(
        "Pass rates come only from the run's own completions, eight for each draw of a problem. No"
        " problem has a known pass rate before the run. The curriculum never retires problems and"
        " never replaces groups. The study has one size of problem set; with more problems than"
        " draws, the arms' orders of problems would hardly differ. Training accuracy is measured"
        " on the problems that an arm draws, so training accuracies of different arms are not"
        " comparable."
    ),
    reading=(
        "- With the band, three in four groups are mixed (some completions pass, some fail),"
        " against five in eight with uniform draws.\n"
        "- In both runs, drawing from the band ends about two points more accurate than uniform"
        " draws. The criterion asks for two points, and the error of eight seeds is as large, so"
        " one run counts as reproduced and the other as inconclusive.\n"
        "- Draws in proportion to failure gain nothing. Draws in proportion to failure add mostly"
        " long sums, in which all eight completions fail. Groups of failed completions carry no"
        " gradient. Draws in proportion to failure find no more mixed groups than uniform draws."
    ),
)

if __name__ == "__main__":
    main(STUDY)
