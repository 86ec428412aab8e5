"""The sections ``[teacher]`` (a teacher model) and ``[distill]`` (distillation of the teacher)."""

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
"""Settings that apply only to a teacher on a server."""
DivergenceKind = Literal["forward_kl", "reverse_kl", "jsd"]


class TeacherConfig(Section):
    """A frozen teacher model.

    The student in ``[distill]`` learns from the teacher. In ``[rl]``, the teacher replaces the
    reference model, so the KL is measured between policy and teacher.
    """

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint as in `model.path`. The
    teacher's tokenizer must have the policy's tokens. With `url`: the model's name on the
    server."""
    url: Text | None = None
    """URL of an OpenAI-compatible server with the teacher, such as ``http://localhost:8000/v1``.
    The server must return log-probabilities of prompt tokens, as vLLM does. The divergence is
    computed over the `distill.keep_top` most probable tokens and one class for all other tokens.
    None: the teacher is loaded in the learner's process."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """Only with `url`: name of the environment variable with the server's key."""
    concurrency: Count = 16
    """Only with `url`: number of concurrent requests."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of the teacher's weights. None: bfloat16 on CUDA, float32 on the CPU."""
    device: str | None = None
    """Device of the teacher, named as in `run.device`. None: the policy's device."""
    trust_remote_code: bool = False
    """Run Python code that is part of the model's files. Use only for models whose code you have
    read."""

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
    """Distillation: the student learns the teacher's next-token distributions.

    The student learns on existing solutions (traces), or on completions that the student samples
    itself. The section ``[teacher]`` configures the teacher.
    """

    traces: tuple[Text, ...] = ()
    """Sources of rows with ``prompt`` and ``completion``, as in `sft.traces`. Empty: in each step,
    the student samples completions of `data.train` and learns on these completions (on-policy
    distillation)."""
    divergence: DivergenceKind = "forward_kl"
    """Divergence to minimize. ``forward_kl``: KL(teacher || student). ``reverse_kl``: KL(student ||
    teacher). ``jsd``: the generalized Jensen-Shannon divergence (GKD), between these two."""
    skew: Decay = 0.0
    """Only for ``forward_kl`` and ``reverse_kl``: share of the first distribution that is mixed
    into the second (skewed KL of DistiLLM, which uses 0.1). 0: the plain divergence."""
    beta: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Only for ``jsd``: the teacher's share in the mixture. Values near 0 behave like
    ``forward_kl``, and values near 1 like ``reverse_kl``."""
    # Gradients of softened distributions scale with 1/temperature^2 (Hinton et al., 2015).
    temperature: Annotated[float, Field(ge=COOLEST, le=HOTTEST)] = 1.0
    """Temperature of both distributions in the divergence. The divergence is multiplied by the
    squared temperature to preserve the scale of gradients."""
    cross_entropy: Rate = 0.0
    """Weight of the cross-entropy of the trace's tokens in the loss. The weight of the divergence
    is 1 minus this weight. Only with `traces`."""
    keep: Text | None = None
    """Only with `traces`: folder of Parquet files with cached teacher logits: the most probable
    tokens at each position, and the total probability of all other tokens. Missing entries are
    computed before the first step, and the teacher's memory is then released. If no entry is
    missing, ``[teacher]`` is not needed. None: the teacher runs in each step, with its whole
    distribution."""
    keep_top: Natural = 64
    """Number of top-k tokens per position that are cached in `keep`, or requested from the server
    `teacher.url`. vLLM must be started with at least this `--max-logprobs`."""
    keep_gib: Positive = 10.0
    """Only with `keep`: maximum disk space in GiB. A run that would need more disk space is
    rejected before the teacher runs."""
    epochs: Epochs = 1.0
    """Only with `traces`: number of epochs over the traces; may be a fraction."""
    tokens_per_step: Natural = 4096
    """Only with `traces`: number of tokens per optimizer step."""
    max_tokens_per_micro_batch: Natural | None = None
    """Maximum number of tokens per forward and backward pass. Choose a lower number if memory runs
    out. None: 2048 on a CPU, 8192 on a GPU."""
    steps: Natural = 100
    """Only for on-policy distillation: number of steps, each with one optimizer step."""
    num_prompts: Count = 8
    """Only for on-policy distillation: number of prompts per step."""
    group_size: Count = 4
    """Only for on-policy distillation: number of completions per prompt."""

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
