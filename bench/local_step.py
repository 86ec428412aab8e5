"""One generation and one update in this process, without verifiers, rollout log and report."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.config import EngineConfig, OptimizerConfig, SamplingConfig
from assay.generate.engine import Engine
from assay.learn.advantages import compute_advantages
from assay.learn.algorithms import algorithm
from assay.learn.base import Update
from assay.learn.optimizer import Optimizer
from assay.learn.passes import Passes
from assay.learn.update import PolicyLearner
from assay.model.probe import probe_layouts
from assay.types import Completion, Group, Problem, Prompt, Verdict
from bench.flops import ModelShape, Work

MIB = 2**20


class LocalStep:
    """A model with an engine and a learner.

    prompts: tokens of each prompt. eos_ids: end tokens; by default none, so that every completion
    has the maximum length.
    """

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        max_tokens: int,
        *,
        tokenizer: Any = None,
        eos_ids: Sequence[int] = (),
        state_dtype: str = "float32",
        activation_checkpointing: bool = False,
    ) -> None:
        self.model = model
        self.group_size = group_size
        self.sampling = SamplingConfig(max_tokens=max_tokens)
        self.problems = [Problem(str(n), str(n)) for n in range(len(prompts))]
        self._prompts = {
            problem.id: Prompt(problem.id, np.asarray(tokens, np.int32))
            for problem, tokens in zip(self.problems, prompts, strict=True)
        }
        self.engine = Engine(
            model,
            tokenizer or _NoText(),
            lambda problem: self._prompts[problem.id],
            eos_ids=eos_ids,
            settings=EngineConfig(num_slots=len(prompts) * group_size),
        )
        lengths = sorted(map(len, prompts))
        self.layout = probe_layouts(model, lengths[len(lengths) // 2], max_tokens // 2, group_size)
        self.algorithm = algorithm("dr_grpo", max_tokens=max_tokens)
        settings = OptimizerConfig.model_validate({"state_dtype": state_dtype})
        passes = Passes(
            model,
            Optimizer(model, settings, total_steps=1000),
            section="rl",
            layout=self.layout.layout,
            lean=self.layout.lean,
            activation_checkpointing=activation_checkpointing,
        )
        self.learner = PolicyLearner(passes, self.algorithm, total_steps=1000)

    def generate(self) -> list[Group]:
        """Sample one group per prompt."""
        return list(self.engine.generate(self.problems, self.sampling, self.group_size))

    def update(self, groups: Sequence[Group]) -> Update:
        """Train on groups, with a reward that is a hash of a completion's tokens."""
        verdicts = [
            [
                Verdict.of_score(zlib.crc32(one.tokens.tobytes()) % 1000 / 1000, "hash@1")
                for one in group.completions
            ]
            for group in groups
        ]
        batch = self.learner.score(groups, verdicts)
        update = self.learner.update(batch, compute_advantages(batch, self.algorithm))
        self.engine.load_policy(self.learner.weights())
        return update


class _NoText:
    """A tokenizer for uses in which no text is read."""

    def decode(self, tokens: Sequence[int], **_: Any) -> str:
        return ""

    def batch_decode(self, rows: Sequence[Sequence[int]], **_: Any) -> list[str]:
        return [""] * len(rows)


def work_of(groups: Sequence[Group]) -> Work:
    """Return the tokens that the model must process for groups."""
    return Work.of(
        [len(group.prompt.tokens) for group in groups],
        [[len(one.tokens) for one in group.completions] for group in groups],
    )


def random_model(
    shape: ModelShape,
    dtype: str,
    device: str = "cpu",
    family: str = "llama",
    max_positions: int = 4096,
) -> Any:
    """Return a model with random weights and tied embeddings, in eval mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_width,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    return model.eval()


def random_groups(
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    lengths: Sequence[Sequence[int]],
    vocabulary: int,
) -> list[Group]:
    """Return groups of random completions, for an update without a generation."""
    dice = np.random.default_rng(1)
    groups: list[Group] = []
    for problem, prompt, rows in zip(problems, prompts, lengths, strict=True):
        completions = [
            Completion(
                f"{problem.id}#0/{n}",
                "",
                dice.integers(0, vocabulary, length, dtype=np.int32),
                np.full(length, -np.log(vocabulary), np.float32),
                sampled=np.ones(length, np.bool_),
            )
            for n, length in enumerate(rows)
        ]
        shown = Prompt(problem.id, np.asarray(prompt, np.int32))
        groups.append(Group(problem, shown, tuple(completions)))
    return groups


def random_prompts(num_prompts: int, length: int, vocabulary: int) -> list[list[int]]:
    """Return prompts of random tokens."""
    generator = np.random.default_rng(0)
    return generator.integers(0, vocabulary, (num_prompts, length)).tolist()


class PeakMemory:
    """Peak memory between two calls in MiB, of the process or of a CUDA device."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    def reset(self) -> None:
        """Start a new measurement at the current memory."""
        if self._device == "cpu":
            Path("/proc/self/clear_refs").write_text("5")
        else:
            torch.cuda.reset_peak_memory_stats()

    def mib(self) -> float:
        """Return the peak since `reset`."""
        if self._device == "cpu":
            return _status_mib("VmHWM")
        return torch.cuda.max_memory_allocated() / MIB


def resident_mib() -> float:
    """Return the current resident memory in MiB."""
    return _status_mib("VmRSS")


def _status_mib(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status: found no {key}; accepted: a Linux system")
