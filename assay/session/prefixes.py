"""Prompts followed by a prefix of a completion, so that a generator continues the completion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from assay.data.chat import PromptRenderer
from assay.data.traces import Trace
from assay.types import Problem, Prompt

PREFIX = "step_prefix"
"""Key of a problem's spec that holds the prefix of its completions, as text or as tokens."""


class PrefixRenderer:
    """Renders the prompt of a problem, followed by the prefix of a completion."""

    def __init__(self, renderer: PromptRenderer) -> None:
        self.renderer = renderer

    def __call__(self, problem: Problem) -> Prompt:
        """Render a prompt and the prefix of its completion. Raises DataError if prompt and prefix
        are too long.
        """
        prompt = self.renderer.render(problem)
        prefix: Any = problem.spec.get(PREFIX)
        if prefix is None or not len(prefix):
            return prompt
        if isinstance(prefix, str):
            asked = (problem.think, problem.effort)
            trace = Trace(problem.prompt, prefix, problem.source, *asked)
            _, tokens = self.renderer.render_trace(trace)
            if self.renderer.end_id is not None:
                # A rendered trace ends with the end token, which must not follow a prefix.
                tokens = tokens[:-1]
        else:
            tokens, prefix = prefix, str(self.renderer.tokenizer.decode(prefix))
        return replace(
            prompt, text=prompt.text + prefix, tokens=np.concatenate([prompt.tokens, tokens])
        )
