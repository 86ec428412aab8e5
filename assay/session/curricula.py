"""Create the curriculum of a run: over all problems, over a mixture, or with draws ahead of their
step.
"""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import TrainConfig
from assay.data.curriculum import Curriculum
from assay.data.draws_ahead import DrawsAhead
from assay.data.mixture import Draws, MixedCurriculum, mixed_curriculum
from assay.data.row_facts import FactReader
from assay.types import Problem


def open_curriculum(problems: Sequence[Problem], config: TrainConfig) -> Draws:
    """Create the curriculum that a run's configuration describes."""
    draws, rl, ahead = _curriculum(problems, config), config.rl, config.scale.steps_ahead
    if rl is None or not ahead:
        return draws
    return DrawsAhead(draws, ahead, rl.num_prompts, rl.group_size, rl.steps)


def _curriculum(problems: Sequence[Problem], config: TrainConfig) -> Curriculum | MixedCurriculum:
    stage, settings = config.drawing, config.curriculum
    assert stage is not None
    most, more = stage.steps * stage.num_prompts, config.rl.oversample if config.rl else 0
    if config.data.mixture:
        rest = (settings, most, bool(config.scale.steps_ahead))
        return mixed_curriculum(problems, config.run.seed, config.data.mixture, *rest)
    facts, ahead = FactReader(settings).read(problems), bool(config.scale.steps_ahead)
    return Curriculum(problems, config.run.seed, settings, facts, most, more, ahead)
