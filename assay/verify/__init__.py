r"""Verifiers: judge completions in worker processes with deadlines, and in sandboxes.

The package `assay.verify` can be used by any trainer. From the rest of Assay, `assay.verify`
imports only `assay.types`, `assay.errors`, `assay.host` and `assay.endpoint`.

    is_right = checker("math")                   # a plain function of (text, gold answer)
    is_right("so it is \\boxed{5}", "5").reward  # 1.0; None: not judged

    with VerifierService("math*1.0 + think_format*0.1") as service:
        verdicts = service.judge(groups)         # whole groups, in any number of processes

A user-defined verifier is a function of ``(problem, completion)`` or ``(problem, group)``, named
``package.module:function``, or a `Verifier` with options and limits. A user's verifier function
returns a number, a dict, a `Part`, or None for *not judged*.

`assay.verify` is a package and cannot be called. `assay.judge` judges completions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.host.fields import Field
    from assay.verify.base import Limits, Part, Verifier
    from assay.verify.redteam.team import red_team
    from assay.verify.selftest import self_test
    from assay.verify.service import VerifierService, checker

__all__ = [
    "Field",
    "Limits",
    "Part",
    "Verifier",
    "VerifierService",
    "checker",
    "red_team",
    "self_test",
]

# Names are imported when they are first used,
# because a worker imports this package and needs few of the names.
_HOMES = {
    "Field": "assay.host.fields",
    "VerifierService": "assay.verify.service",
    "checker": "assay.verify.service",
    "red_team": "assay.verify.redteam.team",
    "self_test": "assay.verify.selftest",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'assay.verify' has no public name {name!r}")
    module = _HOMES.get(name, "assay.verify.base")
    return getattr(import_module(module), name)
