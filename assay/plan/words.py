"""Figures and facts as people read them in a reason."""

from __future__ import annotations

from assay.plan.facts import Facts

REWARD = {
    "answer": "a checked answer",
    "tests": "tests",
    "judge": "a judge",
    "reward_model": "a reward model",
    "pairs": "preference pairs",
    "unpaired": "marks good and bad",
    "demonstrations": "demonstrations",
    "nothing": "nothing yet",
}


def percent(share: float | None) -> str:
    """Return a share, with a decimal near either end; ``?%`` where it is not known."""
    if share is None:
        return "?%"
    return f"{share:.1%}" if 0 < share < 0.1 or 0.9 < share < 1 else f"{share:.0%}"


def mib(size: float) -> str:
    """Return a size of memory; ``?`` where nobody measured it."""
    return f"{size:.0f} MiB" if size else "? MiB"


def reward(facts: Facts) -> str:
    """Return where the reward comes from."""
    return REWARD[facts.reward]
