"""Mixtures of problems: one table of ``[data.mixture]`` per tag."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from assay.config.curriculum import CurriculumConfig
from assay.config.section import Count, Natural, NonNegative, Section, Text

PartName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
"""Name of a mixture part. The name is a tag of problems, and occurs in metric keys and in folder
names of checkpoints."""
SAMPLING_KEYS = ("max_tokens", "stop", "think_budget", "min_think")
"""Keys of a mixture part that replace the keys of the same name in ``[sampling]``."""


class MixturePart(Section):
    """One part of a mixture: the problems whose tag equals the name of the part's table.

    Mixtures are only for ``[rl]``. Every training and held-out problem belongs to exactly one part:
    the part of the problem's first tag that has a table. A key that the table of a part omits keeps
    the value of the whole run.
    """

    train: tuple[Text, ...] = ()
    """Sources of training problems of this part. The sources are added to `data.train`, and their
    problems get the part's tag. Empty: the part consists of the problems of `data.train` that have
    the tag."""
    heldout: tuple[Text, ...] = ()
    """Sources of held-out problems of this part. The sources are added to `data.heldout`, and their
    problems get the part's tag."""
    weight: Annotated[float, Field(ge=0.0, le=1000.0)] = 1.0
    """Share of the prompts, relative to the other parts. Draws are balanced: after any number of
    prompts, a part's number of prompts deviates from its share by less than the number of parts. 0:
    the part is out of domain. An out-of-domain part is evaluated and never trained on, and training
    problems with its tag are an error."""
    verifier: Text | None = None
    """Verifier of rows without a verifier of their own. The key replaces `data.verifier_by_tag` for
    this tag. None: `data.verifier`."""
    group_size: Count | None = None
    """Number of completions per prompt. Every prompt has the same weight in the loss, whatever its
    group size. None: `rl.group_size`."""
    max_tokens: Natural | None = None
    """Maximum length of a completion, also in evaluations. None: `sampling.max_tokens`."""
    stop: tuple[Text, ...] | None = None
    """Strings that end a completion. None: `sampling.stop`."""
    think_budget: Natural | None = None
    """Maximum number of thinking tokens. None: `sampling.think_budget`."""
    min_think: Natural | None = None
    """Minimum number of thinking tokens. None: `sampling.min_think`."""
    stop_above: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Pass rate at which this part is no longer drawn: the share of passed completions among the
    part's last 64 groups. The prompts of a stopped part go to the other parts, and the part is
    still evaluated. If every part has stopped, all parts are drawn again, by their weights. None:
    never stop."""
    kl_factor: NonNegative = 1.0
    """Factor of the KL to the reference for the completions of this part, in the loss or in the
    reward. The part's weight of the KL is `algorithm.kl_weight` times this factor. 0: no KL in this
    part."""
    curriculum: CurriculumConfig | None = None
    """The table ``[data.mixture.NAME.curriculum]``, which replaces ``[curriculum]`` for this part's
    problems and has the same keys. None: `[curriculum]`."""

    @property
    def sampling_changes(self) -> dict[str, Any]:
        """The part's own sampling settings: keys of ``[sampling]`` with the part's values."""
        found = {key: getattr(self, key) for key in SAMPLING_KEYS}
        return {key: value for key, value in found.items() if value is not None}


def part_of(parts: Mapping[str, MixturePart], tags: Sequence[str]) -> str | None:
    """Return the name of the part to which a problem with these tags belongs, or None."""
    return next((tag for tag in tags if tag in parts), None)


def tags_of_sources(parts: Mapping[str, MixturePart], key: str) -> dict[str, str]:
    """For each source that a part lists under ``train`` or ``heldout``, return the part's tag."""
    return {source: name for name, part in parts.items() for source in getattr(part, key)}
