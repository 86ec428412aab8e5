"""Rollout actor: a process that receives weights, and samples with the built-in engine or vLLM."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

# This import comes before vLLM's, because vLLM replaces torch.set_num_threads by its own function.
from torch import set_num_threads

from assay.config import EngineConfig, ModelConfig, SamplingConfig
from assay.config.tools import ToolsConfig
from assay.generate.engine import Engine
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.turns.toolbox import open_tools
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.model.load import load_model
from assay.model.weights import Weights, memory_of
from assay.types import Floats, Group, Problem, Prompt

# Seconds after which `take` returns even if no group has ended.
TAKE_SECONDS = 1.0


@dataclass(frozen=True)
class Opening:
    """Arguments for opening an actor's engine with the settings of the command's engine.

    in_chat: whether prompts are rendered with the chat template. path: module search path. vllm:
    description of the model for vLLM; None: the built-in engine samples.
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
        """Copy a problem without its spec, so that answers and tests stay out of the actor.

        The actor needs no spec, because the policy sees only the prompt.
        """
        # An environment runs in the actor and needs the spec, which contains the answer.
        return problem if self.tools.environment is not None else replace(problem, spec={})


@dataclass(frozen=True)
class Sent:
    """Serialized policy weights: byte arrays in the shared memory of the object store."""

    version: int
    tensors: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]

    @classmethod
    def of(cls, weights: Weights) -> Sent:
        """Serialize the current weights. The object store copies tied weights only once."""
        found: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}
        arrays: dict[Hashable, np.ndarray] = {}
        for name, tensor in weights.tensors.items():
            # The array's elements are bytes, because numpy has no bfloat16.
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            kind = str(tensor.dtype).removeprefix("torch.")
            array = arrays.setdefault(memory_of(tensor), flat.numpy())
            found[name] = kind, tuple(tensor.shape), array
        return cls(weights.version, found)

    def weights(self) -> Weights:
        """Return the weights as tensors over the store's read-only memory, without a copy."""
        with warnings.catch_warnings():
            # torch warns about read-only memory, but the engine only reads these tensors.
            warnings.simplefilter("ignore", UserWarning)
            tensors = {
                name: torch.from_numpy(data).view(getattr(torch, kind)).reshape(shape)
                for name, (kind, shape, data) in self.tensors.items()
            }
        return Weights(self.version, tensors)


@dataclass(frozen=True)
class Loaded:
    """Report of an actor after a weight update, which the sender compares with its own weights.

    fingerprint: hash of the actor's weights. probe: outputs of the actor's model for fixed tokens.
    """

    version: int
    fingerprint: str
    probe: Floats


@dataclass(frozen=True)
class ShareAsked:
    """An actor's share of the problems of one `Generator.generate` call.

    problems: (index in the call, problem from `Opening.sent`, prompt) of each problem.
    """

    problems: Sequence[tuple[int, Problem, Prompt]]
    sampling: SamplingConfig
    group_size: int
    first_sibling: int
    cutoff: OversamplingCutoff | None = None


@dataclass(frozen=True)
class Taken:
    """Progress of a share: newly finished groups, and totals so far.

    given_up: number of tokens in groups that the oversampling cutoff canceled.
    """

    groups: Sequence[tuple[int, Group]]
    num_steps: int
    num_completions: int
    tokens: int
    done: bool
    given_up: int = 0


class RolloutActor:
    """Actor that samples shares of problems in a thread, so that `take` answers within a second."""

    def __init__(self) -> None:
        self._engine: Engine | VllmEngine | None = None
        self._prompts: dict[str, Prompt] = {}
        self._share: _Share | None = None

    def open(self, opening: Opening) -> str:
        """Load the model. Returns the actor's host and process id."""
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
        """Load new weights. Returns a report that the sender compares with its own weights."""
        engine = self._ready()
        engine.load_policy(sent.weights())
        return Loaded(engine.policy_version, engine.fingerprint(), engine.probe())

    def begin(self, asked: ShareAsked) -> None:
        """Start to sample a share in the background. `take` returns the results."""
        self._prompts = {problem.group_id: prompt for _, problem, prompt in asked.problems}
        self._share = _Share(self._ready(), asked)

    def take(self) -> Taken:
        """Return the groups that ended since the last call. Waits at most `TAKE_SECONDS`."""
        assert self._share is not None
        return self._share.take(TAKE_SECONDS)

    def lower(self, limit: int) -> None:
        """Lower the oversampling cutoff: cancel groups with a completion longer than ``limit``."""
        if self._share is not None and self._share.cutoff is not None:
            self._share.cutoff.lower(limit)

    def sleep(self) -> None:
        """Release the memory that only sampling needs."""
        self._ready().sleep()

    def _ready(self) -> Engine | VllmEngine:
        assert self._engine is not None, "the actor was not opened"
        return self._engine


class _Share:
    """Sampling in a background thread, so that the actor stays responsive."""

    def __init__(self, engine: Engine | VllmEngine, asked: ShareAsked) -> None:
        self._engine = engine
        self._asked = asked
        self._threads = torch.get_num_threads()
        # Pickling has copied the cutoff, so this copy sees only the groups of this actor.
        self.cutoff = asked.cutoff
        self._ended: queue.Queue[Group | BaseException | None] = queue.Queue()
        self._places: dict[str, list[int]] = {}
        for place, problem, _ in asked.problems:
            self._places.setdefault(problem.group_id, []).append(place)
        engine.stats = replace(engine.stats, num_steps=0, num_completions=0, tokens=0)
        threading.Thread(target=self._work, name="assay-sampling", daemon=True).start()

    def take(self, seconds: float) -> Taken:
        """Return the groups that have ended. Raises the engine's exception."""
        groups: list[tuple[int, Group]] = []
        done, limit = False, time.monotonic() + seconds
        while not done:
            try:
                wait = 0.0 if groups else max(0.0, limit - time.monotonic())
                one = self._ended.get(timeout=wait) if wait else self._ended.get_nowait()
            except queue.Empty:
                break
            if isinstance(one, BaseException):
                raise one
            if one is None:
                done = True
            else:
                groups.append((self._places[one.problem.group_id].pop(0), one))
        stats = self._engine.stats
        given_up = 0 if self.cutoff is None else self.cutoff.tokens
        far = stats.num_steps, stats.num_completions, stats.tokens
        return Taken(groups, *far, done, given_up)

    def _work(self) -> None:
        asked = self._asked
        problems = [problem for _, problem, _ in asked.problems]
        # torch keeps a separate number of threads for each Python thread.
        set_num_threads(self._threads)
        try:
            rest = (asked.sampling, asked.group_size, asked.first_sibling, self._ended.put)
            self._engine.generate(problems, *rest, cutoff=self.cutoff)
            self._ended.put(None)
        except BaseException as error:  # `take` raises the exception in the actor's main thread
            self._ended.put(error)
