"""True reward under increasing best-of-n optimization of a proxy: label noise, and ensembles."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from assay.types import Completion, Group, Problem, Prompt
from assay.verify.service import VerifierService
from studies.campaign import Arm, Outcome, Panel, Study, Task, main, once
from studies.claims import Of, exceeds
from studies.pools import flipped, passed, pool, preferences, train_reward_model
from studies.world import SETUP, cold_started

NUM_PAIRS = 300
MEMBERS = 4
SAMPLES = 64
SIZES = (1, 2, 4, 8, 16, 32, 64)

AGGREGATES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "min": lambda scores: scores.min(0),
    "mean_minus_std": lambda scores: scores.mean(0) - scores.std(0),
    "mean": lambda scores: scores.mean(0),
}


def best_of_n(proxy: Sequence[float], gold: Sequence[float], n: int) -> float:
    """Return the expected gold score of the completion with the best proxy score among n of N
    samples.

    The n samples are drawn without replacement. If samples are ranked by proxy score, the i-th best
    (from 0) is the best of n with probability C(N - i - 1, n - 1) / C(N, n). Ties are broken by
    position, which is independent of the gold score.
    """
    ranked = sorted(range(len(proxy)), key=lambda i: -proxy[i])
    total = math.comb(len(proxy), n)
    return sum(
        gold[i] * math.comb(len(proxy) - place - 1, n - 1) / total for place, i in enumerate(ranked)
    )


def divergence(n: int) -> float:
    """Return the KL of best-of-n to the policy in nats: log n - (n - 1) / n (Stiennon et al.
    2020)."""
    return math.log(n) - (n - 1) / n


def member_scores(task: Task, groups: Sequence[Sequence[Mapping[str, Any]]]) -> np.ndarray:
    """Return the scores of each ensemble member, [member, problem, sample], standardized over
    the pool."""
    noise = task.settings["noise"]
    key = {"noise": noise, "pairs": NUM_PAIRS, "members": MEMBERS}
    folder = task.shared / f"proxies-{noise}-{task.seed}"

    def make() -> Mapping[str, Any]:
        rows = preferences(task, most=1)[:NUM_PAIRS]
        found: list[list[list[float]]] = []
        for member in range(MEMBERS):
            noisy = flipped(rows, noise, 10 * task.seed + member)
            place = folder / f"member-{member}"
            model = train_reward_model(place, cold_started(task), noisy, member, epochs=3.0)
            found.append(_scores(model, groups))
        return {"scores": found}

    scores = np.array(once(folder, key, make)["scores"])
    mean, std = scores.mean((1, 2), keepdims=True), scores.std((1, 2), keepdims=True)
    return (scores - mean) / std


def _scores(model: str, groups: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[float]]:
    nothing = np.zeros(0, np.int32)
    asked = [
        Group(
            Problem(f"p{n}", group[0]["prompt"]),
            Prompt(group[0]["prompt"], nothing),
            tuple(
                Completion.from_text(row["completion"], id=f"p{n}#0/{i}")
                for i, row in enumerate(group)
            ),
        )
        for n, group in enumerate(groups)
    ]
    options = {"reward_model": {"path": model, "squash": "sigmoid"}}
    with VerifierService("reward_model", options=options, deadline=600.0) as service:
        judged = service.judge(asked)
    return [[_logit(verdict.score) for verdict in verdicts] for verdicts in judged]


def _logit(probability: float | None) -> float:
    assert probability is not None, "a completion was not judged"
    inside = min(max(probability, 1e-9), 1 - 1e-9)
    return math.log(inside / (1 - inside))


def run_best_of_n(task: Task) -> Outcome:
    """Score a pool by the proxy of the settings. Return gold and proxy scores over the KL of
    best-of-n."""
    groups = pool(task, "heldout", 150, SAMPLES)
    gold = [[float(passed(row)) for row in group] for group in groups]
    members = member_scores(task, groups)
    aggregate = task.settings["aggregate"]
    proxies = list(members) if aggregate == "one" else [AGGREGATES[aggregate](members)]
    curves: dict[str, list[tuple[float, float]]] = {"gold": [], "proxy": []}
    for n in SIZES:
        means = [
            [
                np.mean([best_of_n(p, score, n) for p, score in zip(proxy, scores, strict=True)])
                for scores in (gold, proxy)
            ]
            for proxy in proxies
        ]
        for name, value in zip(("gold", "proxy"), np.mean(means, axis=0), strict=True):
            curves[name].append((divergence(n), float(value)))
    golds = [value for _, value in curves["gold"]]
    values = {
        "gold_start": golds[0],
        "gold_peak": max(golds),
        "gold_end": golds[-1],
        "drop": max(golds) - golds[-1],
        "proxy_end": curves["proxy"][-1][1],
    }
    return Outcome(values, curves)


STUDY = Study(
    name="overoptimization",
    title="Over-optimization of a learned reward",
    source=(
        "Gao et al. 2022, Scaling laws for reward model overoptimization (arXiv 2210.10760): as"
        " the KL grows, the gold reward rises and then falls, while the proxy reward keeps rising."
        " Coste et al. 2023 (arXiv 2310.02743): with 25 % of the labels flipped over-optimization"
        " is stronger, and ensembles (minimum, mean minus deviation) reduce it under best-of-n."
    ),
    setup=SETUP,
    run=run_best_of_n,
    arms=(
        Arm("noiseless", "one reward model, unchanged labels", {"noise": 0.0, "aggregate": "one"}),
        Arm(
            "noisy", "one reward model, 25 % of labels flipped", {"noise": 0.25, "aggregate": "one"}
        ),
        Arm("noisy, mean", "mean of four noisy models", {"noise": 0.25, "aggregate": "mean"}),
        Arm("noisy, minimum", "minimum of four noisy models", {"noise": 0.25, "aggregate": "min"}),
        Arm(
            "noisy, mean - std",
            "mean of four noisy models minus their standard deviation",
            {"noise": 0.25, "aggregate": "mean_minus_std"},
        ),
    ),
    claims=(
        exceeds(
            "With the noisy proxy, gold falls from its peak as n grows to 64.",
            Of("noisy", "gold_peak"),
            Of("noisy", "gold_end"),
            margin=0.01,
        ),
        exceeds(
            "Label noise reduces gold at n = 64.",
            Of("noiseless", "gold_end"),
            Of("noisy", "gold_end"),
            margin=0.01,
        ),
        exceeds(
            "The minimum of an ensemble ends with more gold than one noisy model.",
            Of("noisy, minimum", "gold_end"),
            Of("noisy", "gold_end"),
            margin=0.01,
        ),
        exceeds(
            ("An ensemble's mean minus deviation ends with more gold than one noisy model."),
            Of("noisy, mean - std", "gold_end"),
            Of("noisy", "gold_end"),
            margin=0.01,
        ),
    ),
    panels=(
        Panel("gold", "gold: share of right answers", "KL of best-of-n, nats", window=1),
        Panel("proxy", "proxy, standard deviations", "KL of best-of-n, nats", window=1),
    ),
    columns={
        "gold_start": "gold, n = 1",
        "gold_peak": "gold at its peak",
        "gold_end": "gold, n = 64",
        "drop": "fall from the peak",
        "proxy_end": "proxy, n = 64",
    },
    limits=(
        "Each proxy is the cold-started policy with a scalar head, trained on 300 pairs of a"
        " correct and a wrong completion. *Gold* is the verdict of the verifier: correct or wrong."
        " The figures of *noiseless* and *noisy* are means over four models, each used alone. The"
        " four models differ in their seed and in the labels that were flipped. Best-of-n is"
        " computed exactly, as an expectation over a pool of 150 x 64 held-out completions per"
        " seed. Best-of-n reaches at most log 64 - 63/64 = 3.2 nats; reinforcement learning can go"
        " further."
    ),
    reading=(
        "The curve of gold over n agrees with the literature.\n"
        "\n"
        "- Best of 4 by a learned reward is correct four times in ten. Best of 64 is correct once"
        " in eight, half as often as an unselected sample. The proxy reward keeps rising with n.\n"
        "- The cause is visible in the samples. 300 pairs teach the reward models that reasoning"
        " beats guessing (scores correlate with length: 0.8 to 0.9), but not whether a step is"
        " correct. Among completions that all reason, the highest score goes to an unusual"
        " completion, while correct completions are the common ones.\n"
        "- All models of an ensemble share this error. The ensembles therefore end only two points"
        " above one noisy model in both runs, while the fall is twenty-eight points.\n"
        "- Flipping labels has no significant effect on gold."
    ),
)

if __name__ == "__main__":
    main(STUDY)
