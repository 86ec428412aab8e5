"""Before a run: which method fits what is known, a narrow pilot, and what it takes in memory and time.

    facts.py       what is known of reward, problems, policy, verifier and machine
    rules.py       the table of rules, from facts to one recommendation (candidates.py: what there is)
    objections.py  why not the others       settings.py  keys to set along with it
    decision.py    both applied             record.py    decision.md, of a plan and of a run
    pilot.py       a narrow first run       questions.py facts that are told or asked for
    configured.py  facts that a configuration tells by itself
    measure.py     facts that its model, problems (sampled.py) and verifier tell
    machine.py     memory.py (with activations.py, resident.py) and seconds.py, on the loaded model
    api.py         what the command calls

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
