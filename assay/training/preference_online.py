"""On-policy preferences: groups are sampled, judged and paired while training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.config import PreferenceConfig
from assay.data.curriculum import Curriculum
from assay.generate.base import Generator
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner
from assay.learn.reference import Reference
from assay.model.packing import pack
from assay.run.directory import Run
from assay.training.batch_plan import BatchPlan
from assay.training.evaluate import Judge
from assay.training.preference_pairs import GOOD, Example, mismatched
from assay.training.preference_verdicts import examples_of_group
from assay.training.rl import collect


@dataclass
class SampledPairs:
    """The pairs of each step's rollouts. reference: None where the method has none."""

    curriculum: Curriculum
    generator: Generator
    verifiers: Judge
    run: Run
    learner: PreferenceLearner
    plan: BatchPlan
    settings: PreferenceConfig
    reference: Reference | None

    def draw(self, step: int) -> PreferenceBatch | None:
        """Sample and judge one step's groups; return their pairs, None where nothing was told apart."""
        groups, verdicts = collect(
            self.curriculum, self.generator, self.verifiers, self.run, self.plan
        )
        examples: list[Example] = []
        for number, (group, judged) in enumerate(zip(groups, verdicts, strict=True)):
            rng = np.random.default_rng((self.run.config.run.seed, step + 1, number))
            row = self.learner.row
            examples += examples_of_group(group, judged, row, self.settings, rng)
        return self._scored(examples) if examples else None

    def _scored(self, examples: Sequence[Example]) -> PreferenceBatch:
        """Return examples as a batch, with what the reference says of them now."""
        device, learner = self.learner.device, self.learner
        groups = [example.group for example in examples]
        batch = pack(groups, [example.verdicts for example in examples], device)
        if self.reference is None:
            return PreferenceBatch(batch)
        others = [] if learner.row.paired else mismatched(examples)
        with self.run.phase("score"), self.reference.policy() as reference:
            ref_R = learner.logprobs(batch, reference)
            if not others:
                return PreferenceBatch(batch, ref_R)
            swapped = pack(others, [[GOOD] * len(one.completions) for one in others], device)
            return PreferenceBatch(batch, ref_R, swapped, learner.logprobs(swapped, reference))
