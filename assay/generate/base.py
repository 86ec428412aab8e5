"""What every generator is: problems in, groups of completions out, always under the newest policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from assay.config import SamplingConfig
from assay.types import GroupStream, Problem


class Generator(Protocol):
    """Anything that samples completions: the built-in engine, a server, a script in a test."""

    @property
    def policy_version(self) -> int:
        """The version of the policy that is sampled from."""
        ...

    @property
    def exact(self) -> bool:
        """Whether its log-probabilities are the learner's up to rounding; where not, tokens are weighed."""
        ...

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
    ) -> GroupStream:
        """Return one group of ``group_size`` completions a problem, each as soon as it is finished.

        first_sibling: the number of the first completion of each, so that groups can be sampled on.
        """
        ...

    def sleep(self) -> None:
        """Give back the memory that only sampling needs, before an update; `generate` takes it again."""
        ...

    def load_policy(self, policy: Any, version: int | None = None) -> None:
        """Sample from ``policy`` from now on; completions carry ``version`` (None: one more than before)."""
        ...
