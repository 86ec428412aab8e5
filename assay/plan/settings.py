"""Keys to set along with the recommendation, each with the fact that asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.learn.algorithms import IMPORTANCE_CAP, algorithm
from assay.plan.facts import LEARNED, ONLINE, Facts
from assay.plan.rules import FEW_MIXED
from assay.plan.words import percent, sized

GROUP_SIZES = (4, 8, 16, 32, 64)
NOTABLY_TRUNCATED = 0.1
KL_WEIGHT = 0.05
KL_OF_A_COMPLETION = 10.0
"""Nats. Where a learned reward was optimized further, people liked what it liked less and less (Stiennon et
al. 2020, arXiv 2009.01325, figure 5). At `KL_WEIGHT`, theirs, it costs half of a right answer."""
KL_OF_A_TOKEN = 0.1
"""Nats, and the most where completions are short."""
RARE = 0.2
GROWTH = 4  # of a group in which nothing passes


@dataclass(frozen=True, slots=True)
class Setting:
    """One dotted key of the configuration, its value, and why."""

    key: str
    value: Any
    because: str


def settings_for(facts: Facts, recommended: str, kind: str) -> tuple[Setting, ...]:
    """Return what to set beside ``algorithm.name`` for an online method, or ``preference.method``."""
    found: list[Setting] = []
    if kind == "preference":
        found.append(Setting("preference.method", recommended, "the recommendation"))
    if kind != "online" and recommended != "rft":
        return tuple(found + _memory(facts))
    found.append(Setting("algorithm.name", recommended, "the recommendation"))
    size = best_group_size(facts)
    if size != facts.group_size:
        here, there = facts.mixed_share(), facts.mixed_share(size)
        why = f"mixed groups: {percent(there)} expected with {size} siblings, {percent(here)} with {facts.group_size}"
        found.append(Setting("rl.group_size", size, why))
    if facts.reward in ONLINE and facts.pass_at_1 is not None and facts.pass_at_1 < RARE:
        why = f"pass@1 is {percent(facts.pass_at_1)}: groups of which nothing passes are sampled on"
        found.append(Setting("rl.max_group_size", GROWTH * size, why))
    if facts.generator_differs or facts.policy_age:
        why = "another program or an older policy samples: its probabilities are not the learner's (truncated importance sampling)"
        found.append(Setting("algorithm.importance_cap", IMPORTANCE_CAP, why))
    if facts.truncated is not None and facts.truncated > NOTABLY_TRUNCATED:
        why = f"{percent(facts.truncated)} of completions are cut at {facts.max_tokens} tokens"
        found.append(Setting("sampling.max_tokens", 2 * facts.max_tokens, why))
        found.append(Setting("algorithm.mask_truncated", True, why))
    if facts.shaped and facts.reward in ONLINE:
        why = "parts of the reward beside correctness must not pay in groups where nothing is right"
        found.append(Setting("algorithm.outcome_gate", True, why))
    if facts.reward in LEARNED and kind == "online":
        found += _kept_near(facts, recommended)
    return tuple(found + _memory(facts))


def _kept_near(facts: Facts, recommended: str) -> list[Setting]:
    """Return what holds a policy near the place where a learned reward is right."""
    found: list[Setting] = []
    if algorithm(recommended, max_tokens=facts.max_tokens).kl_weight == 0:
        why = f"a learned reward is right only near what it was trained on, and {recommended} has no KL of its own (Stiennon et al. 2020)"
        found.append(Setting("algorithm.kl_weight", KL_WEIGHT, why))
        found.append(
            Setting(
                "algorithm.kl_place", "reward", "there it weighs what the reward may be wrong about"
            )
        )
        found.append(Setting("algorithm.kl_estimator", "k1", "unbiased where it is in the reward"))
    length = facts.mean_tokens or facts.max_tokens
    most = min(KL_OF_A_TOKEN, KL_OF_A_COMPLETION / length)
    why = f"a token; {most * length:.2g} nats a completion of {length:.0f} tokens, beyond which a learned reward is not to be believed (Stiennon et al. 2020, figure 5)"
    found.append(Setting("guard.max_kl", float(f"{most:.2g}"), why))
    if facts.fits(facts.reference_mib) is False and facts.fits(0.0):
        why = f"no room for a reference{sized(' of {}', facts.reference_mib)}: of adapters it copies next to nothing"
        found.append(Setting("model.lora", {"rank": 16}, why))
    return found


def best_group_size(facts: Facts) -> int:
    """Return the smallest group size, from the present one on, whose groups are mixed often enough.

    The present one where that is not known, or where more siblings would not help.
    """
    if facts.group_size == 1 or facts.mixed_share() is None:
        return facts.group_size
    sizes = [facts.group_size, *(size for size in GROUP_SIZES if size > facts.group_size)]
    return next(
        (size for size in sizes if (facts.mixed_share(size) or 0) >= FEW_MIXED), facts.group_size
    )


def _memory(facts: Facts) -> list[Setting]:
    if facts.fits(0.0) is not False:
        return []
    why = f"the estimated peak of {facts.base_mib:.0f} MiB is over the {facts.memory_mib:.0f} MiB that there are"
    return [
        Setting("model.lora", {"rank": 16}, why),
        Setting("model.activation_checkpointing", True, why),
    ]
