"""How a data stage asks a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from assay.config import check_siblings
from assay.config.section import Count, Natural, Temperature, Text
from assay.config.toml_text import plain_tables
from assay.curation.base import StageSettings
from assay.endpoint.settings import ADDRESS, is_url
from assay.errors import ConfigError


class AskingSettings(StageSettings):
    """Sources of problems, and how a model is asked for completions of them."""

    model: Text
    """A folder, a hub name, or a run (RUN, RUN@best, RUN@120), which is asked as it was trained.
    With `url`: the name by which the server knows the model."""
    url: Text | None = None
    """An OpenAI-compatible server, as ``http://localhost:8000/v1``. None: the model is loaded here,
    and the built-in engine samples from it."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """The environment variable that holds the server's key, if it wants one."""
    concurrency: Count = 16
    """Requests that the server is sent at a time."""
    num_samples: Count = 4
    """Completions of each problem."""
    temperature: Temperature = 1.0
    """0: greedy, for a single completion."""
    max_tokens: Natural | None = None
    """Longest completion. None: as the model's run had it, else 256."""
    max_problems: Natural | None = None
    """The first so many problems. None: all."""
    verifier: Text | None = None
    """Verifier of rows that name none. None: as the model's run had it, else ``math``."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Another seed gives other completions, and other ids."""
    device: Text | None = None
    """``cpu``, ``cuda`` or ``cuda:1``. None: CUDA if there is any."""
    trust_run: bool = False
    """Import what the configuration of another's run names."""
    config: dict[str, dict[str, Any]] = Field(default={})
    """Sections and keys of a training configuration (docs/configuration.md) that say how to sample
    and to judge: ``[config.data]``, ``[config.sampling]``, ``[config.tools]``, ``[config.engine]``,
    ``[config.verification]``. What is left out is as the model's run had it, else the default."""

    def num_asked(self, num_read: int | None) -> int | None:
        """Return of how many rows a model is asked."""
        if num_read is None or self.max_problems is None:
            return num_read
        return min(num_read, self.max_problems)

    def most_written(self, num_read: int | None) -> int | None:
        """Return how many rows are written at the most of so many; None: not known."""
        return self.num_asked(num_read)

    def num_completions(self, num_read: int | None) -> int | None:
        """Return how many completions so many rows take; None: not known."""
        asked = self.num_asked(num_read)
        return None if asked is None else asked * self.num_samples

    @field_validator("config", mode="before")
    @classmethod
    def _plain_config(cls, value: object) -> object:
        return plain_tables(value)

    @field_validator("url")
    @classmethod
    def _holds_no_secret(cls, url: str | None) -> str | None:
        if url is not None and not is_url(url):  # not shown: it may hold a password
            raise ValueError(f"accepted: {ADDRESS}")
        return url

    @model_validator(mode="after")
    def _samples_differ(self) -> AskingSettings:
        try:
            check_siblings(self.num_samples, self.temperature)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


def filled(template: str, texts: Mapping[str, str]) -> str:
    """Return a template with each ``{name}`` replaced; other braces stay as they are."""
    names = "|".join(texts)
    return re.sub(rf"\{{({names})\}}", lambda found: texts[found[1]], template)
