"""The results of a verifier's rules: a rule yields one check for each manifest field that it
examines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from assay.verify.manifests.resources import Bundle


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The result of one rule for one field of a resource.

    where: the resource and the path of the field.
    fault: description of a violation. "": the check passed.
    """

    # Passed checks are recorded too, because partial credit is the share of passed checks.
    where: str
    fault: str = ""


Rule = Callable[[Bundle], Iterator[RuleCheck]]
