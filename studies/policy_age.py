"""Age of tokens: how accuracy depends on it, with and without truncated importance sampling.

The study has not been run. Before its page exists, the definition is named `PLANNED`, because each
`STUDY` must have a page. Each run starts a local Ray cluster with two rollout actors.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.host.files import read_rows
from assay.learn.algorithms import Algorithm
from assay.training import rl_run
from studies.campaign import Arm, Outcome, Panel, Study, Task, main
from studies.claims import Of, equals, exceeds
from studies.world import SETUP, cold_started, read_run, rl_config, trained

AGES = (0, 1, 2, 4, 8)
LATER = AGES[1:]


def _uncorrected(row: Algorithm, exact: bool) -> Algorithm:
    """Return the preset without importance weights, whatever the generator is."""
    return row


def at_age(task: Task) -> Outcome:
    """Train with ``task.settings["age"]`` steps ahead. Return the run's figures, and its ages."""
    age, corrected = task.settings["age"], task.settings["corrected"]
    config = rl_config(task, cold_started(task), task.settings["config"])
    config["scale"] = {"rollout_actors": 2, "steps_ahead": age}
    plain = rl_run.for_generator
    rl_run.for_generator = plain if corrected else _uncorrected
    try:
        folder = Path(trained(config).run)
    finally:
        rl_run.for_generator = plain
    outcome, rows = read_run(folder), list(read_rows(folder / "metrics.jsonl"))
    names = {"age": "policy/age_mean", "spanning": "policy/spanning", "mismatch": "mismatch/mean"}
    measured = {
        name: statistics.mean(row.get(key, 0.0) for row in rows[-20:])
        for name, key in names.items()
    }
    mismatch = [(row["step"], row[names["mismatch"]]) for row in rows if names["mismatch"] in row]
    curves = {**outcome.curves, "mismatch": mismatch}
    return replace(outcome, values={**outcome.values, **measured}, curves=curves)


def _settings(age: int, corrected: bool = True) -> dict[str, Any]:
    return {"age": age, "corrected": corrected}


PLANNED = Study(
    name="policy_age",
    title="Age of tokens and truncated importance sampling",
    source=(
        "Noukhovitch et al. 2024, Asynchronous RLHF (arXiv 2410.18252): online methods tolerate"
        " samples that are a few steps old. Fu et al. 2025, AReaL (arXiv 2505.24298): an age of up"
        " to 4 or 8 steps keeps accuracy if the objective corrects for the age."
    ),
    setup=SETUP,
    run=at_age,
    common={
        "steps": 60,
        # The mismatch grows with the age, and the study looks at ages that fail, too.
        "config": {"algorithm": {"name": "grpo"}, "guard": {"max_mismatch": 1e9}},
        **_settings(0),
    },
    arms=(
        # At age 0 the generator is exact, so no weights apply.
        *(Arm(f"age {n}", f"at most {n} steps old, weights up to 2", _settings(n)) for n in AGES),
        *(
            Arm(f"age {n} plain", f"at most {n} steps old, without weights", _settings(n, False))
            for n in LATER
        ),
    ),
    claims=(
        *(
            equals(
                f"With importance weights, tokens that are {n} steps old give the same accuracy.",
                Of(f"age {n}", "accuracy"),
                Of("age 0", "accuracy"),
                margin=0.02,
            )
            for n in LATER
        ),
        exceeds(
            "At an age of 8 steps, importance weights raise accuracy.",
            Of("age 8", "accuracy"),
            Of("age 8 plain", "accuracy"),
            margin=0.02,
        ),
    ),
    panels=(
        Panel("passed", "training accuracy"),
        Panel("mismatch", "sampler against learner, nats a token"),
        Panel("entropy", "entropy, nats a token"),
    ),
    columns={
        "accuracy": "held-out accuracy",
        "passed_end": "training accuracy at the end",
        "entropy_end": "entropy at the end",
        "kl_end": "KL to the reference, nats per token",
    },
    limits=(
        "The model is small and completions have at most 48 tokens. Ages are at most the stated"
        " number of steps; the mean age depends on the speed of the actors, and is recorded for"
        " each run. All runs, age 0 included, sample with the same two rollout actors."
    ),
)

if __name__ == "__main__":
    main(PLANNED)
