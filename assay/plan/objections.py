"""Why not the others: of each candidate, the first objection that applies; the last always does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.plan.facts import CHECKED, LEARNED, ONLINE, Facts
from assay.plan.rules import (
    COLD_START_FLOOR,
    DEAR_VERDICT_SECONDS,
    FEW_MIXED,
    MANY_UPDATES,
    MAX_NOT_JUDGED,
    MIN_DEMONSTRATIONS,
    MIN_PAIRS,
    MIN_PAIRS_FOR_A_REWARD_MODEL,
    MIN_PROBLEMS,
    NOISY_LABELS,
)
from assay.plan.words import known, mib, percent, reward, sized


@dataclass(frozen=True, slots=True)
class Objection:
    """What speaks against a candidate where ``when`` holds."""

    candidate: str
    when: Callable[[Facts], bool]
    because: Callable[[Facts], str]
    source: str = ""


def always(_: Facts) -> bool:
    """The condition of the last objection."""
    return True


def _offline(f: Facts) -> bool:
    return f.reward not in ONLINE


def _offline_words(f: Facts) -> str:
    return f"{reward(f)}: no fresh completion can be judged"


def _blind(f: Facts) -> bool:
    return not f.can_sample


def _blind_words(f: Facts) -> str:
    return "the policy cannot be sampled while it trains"


def _no_pairs(f: Facts) -> bool:
    return f.reward != "pairs" and f.num_pairs < MIN_PAIRS and f.reward not in LEARNED


def _no_pairs_words(f: Facts) -> str:
    return f"{f.num_pairs} preference pairs; the reward is {reward(f)}"


def _alone(f: Facts) -> bool:
    return f.group_size == 1


def _alone_words(f: Facts) -> str:
    return "groups of 1 have no siblings to compare with"


def _no_critic(f: Facts) -> bool:
    return f.fits(f.critic_mib) is False


def _no_critic_words(f: Facts) -> str:
    return f"a critic{sized(' takes {}, and', f.critic_mib) or ' takes more:'} {mib(_left(f))} are left"


def _left(f: Facts) -> float:
    return max(0.0, (f.memory_mib or 0) - (f.base_mib or 0))


def _no_reference(f: Facts) -> bool:
    return f.fits(f.reference_mib) is False


def _no_reference_words(f: Facts) -> str:
    return f"its KL needs a reference{sized(' of {}', f.reference_mib)}, and {mib(_left(f))} are left (of model.lora it copies the adapters alone)"


def _length(f: Facts) -> str:
    return f"{f.mean_tokens or f.max_tokens:.0f} tokens"


def _of_every(
    names: tuple[str, ...],
    when: Callable[[Facts], bool],
    because: Callable[[Facts], str],
    source: str = "",
) -> tuple[Objection, ...]:
    return tuple(Objection(name, when, because, source) for name in names)


ONLINE_NAMES = (
    "dr_grpo",
    "grpo",
    "grpo_process",
    "dapo",
    "gspo",
    "gspo_product",
    "cispo",
    "rloo",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "kimi",
    "ppo",
    "ppo_penalty",
    "trpo",
)
GROUP_NAMES = (*ONLINE_NAMES[:8], "reinforce_plus_plus_baseline", "kimi")
PREFERENCE_NAMES = (
    "dpo",
    "ipo",
    "kto",
    "simpo",
    "orpo",
    "cdpo",
    "rdpo",
    "irpo",
    "dpo_norm",
    "dpo_reference_free",
)

OBJECTIONS: tuple[Objection, ...] = (
    Objection(
        "collect_data",
        lambda f: f.reward in ONLINE and f.num_problems is not None,
        lambda f: (
            f"there are {f.num_problems} problems (>= {MIN_PROBLEMS}) and a reward for fresh completions{known(', and pass@1 is {}', f.pass_at_1)}"
        ),
    ),
    Objection(
        "collect_data",
        lambda f: f.reward in ("pairs", "unpaired"),
        lambda f: f"there are {f.num_pairs} preferences (>= {MIN_PAIRS})",
    ),
    Objection(
        "collect_data",
        always,
        lambda f: f"there is a reward ({reward(f)}) and {f.num_demonstrations} demonstrations",
    ),
    Objection(
        "harden_verifier",
        _offline,
        lambda f: f"{reward(f)}: there is no verifier",
    ),
    Objection(
        "harden_verifier",
        lambda f: f.attacks > 0,
        lambda f: (
            f"it held: {f.attacks_accepted} of {f.attacks} known hacks were paid{known(', {} not judged', f.not_judged)}; accepted: 0, and at most {percent(MAX_NOT_JUDGED)}"
        ),
    ),
    Objection(
        "harden_verifier",
        always,
        lambda f: (
            f"no fault is known{known(', false accepts {}', f.false_accepts)}{known(', not judged {}', f.not_judged)}; try it: assay redteam"
        ),
    ),
    Objection(
        "train_reward_model",
        lambda f: f.reward in CHECKED,
        lambda f: f"the reward is {reward(f)}: a learned one in its place could only be gamed",
        "Gao et al. 2023 (arXiv 2210.10760)",
    ),
    Objection(
        "train_reward_model",
        lambda f: f.reward in LEARNED,
        lambda f: (
            f"there is a learned reward already{known('; it agrees with people in {} of cases', f.reward_accuracy)}"
        ),
    ),
    Objection(
        "train_reward_model",
        always,
        lambda f: (
            f"{f.num_pairs} preferences{' in pairs' if f.reward == 'pairs' else ''}; {MIN_PAIRS_FOR_A_REWARD_MODEL} pairs, a policy that can be sampled and memory for a second model are wanted"
        ),
        "Gao et al. 2023 (arXiv 2210.10760)",
    ),
    Objection(
        "allow_length",
        lambda f: f.truncated is not None,
        lambda f: (
            f"{percent(f.truncated)} of completions are cut at {f.max_tokens} tokens{known(', and pass@1 is {}', f.pass_at_1)}"
        ),
    ),
    Objection(
        "allow_length",
        always,
        lambda f: f"nobody has measured that completions are cut at {f.max_tokens} tokens",
    ),
    Objection(
        "sft",
        lambda f: f.num_demonstrations < MIN_DEMONSTRATIONS,
        lambda f: f"{f.num_demonstrations} demonstrations (>= {MIN_DEMONSTRATIONS} wanted)",
    ),
    Objection(
        "sft",
        lambda f: f.pass_at_1 is not None,
        lambda f: (
            f"pass@1 is {percent(f.pass_at_1)} (>= {percent(COLD_START_FLOOR)}) without it: imitation would bound the policy by its {f.num_demonstrations} demonstrations"
        ),
        "Chu et al. 2025, SFT Memorizes, RL Generalizes (arXiv 2501.17161)",
    ),
    Objection(
        "sft",
        always,
        lambda f: (
            f"there is a better teacher than {f.num_demonstrations} demonstrations: {reward(f)}"
        ),
        "Chu et al. 2025 (arXiv 2501.17161)",
    ),
    Objection("rft", _offline, _offline_words),
    Objection("rft", _blind, _blind_words),
    Objection(
        "rft",
        always,
        lambda f: (
            f"it learns from what passed alone{known(' (pass@1 {})', f.pass_at_1)}, and nothing from what failed"
        ),
        "Kimi Team 2025, k1.5 (arXiv 2501.12599), section 3.5",
    ),
    *_of_every(PREFERENCE_NAMES, _no_pairs, _no_pairs_words),
    *_of_every(
        PREFERENCE_NAMES,
        lambda f: f.reward in ONLINE and f.can_sample,
        lambda f: (
            f"fresh completions can be judged{'' if f.verifier_seconds is None else f' ({f.verifier_seconds:.2g} s a verdict, below {DEAR_VERDICT_SECONDS:.0f})'}: online beats offline"
        ),
        "Tang et al. 2024 (arXiv 2405.08448)",
    ),
    Objection(
        "dpo",
        lambda f: f.reward == "unpaired",
        lambda f: f"{f.num_pairs} marks, and no pairs",
    ),
    Objection(
        "dpo",
        always,
        lambda f: (
            f"{f.num_pairs} pairs are better used online, or are not what is learned from here"
        ),
        "Xu et al. 2024 (arXiv 2404.10719)",
    ),
    Objection(
        "ipo",
        always,
        lambda f: (
            f"for pairs whose preference is certain, where DPO's margins run away; of {f.num_pairs} that is not known: try label smoothing first"
        ),
        "Azar et al. 2023 (arXiv 2310.12036)",
    ),
    Objection(
        "kto",
        always,
        lambda f: (
            f"for marks without pairs; here are {f.num_pairs} preferences from {reward(f)}: pairs say more"
        ),
        "Ethayarajh et al. 2024 (arXiv 2402.01306)",
    ),
    Objection(
        "simpo",
        always,
        lambda f: (
            f"without a reference nothing holds the policy near its start; reference log-probabilities are stored once for {f.num_pairs} pairs, so that they cost no memory"
        ),
        "Meng et al. 2024 (arXiv 2405.14734)",
    ),
    Objection(
        "orpo",
        always,
        lambda f: (
            f"for a base model that is tuned and aligned in one go from the chosen completions alone; {f.num_pairs} pairs"
        ),
        "Hong et al. 2024 (arXiv 2403.07691)",
    ),
    Objection(
        "cdpo",
        always,
        lambda f: (
            f"for preferences of which some {percent(NOISY_LABELS)} are the wrong way round{known('; here {} are', f.label_noise) or '; nobody has found any here'}"
        ),
        "Mitchell 2023, A note on DPO with noisy preferences",
    ),
    Objection(
        "rdpo",
        always,
        lambda f: (
            f"its correction divides by 1 - 2 e, which needs the share e of wrong labels to be known; {known('it is {}, and ', f.label_noise)}smoothing is steadier"
        ),
        "Chowdhury et al. 2024 (arXiv 2403.00409)",
    ),
    Objection(
        "irpo",
        always,
        lambda f: (
            f"for pairs of reasoning with checked answers, sampled anew each round; these {f.num_pairs} are from {reward(f)}"
        ),
        "Pang et al. 2024 (arXiv 2404.19733)",
    ),
    Objection(
        "dpo_reference_free",
        always,
        lambda f: (
            f"its reference is uniform, so that nothing holds the policy; reference log-probabilities of {f.num_pairs} pairs are computed once and cost no memory"
        ),
        "Rafailov et al. 2023 (arXiv 2305.18290)",
    ),
    Objection(
        "dpo_norm",
        always,
        lambda f: (
            f"for pairs whose chosen side is longer as a rule; of {f.num_pairs} that is not known: look at the metrics of DPO first"
        ),
        "Meng et al. 2024 (arXiv 2405.14734), section 2",
    ),
    *_of_every(ONLINE_NAMES, _offline, _offline_words),
    *_of_every(ONLINE_NAMES, _blind, _blind_words),
    *_of_every(GROUP_NAMES, _alone, _alone_words),
    Objection(
        "dr_grpo",
        lambda f: f.reward in LEARNED,
        lambda f: (
            f"a group's mean holds the completion's own reward, so that its gradient is {f.group_size - 1}/{f.group_size} of RLOO's, and its rate follows sampling.max_tokens; a KL would be added to either"
        ),
        "Liu et al. 2025 (arXiv 2503.20783), section 3.2",
    ),
    Objection(
        "dr_grpo",
        always,
        lambda f: (
            f"it does nothing about what decides here ({known('mixed groups {}, ', f.mixed_share())}{known('truncated {}, ', f.truncated)}{f.updates_per_batch} optimizer steps a batch)"
        ),
    ),
    Objection("grpo", _no_reference, _no_reference_words),
    Objection(
        "grpo",
        lambda f: f.length_spread is not None and f.length_spread > 0.5,
        lambda f: (
            f"lengths vary by {percent(f.length_spread)} of their mean: dividing by length makes long wrong answers cheap"
        ),
        "Liu et al. 2025 (arXiv 2503.20783), section 3.1",
    ),
    Objection(
        "grpo",
        always,
        lambda f: (
            f"dividing by length and deviation biases the gradient, and its KL holds {sized('{} for ', f.reference_mib)}a reference; asked to keep the start: {'yes' if f.keep_close else 'no'}"
        ),
        "Liu et al. 2025 (arXiv 2503.20783), section 3.1",
    ),
    Objection(
        "grpo_process",
        lambda f: not f.step_labels,
        lambda f: f"0 steps are judged: a completion of {_length(f)} has one verdict",
        "Shao et al. 2024 (arXiv 2402.03300), section 4.1.3",
    ),
    Objection(
        "grpo_process",
        always,
        lambda f: (
            "step verdicts come from a learned model as a rule, which the outcome's verifier cannot hold"
        ),
        "DeepSeek-AI 2025 (arXiv 2501.12948), section 4.2",
    ),
    Objection(
        "dapo",
        lambda f: (share := f.mixed_share()) is not None and share >= FEW_MIXED,
        lambda f: (
            f"{percent(f.mixed_share())} of groups of {f.group_size} are expected mixed (>= {percent(FEW_MIXED)}): there is little to replace{known(', and {} are truncated', f.truncated)}"
        ),
        "Yu et al. 2025 (arXiv 2503.14476)",
    ),
    Objection(
        "dapo",
        always,
        lambda f: (
            f"{known('{} of groups are expected mixed', f.mixed_share()) or 'how many groups are mixed is not measured'}: sampling more for want of them costs generation"
        ),
        "Yu et al. 2025 (arXiv 2503.14476)",
    ),
    Objection(
        "gspo",
        always,
        lambda f: (
            f"for models with experts; this one {'has them' if f.experts else 'has none'}, and a ratio over {_length(f)} clips whole completions"
        ),
        "Zheng et al. 2025 (arXiv 2507.18071)",
    ),
    Objection(
        "gspo_product",
        always,
        lambda f: (
            f"a ratio of 1.01 a token is {1.01 ** min(f.mean_tokens or f.max_tokens, 1e4):.3g} over {_length(f)}: everything is clipped"
        ),
        "Zheng et al. 2025 (arXiv 2507.18071), section 4.1",
    ),
    Objection(
        "cispo",
        always,
        lambda f: (
            f"{f.updates_per_batch} optimizer steps a batch (below {MANY_UPDATES}): few tokens would be clipped at all"
        ),
        "MiniMax 2025, M1 (arXiv 2506.13585), section 3.1",
    ),
    Objection(
        "rloo",
        lambda f: f.reward in CHECKED,
        lambda f: (
            f"it sums over a completion's tokens where dr_grpo divides by a constant: the same direction at {f.updates_per_batch} optimizer steps a batch, at a rate that follows the length"
        ),
        "Ahmadian et al. 2024 (arXiv 2402.14740)",
    ),
    Objection(
        "rloo",
        always,
        lambda f: "its plain gradient does nothing about what decides here",
    ),
    Objection(
        "reinforce",
        always,
        lambda f: (
            f"without a baseline the gradient's variance is larger{known(': a mean would take {} of the second moment of a reward of right and wrong away', f.pass_at_1)}"
        ),
        "Williams 1992; Greensmith et al. 2004",
    ),
    Objection(
        "reinforce_plus_plus",
        lambda f: f.group_size > 1,
        lambda f: (
            f"{f.group_size} siblings of a prompt are a better baseline than the whole batch: problems differ in difficulty"
        ),
        "Shao et al. 2024 (arXiv 2402.03300), section 4.1.1",
    ),
    Objection(
        "reinforce_plus_plus",
        always,
        lambda f: f"a critic{sized(' of {}', f.critic_mib)} credits tokens one by one",
        "Schulman et al. 2017 (arXiv 1707.06347)",
    ),
    Objection(
        "reinforce_plus_plus_baseline",
        always,
        lambda f: (
            f"groups of {f.group_size} have a baseline of their own; whitening over the batch brings its deviation back, which biases hard problems' weight"
        ),
        "Liu et al. 2025 (arXiv 2503.20783), section 3.1",
    ),
    Objection(
        "kimi",
        always,
        lambda f: (
            f"for completions of an older policy; here they are at most {f.policy_age} versions old"
        ),
        "Kimi Team 2025, k1.5 (arXiv 2501.12599)",
    ),
    Objection("ppo", _no_critic, _no_critic_words),
    Objection(
        "ppo",
        always,
        lambda f: (
            f"{f.group_size} siblings are a baseline without a critic, which would take {sized('{} and ', f.critic_mib)}its own training"
        ),
        "Shao et al. 2024 (arXiv 2402.03300), figure 4; Ahmadian et al. 2024 (arXiv 2402.14740)",
    ),
    Objection("ppo_penalty", _no_critic, _no_critic_words),
    Objection(
        "ppo_penalty",
        always,
        lambda f: (
            "clipping did better than the adaptive penalty where both were tried (0.82 against 0.74 of normalized score)"
        ),
        "Schulman et al. 2017 (arXiv 1707.06347), table 1",
    ),
    Objection(
        "trpo",
        always,
        lambda f: (
            f"conjugate gradients take some ten more passes a step{'' if f.num_weights is None else f' over {f.num_weights / 1e6:.1f} million weights'}, for a bound that clipping approximates"
        ),
        "Schulman et al. 2015 (arXiv 1502.05477); Schulman et al. 2017 (arXiv 1707.06347), section 2.2",
    ),
)
