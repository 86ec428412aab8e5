"""Verifiers: whether a completion is right, judged in processes with deadlines and in sandboxes.

This package stands alone: it imports `assay.types`, `assay.errors`, `assay.host` and
`assay.endpoint` and no other part of Assay, so that any trainer can use it.

    is_right = checker("math")                   # a plain function: a text and a gold answer
    is_right("so it is \\\\boxed{5}", "5").reward  # 1.0; None: not judged

    with VerifierService("math*1.0 + think_format*0.1") as service:
        verdicts = service.judge(groups)         # siblings together, in any number of processes

A verifier of your own is a function of ``(problem, completion)`` or ``(problem, group)``, named as
``package.module:function``; one that says more of itself is a `Verifier`. What it returns is a
number, a dict, a `Part`, or None: not judged.

This is a package, so it is no function: completions are judged by `assay.judge`.
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
