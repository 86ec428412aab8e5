"""The section ``[server]``: a model server from which commands sample."""

from __future__ import annotations

from pydantic import Field, field_validator

from assay.config.section import Count, Positive, Section, Text

KEY_VARIABLE = "ASSAY_SERVER_KEY"


class ServerConfig(Section):
    """A model server that samples completions for commands that do not train (docs/serving.md).

    The server is OpenAI-compatible and accepts token ids as prompts at its completions endpoint, as
    vLLM, SGLang and llama.cpp do. `model.path` must name a copy of the server's model on this
    machine, because its tokenizer renders the prompts. The weights in `model.path` are not loaded.
    """

    url: Text | None = None
    """URL of the server, such as ``http://localhost:8000/v1``. The option ``--server`` sets this
    key. None: the generator of ``[scale]`` samples."""
    model: Text | None = None
    """The model's name on the server. None: `model.path` if the server lists this name, else the
    only model that the server lists."""
    # A configuration must not contain the API key, because every run saves its configuration.
    api_key_env: Text = KEY_VARIABLE
    """Name of the environment variable with the server's API key. The variable may be unset if the
    server needs no key."""
    concurrency: Count = 32
    """Number of concurrent requests."""
    timeout: Positive = 600.0
    """Timeout of one request in seconds. A completion, with all its retries, takes at most three
    times as long."""
    retries: int = Field(default=4, ge=0, le=100)
    """Maximum number of retries after a transient error. If all retries fail, the completion is
    *not judged*."""

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        # The error message omits the value of the key, because the value may be the API key itself.
        if not name.isidentifier():
            raise ValueError("accepted: the name of an environment variable that holds the key")
        return name
