"""Sampling and judging in separate processes: the section ``[scale]``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from assay.config.section import NonNegative, Positive, Section, Text

Actors = Annotated[int, Field(ge=1, le=1024)]


class ScaleConfig(Section):
    """Sampling and judging in separate processes, on this machine or on a Ray cluster
    (docs/cluster.md, extra ``ray``).

    The learner runs in the command's process. With ``learner_ranks``, further processes (ranks)
    share the computation of the learner's updates.
    """

    generator: Literal["engine", "vllm"] = "engine"
    """Generator of completions. ``vllm``: vLLM (extra ``vllm``), whose weights are replaced after
    every update. vLLM's log-probabilities differ from the learner's, so tokens are weighted
    (`algorithm.importance_cap`, 2 by default), and runs are not bitwise reproducible."""
    rollout_actors: Actors | None = None
    """Number of processes that sample completions. Each process has a copy of the model and
    receives the weights after every update. None: the process of the command samples."""
    verifier_actors: Actors | None = None
    """Number of verifier worker processes, on any machine of the cluster. None: verifier workers
    run on this machine (`verification.num_workers`)."""
    learner_ranks: Actors | None = None
    """Number of processes that share the forward and backward passes of every update, including the
    command. Each process has a copy of the model and its share of the optimizer state, and computes
    its share of the groups. Ranks work only on CPUs. None: only the command learns."""
    shard: bool = False
    """Divide weights, gradients and optimizer state among the learner ranks (FSDP2). Supported in
    [rl] and [sft], in float32 or bfloat16. With ``[model.lora]``, the frozen weights are divided,
    and every rank holds the adapters. The command also keeps a whole copy of the weights, from
    which it samples. ``false``: every rank holds all weights and gradients."""
    teacher_actors: Actors | None = None
    """Number of processes with the teacher (``[teacher]``), on any machine of the cluster. A
    teacher actor returns the `distill.keep_top` most probable tokens. The divergence is computed
    over these tokens and one class for all other tokens. None: the teacher runs in the learner's
    process."""
    address: Text | None = None
    """Address of the Ray cluster to join: ``HOST:PORT``, ``ray://HOST:PORT``, or ``auto`` for a
    cluster that already runs on this machine. None: the cluster in the environment variable
    RAY_ADDRESS, as under ``ray job submit``, or else a new cluster on this machine that ends with
    the run."""
    placement: Literal["pack", "spread"] = "pack"
    """Placement of actors. ``pack``: fill one machine before the next. ``spread``: distribute
    actors over as many machines as possible."""
    # Ray's CPU reservation affects only scheduling; Ray does not limit the threads of a process.
    cpus_per_actor: Positive = 1.0
    """Number of CPUs that an actor reserves on the cluster. The reservation does not limit an
    actor's threads (`engine.threads`)."""
    gpus_per_actor: NonNegative = 0.0
    """Number of GPUs that an actor with a model (rollouts or teacher) reserves. 0: the actor uses
    the CPU. With a fraction, several actors share a GPU."""
    steps_ahead: Annotated[int, Field(ge=0, le=64)] = 0
    """Maximum number of steps that sampling runs ahead of learning. 0: sample each step from the
    newest weights, while the learner waits. N: rollout actors also sample the groups of the next N
    steps while the learner trains. An unfinished completion continues with the new weights after an
    update. A token is at most N steps old. A resumed run is not bitwise equal to an uninterrupted
    run."""
    patience: Positive = 600.0
    """Maximum seconds without progress of an actor. A slower actor is replaced, and a slower
    learner rank ends the run."""

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
        """Total number of actors."""
        return self.num_sampling + (self.teacher_actors or 0) + self.num_followers

    @property
    def num_followers(self) -> int:
        """Number of learner ranks in addition to the command's own process."""
        return (self.learner_ranks or 1) - 1

    @property
    def num_sampling(self) -> int:
        """Number of Ray actors (processes) that sample or judge completions."""
        return (self.rollout_actors or 0) + (self.verifier_actors or 0)
