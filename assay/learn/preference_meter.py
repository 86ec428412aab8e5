"""What a preference step reports of its completions."""

from __future__ import annotations

from torch import Tensor

from assay.learn.preference_losses import implicit_rewards
from assay.learn.preference_table import Preference


def preference_metrics(
    logprobs_R: Tensor,
    strengths_R: Tensor,
    length_R: Tensor,
    chosen_R: Tensor,
    row: Preference,
    beta: float,
    ref_logprobs_R: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return means over the chosen (desirable) and the rejected (undesirable) completions, as scalars.

    ``preference/`` reward_chosen, reward_rejected: implicit rewards; margin: their difference; accuracy:
    share of pairs whose chosen completion has the larger one (of completions that come alone, the
    chance that a desirable one has a larger one than an undesirable one); a tie, as all are before the
    first step where there is a reference, counts half. logprob_*: of a completion, and
    logprob_*_token of its tokens; change_* and change_*_token: what they have gained since the reference;
    both_fall: share of pairs of which both have lost. length_*: in tokens. One kind alone leaves
    out what needs both.
    """
    rewards_R = implicit_rewards(strengths_R, row, beta)
    columns = {
        "reward": rewards_R,
        "logprob": logprobs_R,
        "logprob_{}_token": logprobs_R / length_R,
        "length": length_R,
    }
    changes_R: Tensor | None = None
    if ref_logprobs_R is not None:
        changes_R = logprobs_R - ref_logprobs_R
        columns |= {"change": changes_R, "change_{}_token": changes_R / length_R}
    found: dict[str, Tensor] = {}
    for side, of_side_R in (("chosen", chosen_R), ("rejected", ~chosen_R)):
        for name, values_R in columns.items():
            key = name.format(side) if "{}" in name else f"{name}_{side}"
            if of_side_R.any():
                found[f"preference/{key}"] = values_R[of_side_R].mean()
    chosen, rejected = rewards_R[chosen_R], rewards_R[~chosen_R]
    if len(chosen) and len(rejected):
        found["preference/margin"] = chosen.mean() - rejected.mean()
        ahead = chosen - rejected if row.paired else chosen[:, None] - rejected[None]
        found["preference/accuracy"] = (0.5 + 0.5 * ahead.sign()).mean()
    if changes_R is not None and row.paired:
        both = (changes_R[chosen_R] < 0) & (changes_R[~chosen_R] < 0)
        found["preference/both_fall"] = both.double().mean()
    return found
