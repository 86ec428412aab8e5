"""The result of a rule: one check for each place that it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from assay.verify.manifests.resources import Bundle


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """One place that a rule looked at. fault: what is wrong there. "": nothing."""

    where: str
    fault: str = ""


Rule = Callable[[Bundle], Iterator[RuleCheck]]
