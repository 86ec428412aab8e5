"""Distillation: the teacher, and the training stage that learns from its distributions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from assay.config.section import (
    COOLEST,
    HOTTEST,
    Count,
    Decay,
    Epochs,
    Natural,
    Positive,
    Rate,
    Section,
    Text,
)
from assay.validation import toml_words

SERVER_SETTINGS = ("url", "api_key_env", "concurrency")
"""Settings for a teacher on a server."""
DivergenceKind = Literal["forward_kl", "reverse_kl", "jsd"]


class TeacherConfig(Section):
    """A frozen teacher model.

    ``[distill]`` learns from it. In ``[rl]`` it replaces the reference: the KL is then computed to
    the teacher.
    """

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint as in `model.path`. Its
    tokenizer must have the policy's tokens. With `url`: the model's name on the server."""
    url: Text | None = None
    """An OpenAI-compatible server with the teacher, such as ``http://localhost:8000/v1``. It must
    return log-probabilities of prompt tokens, as vLLM does. For each token it returns the
    `distill.keep_top` most probable tokens. The divergence is computed over these and one class for
    all others. None: the teacher is loaded in the learner's process."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """Only with `url`: environment variable with the server's key, if it requires one."""
    concurrency: Count = 16
    """Only with `url`: number of concurrent requests."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the teacher's weights. None: bfloat16 on CUDA, float32 on the CPU."""
    device: str | None = None
    """Device of the teacher, as in `run.device`. None: the policy's device."""
    trust_remote_code: bool = False
    """Run Python code that ships with the model. Only for models whose code you have read."""

    @model_validator(mode="after")
    def _is_local_or_served(self) -> TeacherConfig:
        away = self.url is not None
        for key in (
            ("revision", "dtype", "device", "trust_remote_code") if away else SERVER_SETTINGS[1:]
        ):
            value = getattr(self, key)
            if value != TeacherConfig.model_fields[key].default:
                found = f"{toml_words(value)} {'with' if away else 'without'} url"
                raise ValueError(f"{key}: found {found}; accepted: none; remove it")
        return self


class DistillConfig(Section):
    """Distillation: the student learns the next-token distribution of the teacher (``[teacher]``)
    on existing traces, or on completions that it samples itself.
    """

    traces: tuple[Text, ...] = ()
    """Sources of rows with ``prompt`` and ``completion``, as in `sft.traces`. Empty: in each step
    the student samples completions of `data.train` and learns on them (on-policy distillation)."""
    divergence: DivergenceKind = "forward_kl"
    """Divergence to minimize. ``forward_kl``: KL(teacher || student). ``reverse_kl``: KL(student ||
    teacher). ``jsd``: the generalized Jensen-Shannon divergence (GKD), between the two."""
    skew: Decay = 0.0
    """For ``forward_kl`` and ``reverse_kl``: share of the first distribution that is mixed into the
    second (skewed KL of DistiLLM, which uses 0.1). 0: the plain divergence."""
    beta: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """For ``jsd``: the teacher's share in the mixture. Near 0 it behaves like ``forward_kl``, near
    1 like ``reverse_kl``."""
    temperature: Annotated[float, Field(ge=COOLEST, le=HOTTEST)] = 1.0
    """Temperature of both distributions in the divergence. The divergence is multiplied by its
    square to preserve the scale of gradients."""
    cross_entropy: Rate = 0.0
    """Share of the cross-entropy of the trace's tokens in the loss. The divergence has the rest.
    Only with `traces`."""
    keep: Text | None = None
    """Only with `traces`: a folder of Parquet files with cached teacher logits: the most probable
    tokens at each position, and the total probability of all others. Missing entries are computed
    before the first step, and the teacher's memory is then released. If nothing is missing,
    ``[teacher]`` is not needed.
    None: the teacher runs in each step, with its whole distribution."""
    keep_top: Natural = 64
    """With `keep`: number of cached top-k tokens. With `teacher.url`: number of top-k tokens
    requested from the server. vLLM must be started with at least this `--max-logprobs`."""
    keep_gib: Positive = 10.0
    """Only with `keep`: maximum disk space in GiB. A run that would need more is rejected before
    the teacher runs."""
    epochs: Epochs = 1.0
    """Only with `traces`: epochs over them. A fraction stops part way."""
    tokens_per_step: Natural = 4096
    """Only with `traces`: tokens per optimizer step."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens per forward and backward pass. Lower it if memory runs out. None: 2048 on a CPU, 8192
    on a GPU."""
    steps: Natural = 100
    """Only for on-policy distillation: number of steps, each with one optimizer step."""
    num_prompts: Count = 8
    """Only for on-policy distillation: prompts per step."""
    group_size: Count = 4
    """Only for on-policy distillation: completions per prompt."""

    @model_validator(mode="after")
    def _keys_agree(self) -> DistillConfig:
        if self.skew and self.divergence == "jsd":
            raise ValueError(
                f'skew: found {self.skew:g} with divergence = "jsd", which has beta; remove it'
            )
        if self.beta != 0.5 and self.divergence != "jsd":
            raise ValueError(
                f'beta: found {self.beta:g} with divergence = "{self.divergence}", which has skew;'
                ' remove it, or set divergence = "jsd"'
            )
        if self.keep is not None and not self.traces:
            raise ValueError(
                f'keep: found "{self.keep}" without traces; accepted: none, because completions'
                " that the student samples are new in each step"
            )
        if self.cross_entropy and not self.traces:
            raise ValueError(
                f"cross_entropy: found {self.cross_entropy:g} without traces; accepted: 0, because"
                " the student's own tokens are not a target"
            )
        return self
