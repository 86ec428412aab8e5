"""The tutorial's reward: 1 for the right answer; the shown work is only counted."""

from __future__ import annotations

from typing import Any


def right_and_shown(problem: Any, completion: Any) -> dict[str, float]:
    """Return 1 for the row's answer; ``shown`` is only recorded, and earns nothing."""
    right = completion.answer_text.strip() == problem.spec["answer"]
    shown = completion.reasoning_text.count("=")
    return {"score": float(right), "shown": shown}
