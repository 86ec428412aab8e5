"""Mixtures of problems: one table of ``[data.mixture]`` per tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from assay.config.curriculum import CurriculumConfig
from assay.config.section import Count, Natural, NonNegative, Section, Text

PartName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
"""Name of a part: a tag that is also a part of metric names and a folder of checkpoints."""
SAMPLING_KEYS = ("max_tokens", "stop", "think_budget", "min_think")
"""Keys of a part that replace the keys of ``[sampling]`` with these names."""


class MixturePart(Section):
    """One part of a mixture: the problems with one tag, which is the table's name.

    Only for ``[rl]``. Every training and held-out problem belongs to exactly one part: that of its
    first tag with a table. Keys that a part omits have the run's values.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems, which get this tag. They are added to `data.train`. Empty: the
    problems of `data.train` that have the tag."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems, which get this tag. They are added to `data.heldout`."""
    weight: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Share of the prompts, relative to the other parts. Draws are balanced: after any number of
    prompts, a part misses its share by fewer prompts than there are parts. 0: the part is out of
    domain. It is evaluated and never trained on, and training problems with this tag are an
    error."""
    verifier: Text | None = None
    """Verifier of rows without one. It replaces `data.verifier_by_tag` for this tag. None:
    `data.verifier`."""
    group_size: Count | None = None
    """Completions per prompt. Every prompt has the same weight in the loss, whatever its group
    size. None: `rl.group_size`."""
    max_tokens: Natural | None = None
    """Maximum length of a completion, also in evaluations. None: `sampling.max_tokens`."""
    stop: tuple[Text, ...] | None = None
    """Strings that end a completion. None: `sampling.stop`."""
    think_budget: Natural | None = None
    """Maximum number of thinking tokens. None: `sampling.think_budget`."""
    min_think: Natural | None = None
    """Minimum number of thinking tokens. None: `sampling.min_think`."""
    stop_above: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Stop drawing this part when at least this share of the completions of its last 64 groups
    passed. The other parts share its prompts; it is still evaluated. If every part has stopped, all
    are drawn again, by their weights. None: never."""
    kl_factor: NonNegative = 1.0
    """Multiplies the KL to the reference for the completions of this part, in the loss or in the
    reward: its weight is `algorithm.kl_weight` times this factor. 0: no KL in this part."""
    curriculum: CurriculumConfig | None = None
    """``[data.mixture.NAME.curriculum]``: the order of this part's problems, with the keys of
    ``[curriculum]``, which it replaces for this part. None: `[curriculum]`."""

    @property
    def sampling_changes(self) -> dict[str, Any]:
        """The keys of ``[sampling]`` that this part replaces."""
        found = {key: getattr(self, key) for key in SAMPLING_KEYS}
        return {key: value for key, value in found.items() if value is not None}


def part_of(parts: Mapping[str, MixturePart], tags: Sequence[str]) -> str | None:
    """Return the part of a problem with these tags, or None."""
    return next((tag for tag in tags if tag in parts), None)


def tags_of_sources(parts: Mapping[str, MixturePart], key: str) -> dict[str, str]:
    """Return the tag of each source, for the sources that a part names. key: ``train`` or
    ``heldout``."""
    return {source: name for name, part in parts.items() for source in getattr(part, key)}
