"""Rollout actor: a process that receives weights, and samples with the built-in engine or with
vLLM.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from assay.config import EngineConfig, ModelConfig
from assay.config.tools import ToolsConfig
from assay.errors import ModelError, message
from assay.generate.engine import Engine
from assay.generate.turns.toolbox import open_tools
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.model.load import load_model
from assay.model.weights import Weights, fingerprint, memory_of
from assay.scale.background import BackgroundSampling, ShareAsked, Taken
from assay.types import Floats, Problem, Prompt


@dataclass(frozen=True)
class Opening:
    """Arguments to open an actor's engine with the same settings as the engine of the command.

    in_chat: whether the chat template renders the prompts. path: module search path. vllm:
    description of the model for vLLM; None means that the built-in engine samples.
    """

    model: ModelConfig
    device: str
    settings: EngineConfig
    seed: int
    threads: int
    context_length: int | None
    tools: ToolsConfig
    in_chat: bool
    path: Sequence[str]
    vllm: ModelFacts | None = None

    def sent(self, problem: Problem) -> Problem:
        """Copy a problem without its spec, so that answers and tests do not reach the actor.

        The actor needs no spec, because the policy sees only the prompt.
        """
        # An environment runs in the actor, and needs the spec with the answer.
        return problem if self.tools.environment is not None else replace(problem, spec={})


@dataclass(frozen=True)
class Sent:
    """Serialized weights of the policy: byte arrays in the shared memory of the object store.

    frozen: names of tensors that are not sent, because the receiver has loaded the same model.
    base: fingerprint of the frozen tensors, which the receiver compares with its own; "" without
    frozen tensors.
    """

    version: int
    tensors: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]
    frozen: frozenset[str] = frozenset()
    base: str = ""

    @classmethod
    def of(cls, weights: Weights) -> Sent:
        """Serialize the current weights. The object store copies tied weights only once."""
        found: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}
        arrays: dict[Hashable, np.ndarray] = {}
        for name, tensor in weights.tensors.items():
            if name in weights.frozen:
                continue
            # numpy has no bfloat16, so the elements of the arrays are bytes.
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            kind = str(tensor.dtype).removeprefix("torch.")
            array = arrays.setdefault(memory_of(tensor), flat.numpy())
            found[name] = kind, tuple(tensor.shape), array
        return cls(weights.version, found, weights.frozen)

    def weights(self) -> Weights:
        """Return the sent weights as tensors on the read-only memory of the object store, without
        a copy.
        """
        with warnings.catch_warnings():
            # torch warns about read-only memory, but the engine only reads these tensors.
            warnings.simplefilter("ignore", UserWarning)
            tensors = {
                name: torch.from_numpy(data).view(getattr(torch, kind)).reshape(shape)
                for name, (kind, shape, data) in self.tensors.items()
            }
        return Weights(self.version, tensors, frozen=self.frozen)


@dataclass(frozen=True)
class Loaded:
    """Report of an actor after it loaded weights, which the sender compares with its own weights.

    fingerprint: hash of the weights that the actor loaded. probe: outputs of the actor's model for
    fixed tokens.
    """

    version: int
    fingerprint: str
    probe: Floats


class RolloutActor:
    """Actor that samples shares of problems in a thread, so that `take` returns within a second."""

    def __init__(self) -> None:
        self._engine: Engine | VllmEngine | None = None
        self._prompts: dict[str, Prompt] = {}
        self._sampling: BackgroundSampling | None = None
        self._has_checked_base = False

    def open(self, opening: Opening) -> str:
        """Load the model. Returns the host name and the process id of the actor."""
        torch.set_num_threads(opening.threads)
        sys.path += [folder for folder in opening.path if folder not in sys.path]
        self._engine = self._made(opening)
        return f"{socket.gethostname()}, process {os.getpid()}"

    def _made(self, opening: Opening) -> Engine | VllmEngine:
        def render(problem: Problem) -> Prompt:
            return self._prompts[problem.group_id]

        settings, seed = opening.settings, opening.seed
        if opening.vllm is not None:
            threads = opening.threads
            engine = VllmEngine(opening.vllm, render, settings=settings, seed=seed, threads=threads)
        else:
            loaded = load_model(opening.model, opening.device, seed)
            engine = Engine(
                loaded.model,
                loaded.tokenizer,
                render,
                eos_ids=loaded.eos_ids,
                settings=settings,
                seed=seed,
                context_length=opening.context_length,
            )
        tools = open_tools(opening.tools, engine.tokenizer, opening.in_chat)
        if tools is not None:
            engine.make_controller = tools.make_controller
        return engine

    def load(self, sent: Sent) -> Loaded:
        """Load new weights. Returns a report, which the sender compares with its own weights.

        Raises ModelError if the frozen tensors differ from the sender's. Completions in progress
        are interrupted, and continue with the new weights.
        """
        engine, weights = self._ready(), sent.weights()
        if weights.frozen and isinstance(engine, Engine):
            own = engine.tensors()
            kept = {name: own[name] for name in weights.frozen & own.keys()}
            self._check_base(sent, kept)
            weights = replace(weights, tensors={**weights.tensors, **kept})
        with self._background().paused():
            engine.load_policy(weights)
            return Loaded(engine.policy_version, engine.fingerprint(), engine.probe())

    def _check_base(self, sent: Sent, own: Mapping[str, Tensor]) -> None:
        """Compare the frozen tensors with the learner's, once. Raises ModelError."""
        if self._has_checked_base:
            return
        # Another base stays another base, so a new actor on this host could not load it either.
        if fingerprint(own) != sent.base:
            found = "a base model whose tensors differ from the learner's"
            remedy = "set model.revision to a commit, or copy the learner's folder to this host"
            where = f"rollout actor on host {socket.gethostname()}"
            raise ModelError(message(where, found, "the learner's base model", remedy))
        self._has_checked_base = True

    def begin(self, asked: ShareAsked) -> None:
        """Start to sample a share of problems in the background. `take` returns the results."""
        self._prompts = {problem.group_id: prompt for _, problem, prompt in asked.problems}
        self._background().add(asked)

    def take(self) -> Taken:
        """Return the groups that have finished since the last call. Waits at most a second."""
        return self._background().take()

    def lower(self, limit: int) -> None:
        """Lower the oversampling cutoff: cancel groups that have a completion longer than
        ``limit``.
        """
        self._background().lower(limit)

    def _background(self) -> BackgroundSampling:
        if self._sampling is None:
            self._sampling = BackgroundSampling(self._ready())
        return self._sampling

    def sleep(self) -> None:
        """Release the memory that only sampling needs."""
        self._ready().sleep()

    def _ready(self) -> Engine | VllmEngine:
        assert self._engine is not None, "the actor was not opened"
        return self._engine
