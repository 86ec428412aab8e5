"""Validation of a mixture's settings, before files or models are opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import ValidationError

from assay.config.algorithm import AlgorithmConfig
from assay.config.mixture import MixturePart
from assay.config.stages import RLConfig
from assay.config.world import SamplingConfig
from assay.errors import message


def clashes_of_mixture(
    parts: Mapping[str, MixturePart],
    stage: str,
    rl: RLConfig | None,
    sampling: SamplingConfig,
    algorithm: AlgorithmConfig,
) -> Iterator[str]:
    """Yield conflicts of mixture parts with each other and with other sections.

    Each message begins with a configuration key.
    """
    first = next(iter(parts))
    if rl is None:
        accepted = f"none in a run of [{stage}]: only [rl] draws from a mixture"
        yield message(f"data.mixture.{first}", "a part", accepted)
        return
    if not any(part.weight for part in parts.values()):
        yield message(f"data.mixture.{first}.weight", "0 in every part", "a weight above 0 in one")
    yield from _clashes_of_sources(parts)
    if rl.oversample:
        accepted = "0 with [data.mixture], whose parts end at different lengths"
        yield message("rl.oversample", rl.oversample, accepted)
    # DAPO's punishment of long completions assumes one maximum length for all problems.
    lengths = {part.max_tokens or sampling.max_tokens for part in parts.values()}
    if algorithm.overlong_buffer and len(lengths) > 1:
        accepted = "none with parts of the mixture that differ in max_tokens"
        yield message("algorithm.overlong_buffer", algorithm.overlong_buffer, accepted)
    for name, part in parts.items():
        yield from _clashes_of_part(f"data.mixture.{name}", part, rl, sampling)


def _clashes_of_sources(parts: Mapping[str, MixturePart]) -> Iterator[str]:
    """Yield errors for sources that two parts share, and for training sources of a part with weight
    0."""
    # Every row of a source gets the tag of its part,
    # so rows of a shared source would have two tags.
    for key in ("train", "heldout"):
        owner: dict[str, str] = {}
        for name, part in parts.items():
            for source in getattr(part, key):
                if owner.setdefault(source, name) != name:
                    found = f'"{source}", which data.mixture.{owner[source]} has too'
                    yield message(f"data.mixture.{name}.{key}", found, "each source in one part")
    for name, part in parts.items():
        if not part.weight and part.train:
            accepted = "none in a part of weight 0, which is never trained on"
            yield message(f"data.mixture.{name}.train", f'"{part.train[0]}"', accepted)


def _clashes_of_part(
    where: str, part: MixturePart, rl: RLConfig, sampling: SamplingConfig
) -> Iterator[str]:
    size = part.group_size or rl.group_size
    if rl.max_group_size is not None and rl.max_group_size < size:
        accepted = f"at least {where}.group_size ({size})"
        yield message("rl.max_group_size", rl.max_group_size, accepted)
    # The part's values are validated together with the run's values.
    # For example, a part's max_tokens must leave room for an answer after the run's think budget.
    try:
        SamplingConfig.model_validate({**sampling.model_dump(), **part.sampling_changes})
    except ValidationError as error:
        text = str(error.errors()[0].get("ctx", {}).get("error", error))
        yield f"{where}.{text.replace('sampling.', f'{where}.')}"
    if part.curriculum is not None:
        for text in part.curriculum.clashes("rl", draws=True, pairwise=False):
            yield f"{where}.{text}"
        bounds = part.curriculum.group_sizes
        if bounds is not None and not bounds[0] <= size <= bounds[1]:
            accepted = f"the fewest at most, and the most at least {where}.group_size ({size})"
            yield message(f"{where}.curriculum.group_sizes", list(bounds), accepted)
        if bounds is not None and rl.max_group_size is not None:
            accepted = "none with curriculum.group_sizes, which settles a group's size before"
            yield message("rl.max_group_size", rl.max_group_size, accepted)
