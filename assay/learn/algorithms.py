"""The tables of algorithms and of preference methods: each a named setting, with its paper.

Adding an algorithm is adding a row. What a row says is computed in `rewards` (what is rewarded),
`advantages` (credit, baseline, scale) and `losses` (surrogate, KL, aggregation), and of preference
methods in `preference_losses`; the fields stand in `assay.config.algorithm` and
`assay.config.preference`, once.
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
"""Largest importance weight of a token that another program sampled: the usual bound."""

ALGORITHMS = read_rows(Algorithm, Path(__file__).with_name("algorithms.toml"))
PREFERENCES = read_rows(Preference, Path(__file__).with_name("preferences.toml"))


def algorithm(name: str, **overrides: Any) -> Algorithm:
    """Return a row of the table, or the object ``package.module:object``, with fields replaced.

    An override that is None leaves the row as it is. Raises ConfigError for a name or a field that
    does not exist, for a weight that is to be moved and is 0, and where a credit takes a method's
    critic away and nothing says what is subtracted in its place.
    """
    row = choose_row(ALGORITHMS, Algorithm, "algorithm.name", name, overrides)
    own = choose_row(ALGORITHMS, Algorithm, "algorithm.name", name, {})
    if own.has_critic and not row.has_critic and overrides.get("baseline") is None:
        found = f"{row.credit!r}, which takes away the critic of {row.name}: nothing is subtracted"
        remedy = "or choose a method with a baseline, as rloo"
        accepted = "'gae', or an algorithm.baseline beside it (none if that is meant)"
        raise ConfigError(message("algorithm.credit", found, accepted, remedy))
    for target, weight in (("kl_target", "kl_weight"), ("penalty_target", "penalty_weight")):
        if getattr(row, target) is not None and not getattr(row, weight):
            found = f"{getattr(row, target)}, with a {weight} of 0 to start from"
            raise ConfigError(message(f"algorithm.{target}", found, f"a {weight} > 0 beside it"))
    return row


def preference(name: str, **overrides: Any) -> Preference:
    """Do as `algorithm` with the table of preference methods."""
    return choose_row(PREFERENCES, Preference, "preference.method", name, overrides)


def for_generator(row: Algorithm, exact: bool) -> Algorithm:
    """Return the row as it learns from what a generator samples.

    exact: its log-probabilities are the learner's. Where they are not, tokens are weighed by
    `IMPORTANCE_CAP`, unless the row has a cap of its own.
    """
    if exact or row.importance_cap is not None:
        return row
    return replace(row, importance_cap=IMPORTANCE_CAP)


def describe(row: Algorithm) -> str:
    """Return a row's fields that differ from the defaults, as ``field = value``, by commas."""
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
