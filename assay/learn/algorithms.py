"""Presets of RL algorithms and of preference methods, each with its paper.

A new algorithm only needs a new preset in this table. `rewards` (reward terms), `advantages`
(credit, baseline, scale) and `losses` (surrogate, KL, aggregation) implement the fields of a
preset. `preference_losses` implements the fields of a preset of a preference method.
`assay.config.algorithm` and `assay.config.preference` define the fields of presets.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from assay.config.algorithm import Algorithm
from assay.config.preference import Preference
from assay.config.row import choose_row, read_rows
from assay.errors import ConfigError, message

IMPORTANCE_CAP = 2.0
"""Default cap on importance weights of tokens from a generator with inexact log-probabilities."""

ALGORITHMS = read_rows(Algorithm, Path(__file__).with_name("algorithms.toml"))
PREFERENCES = read_rows(Preference, Path(__file__).with_name("preferences.toml"))


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """Return an algorithm preset, or the object ``package.module:object``, with some fields
    replaced.

    An override of None keeps the value of the preset. Raises ConfigError for an unknown name or
    field, for a dynamic weight that starts at 0, and for a credit that removes the preset's critic
    without adding a baseline.
    """
    row = choose_row(ALGORITHMS, Algorithm, "algorithm.name", name, overrides)
    own = choose_row(ALGORITHMS, Algorithm, "algorithm.name", name, {})
    # Without a check, the preset ppo with another credit would train without any baseline.
    if own.has_critic and not row.has_critic and overrides.get("baseline") is None:
        found = f"{row.credit!r}, which removes the critic of {row.name} and leaves no baseline"
        remedy = "or choose a method with a baseline, as rloo"
        accepted = "'gae', or set algorithm.baseline too (none for no baseline)"
        raise ConfigError(message("algorithm.credit", found, accepted, remedy))
    # Controllers multiply a dynamic weight by a factor, so a weight of 0 would stay 0.
    for target, weight in (("kl_target", "kl_weight"), ("penalty_target", "penalty_weight")):
        if getattr(row, target) is not None and not getattr(row, weight):
            found = f"{getattr(row, target)}, with a {weight} of 0 to start from"
            raise ConfigError(message(f"algorithm.{target}", found, f"also a {weight} > 0"))
    return row


def preference(name: str, **overrides: Any) -> Preference:
    """Return a preference preset. Return a preference preset; the arguments and errors are those of
    `algorithm`."""
    return choose_row(PREFERENCES, Preference, "preference.method", name, overrides)


def for_generator(row: Algorithm, exact: bool) -> Algorithm:
    """Return the preset with the importance cap that the generator makes necessary.

    exact: whether the generator's log-probabilities equal the learner's. If ``exact`` is False,
    tokens get importance weights, capped at `IMPORTANCE_CAP` or at the preset's own cap.
    """
    if exact or row.importance_cap is not None:
        return row
    return replace(row, importance_cap=IMPORTANCE_CAP)


def check_teaching_ahead(row: Algorithm, steps_ahead: int) -> None:
    """Raise ConfigError if a teacher's KL would be a loss over tokens of older policies.

    Importance weights correct only the surrogate, not a KL in the loss. A KL in the reward is part
    of the surrogate, unlike a KL in the loss.
    """
    if steps_ahead and row.kl_in_loss:
        found = f"{steps_ahead} with a [teacher] whose KL is in the loss of {row.name}"
        accepted = "0, as this KL has no importance weights for tokens of older policies"
        remedy = 'or set algorithm.kl_place = "reward" and algorithm.kl_estimator = "k1"'
        raise ConfigError(message("scale.steps_ahead", found, accepted, remedy))


def describe(row: Algorithm) -> str:
    """Format the fields of a preset that differ from their default, as ``field = value`` separated
    by commas.
    """
    parts: list[str] = []
    for field in fields(row):
        value = getattr(row, field.name)
        if field.default is not MISSING and value != field.default and field.name != "max_tokens":
            parts.append(f"{field.name} = {value}")
    return ", ".join(parts)


def check_group_size(row: Algorithm, group_size: int) -> None:
    """Raise ConfigError if the group size is too small for a group-relative method."""
    if group_size < row.min_siblings:
        raise ConfigError(
            message(
                "rl.group_size",
                group_size,
                f"a whole number >= {row.min_siblings}",
                f"{row.name} compares the completions of one prompt with each other",
            )
        )
