"""Which problems are drawn, and how often."""

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
    """Which problems are drawn while training (``[rl]``, and ``[preference]`` without pairs). An
    epoch is as many draws as there are problems. The pass rate of a problem is estimated from its
    judged completions, by a Beta posterior with a uniform prior: few completions settle little."""

    order: Literal["uniform", "easy_to_hard", "prioritized", "band"] = "uniform"
    """``uniform``: every problem once an epoch, in random order. ``easy_to_hard``: every problem
    once an epoch, the easiest first (see `label`); a run that draws fewer problems than there are
    takes a random part of them, so that it comes to hard ones. ``prioritized``: at random, in
    proportion to 1 - pass rate (Kimi k1.5, arXiv 2501.12599, section 2.3.3). ``band``: at random,
    in proportion to the probability that the pass rate lies in `band`."""
    label: Text | None = None
    """Key of the row that says how hard a problem is: a number, or counts of completions as
    ``{"passed": 3, "judged": 8}``, which ``assay data label_difficulty`` writes as ``difficulty``.
    Counts are also the first observations of their problem. ``prioritized`` and ``band`` read
    counts only. None: only what the run itself observes."""
    easy_is: Literal["low", "high"] = "low"
    """Of a label that is a number: which numbers are the easy problems'. ``high`` is for pass
    rates."""
    band: tuple[Rate, Rate] = (0.2, 0.8)
    """With ``order = "band"``: the lowest and the highest pass rate that is wanted."""
    forgetting: Rate = 0.25
    """Share of what was observed of a problem that is forgotten in each epoch, since the policy
    changes. 0: everything counts for ever. 1: only the epoch at hand counts."""
    retire_above: Rate | None = None
    """A solved problem is retired: it is not drawn again if its pass rate is above this number with
    probability `confidence`. None: no problem is."""
    retire_below: Rate | None = None
    """A hopeless problem is retired: it is not drawn again if its pass rate is below this number
    with probability `confidence`. None: no problem is."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    """How sure the estimate must be before a problem is retired. With 0.9, a problem whose
    completions all pass is above 0.75 after 8 of them, and above 0.9 after 21."""
    return_after: Epochs | None = 3.0
    """Epochs after which a retired problem may be drawn again. If no problem is left to draw, all
    of them return. None: they do not return before."""
    group_sizes: tuple[Size, Size] | None = None
    """The fewest and the most completions of a group, as ``[2, 16]``. The surer it is how a problem
    ends, the fewer it gets; the likelier two of its completions differ, the more. A problem of
    which nothing is known gets `rl.group_size`; other sizes are half or twice that, and so on.
    A group counts no more in the loss for being larger. None: `rl.group_size` for all."""
    weights: dict[Text, Weight] = Field(default={})
    """How often problems are drawn beside others, by tag or by source as `data.train` names it:
    ``{"geometry" = 2.0, "easy.jsonl" = 0.5}``. Others have weight 1; the weights of a problem with
    several of them are multiplied. In the orders that draw every problem once an epoch, one of
    weight 2 is drawn twice, and one of weight 0.5 in every other epoch, by chance."""

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
        """Return how small and how large a group may be; ``usual``: `rl.group_size`."""
        return self.group_sizes or (usual, usual)

    @property
    def retires(self) -> bool:
        """Whether any problem can be retired."""
        return self.retire_above is not None or self.retire_below is not None

    @property
    def observes(self) -> bool:
        """Whether what is drawn depends on verdicts."""
        by_rates = self.order == "easy_to_hard" and self.label is None
        return by_rates or self.order in ("prioritized", "band") or self.retires

    def clashes(self, stage: str, draws: bool, pairwise: bool) -> Iterator[str]:
        """Yield what does not fit in a run of this stage, or has no use; each begins with its key.

        draws: whether the stage draws problems at all. pairwise: whether verdicts compare siblings.
        """
        changed = self._changed()
        if not draws:
            for key, value in changed.items():
                found = f"{toml_words(value)} in a run of [{stage}] that draws no problems"
                yield message(f"curriculum.{key}", found, "none", "leave it out")
        elif pairwise and self.observes:
            key = next(key for key in ("order", "retire_above", "retire_below") if key in changed)
            found = f'{toml_words(changed[key])} with preference.judge = "pairwise"'
            accepted = "what needs no pass rates: such verdicts compare siblings"
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
                    found = f"{toml_words(changed[key])}, which nothing uses"
                    yield message(f"curriculum.{key}", found, f"it beside {need}", "or none")

    def _changed(self) -> dict[str, Any]:
        """Return the keys that are not at their default."""
        values = {key: getattr(self, key) for key in type(self).model_fields}
        defaults = {key: one.default for key, one in type(self).model_fields.items()}
        return {key: value for key, value in values.items() if value != defaults[key]}
