"""Common settings of the data transforms that sample from a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from assay.config import check_siblings
from assay.config.section import Count, Natural, Temperature, Text
from assay.config.toml_text import plain_tables
from assay.curation.base import StageSettings
from assay.endpoint.settings import ADDRESS, is_url
from assay.errors import ConfigError

Estimate = Literal["hard", "soft"]


class AskingSettings(StageSettings):
    """Sources of problems, and settings for sampling completions from a model."""

    model: Text
    """A folder, a hub name, or a run (RUN, RUN@best, RUN@120), whose sampling settings are then
    used. With `url`: the model's name on the server."""
    url: Text | None = None
    """URL of the chat endpoint of an OpenAI-compatible server, such as
    ``http://localhost:8000/v1``. The server applies the chat template, and `model` need not be on
    this machine. None: Assay renders the prompts."""
    server: Text | None = None
    """URL of an OpenAI-compatible server of `model` that samples from token ids
    (docs/serving.md#sample-from-the-server). None: this machine loads the model, and the generator
    that ``[config.scale]`` configures samples."""
    actors: Natural | None = None
    """Number of sampling processes (extra ``ray``). None: this process samples."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """Name of the environment variable with the server's API key. The variable may be unset if the
    server needs no key."""
    concurrency: Count = 16
    """Number of concurrent requests to the server."""
    num_samples: Count = 4
    """Number of completions per problem."""
    temperature: Temperature = 1.0
    """Sampling temperature. 0: greedy sampling, only for a single completion per problem."""
    max_tokens: Natural | None = None
    """Maximum completion length in tokens. None: the value of the model's run, else 256."""
    max_problems: Natural | None = None
    """Maximum number of problems, counted from the first row. None: all problems."""
    verifier: Text | None = None
    """Verifier for rows without a verifier of their own. None: the verifier of the model's run,
    else ``math``."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Random seed of sampling. Completions and their ids depend on the seed."""
    device: Text | None = None
    """Device of the model: ``cpu``, ``cuda`` or ``cuda:1``. None: CUDA if available."""
    trust_run: bool = False
    """Allow imports of the Python objects that another user's run configuration names."""
    config: dict[str, dict[str, Any]] = Field(default={})
    """Sections of a training configuration (docs/configuration.md) for sampling and judging:
    ``[config.data]``, ``[config.sampling]``, ``[config.tools]``, ``[config.engine]``,
    ``[config.scale]``, ``[config.server]``, ``[config.verification]``. Missing keys have the values
    of the model's run, else the defaults.
    """

    def num_asked(self, num_read: int | None) -> int | None:
        """Return the number of problems to sample for a number of input rows; None: unknown."""
        if num_read is None or self.max_problems is None:
            return num_read
        return min(num_read, self.max_problems)

    def most_written(self, num_read: int | None) -> int | None:
        """Return the maximum number of written rows for a number of input rows; None: unknown."""
        return self.num_asked(num_read)

    def num_completions(self, num_read: int | None) -> int | None:
        """Return the number of completions for a number of input rows; None: unknown."""
        asked = self.num_asked(num_read)
        return None if asked is None else asked * self.num_samples

    @field_validator("config", mode="before")
    @classmethod
    def _plain_config(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        # The message does not show the URL, because a URL may contain a password.
        if url is not None and not is_url(url):
            raise ValueError(f"accepted: {ADDRESS}")
        return url

    @model_validator(mode="after")
    def _samples_once(self) -> AskingSettings:
        if self.url is not None and (self.server is not None or self.actors is not None):
            raise ValueError("url: accepted: without server and actors: one of them samples")
        return self

    @model_validator(mode="after")
    def _samples_differ(self) -> AskingSettings:
        try:
            check_siblings(self.num_samples, self.temperature)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class StepLabelSettings(AskingSettings):
    """Label each step of a completion by rollouts that continue from the step, for process rewards.

    A step's label measures the model's success rate from that step (Math-Shepherd,
    arXiv:2312.08935, section 3.3). Continuations are sampled from the text up to the step's end,
    and the verifier judges the whole completions. The label of the last step is the verdict of the
    completion itself. Inputs are rows of completions, in the format that ``assay verify`` reads, or
    run directories with rollouts. The output rows train a ``[reward_model]`` of kind ``process``.
    Rollouts use no tools and no thinking controls.
    """

    takes_runs = True

    num_samples: Count = 8
    """Number of continuations from each step."""
    estimate: Estimate = "hard"
    """Estimate in the key ``labels``. ``hard``: 1 if any continuation is right (equation 3).
    ``soft``: the share of right continuations (equation 4). Rows also contain both estimates, as
    ``hard_labels`` and ``soft_labels``."""
    temperature: Annotated[float, Field(ge=0.01, allow_inf_nan=False)] = 1.0
    """Sampling temperature of the continuations."""
    split: Text = "newline"
    """Separator at the end of a step: ``newline``, ``blank_line`` or a text."""
    max_problems: Natural | None = None
    """Maximum number of completions, counted from the first row. None: all completions."""
    labelled: Text | None = None
    """Output file of an earlier call with the same settings, such as the ``rows.jsonl.part`` of a
    killed call. Its rows are copied to the output, and their completions are not labelled
    again."""

    def num_completions(self, num_read: int | None) -> int | None:
        """Return None, because the number of steps is unknown before the rows are read."""
        return None

    @field_validator("url")
    @classmethod
    def _samples_here(cls, url: str | None) -> str | None:
        if url is not None:
            raise ValueError(
                "accepted: no url, whose chats do not continue a given text; set server"
            )
        return url


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Replace each known ``{name}`` in a template; other braces are unchanged."""
    # `str.format` would fail on the braces of code and LaTeX in a template.
    names = "|".join(texts)
    return re.sub(rf"\{{({names})\}}", lambda found: texts[found[1]], template)
