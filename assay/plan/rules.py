"""The rules that choose: read from the top, the first whose condition holds recommends.

What must come first stands first: something to learn from, a verifier that cannot be gamed, a policy
that sometimes succeeds. Only then does it matter which optimizer is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.plan.facts import CHECKED, LEARNED, ONLINE, Facts
from assay.plan.words import percent, sized

MIN_PROBLEMS = 50
MIN_DEMONSTRATIONS = 50
MIN_PAIRS = 100
MIN_PAIRS_FOR_A_REWARD_MODEL = 2000
MAX_NOT_JUDGED = 0.25  # as guard.max_not_judged
MAX_FALSE_REJECTS = 0.2
MIN_REWARD_ACCURACY = 0.6
NOISY_LABELS = 0.1
TOO_EASY = 0.95
COLD_START_FLOOR = 0.08
HOPELESS_AT_K = 0.05
FEW_MIXED = 0.5
FEW_STEPS = 50
DEAR_VERDICT_SECONDS = 10.0
MANY_UPDATES = 8
SMALL_GROUP = 3
MUCH_TRUNCATED = 0.2
MOSTLY_TRUNCATED = 0.5


@dataclass(frozen=True, slots=True)
class Rule:
    """Where ``when`` holds, ``verdict`` is recommended. because: the reason, with its figures."""

    name: str
    when: Callable[[Facts], bool]
    verdict: str
    because: Callable[[Facts], str]
    source: str


def _known(value: float | None, low: float = float("-inf"), high: float = float("inf")) -> bool:
    return value is not None and low <= value <= high


def _few(facts: Facts, limit: int) -> bool:
    return facts.num_problems is not None and facts.num_problems < limit


def _has_demonstrations(facts: Facts) -> bool:
    return facts.num_demonstrations >= MIN_DEMONSTRATIONS


def _too_cold(facts: Facts) -> bool:
    """Nothing is right now and then that could be reinforced."""
    if facts.pass_at_k is not None and facts.num_samples > 1:
        return facts.pass_at_k < HOPELESS_AT_K
    return facts.pass_at_1 is not None and facts.pass_at_1 == 0


def _hopeless_words(facts: Facts) -> str:
    rate = facts.pass_at_k if facts.num_samples > 1 else facts.pass_at_1
    on = f" on {len(facts.passes)} problems" if facts.passes else ""
    return f"pass@{max(1, facts.num_samples)} is {percent(rate)}{on}"


RULES: tuple[Rule, ...] = (
    Rule(
        "no_reward",
        lambda f: f.reward == "nothing",
        "collect_data",
        lambda f: (
            "nothing says what is better: no answers, tests, judge, preferences or demonstrations"
        ),
        "Ziegler et al. 2019 (arXiv 1909.08593): labels come before any optimizer",
    ),
    Rule(
        "hacks_pay",
        lambda f: f.reward in ONLINE and f.attacks_accepted > 0,
        "harden_verifier",
        lambda f: (
            f"the verifier pays for {f.attacks_accepted} of {f.attacks} known hacks; a policy finds what pays"
        ),
        "Skalse et al. 2022, Defining and Characterizing Reward Hacking (arXiv 2209.13085)",
    ),
    Rule(
        "wrong_answers_pass",
        lambda f: f.reward in CHECKED and _known(f.false_accepts, 1e-12),
        "harden_verifier",
        lambda f: f"{percent(f.false_accepts)} of labelled wrong answers pass; accepted: none",
        "Skalse et al. 2022 (arXiv 2209.13085)",
    ),
    Rule(
        "not_judged",
        lambda f: f.reward in ONLINE and f.not_judged is not None and f.not_judged > MAX_NOT_JUDGED,
        "harden_verifier",
        lambda f: (
            f"{percent(f.not_judged)} of completions are not judged, more than the guard's {percent(MAX_NOT_JUDGED)}: the run would stop"
        ),
        "guard.max_not_judged",
    ),
    Rule(
        "right_answers_fail",
        lambda f: (
            f.reward in ONLINE
            and f.false_rejects is not None
            and f.false_rejects > MAX_FALSE_REJECTS
        ),
        "harden_verifier",
        lambda f: (
            f"{percent(f.false_rejects)} of labelled right answers fail, more than {percent(MAX_FALSE_REJECTS)}: the policy learns the checker's taste"
        ),
        "Xu et al. 2025, TinyV (arXiv 2505.14625)",
    ),
    Rule(
        "judge_is_noise",
        lambda f: (
            f.reward == "judge"
            and f.reward_accuracy is not None
            and f.reward_accuracy < MIN_REWARD_ACCURACY
        ),
        "harden_verifier",
        lambda f: (
            f"the judge agrees with people in {percent(f.reward_accuracy)} of cases, below {percent(MIN_REWARD_ACCURACY)}: near a coin's 50%"
        ),
        "Zheng et al. 2023, Judging LLM-as-a-Judge (arXiv 2306.05685)",
    ),
    Rule(
        "reward_model_is_noise",
        lambda f: (
            f.reward == "reward_model"
            and f.reward_accuracy is not None
            and f.reward_accuracy < MIN_REWARD_ACCURACY
        ),
        "train_reward_model",
        lambda f: (
            f"the reward model is right in {percent(f.reward_accuracy)} of pairs, below {percent(MIN_REWARD_ACCURACY)}: near a coin's 50%"
        ),
        "Gao et al. 2023, Scaling Laws for Reward Model Overoptimization (arXiv 2210.10760)",
    ),
    Rule(
        "few_demonstrations",
        lambda f: f.reward == "demonstrations" and not _has_demonstrations(f),
        "collect_data",
        lambda f: (
            f"{f.num_demonstrations} demonstrations and nothing else; some {MIN_DEMONSTRATIONS} are the least"
        ),
        "Zhou et al. 2023, LIMA (arXiv 2305.11206): 1000 careful ones sufficed, few did not",
    ),
    Rule(
        "only_demonstrations",
        lambda f: f.reward == "demonstrations",
        "sft",
        lambda f: (
            f"{f.num_demonstrations} demonstrations, and nothing that could judge a fresh completion"
        ),
        "Ouyang et al. 2022, InstructGPT (arXiv 2203.02155), step 1",
    ),
    Rule(
        "few_preferences",
        lambda f: f.reward in ("pairs", "unpaired") and f.num_pairs < MIN_PAIRS,
        "collect_data",
        lambda f: f"{f.num_pairs} preferences; below {MIN_PAIRS} they are learned by heart",
        "Gao et al. 2023 (arXiv 2210.10760), section 3: little data, near-chance reward models",
    ),
    Rule(
        "unpaired",
        lambda f: f.reward == "unpaired",
        "kto",
        lambda f: (
            f"{f.num_pairs} completions marked good or bad, not in pairs: KTO alone learns from them"
        ),
        "Ethayarajh et al. 2024, KTO (arXiv 2402.01306)",
    ),
    Rule(
        "pairs_for_a_reward_model",
        lambda f: (
            f.reward == "pairs"
            and f.can_sample
            and f.num_pairs >= MIN_PAIRS_FOR_A_REWARD_MODEL
            and f.fits(f.critic_mib) is not False
        ),
        "train_reward_model",
        lambda f: (
            f"{f.num_pairs} pairs (>= {MIN_PAIRS_FOR_A_REWARD_MODEL}) can train a reward model, and the policy can be sampled: online beats offline on the same preferences"
        ),
        "Xu et al. 2024, Is DPO Superior to PPO? (arXiv 2404.10719); Gao et al. 2023 (arXiv 2210.10760) for the number",
    ),
    Rule(
        "noisy_pairs",
        lambda f: f.reward == "pairs" and _known(f.label_noise, NOISY_LABELS),
        "cdpo",
        lambda f: (
            f"{f.num_pairs} pairs, of which {percent(f.label_noise)} are the wrong way round (>= {percent(NOISY_LABELS)}): smoothed labels bound what those can do"
        ),
        "Mitchell 2023, A note on DPO with noisy preferences",
    ),
    Rule(
        "pairs",
        lambda f: f.reward == "pairs",
        "dpo",
        lambda f: (
            f"{f.num_pairs} pairs"
            + (
                ", and the policy cannot be sampled while it trains"
                if not f.can_sample
                else f", too few for a reward model (>= {MIN_PAIRS_FOR_A_REWARD_MODEL})"
                if f.num_pairs < MIN_PAIRS_FOR_A_REWARD_MODEL
                else ", and no memory for a second model"
            )
        ),
        "Rafailov et al. 2023, DPO (arXiv 2305.18290)",
    ),
    Rule(
        "few_problems",
        lambda f: _few(f, MIN_PROBLEMS),
        "collect_data",
        lambda f: (
            f"{f.num_problems} problems, fewer than {MIN_PROBLEMS}: a held-out accuracy of so few has a standard error of up to {percent(0.5 / max(1, f.num_problems or 1) ** 0.5)}, so that no gain could be shown"
        ),
        "Miller 2024, Adding Error Bars to Evals (arXiv 2411.00640)",
    ),
    Rule(
        "cannot_sample_with_demonstrations",
        lambda f: not f.can_sample and _has_demonstrations(f),
        "sft",
        lambda f: (
            f"the policy cannot be sampled, and there are {f.num_demonstrations} demonstrations"
        ),
        "Ouyang et al. 2022 (arXiv 2203.02155), step 1",
    ),
    Rule(
        "cannot_sample",
        lambda f: not f.can_sample,
        "collect_data",
        lambda f: (
            f"the policy cannot be sampled, and {f.num_demonstrations} demonstrations are too few to learn from"
        ),
        "every online method needs fresh completions",
    ),
    Rule(
        "too_easy",
        lambda f: f.reward in CHECKED and f.pass_at_1 is not None and f.pass_at_1 > TOO_EASY,
        "collect_data",
        lambda f: (
            f"pass@1 is {percent(f.pass_at_1)}, above {percent(TOO_EASY)}: {_mixed_words(f)}; harder problems are needed"
        ),
        "Yu et al. 2025, DAPO (arXiv 2503.14476), section 3.2",
    ),
    Rule(
        "cut_off",
        lambda f: (
            f.reward in CHECKED
            and f.truncated is not None
            and f.truncated > MOSTLY_TRUNCATED
            and f.pass_at_1 is not None
            and f.pass_at_1 < COLD_START_FLOOR
        ),
        "allow_length",
        lambda f: (
            f"{percent(f.truncated)} of completions are cut at {f.max_tokens} tokens, and pass@1 is {percent(f.pass_at_1)}: what the model can do is not seen"
        ),
        "Yu et al. 2025, DAPO (arXiv 2503.14476), section 3.4",
    ),
    Rule(
        "too_hard_with_demonstrations",
        lambda f: f.reward in CHECKED and _too_cold(f) and _has_demonstrations(f),
        "sft",
        lambda f: (
            f"{_hopeless_words(f)}: there is nothing to reinforce; {f.num_demonstrations} demonstrations make a cold start"
        ),
        "DeepSeek-AI 2025, R1 (arXiv 2501.12948), section 2.3.1",
    ),
    Rule(
        "too_hard",
        lambda f: f.reward in CHECKED and _too_cold(f),
        "collect_data",
        lambda f: (
            f"{_hopeless_words(f)}: there is nothing to reinforce, and {f.num_demonstrations} demonstrations make no cold start; write some, or find easier problems"
        ),
        "Yue et al. 2025, Does RL Incentivize Reasoning Beyond the Base Model? (arXiv 2504.13837)",
    ),
    Rule(
        "cold_with_demonstrations",
        lambda f: (
            f.reward in CHECKED
            and f.pass_at_1 is not None
            and f.pass_at_1 < COLD_START_FLOOR
            and _has_demonstrations(f)
        ),
        "sft",
        lambda f: (
            f"pass@1 is {percent(f.pass_at_1)}, below {percent(COLD_START_FLOOR)}; {f.num_demonstrations} demonstrations make a cold start"
        ),
        "DeepSeek-AI 2025, R1 (arXiv 2501.12948), section 2.3.1",
    ),
    Rule(
        "cold",
        lambda f: (
            f.reward in CHECKED and f.pass_at_1 is not None and f.pass_at_1 < COLD_START_FLOOR
        ),
        "rft",
        lambda f: (
            f"pass@1 is {percent(f.pass_at_1)}, below {percent(COLD_START_FLOOR)}, but now and then one passes: learn from those first"
        ),
        "Zelikman et al. 2022, STaR (arXiv 2203.14465); Yuan et al. 2023, RFT (arXiv 2308.01825)",
    ),
    Rule(
        "few_steps",
        lambda f: f.num_steps is not None and f.num_steps < FEW_STEPS,
        "rft",
        lambda f: (
            f"{f.hours:g} hours hold {f.num_steps or 0:.0f} steps of {f.seconds_per_step or 0:.0f} s, fewer than {FEW_STEPS}: sample once, keep what passes, and learn from it in several passes"
        ),
        "Yuan et al. 2023, RFT (arXiv 2308.01825)",
    ),
    Rule(
        "dear_verdicts",
        lambda f: f.reward in LEARNED and _known(f.verifier_seconds, DEAR_VERDICT_SECONDS),
        "dpo",
        lambda f: (
            f"a verdict takes {f.verifier_seconds or 0:.0f} s (>= {DEAR_VERDICT_SECONDS:.0f}): judge each sampled group once, and learn from its pairs in several passes"
        ),
        "Guo et al. 2024, Direct Alignment from Online AI Feedback (arXiv 2402.04792)",
    ),
    Rule(
        "experts",
        lambda f: f.experts,
        "gspo",
        lambda f: (
            "the model routes tokens to experts, whose choice changes with every update: ratios of single tokens jump, that of a completion does not"
        ),
        "Zheng et al. 2025, GSPO (arXiv 2507.18071), section 5.3",
    ),
    Rule(
        "stale",
        lambda f: f.policy_age > 0,
        "kimi",
        lambda f: (
            f"completions are up to {f.policy_age} policy versions old: mirror descent regresses to the iterate that sampled them, whatever it was"
        ),
        "Kimi Team 2025, k1.5 (arXiv 2501.12599), eq. 2 and 3",
    ),
    Rule(
        "many_updates",
        lambda f: f.updates_per_batch >= MANY_UPDATES,
        "cispo",
        lambda f: (
            f"{f.updates_per_batch} optimizer steps a batch (>= {MANY_UPDATES}): clipping would drop the gradient of rare tokens after the first; a clipped weight keeps it"
        ),
        "MiniMax 2025, M1 (arXiv 2506.13585), section 3.1",
    ),
    Rule(
        "steps_are_judged",
        lambda f: f.step_labels and f.group_size > 1,
        "grpo_process",
        lambda f: "steps are judged one by one: a token is credited with the steps that follow it",
        "Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), section 4.1.3",
    ),
    Rule(
        "alone_with_a_critic",
        lambda f: f.group_size == 1 and f.fits(f.critic_mib) is not False,
        "ppo",
        lambda f: (
            f"one completion a prompt has no siblings to compare with, and nothing says that a critic{sized(' of {}', f.critic_mib)} does not fit"
        ),
        "Schulman et al. 2017, PPO (arXiv 1707.06347)",
    ),
    Rule(
        "alone",
        lambda f: f.group_size == 1,
        "reinforce_plus_plus",
        lambda f: (
            f"one completion a prompt has no siblings, and a critic{sized(' of {}', f.critic_mib)} does not fit: the batch is the baseline"
        ),
        "Hu 2025, REINFORCE++ (arXiv 2501.03262)",
    ),
    Rule(
        "learned_reward",
        lambda f: f.reward in LEARNED,
        "rloo",
        lambda f: (
            f"a learned reward, graded rather than right or wrong, of {f.group_size} siblings: their mean without oneself is an unbiased baseline; a KL in the reward, to be set, bounds what an error of the reward can do"
        ),
        "Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740)",
    ),
    Rule(
        "small_groups",
        lambda f: f.group_size <= SMALL_GROUP and (f.mixed_share() or 0) >= FEW_MIXED,
        "reinforce_plus_plus_baseline",
        lambda f: (
            f"groups of {f.group_size}: a deviation from so few is off by some {percent((2 * (f.group_size - 1)) ** -0.5)}; the batch's is not"
        ),
        "Hu 2025, REINFORCE++ (arXiv 2501.03262)",
    ),
    Rule(
        "few_mixed_groups",
        lambda f: (share := f.mixed_share()) is not None and share < FEW_MIXED,
        "dapo",
        lambda f: (
            f"only {percent(f.mixed_share())} of groups of {f.group_size} are expected to hold right and wrong siblings, below {percent(FEW_MIXED)}: dynamic sampling replaces the others"
        ),
        "Yu et al. 2025, DAPO (arXiv 2503.14476), eq. 11",
    ),
    Rule(
        "much_is_truncated",
        lambda f: f.truncated is not None and f.truncated > MUCH_TRUNCATED,
        "dapo",
        lambda f: (
            f"{percent(f.truncated)} of completions are cut at {f.max_tokens} tokens, above {percent(MUCH_TRUNCATED)}: their reward says nothing of their reasoning; they are masked, and length is shaped softly"
        ),
        "Yu et al. 2025, DAPO (arXiv 2503.14476), eq. 13",
    ),
    Rule(
        "keep_close",
        lambda f: f.keep_close and f.fits(f.reference_mib) is not False,
        "grpo",
        lambda f: (
            f"what the model can do now must stay, and nothing says that a reference{sized(' of {}', f.reference_mib)} does not fit: the KL to it is a term of the loss"
        ),
        "Shao et al. 2024, DeepSeekMath (arXiv 2402.03300), eq. 3 and 4",
    ),
    Rule(
        "checked_reward",
        lambda f: True,
        "dr_grpo",
        lambda f: (
            f"a reward that is checked, groups of {f.group_size}{_mixed_tail(f)}: the plain gradient, without the bias of dividing by length and deviation, and without a reference"
        ),
        "Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783)",
    ),
)


def _mixed_words(facts: Facts) -> str:
    return (
        f"only {percent(facts.mixed_share())} of groups of {facts.group_size} would carry gradient"
    )


def _mixed_tail(facts: Facts) -> str:
    share = facts.mixed_share()
    return "" if share is None else f", of which {percent(share)} are expected mixed"
