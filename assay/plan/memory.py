"""Estimated memory of a run before its start, by component.

The peak memory may occur in one of four phases: at the start, when the engine checks its forward
pass; in generation; in a teacher's forward pass; in an update. Each of the four phases frees its
own memory before the next phase begins.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay.config import TrainConfig
from assay.generate.compiled import CompiledForward
from assay.generate.forward import PROBE_BEYOND, PROBE_PROMPT, PROBE_STEPS, shares_prompts
from assay.generate.fused_cache import FusedCache, has_triton
from assay.generate.kv_cache import Extent, KeyValues, Room, SlotCache
from assay.generate.memory import default_kv_mib, num_that_fit
from assay.generate.products import packed_mib, stacked_mib
from assay.generate.shared_prompt import ROWS_AT_ONCE, SharedPromptCache
from assay.model import triton_jit
from assay.model.activations import saved_bytes
from assay.model.allocator import KERNEL_MIB, NUM_KERNELS
from assay.model.attention import SCORES_AT_ONCE
from assay.model.decoder import decoder_of
from assay.model.family import Decoder, NotLean, is_lean
from assay.model.head import FUSED_LOGITS_AT_ONCE, LOGITS_AT_ONCE, LOGITS_IN_CACHE
from assay.model.layouts import MUCH_SHORTER, micro_batch_tokens

MIB = 2**20
FLOAT32, HALF = 4, 2
# The engine rounds the number of its slots up to a multiple of 8 or more.
ROW_MULTIPLE = 8
MAX_PROBLEMS_AT_ONCE = 512
"""Largest number of problems that an evaluation samples at once."""
PADDING = (1 - MUCH_SHORTER) / 2
"""Expected padding as a share of a rectangular batch whose row lengths differ widely."""
KEPT = 20
"""Bytes per token for each cached top-k logit of a teacher, in memory and on disk."""
# glibc may allocate a tensor from a free block that is up to 96 bytes longer.
# glibc's thread cache keeps the surplus bytes of such blocks, where autograd puts small objects.
# Once the tensor is freed, the shortened block cannot hold another tensor of equal size.
# How much memory is lost to shortened blocks differs between runs.
# The constant is a middle value of the losses that docs/planning.md reports.
HOLES = 0.15
"""Fragmentation as a share of the activations, if layers run as Hugging Face modules."""
# oneDNN caches one kernel per matrix shape; 70 to 100 shapes were measured per micro-batch.
KERNELS_AT_ONCE = 100
SLACK_MIB = 48.0
"""Memory of the allocator between blocks, and of the libraries for their kernels."""

ALWAYS = (
    "libraries",
    "weights",
    "teacher",
    "reference",
    "critic",
    "master",
    "optimizer",
    "slack",
    "kernels",
)
START = ("libraries", "weights", "teacher", "packed", "proof")
GENERATION = ("packed", "kv_cache", "decoding")
ASKING = ("gradients", "asking")
ASKING_ONCE = ("libraries", "weights", "asked", "slack", "asking")
UPDATE = ("gradients", "activations", "padding", "holes", "logits", "scratch")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Estimated memory of each component, in MiB.

    parts: size of each component. A component in `START`, `GENERATION`, `ASKING` or `UPDATE` exists
    only during the phase of that name. A teacher that is queried only before the first step has the
    key ``asked``, and counts in `ASKING_ONCE`. settings: configuration keys that control the memory
    of each component.
    workers_mib: memory of the processes that run verifiers. elsewhere_mib: memory of a teacher on
    another device. `total_mib` includes neither the verifier processes nor other devices.
    """

    parts: Mapping[str, float]
    settings: Mapping[str, str]
    workers_mib: float = 0.0
    elsewhere_mib: float = 0.0

    @property
    def moments(self) -> dict[str, float]:
        """Peak memory in each phase, in MiB."""
        always = self._sum(ALWAYS)
        found = {"start": self._sum(START), "generation": always + self._sum(GENERATION)}
        if "asking" in self.parts:
            once = "asked" in self.parts
            found["asking"] = self._sum(ASKING_ONCE) if once else always + self._sum(ASKING)
        return {**found, "update": always + self._sum(UPDATE)}

    @property
    def total_mib(self) -> float:
        """Memory of the phase that needs the most, in MiB."""
        return max(self.moments.values())

    def _sum(self, names: Sequence[str]) -> float:
        return sum(self.parts.get(name, 0.0) for name in names)

    def __str__(self) -> str:
        rows = [
            f"  {name:<12}{mib:>9.0f} MiB   {self.settings.get(name, '')}".rstrip()
            for name, mib in self.parts.items()
        ]
        moments = ", ".join(f"{name} {mib:.0f}" for name, mib in self.moments.items())
        rows.append(f"  {'peak':<12}{self.total_mib:>9.0f} MiB   the largest of: {moments}")
        if self.workers_mib:
            rows.append(f"  {'workers':<12}{self.workers_mib:>9.0f} MiB   verification.num_workers")
        if self.elsewhere_mib:
            rows.append(f"  {'elsewhere':<12}{self.elsewhere_mib:>9.0f} MiB   teacher.device")
        return "\n".join(rows)


def plan_memory(
    config: TrainConfig,
    model: Any,
    prompt_tokens: int,
    has_reference: bool,
    has_critic: bool = False,
    teacher: Any = None,
    libraries_mib: float | None = None,
    num_heldout: int = 0,
    asked: Sequence[int] = (),
    lean: bool = True,
    gpu_mib: float | None = None,
    layer_bytes: float | None = None,
) -> MemoryPlan:
    """Estimate the memory that a configuration needs with a loaded model. docs/planning.md has the
    formulas.

    prompt_tokens: number of tokens in a long prompt. has_reference: whether the training method
    needs a reference model. The setting ``guard.max_kl`` also needs a reference model, and is read
    from the configuration.
    has_critic: whether the training method has a critic, which is assumed to be as large as the
    policy. teacher: model of the teacher, which also serves as reference; None without a teacher.
    libraries_mib: memory of the interpreter and its libraries; None means the memory of this
    process without the models.
    num_heldout: number of held-out problems. asked: number of tokens in each file that the teacher
    scores once, before the first step; empty if the teacher stays loaded. lean: whether the
    start-up probe accepted the lean decoder (`assay.model.probe`). gpu_mib: memory of a CUDA device
    with Triton, which this machine may lack; None means the device of the model. layer_bytes:
    activation memory of one layer, in bytes per token; None means that it is measured, or follows
    from a formula.
    """
    if libraries_mib is None:
        libraries_mib = measure_libraries(model, teacher)
    trained = _trained(model)
    master, moments = _state_bytes(config, trained)
    num_trained = sum(p.numel() for p in trained)
    has_copy = has_critic and config.critic.backbone == "copy"
    has_reference = has_reference or config.guard.max_kl is not None
    # If a stage has a teacher, the teacher also serves as the reference.
    if teacher is not None:
        has_reference = False
    num_critic = sum(p.numel() for p in _critic_layers(model)) if has_copy else 0
    tokens = _tokens_at_once(config, model, prompt_tokens)
    stays = None if asked else teacher
    asking, elsewhere = _asking_bytes(config, model, teacher, tokens, asked)
    if layer_bytes is None:
        layer_bytes = saved_bytes(model, lean)
    by_modules = not (lean and is_lean(model))
    parts = {
        "libraries": libraries_mib * MIB,
        "weights": weight_bytes(model),
        "reference": reference_bytes(model) if has_reference else 0,
        "critic": critic_bytes(config, model) if has_copy else 0,
        "teacher": teacher_bytes(stays, model),
        "asked": teacher_bytes(teacher, model) if asked else 0,
        "asking": asking,
        "master": master,
        "optimizer": moments,
        "slack": SLACK_MIB * MIB,
        "kernels": _kernel_bytes(config, model, prompt_tokens, tokens),
        "gradients": max(num_trained, num_critic) * FLOAT32,
        **_update_parts(config, model, tokens, stays, layer_bytes, by_modules, gpu_mib is not None),
        **_generation_parts(config, model, prompt_tokens, num_heldout, gpu_mib),
    }
    found = {name: size / MIB for name, size in parts.items() if size}
    return MemoryPlan(found, _settings(config), children_mib(), elsewhere / MIB)


def weight_bytes(model: Any) -> int:
    """Return the size of the parameters of a model, in bytes. Shared parameters count once."""
    return _bytes(list(model.parameters()))


def reference_bytes(model: Any) -> int:
    """Return the size of a reference model in bytes.

    The reference model is a frozen copy of the trained parameters.
    """
    return _bytes(_trained(model))


def teacher_bytes(teacher: Any, model: Any) -> int:
    """Return the size of the teacher's weights on the device of the policy, in bytes."""
    if teacher is None:
        return 0
    # If the teacher is on another device, only its output head is copied to the policy's device.
    here = next(model.parameters()).device
    if next(teacher.parameters()).device == here:
        return weight_bytes(teacher)
    return _bytes([teacher.get_output_embeddings().weight])


def critic_bytes(config: TrainConfig, model: Any) -> int:
    """Return the size of a separate critic in bytes: weights, master weights and optimizer
    moments."""
    layers = _critic_layers(model)
    return _bytes(layers) + sum(_state_bytes(config, layers))


def _bytes(parameters: Sequence[Any]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _trained(model: Any) -> list[Any]:
    return [p for p in model.parameters() if p.requires_grad]


def _critic_layers(model: Any) -> list[Any]:
    """Return the parameters of the policy's decoder that a critic copies. Adapters are excluded."""
    decoder = decoder_of(model)
    if not hasattr(model, "disable_adapter"):
        return list(decoder.parameters())
    # A critic merges the policy's adapters into its base weights, and then trains all weights.
    return [p for p in decoder.parameters() if not p.requires_grad]


def measure_libraries(model: Any, teacher: Any = None) -> float:
    """Return the memory of this process without the weights of the models, in MiB; 0 if unknown."""
    # The engine's check, which precedes this call, loads every library that a run imports.
    on_cpu = next(model.parameters()).device.type == "cpu"
    weights = weight_bytes(model) + teacher_bytes(teacher, model)
    held = resident_mib()
    return 0.0 if held is None or not on_cpu else max(0.0, held - weights / MIB)


def _settings(config: TrainConfig) -> dict[str, str]:
    """Return the configuration keys that control the memory of each component."""
    micro_batch = f"{config.stage}.max_tokens_per_micro_batch"
    slots = "engine.max_kv_mib, engine.num_slots"
    needs_none = "simpo and orpo need none"
    if config.rl is not None:
        needs_none = "algorithm.kl_weight = 0 without guard.max_kl needs none"
    return {
        "reference": f"{needs_none}; model.lora copies adapters alone",
        "critic": 'critic.backbone = "shared"',
        "teacher": "teacher.dtype, teacher.device; distill.keep asks it once",
        "asked": "once, before the first step; then it is given back",
        "asking": micro_batch,
        "optimizer": (
            'optimizer.state_dtype = "bfloat16", or name = "adamw_8bit"; model.lora trains far'
            " fewer weights"
        ),
        "kv_cache": slots,
        "proof": slots,
        "activations": f"{micro_batch}, model.activation_checkpointing",
        "padding": micro_batch,
        "holes": "GLIBC_TUNABLES=glibc.malloc.tcache_count=0 in the environment",
        "scratch": micro_batch,
    }


def _tokens_at_once(config: TrainConfig, model: Any, prompt_tokens: int) -> int:
    """Return the number of tokens in one forward pass: those of a micro-batch, or of the whole step
    if fewer."""
    stage: Any = getattr(config, config.stage)
    device = next(model.parameters()).device.type
    tokens = micro_batch_tokens(stage.max_tokens_per_micro_batch, device)
    if config.drawing is None:
        return tokens
    _, largest = config.curriculum.smallest_and_largest(config.drawing.group_size)
    group = prompt_tokens + largest * config.sampling.max_tokens
    return min(tokens, config.drawing.num_prompts * group)


def _kernel_bytes(config: TrainConfig, model: Any, prompt_tokens: int, tokens: int) -> float:
    """Return the size of the kernels that oneDNN caches for bfloat16 on a CPU, in bytes; 0 in other
    cases.
    """
    # oneDNN caches one kernel per matrix shape, and the shapes change with every micro-batch.
    # At oneDNN's default limit of 1,024 kernels, a 0.5B model with LoRA grew by about 0.9 GiB.
    parameter = next(model.parameters())
    if parameter.device.type != "cpu" or parameter.dtype != torch.bfloat16:
        return 0.0
    count = NUM_KERNELS
    if config.rl is not None:
        of_step = config.rl.num_prompts * (
            prompt_tokens + config.rl.group_size * config.sampling.max_tokens
        )
        count = min(count, config.rl.steps * -(-of_step // tokens) * KERNELS_AT_ONCE)
    return count * KERNEL_MIB * MIB


def _asking_bytes(
    config: TrainConfig, model: Any, teacher: Any, tokens: int, asked: Sequence[int]
) -> tuple[float, float]:
    """Return the bytes of the teacher's forward pass, on the device of the policy and on that of
    the teacher.
    """
    if teacher is None:
        return 0.0, 0.0
    # Without gradients, only the activations of one layer exist at a time.
    # Cached teacher logits stay in memory until every trace of a file has been scored.
    shape, one = teacher.config.get_text_config(), next(teacher.parameters())
    width, inner = shape.hidden_size, getattr(shape, "intermediate_size", None)
    heads = shape.num_attention_heads * (getattr(shape, "head_dim", None) or 0) or width
    layer = tokens * (4 * width + 4 * heads + 3 * (inner or 4 * width)) * one.element_size()
    if one.device.type == "cpu":
        most = min(SCORES_AT_ONCE, tokens * shape.num_attention_heads * tokens)
        layer += most * (FLOAT32 + one.element_size())
    logits = min(LOGITS_AT_ONCE, tokens * shape.vocab_size) * (one.element_size() + 2 * FLOAT32)
    kept = max(asked, default=0) * (config.distill.keep_top if config.distill else 0) * KEPT
    here = logits + kept if asked else tokens * width * one.element_size()
    if one.device == next(model.parameters()).device:
        return here + layer, 0.0
    return here, weight_bytes(teacher) + layer


def _update_parts(
    config: TrainConfig,
    model: Any,
    tokens: int,
    teacher: Any,
    layer_bytes: float,
    by_modules: bool,
    kernels: bool,
) -> dict[str, float]:
    """Return the bytes of an update by component, without those of the gradients."""
    parameter = next(model.parameters())
    device, size = parameter.device.type, parameter.element_size()
    shape = model.config.get_text_config()
    width, layers, vocabulary = shape.hidden_size, shape.num_hidden_layers, shape.vocab_size
    by_modules = device == "cpu" and by_modules
    checkpointed = config.model.activation_checkpointing
    kept = layers * width * size if checkpointed else layers * layer_bytes
    fused = teacher is None and (kernels or triton_jit.takes(parameter))
    most = FUSED_LOGITS_AT_ONCE if fused else LOGITS_AT_ONCE
    at_once = min(tokens, max(1, most // vocabulary))
    inner = getattr(shape, "intermediate_size", None) or 4 * width
    heads = getattr(shape, "num_attention_heads", 1)
    scores = min(SCORES_AT_ONCE, tokens * heads * tokens) if device == "cpu" else 0
    # A layer's backward pass has four tensors of the MLP's width, in the model's dtype.
    # A layer's backward pass also has six tensors of the model's width, three of them in float32.
    scratch = tokens * (4 * inner * size + 3 * width * FLOAT32 + 3 * width * size)
    scratch += scores * (FLOAT32 + 2 * size) + 5 * LOGITS_IN_CACHE * FLOAT32
    scratch += tokens * layer_bytes if checkpointed else 0
    taught = 0
    # The logits and hidden states of the teacher exist together with those of the policy.
    if teacher is not None:
        other = teacher.config.get_text_config()
        taught = at_once * other.vocab_size * size + tokens * other.hidden_size * size
        scratch += 4 * LOGITS_IN_CACHE * FLOAT32
    return {
        "activations": tokens * (kept + width * size),
        "padding": tokens * kept * PADDING,
        "holes": tokens * kept * HOLES if by_modules else 0,
        # On CUDA, the output head's gradient is accumulated in place, without another tensor.
        "logits": (at_once + width * (device != "cuda")) * vocabulary * size + taught,
        "scratch": scratch,
    }


def _generation_parts(
    config: TrainConfig, model: Any, prompt_tokens: int, num_heldout: int, gpu_mib: float | None
) -> dict[str, float]:
    """Return the bytes of a generation by component, and those of the engine's check at the
    start."""
    parameter = next(model.parameters())
    on_gpu = parameter.device.type == "cuda"
    fused = on_gpu and (gpu_mib is not None or has_triton())
    slots = -(-config.engine.slots // ROW_MULTIPLE) * ROW_MULTIPLE
    cache = _empty_cache(model, slots, fused)
    quarter = gpu_mib / 4 if gpu_mib else default_kv_mib(parameter.device)
    budget = config.engine.max_kv_mib or quarter
    longest = config.sampling.max_tokens
    extent = Extent(prompt_tokens + longest, prompt_tokens, longest)
    rooms: list[Room] = []
    if config.drawing is not None:
        _, largest = config.curriculum.smallest_and_largest(config.drawing.group_size)
        rooms += [Room(extent, config.drawing.num_prompts, largest)]
    if config.data.heldout or config.data.canaries:
        count = min(num_heldout or MAX_PROBLEMS_AT_ONCE, MAX_PROBLEMS_AT_ONCE)
        rooms += [Room(extent, count, config.evaluation.num_samples)]
    far = PROBE_PROMPT + PROBE_BEYOND, PROBE_STEPS + PROBE_BEYOND
    proof = Room(Extent(far[0] + PROBE_STEPS, *far), 1, slots)
    vocabulary = model.config.get_text_config().vocab_size
    # A decoding step has the logits of all slots, and one copy of them.
    # On a GPU, the CUDA graph that samples has four more float32 tensors of the logits' shape.
    logits = 2 * parameter.element_size() + (16 if on_gpu else 0)
    return {
        "packed": _packed_bytes(model, fused, quarter),
        "kv_cache": max((_cache_bytes(cache, room, slots, budget) for room in rooms), default=0.0),
        "decoding": slots * vocabulary * logits if rooms else 0,
        "proof": _cache_bytes(cache, proof, slots, budget),
    }


def _empty_cache(model: Any, slots: int, fused: bool) -> KeyValues:
    """Return the key-value cache that the engine would choose, without allocating it."""
    try:
        if fused:
            return FusedCache.of(Decoder.of(model))
        return CompiledForward(model).cache
    except NotLean:
        pass
    cache = SharedPromptCache() if shares_prompts(model, slots) else SlotCache()
    shape = model.config.get_text_config()
    heads = shape.num_attention_heads
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    kv_heads = getattr(shape, "num_key_value_heads", None) or heads
    dtype = next(model.parameters()).dtype
    one = torch.empty((1, kv_heads, 1, width), dtype=dtype, device="meta")
    cache.prompt = dict.fromkeys(range(shape.num_hidden_layers), (one, one))
    return cache


def _cache_bytes(cache: KeyValues, room: Room, slots: int, budget: float) -> float:
    """Return the bytes of the keys and values in all slots, limited to the maximum length, and of
    those of one prompt."""
    rows = num_that_fit(cache, room, slots, ROW_MULTIPLE, budget)
    tokens = cache.num_tokens(rows, room)
    # Copies of prompts are allocated for `ROWS_AT_ONCE` rows at a time.
    if isinstance(cache, SharedPromptCache):
        copies = max(min(rows, room.num_groups * -(-room.group_size // ROWS_AT_ONCE)), 1)
        tokens += (-copies % min(ROWS_AT_ONCE, copies)) * cache.prompt_tokens(room)
    return (tokens + room.extent.prompt) * cache.bytes_per_token


def _packed_bytes(model: Any, fused: bool, most_mib: float) -> float:
    """Return the bytes of packed or stacked linear weights; 0 if the engine copies no weights.

    most_mib: maximum memory for stacked copies of weights on a GPU.
    """
    try:
        decoder = Decoder.of(model)
        if fused:
            return stacked_mib(decoder, most_mib) * MIB
        return packed_mib(decoder) * MIB
    except NotLean:
        return 0.0


def _state_bytes(config: TrainConfig, trained: Sequence[Any]) -> tuple[int, int]:
    """Return the bytes of the master weights and of both moments of the optimizer."""
    name, halves = config.optimizer.name, config.optimizer.state_dtype == "bfloat16"
    moment = 1 if name == "adamw_8bit" else HALF if halves else FLOAT32
    master = sum(
        p.numel() * (HALF if name == "adamw" and p.dtype == torch.bfloat16 else FLOAT32)
        for p in trained
        if p.element_size() < FLOAT32
    )
    return master, 2 * moment * sum(p.numel() for p in trained)


def resident_mib() -> float | None:
    """Return the resident memory of this process without freed memory, in MiB; None if unknown."""
    # malloc_trim returns freed memory to the system, so that freed memory is not counted.
    # Only glibc has this function.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
    return _line_mib(Path("/proc/self/status"), "VmRSS:")


def children_mib() -> float:
    """Return the proportional memory (PSS) of all processes that descend from this one, in MiB."""
    # A forked verifier process shares most memory pages with its parent.
    # PSS counts a page that several processes share once; RSS would count it once per process.
    return sum(_line_mib(Path(f"/proc/{n}/smaps_rollup"), "Pss:") or 0 for n in _below(os.getpid()))


def _below(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        # A thread may end after /proc listed it and before its file is read.
        with suppress(OSError):
            found += [int(text) for text in path.read_text(encoding="utf-8").split()]
    return [*found, *(one for child in found for one in _below(child))]


def _line_mib(path: Path, key: str) -> float | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    # Only Linux has /proc, and a process may end before its file in /proc is read.
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(key)), None)
