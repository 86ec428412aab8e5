"""Sampling and judging in processes of their own: the section ``[scale]``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.config.section import NonNegative, Positive, Section, Text
from assay.errors import message

Actors = Annotated[int, Field(ge=1, le=1024)]


class ScaleConfig(Section):
    """Sampling and judging in other processes, on this machine or on a cluster of Ray
    (docs/cluster.md; needs the extra ``ray``). The learner stays in the process of the command."""

    generator: Literal["engine", "vllm"] = "engine"
    """What samples. ``vllm``: vLLM (extra ``vllm``), with its weights loaded in place after every
    update. Its log-probabilities differ from the learner's, so that tokens are weighed
    (`algorithm.importance_cap`, 2 where none is set), and runs do not repeat to the bit. It takes
    no tools and no budgets of thinking."""
    rollout_actors: Actors | None = None
    """Processes that sample completions. Each has a copy of the model; it gets the weights after
    every update. None: the process of the command samples."""
    verifier_actors: Actors | None = None
    """Worker processes of the verifiers, on any machine of the cluster. None: they run on this
    machine (`verification.num_workers`)."""
    teacher_actors: Actors | None = None
    """Processes that have the teacher (``[teacher]``), on any machine of the cluster. They tell its
    `distill.keep_top` likeliest tokens, and the divergence is over these and all others together.
    None: the teacher is beside the policy."""
    address: Text | None = None
    """The cluster to join: ``HOST:PORT``, ``ray://HOST:PORT``, or ``auto`` for the one that runs on
    this machine. None: the one that the environment variable RAY_ADDRESS names, as under ``ray job
    submit``; where there is none, a cluster is started on this machine and ends with the run."""
    placement: Literal["pack", "spread"] = "pack"
    """``pack``: fill one machine before the next. ``spread``: put actors on as many machines as
    there are."""
    cpus_per_actor: Positive = 1.0
    """CPUs that an actor reserves on the cluster. It does not limit an actor's threads
    (`engine.threads`)."""
    gpus_per_actor: NonNegative = 0.0
    """GPUs that an actor with a model reserves, a rollout's or a teacher's; it uses one if this is
    above 0. A fraction shares a GPU."""
    steps_ahead: Literal[0, 1] = 0
    """0: a step is sampled from the newest weights, and the learner waits. 1: the next step is
    sampled while this one is learned from, so its completions are one step old. Then the bits of a
    run that was killed are not those of one that was not."""
    patience: Positive = 600.0
    """Seconds in which an actor must get on with its work. One that does not is replaced."""

    @field_validator("generator", mode="before")
    @classmethod
    def _gives_logprobs(cls, name: Any) -> Any:
        if name == "server" or str(name).startswith(("http://", "https://")):
            found = f"{name!r}, whose completions come without log-probabilities of their tokens"
            accepted = '"engine" or "vllm": a run learns from what its own policy sampled'
            remedy = "collect from a server with assay data collect, and learn from that by [sft]"
            raise ValueError(f"found {found}; accepted: {accepted}; {remedy}")
        return name

    @property
    def num_actors(self) -> int:
        """How many actors there are in all."""
        return self.num_sampling + (self.teacher_actors or 0)

    @property
    def num_sampling(self) -> int:
        """How many sample, or judge what was sampled."""
        return (self.rollout_actors or 0) + (self.verifier_actors or 0)

    def clashes(self, stage: str, samples: bool, gives: str | None) -> Iterator[str]:
        """Yield what a stage has no use for. samples: whether it samples completions. gives: the
        key by which completions are given tokens on their way."""
        if self.num_sampling and not samples:
            accepted = "actors where a run samples completions, as in [rl]"
            yield message("scale", f"actors in a run of [{stage}]", accepted, "leave it out")
        if self.generator != "engine":
            found = f'"{self.generator}"'
            if not samples:
                yield message("scale.generator", f"{found} in a run of [{stage}]", '"engine"')
            if gives is not None:
                accepted = '"engine", which alone gives a completion tokens on its way'
                yield message("scale.generator", f"{found} with {gives}", accepted)
        if self.steps_ahead and self.rollout_actors is None:
            accepted = "0 without scale.rollout_actors: sampling ahead needs processes of its own"
            yield message("scale.steps_ahead", self.steps_ahead, accepted)
        if self.steps_ahead and stage != "rl":
            yield message("scale.steps_ahead", self.steps_ahead, "0 in a stage other than [rl]")
