"""Before a run: which method fits what is known, a narrow pilot, and what it takes in memory and time.

    facts.py      what is known of reward, problems, policy, verifier and machine
    rules.py      the table of rules, from facts to one recommendation   objections.py   why not the others
    decision.py   both applied, as text and as a row                     record.py       decision.md
    settings.py   keys to set along with it                              pilot.py        a narrow first run
    memory.py     estimated memory, part by part                         seconds.py      estimated seconds a step
    measure.py    facts that a model and problems tell                   questions.py    facts that are asked for
    api.py        what the command calls

Names here are loaded when they are first used: the rules need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.plan.decision import Decision, decide
    from assay.plan.facts import Facts
    from assay.plan.memory import MIB, MemoryPlan, plan_memory

__all__ = ["MIB", "Decision", "Facts", "MemoryPlan", "decide", "plan_memory"]

_HOMES = {"Decision": "decision", "decide": "decision", "Facts": "facts"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'assay.plan' has no public name {name!r}")
    return getattr(import_module(f"assay.plan.{_HOMES.get(name, 'memory')}"), name)
