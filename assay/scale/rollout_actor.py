"""One process that samples: the built-in engine or vLLM, with weights that are sent to it."""

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
from torch import set_num_threads  # as it is before vLLM puts another in its place

from assay.config import EngineConfig, ModelConfig, SamplingConfig
from assay.config.tools import ToolsConfig
from assay.generate.engine import Engine
from assay.generate.race import Race
from assay.generate.turns.toolbox import open_tools
from assay.generate.vllm_engine import ModelFacts, VllmEngine
from assay.model.load import load_model
from assay.model.weights import Weights, memory_of
from assay.types import Floats, Group, Problem, Prompt

TAKE_SECONDS = 1.0  # after which an actor answers, also where no group has ended


@dataclass(frozen=True)
class Opening:
    """What an actor's engine is made of, as it is in the process of the command.

    in_chat: whether prompts are rendered by the chat template. path: where modules are found. vllm:
    what vLLM must know of the model; None: the built-in engine samples.
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
        """Return what an actor may know of a problem: answers and tests stay behind.

        An environment plays in the actor, by the answer: it gets all. The policy sees the prompt.
        """
        return problem if self.tools.environment is not None else replace(problem, spec={})


@dataclass(frozen=True)
class Sent:
    """A policy's weights on their way: arrays of bytes, which the object store shares."""

    version: int
    tensors: Mapping[str, tuple[str, tuple[int, ...], np.ndarray]]

    @classmethod
    def of(cls, weights: Weights) -> Sent:
        """Return the weights as they are now; they are copied as they are put in the store, tied
        ones once."""
        found: dict[str, tuple[str, tuple[int, ...], np.ndarray]] = {}
        arrays: dict[Hashable, np.ndarray] = {}
        for name, tensor in weights.tensors.items():
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            kind = str(tensor.dtype).removeprefix("torch.")
            array = arrays.setdefault(memory_of(tensor), flat.numpy())
            found[name] = kind, tuple(tensor.shape), array
        return cls(weights.version, found)

    def weights(self) -> Weights:
        """Return them as tensors again, over the memory of the store, which is only read."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of memory that cannot be written
            tensors = {
                name: torch.from_numpy(data).view(getattr(torch, kind)).reshape(shape)
                for name, (kind, shape, data) in self.tensors.items()
            }
        return Weights(self.version, tensors)


@dataclass(frozen=True)
class Loaded:
    """What an actor holds after it was sent weights: their hash, and what it makes of fixed
    tokens."""

    version: int
    fingerprint: str
    probe: Floats


@dataclass(frozen=True)
class ShareAsked:
    """A share of one call of `Generator.generate`; problems are as `Opening.sent` returns them."""

    problems: Sequence[tuple[int, Problem, Prompt]]
    sampling: SamplingConfig
    group_size: int
    first_sibling: int
    race: Race | None = None


@dataclass(frozen=True)
class Taken:
    """What a share has come to: groups that ended, and how far the rest is.

    given_up: tokens of groups that are not wanted any more.
    """

    groups: Sequence[tuple[int, Group]]
    num_steps: int
    num_completions: int
    tokens: int
    done: bool
    given_up: int = 0


class RolloutActor:
    """Samples shares of problems; it answers within a second, whatever it is at."""

    def __init__(self) -> None:
        self._engine: Engine | VllmEngine | None = None
        self._prompts: dict[str, Prompt] = {}
        self._share: _Share | None = None

    def open(self, opening: Opening) -> str:
        """Load the model and prove the way through it; return where that is."""
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
            return VllmEngine(opening.vllm, render, settings=settings, seed=seed, threads=threads)
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
        tools = open_tools(opening.tools, loaded.tokenizer, opening.in_chat)
        if tools is not None:
            engine.guide = tools.guide
        return engine

    def load(self, sent: Sent) -> Loaded:
        """Sample from these weights from now on; say what is held now, for whoever sent them."""
        engine = self._ready()
        engine.load_policy(sent.weights())
        return Loaded(engine.policy_version, engine.fingerprint(), engine.probe())

    def begin(self, asked: ShareAsked) -> None:
        """Begin to sample a share; `take` gives what comes of it."""
        self._prompts = {problem.group_id: prompt for _, problem, prompt in asked.problems}
        self._share = _Share(self._ready(), asked)

    def take(self) -> Taken:
        """Return the groups that ended since the last call, after a second at the latest."""
        assert self._share is not None
        return self._share.take(TAKE_SECONDS)

    def lower(self, limit: int) -> None:
        """Give up groups that have a completion of more tokens."""
        if self._share is not None and self._share.race is not None:
            self._share.race.lower(limit)

    def sleep(self) -> None:
        """Give back the memory that only sampling needs."""
        self._ready().sleep()

    def _ready(self) -> Engine | VllmEngine:
        assert self._engine is not None, "the actor was not opened"
        return self._engine


class _Share:
    """Sampling in a thread, so that the actor can answer meanwhile."""

    def __init__(self, engine: Engine | VllmEngine, asked: ShareAsked) -> None:
        self._engine = engine
        self._asked = asked
        self._threads = torch.get_num_threads()
        self.race = asked.race  # a copy: it hears of the groups of this share alone
        self._ended: queue.Queue[Group | BaseException | None] = queue.Queue()
        self._places: dict[str, list[int]] = {}
        for place, problem, _ in asked.problems:
            self._places.setdefault(problem.group_id, []).append(place)
        engine.stats = replace(engine.stats, num_steps=0, num_completions=0, tokens=0)
        threading.Thread(target=self._work, name="assay-sampling", daemon=True).start()

    def take(self, seconds: float) -> Taken:
        """Return what has ended; raises what the engine raised."""
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
        given_up = 0 if self.race is None else self.race.tokens
        far = stats.num_steps, stats.num_completions, stats.tokens
        return Taken(groups, *far, done, given_up)

    def _work(self) -> None:
        asked = self._asked
        problems = [problem for _, problem, _ in asked.problems]
        set_num_threads(self._threads)  # each thread of Python has a number of its own
        try:
            rest = (asked.sampling, asked.group_size, asked.first_sibling, self._ended.put)
            self._engine.generate(problems, *rest, race=self.race)
            self._ended.put(None)
        except BaseException as error:  # it is raised where the share is taken
            self._ended.put(error)
