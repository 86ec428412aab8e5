"""The section ``[curriculum]``: selection of training problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.config.section import Epochs, Rate, Section, Text, found_words
from assay.errors import message
from assay.validation import toml_words

Weight = Annotated[float, Field(ge=0.0, le=100.0)]
Size = Annotated[int, Field(ge=1, le=65536)]


class CurriculumConfig(Section):
    """Selection of problems during training in ``[rl]``, and in ``[preference]`` without pairs.

    An epoch has as many draws as there are problems. The pass rate of a problem is estimated from
    the problem's judged completions by a Beta posterior with a uniform prior. With few judged
    completions, the estimated distribution of a pass rate is therefore wide.
    """

    order: Literal["uniform", "easy_to_hard", "prioritized", "band"] = "uniform"
    """Order of the problems. ``uniform``: every problem once per epoch, in random order.
    ``easy_to_hard``: every problem once per epoch, the easiest first (see `label`). A run with
    fewer draws than problems takes a random subset, so that the run also reaches hard problems.
    ``prioritized``: random, in proportion to 1 - pass rate (Kimi k1.5, arXiv 2501.12599, section
    2.3.3). ``band``: random, in proportion to the probability that the pass rate is in `band`."""
    label: Text | None = None
    """Key of the row with the problem's difficulty: a number, or counts of completions such as
    ``{"passed": 3, "judged": 8}``, which ``assay data label_difficulty`` writes as ``difficulty``.
    Counts also initialize the pass rate. ``prioritized`` and ``band`` use only counts. None: use
    only observations of the run."""
    easy_is: Literal["low", "high"] = "low"
    """Direction of a numeric label. ``low``: low numbers are easy. ``high``: high numbers are easy,
    as for pass rates."""
    band: tuple[Rate, Rate] = (0.2, 0.8)
    """Range of preferred pass rates for ``order = "band"``."""
    # A policy improves during an epoch, so old verdicts underestimate the current pass rate.
    forgetting: Rate = 0.25
    """Share of a problem's observations that is discounted per epoch, because the policy changes.
    0: keep all observations. 1: use only the current epoch."""
    retire_above: Rate | None = None
    """Retire solved problems: do not draw a problem again if its pass rate is above this number
    with probability `confidence`. None: off."""
    retire_below: Rate | None = None
    """Retire hopeless problems: do not draw a problem again if its pass rate is below this number
    with probability `confidence`. None: off."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    """Probability required to retire a problem. With 0.9, a problem whose completions all pass has
    a pass rate above 0.75 after 8 completions, and above 0.9 after 21."""
    return_after: Epochs | None = 3.0
    """Number of epochs after which a retired problem can be drawn again. If every problem is
    retired, all problems return. None: only if every problem is retired."""
    group_sizes: tuple[Size, Size] | None = None
    """Minimum and maximum number of completions per group, such as ``[2, 16]``. A problem gets a
    smaller group if its outcome is almost certain, and a larger group if two of its completions are
    likely to differ. A new problem gets `rl.group_size`. Other sizes are `rl.group_size` halved or
    doubled once or several times. Larger groups have no larger weight in the loss. None:
    `rl.group_size` for all problems."""
    weights: dict[Text, Weight] = Field(default={})
    """Relative frequency of problems, by tag or by source as `data.train` names it:
    ``{"geometry" = 2.0, "easy.jsonl" = 0.5}``. The default is 1, and several weights of a problem
    are multiplied. In orders that draw every problem once per epoch, weight 2 means two draws, and
    weight 0.5 a draw with probability 0.5."""

    @field_validator("band")
    @classmethod
    def _rises(cls, band: tuple[float, float]) -> tuple[float, float]:
        if band[0] >= band[1]:
            accepted = "the lowest and the highest pass rate, rising, as [0.2, 0.8]"
            raise ValueError(found_words(list(band), accepted))
        return band

    @field_validator("group_sizes")
    @classmethod
    def _grows(cls, sizes: tuple[int, int] | None) -> tuple[int, int] | None:
        if sizes is not None and sizes[0] >= sizes[1]:
            accepted = "the fewest and the most completions, rising, as [2, 16]"
            raise ValueError(found_words(list(sizes), accepted))
        return sizes

    def smallest_and_largest(self, usual: int) -> tuple[int, int]:
        """Return the smallest and the largest number of completions per prompt; ``usual`` is
        `rl.group_size`."""
        return self.group_sizes or (usual, usual)

    @property
    def retires(self) -> bool:
        """Whether problems can be retired."""
        return self.retire_above is not None or self.retire_below is not None

    @property
    def observes(self) -> bool:
        """Whether the choice of problems depends on the run's verdicts."""
        by_rates = self.order == "easy_to_hard" and self.label is None
        return by_rates or self.order in ("prioritized", "band") or self.retires

    def clashes(self, stage: str, draws: bool, pairwise: bool) -> Iterator[str]:
        """Yield an error message for each setting that conflicts with a stage or has no effect.

        Each message begins with a configuration key. draws: whether the stage draws problems.
        pairwise: whether verdicts compare siblings.
        """
        # A setting without effect is an error,
        # because a silently ignored setting hides a user's mistake.
        changed = self._changed()
        if not draws:
            for key, value in changed.items():
                found = f"{toml_words(value)} in a run of [{stage}] that draws no problems"
                yield message(f"curriculum.{key}", found, "none", "remove it")
        # A pairwise verdict says which of two completions is better,
        # not whether a completion is right.
        # With pairwise verdicts, a problem therefore has no pass rate.
        elif pairwise and self.observes:
            key = next(key for key in ("order", "retire_above", "retire_below") if key in changed)
            found = f'{toml_words(changed[key])} with preference.judge = "pairwise"'
            accepted = "settings without pass rates: such verdicts compare siblings"
            yield message(f"curriculum.{key}", found, accepted)
        elif self.group_sizes is not None and stage != "rl":
            found = f"{toml_words(self.group_sizes)} in a run of [{stage}]"
            yield message("curriculum.group_sizes", found, "none: only [rl] has such groups")
        elif self.retire_above is not None and self.retire_above <= (self.retire_below or 0.0):
            accepted = f"more than curriculum.retire_below ({self.retire_below or 0:g})"
            yield message("curriculum.retire_above", f"{self.retire_above:g}", accepted)
        else:
            needs = {
                "label": (self.order != "uniform", "another curriculum.order"),
                "easy_is": (self.label is not None, "curriculum.label"),
                "band": (self.order == "band", 'curriculum.order = "band"'),
                "confidence": (self.retires, "curriculum.retire_above or retire_below"),
                "return_after": (self.retires, "curriculum.retire_above or retire_below"),
            }
            for key, (is_used, need) in needs.items():
                if key in changed and not is_used:
                    found = f"{toml_words(changed[key])}, which has no effect"
                    yield message(f"curriculum.{key}", found, f"it beside {need}", "or none")

    def _changed(self) -> dict[str, Any]:
        """Return the keys whose values differ from the defaults, with their values."""
        # `model_fields_set` would contain every key of a saved configuration.
        values = {key: getattr(self, key) for key in type(self).model_fields}
        defaults = {key: one.default for key, one in type(self).model_fields.items()}
        return {key: value for key, value in values.items() if value != defaults[key]}
