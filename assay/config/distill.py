"""Distillation: the teacher, and the stage that learns from its distributions."""

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

ELSEWHERE = ("url", "api_key_env", "concurrency")
"""Settings of a teacher that is behind a server."""
DivergenceKind = Literal["forward_kl", "reverse_kl", "jsd"]


class TeacherConfig(Section):
    """A model beside the policy, which is never trained. ``[distill]`` learns from it. In ``[rl]``
    it stands in the place of the reference: the KL is the one to the teacher."""

    path: Text
    """A folder in Hugging Face layout, a hub name, or a run's checkpoint as in `model.path`. Its
    tokenizer must have the policy's tokens. With `url`: the name by which the server knows it."""
    url: Text | None = None
    """An OpenAI-compatible server that has the teacher, as ``http://localhost:8000/v1``. It must
    tell log-probabilities of given tokens, as vLLM does. It tells the `distill.keep_top` likeliest
    tokens at each token, and the divergence is over these and all others together. None: the
    teacher is loaded beside the policy."""
    api_key_env: Text = "ASSAY_SERVER_KEY"
    """Only with `url`: the environment variable that holds the server's key, if it wants one."""
    concurrency: Count = 16
    """Only with `url`: requests that the server is sent at a time."""
    revision: str | None = None
    """Branch, tag or commit of a hub model. None: the model's default branch."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Type of its weights. None: bfloat16 on CUDA, float32 on the CPU."""
    device: str | None = None
    """Where its layers are, as in `run.device`. None: beside the policy."""
    trust_remote_code: bool = False
    """Run Python code that ships with the model. Only for models whose code you have read."""

    @model_validator(mode="after")
    def _is_here_or_there(self) -> TeacherConfig:
        away = self.url is not None
        for key in ("revision", "dtype", "device", "trust_remote_code") if away else ELSEWHERE[1:]:
            value = getattr(self, key)
            if value != TeacherConfig.model_fields[key].default:
                found = f"{toml_words(value)} {'with' if away else 'without'} url"
                raise ValueError(f"{key}: found {found}; accepted: none; leave it out")
        return self


class DistillConfig(Section):
    """Distillation: the student learns the distribution of the teacher (``[teacher]``) over every
    next token, on given traces, or on completions that it samples itself."""

    traces: tuple[Text, ...] = ()
    """Sources of rows with ``prompt`` and ``completion``, as in `sft.traces`. Empty: the student
    samples completions of `data.train` in each step, and learns on these (on-policy
    distillation)."""
    divergence: DivergenceKind = "forward_kl"
    """What is minimized. ``forward_kl``: KL(teacher || student). ``reverse_kl``: KL(student ||
    teacher). ``jsd``: the generalized Jensen-Shannon divergence (GKD), which lies between the two.
    """
    skew: Decay = 0.0
    """Of ``forward_kl`` and ``reverse_kl``: how much of the first distribution is mixed into the
    second (skewed KL of DistiLLM, which uses 0.1). 0: the plain divergence."""
    beta: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Of ``jsd``: the teacher's share in the mixture. Near 0 it acts like ``forward_kl``, near 1
    like ``reverse_kl``."""
    temperature: Annotated[float, Field(ge=COOLEST, le=HOTTEST)] = 1.0
    """Temperature of both distributions in the divergence. The divergence is multiplied by its
    square, so that gradients keep their size."""
    cross_entropy: Rate = 0.0
    """Share of the cross-entropy of the given tokens in the loss; the divergence has the rest. Only
    with `traces`."""
    keep: Text | None = None
    """Only with `traces`: a folder of Parquet files. It keeps the teacher's likeliest tokens at
    each token of the traces, and the mass of all others together. What it lacks is asked of the
    teacher before the first step; then the teacher's memory is given back. Where it lacks nothing,
    no ``[teacher]`` is needed. None: the teacher is asked in each step, for its whole distribution.
    """
    keep_top: Natural = 64
    """With `keep`, how many of the likeliest tokens are kept. With `teacher.url`, how many of them
    the server is asked for at each token; vLLM must be started with a `--max-logprobs` as large."""
    keep_gib: Positive = 10.0
    """Only with `keep`: the most disk that may be filled, in GiB. A run that would need more is
    refused before the teacher is asked."""
    epochs: Epochs = 1.0
    """Only with `traces`: passes over them; a fraction stops part way."""
    tokens_per_step: Natural = 4096
    """Only with `traces`: tokens that one optimizer step learns from."""
    max_tokens_per_micro_batch: Natural | None = None
    """Tokens in one forward and backward pass: make it smaller when memory runs out. None: 2048 on
    a CPU, 8192 on a GPU."""
    steps: Natural = 100
    """Only where the student samples: steps in all, each with one optimizer step."""
    num_prompts: Count = 8
    """Only where the student samples: prompts in a step."""
    group_size: Count = 4
    """Only where the student samples: completions of a prompt."""

    @model_validator(mode="after")
    def _keys_agree(self) -> DistillConfig:
        if self.skew and self.divergence == "jsd":
            raise ValueError(
                f'skew: found {self.skew:g} with divergence = "jsd", which has beta; leave it out'
            )
        if self.beta != 0.5 and self.divergence != "jsd":
            raise ValueError(
                f'beta: found {self.beta:g} with divergence = "{self.divergence}", which has skew;'
                ' leave it out, or set divergence = "jsd"'
            )
        if self.keep is not None and not self.traces:
            raise ValueError(
                f'keep: found "{self.keep}" without traces; accepted: none, because completions'
                " that the student samples are new in each step"
            )
        if self.cross_entropy and not self.traces:
            raise ValueError(
                f"cross_entropy: found {self.cross_entropy:g} without traces; accepted: 0, because"
                " the student's own tokens are no example"
            )
        return self
