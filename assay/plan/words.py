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
    """Return a share, with a decimal near either end. One that may not be known goes through `known`."""
    if share is None:
        return "?%"
    return f"{share:.1%}" if 0 < share < 0.1 or 0.9 < share < 1 else f"{share:.0%}"


def known(text: str, share: float | None) -> str:
    """Return the text with the share in its braces; nothing where the share is not known."""
    return "" if share is None else text.format(percent(share))


def mib(size: float) -> str:
    """Return a size of memory. One that may not be measured (0) goes through `sized`."""
    return f"{size:.0f} MiB"


def sized(text: str, size: float) -> str:
    """Return the text with the size in its braces; nothing where nobody measured it."""
    return text.format(mib(size)) if size else ""


def reward(facts: Facts) -> str:
    """Return where the reward comes from."""
    return REWARD[facts.reward]
