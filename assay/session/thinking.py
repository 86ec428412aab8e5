"""Whether a control of thinking can be, and whether any prompt has a use for it."""

from __future__ import annotations

from collections.abc import Sequence

from assay.config import SamplingConfig, TrainConfig
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, DataError, message
from assay.generate.thinking import ThinkControl
from assay.types import Problem


def check_thinking(
    renderer: PromptRenderer,
    problems: Sequence[Problem],
    sampling: SamplingConfig,
    asked: bool = True,
) -> None:
    """Complain of a budget of thinking that is too small, or that no prompt has a use for.

    asked: whether the budget was asked for here; one that a run only had may be of no use.
    """
    told = useless_thinking(renderer, problems, sampling)
    if asked and told:
        raise ConfigError(told)


def check_generator(config: TrainConfig, problem: Problem) -> None:
    """Raise DataError where a row asks for a budget of thinking, and the generator has none."""
    budget = config.sampling.efforts.get(problem.effort or "")
    if config.scale.generator != "engine" and isinstance(budget, int):
        found = f"{problem.effort}, which is {budget} tokens of thinking"
        accepted = f'no budget with scale.generator = "{config.scale.generator}", or "engine"'
        raise DataError(message(f"{problem.place} effort", found, accepted))


def useless_thinking(
    renderer: PromptRenderer, problems: Sequence[Problem], sampling: SamplingConfig
) -> str:
    """Return the complaint where thinking is controlled, and no prompt thinks; else an empty text.

    Raises ConfigError for a budget that is too small, or too large.
    """
    thinks: dict[str | None, bool] = {}  # of each effort whose budget or least length holds
    for problem in problems:
        effort = problem.effort
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
    found = f"{sampling.min_think if budget is None else budget}, and no prompt has a think block"
    remedy = 'set data.think = "free" or "opened", or leave it out'
    where = f"sampling.{'min_think' if budget is None else key}"
    return message(where, found, "prompts of a model that thinks", remedy)
