"""The table of algorithms: each is a named setting, with the paper and equation that it is.

Adding an algorithm is adding a row. What a row says is computed in `rewards` (what is rewarded),
`advantages` (credit, baseline, scale) and `losses` (surrogate, KL, aggregation); the fields stand in
`assay.config.algorithm`, once.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

from assay.config.algorithm import Algorithm
from assay.errors import ConfigError, message
from assay.learn.tables import choose_row

# In all rows std_ddof is 1: siblings are a sample of the policy, and the sample deviation is what
# TRL and verl compute (the papers leave it open). std_epsilon is 1e-4: far below the deviation of
# rewards in [0, 1] (at least 0.1 in a group of 64 that is not all equal), and far above float noise.
# A KL in the reward is k1 unless a row says otherwise: only k1 is the objective's own (eq. 2 of Ziegler).

IMPORTANCE_CAP = 2.0
"""Largest importance weight of a token that another program sampled: a rule of thumb, the usual bound in practice."""

_PPO = Algorithm(
    name="ppo",
    paper="Schulman et al. 2017, PPO (arXiv 1707.06347); for language Ziegler et al. 2019 (arXiv 1909.08593), Stiennon et al. 2020 (arXiv 2009.01325), Ouyang et al. 2022 (arXiv 2203.02155)",
    equation="eq. 7 (clip), eq. 11 (advantages) of Schulman; eq. 2 of Ziegler (KL in the reward, token by token); appendix C.4 of Ouyang (its weight)",
    credit="gae",
    baseline="none",
    gamma=1.0,
    gae_lambda=0.95,
    whiten_advantages=True,
    aggregation="token_mean",
    kl_weight=0.02,
    kl_estimator="k1",
    kl_place="reward",
    value_clip=0.2,
)
_GRPO = Algorithm(
    name="grpo",
    paper="Shao et al. 2024, DeepSeekMath (arXiv 2402.03300)",
    equation="eq. 3, with the KL of eq. 4 (k3) in the loss; outcome supervision, section 4.1.2",
    baseline="mean",
    scale="std",
    aggregation="sequence_mean",
    kl_weight=0.04,
    kl_estimator="k3",
    kl_place="loss",
)
_GSPO = Algorithm(
    name="gspo",
    paper="Zheng et al. 2025, Group Sequence Policy Optimization (arXiv 2507.18071)",
    equation="eq. 5 (objective), eq. 6 (advantage), eq. 7 (ratio: geometric mean over the completion); clip ranges of section 5.1",
    baseline="mean",
    scale="std",
    ratio_level="sequence_mean",
    aggregation="sequence_mean",
    clip_low=3e-4,
    clip_high=4e-4,
)

ALGORITHMS: dict[str, Algorithm] = {
    row.name: row
    for row in (
        _PPO,
        replace(
            _PPO,
            name="ppo_penalty",
            equation="eq. 8 (a penalty on KL(old || new) in place of the clip) and the rule below it, section 4; else as ppo",
            surrogate="ratio",
            penalty_weight=1.0,
            penalty_target=0.01,
        ),
        Algorithm(
            name="trpo",
            paper="Schulman et al. 2015, TRPO (arXiv 1502.05477)",
            equation="eq. 14, with advantages by the vine estimate of section 5.2 (siblings from one state), here leave-one-out; delta of section 8",
            baseline="leave_one_out",
            surrogate="ratio",
            aggregation="token_mean",
            trust_region=0.01,
        ),
        Algorithm(
            name="reinforce",
            paper="Williams 1992, Simple Statistical Gradient-Following Algorithms",
            equation="section 5 (episodic REINFORCE): r times the sum over the episode of grad log p, without a baseline",
            baseline="none",
            surrogate="log_likelihood",
            aggregation="constant_length",
            length_divisor=1.0,  # the plain sum
            kl_estimator="k1",
            kl_place="reward",
        ),
        Algorithm(
            name="rloo",
            paper="Ahmadian et al. 2024, Back to Basics (arXiv 2402.14740); Kool et al. 2019",
            equation="(1/k) sum_i (R_i - mean of the other R_j) grad log p(y_i); KL of the whole completion in R",
            baseline="leave_one_out",
            aggregation="constant_length",
            length_divisor=1.0,  # log p(y) is the sum over the tokens
            kl_estimator="k1",
            kl_place="reward",
        ),
        Algorithm(
            name="reinforce_plus_plus",
            paper="Hu et al. 2025, REINFORCE++ (arXiv 2501.03262)",
            equation="section 3: reward less beta times the k1 of the tokens from t on, normalized over the batch, in eq. 7 of PPO",
            credit="to_go",
            baseline="none",
            whiten_advantages=True,
            aggregation="token_mean",
            kl_weight=0.01,
            kl_estimator="k1",
            kl_place="reward",
        ),
        Algorithm(
            name="reinforce_plus_plus_baseline",
            paper="Hu et al. 2025, REINFORCE++ (arXiv 2501.03262)",
            equation="section 3, with baseline: reward less the group's mean, normalized over the batch; k2 in the loss",
            baseline="mean",
            whiten_advantages=True,
            aggregation="token_mean",
            kl_weight=0.001,
            kl_estimator="k2",
            kl_place="loss",
        ),
        _GRPO,
        replace(
            _GRPO,
            name="grpo_process",
            equation="eq. 3 and 4; process supervision, section 4.1.3: step rewards normalized over the steps of the group, summed from the token on",
            credit="steps",
        ),
        Algorithm(
            name="dr_grpo",
            paper="Liu et al. 2025, Understanding R1-Zero-Like Training (arXiv 2503.20783)",
            equation="section 3.2: eq. 3 of DeepSeekMath without 1/|o| and without std; listing 1 for the constant",
            baseline="mean",
            aggregation="constant_length",
        ),
        Algorithm(
            name="dapo",
            paper="Yu et al. 2025, DAPO (arXiv 2503.14476)",
            equation="eq. 8 (token mean), eq. 9 (advantage), eq. 10 (clip higher), eq. 11 (dynamic sampling), eq. 13 (overlong)",
            baseline="mean",
            scale="std",
            aggregation="token_mean",
            clip_low=0.2,
            clip_high=0.28,
            mask_truncated=True,
            overlong_buffer=None,  # the paper's share: 4096 of 20480 tokens
            dynamic_sampling=True,
        ),
        _GSPO,
        replace(
            _GSPO,
            name="gspo_product",
            paper="DeepSeek-AI 2025, DeepSeek-R1 (arXiv 2501.12948)",
            equation="eq. 1 as it is written: the ratio of whole completions, not normalized by length; advantage of eq. 3; its KL (eq. 2) is kl_weight",
            ratio_level="sequence_product",
            clip_low=0.2,
            clip_high=0.2,
        ),
        Algorithm(
            name="cispo",
            paper="MiniMax 2025, MiniMax-M1 (arXiv 2506.13585)",
            equation="eq. 4 (objective), eq. 5 (clipped weight), no lower bound; the ceiling of 5, which the paper leaves open, from Khatri et al. 2025, ScaleRL (arXiv 2510.13786)",
            baseline="mean",
            scale="std",
            surrogate="cispo",
            aggregation="token_mean",
            clip_low=1.0,  # a floor of 0, below every ratio
            clip_high=4.0,
        ),
        Algorithm(
            name="kimi",
            paper="Kimi Team 2025, Kimi k1.5 (arXiv 2501.12599)",
            equation="section 2.3.2: the gradient that follows from its surrogate loss, with the mean reward as baseline; tau, which the paper leaves open, is 1",
            baseline="mean",
            surrogate="mirror",
            aggregation="constant_length",
            length_divisor=1.0,  # log p(y) is the sum over the tokens
            tau=1.0,
        ),
        Algorithm(
            name="rft",
            paper="Yuan et al. 2023, Rejection sampling fine-tuning (arXiv 2308.01825); Shao et al. 2024, DeepSeekMath (arXiv 2402.03300)",
            equation="appendix A.1.3 of DeepSeekMath (online): the mean log-probability of each completion that passed, over all that were sampled",
            baseline="none",
            surrogate="log_likelihood",
            aggregation="sequence_mean",
            keep="correct",
        ),
    )
}


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """Return a row of the table, or the object ``package.module:object``, with fields replaced.

    An override that is None leaves the row as it is. Raises ConfigError for a name or a field that
    does not exist, and for a weight that is to be moved and is 0.
    """
    row = choose_row(ALGORITHMS, Algorithm, "algorithm.name", name, overrides)
    for target, weight in (("kl_target", "kl_weight"), ("penalty_target", "penalty_weight")):
        if getattr(row, target) is not None and not getattr(row, weight):
            found = f"{getattr(row, target)}, with a {weight} of 0 to start from"
            raise ConfigError(message(f"algorithm.{target}", found, f"a {weight} > 0 beside it"))
    return row


def for_generator(row: Algorithm, exact: bool) -> Algorithm:
    """Return the row as it learns from what a generator samples.

    exact: its log-probabilities are the learner's. Where they are not, tokens are weighed by
    `IMPORTANCE_CAP`, unless the row has a cap of its own.
    """
    if exact or row.importance_cap is not None:
        return row
    return replace(row, importance_cap=IMPORTANCE_CAP)


def describe(row: Algorithm) -> str:
    """Return what a row sets: its fields that differ from the defaults, as ``field = value``, by commas."""
    parts: list[str] = []
    for field in fields(row):
        value = getattr(row, field.name)
        if field.default is not MISSING and value != field.default and field.name != "max_tokens":
            parts.append(f"{field.name} = {value}")
    return ", ".join(parts)


def check_group_size(row: Algorithm, group_size: int) -> None:
    """Raise ConfigError where a group-relative method would have no sibling to compare with."""
    if group_size < row.min_siblings:
        raise ConfigError(
            message(
                "rl.group_size",
                group_size,
                f"a whole number >= {row.min_siblings}",
                f"{row.name} compares the completions of one prompt with each other",
            )
        )
