"""Check thinking budgets, and that at least one prompt has a think block to which a budget
applies."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import SamplingConfig
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, message
from assay.generate.thinking import ThinkControl
from assay.types import Problem


def check_thinking(
    renderer: PromptRenderer,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    asked: bool = True,
) -> None:
    """Raise ConfigError for a thinking budget that is too small, or that no prompt can use.

    asked: whether the user set the budget; a budget that comes from the run may have no effect.
    """
    reason = useless_thinking(renderer, problems, sampling)
    if asked and reason:
        raise ConfigError(reason)


def useless_thinking(
    renderer: PromptRenderer, problems: Sequence[Problem], sampling: SamplingConfig
) -> str:
    """Return an error message if a thinking budget applies to no prompt; otherwise return "".

    Raises ConfigError for a thinking budget that is too small or too large.
    """
    # The value for each effort is whether any prompt with this effort has a think block.
    thinks: dict[str | None, bool] = {}
    for problem in problems:
        effort = problem.effort
        # Rendering is slow, and for each effort one prompt with a think block is enough.
        if thinks.get(effort) or not sampling.controls_thinking(effort):
            continue
        think = renderer.render(problem).think
        thinks[effort] = think.thinks
        if think.thinks:
            try:
                sampling.check_effort(effort)
            except ValueError as error:
                raise ConfigError(f"sampling.{error}") from error
            ThinkControl.of(renderer.tokenizer, sampling, think, effort)
    if not thinks or any(thinks.values()):
        return ""
    effort = next(iter(thinks))
    budget, key = sampling.budget(effort), sampling.budget_key(effort)
    found = f"{sampling.min_think if budget is None else budget}, but no prompt has a think block"
    remedy = 'set data.think = "free" or "opened", or remove it'
    where = f"sampling.{'min_think' if budget is None else key}"
    return message(where, found, "prompts with a think block", remedy)
