"""Estimates of a run on a GPU that this machine does not have: memory, seconds, and settings that
fit.

The model is estimated from a skeleton without weights (`assay.model.skeleton`), so it can have any
size. Memory is the sum of the components in `assay.plan.memory`. The seconds follow from the rates
on the data sheet of the GPU, and from the fractions of these rates that an H100 reached
(docs/gpu.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from assay import config as configuration
from assay.config import MOST_SLOTS, ModelConfig, TrainConfig
from assay.config.toml_text import toml_line
from assay.errors import ConfigError, ModelError, message
from assay.model.activations import saved_bytes
from assay.model.adapters import ADAPTER_FILE
from assay.model.family import is_lean
from assay.model.load import choose_dtype, find_parts
from assay.model.shapes import check_config
from assay.model.skeleton import skeleton
from assay.model.sources import ModelSource, read_outline
from assay.plan.arithmetic import Expected, MachineRates, expect, units_from_rates
from assay.plan.devices import Gpu
from assay.plan.memory import MemoryPlan, plan_memory
from assay.session.assemble import choose_algorithm
from assay.training.preference import choose_preference

# In a large matrix product, an H100 reached 790 of the 989 TFLOP/s of its data sheet.
# In a memory copy, an H100 reached 2,946 of the 3,350 GB/s of its data sheet.
REACHED_PRODUCTS, REACHED_BANDWIDTH = 0.8, 0.88
PROMPT_TOKENS = 512
"""Assumed length of a prompt, because no rows are read."""
SMALL_MICRO_BATCH, FEW_SLOTS = 2048, 16
STAGES = ("rl", "sft", "pretrain", "preference")


@dataclass(frozen=True, slots=True)
class DeviceVariant:
    """Estimate of the configured run after some settings were changed.

    settings: the changed settings. expected: estimated time of the run; None if the number of steps
    depends on rows that were not read. fits: whether the peak memory of the run fits the GPU.
    """

    settings: Mapping[str, Any]
    memory: MemoryPlan
    expected: Expected | None
    fits: bool

    @property
    def words(self) -> str:
        """The changed settings of the estimate, as one line of text."""
        shown = [
            f"[{key}]" if value == {} else f"{key} = {toml_line('x', value).removeprefix('x = ')}"
            for key, value in self.settings.items()
        ]
        return ", ".join(shown) or "as configured"


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Estimates of a run on a GPU, with the configured settings and with settings that need less
    memory.

    prompt_tokens: assumed number of tokens in a long prompt. work: description of a step. variants:
    estimates with different settings, in the order of decreasing memory. price: price of one GPU
    hour.
    """

    gpu: Gpu
    model: str
    num_weights: int
    dtype: str
    prompt_tokens: int
    work: str
    variants: Sequence[DeviceVariant]
    price: float | None = None

    @property
    def chosen(self) -> DeviceVariant | None:
        """The first estimate that fits into the memory of the GPU; None if no estimate fits."""
        return next((one for one in self.variants if one.fits), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the estimates as plain values for JSON."""
        return {
            "device": self.gpu.name,
            "memory_mib": self.gpu.memory_mib,
            "usable_mib": self.gpu.usable_mib,
            "model": self.model,
            "num_weights": self.num_weights,
            "dtype": self.dtype,
            "prompt_tokens": self.prompt_tokens,
            "variants": [
                {
                    "settings": dict(one.settings),
                    "peak_mib": one.memory.total_mib,
                    "parts_mib": dict(one.memory.parts),
                    "step_seconds": one.expected.step.total if one.expected else None,
                    "hours": one.expected.hours if one.expected else None,
                    "fits": one.fits,
                }
                for one in self.variants
            ],
        }

    def __str__(self) -> str:
        gpu = self.gpu
        lines = [
            f"{self.model}, {self.num_weights / 1e9:.2f}B weights in {self.dtype}; {self.work}",
            f"on one {gpu.name}: {gpu.memory_mib / 1024:.0f} GiB, of which a run may plan"
            f" {gpu.usable_mib / 1024:.1f}",
            "",
            f"  {'peak':>9}  {'step':>8}  fits  settings",
        ]
        for one in self.variants:
            step = f"{one.expected.step.total:.3g} s" if one.expected else "-"
            peak = f"{one.memory.total_mib / 1024:.1f} GiB"
            lines.append(f"  {peak:>9}  {step:>8}  {'yes' if one.fits else 'no':<4}  {one.words}")
        return "\n".join([*lines, "", *self._advice()])

    def _advice(self) -> Iterator[str]:
        best = self.chosen
        if best is None:
            yield "nothing fits: take a larger GPU or a smaller model, or lower sampling.max_tokens"
            return
        if best.settings:
            yield "settings of the first line that fits:"
            yield ""
            yield from (f"  {line}" for line in _sections(best.settings).splitlines())
            yield ""
        yield "memory of that run:"
        yield str(best.memory)
        if best.expected is not None:
            cost = best.expected.hours * (self.price or 0.0)
            money = f"; {cost:.2f} at {self.price:g} an hour" if self.price else ""
            yield f"the run: {best.expected}{money}"
        yield "an estimate: shapes and data sheets only; seconds are scaled from one H100"


def plan_on(
    gpu: Gpu,
    config: TrainConfig,
    prompt_tokens: int = PROMPT_TOKENS,
    price: float | None = None,
    shape: Any = None,
) -> DevicePlan:
    """Estimate a configured run on a GPU.

    shape: Transformers configuration of the model; None reads it from ``model.path``. Raises
    ConfigError for a stage without an estimate, and ModelError for an unreadable model.
    """
    if config.stage not in STAGES:
        accepted = ", ".join(f"[{one}]" for one in STAGES)
        raise ConfigError(message("assay plan --device", f"[{config.stage}]", accepted))
    has_adapters = False
    if shape is None:
        shape, has_adapters = read_shape(config.model)
    # If the model's path has adapters, a run trains them further, so it needs the memory of LoRA.
    if has_adapters and config.model.lora is None:
        config = changed_config(config, {"model.lora": {}})
    dtype = choose_dtype(config.model.dtype, torch.device("cuda"))
    # Building a skeleton takes seconds, so at most two are built: one with LoRA and one without.
    made, measured = dict[bool, Any](), dict[bool, float]()

    def estimated(settings: Mapping[str, Any]) -> DeviceVariant:
        changed = changed_config(config, settings)
        lora = changed.model.lora
        if (model := made.get(lora is not None)) is None:
            model = made[lora is not None] = skeleton(shape, dtype, "cuda", lora)
        layer_bytes = None
        if not is_lean(model):
            # A CPU build of torch cannot run autograd on fake tensors of a CUDA device.
            if (lora is not None) not in measured:
                on_cpu = skeleton(shape, dtype, "cpu", lora)
                measured[lora is not None] = saved_bytes(on_cpu, lean=False)
            layer_bytes = measured[lora is not None]
        return _variant(gpu, changed, settings, model, prompt_tokens, layer_bytes)

    variants = [estimated(settings) for settings in lighter_settings(config)]
    plain = made.get(False) or made[True]
    return DevicePlan(
        gpu=gpu,
        model=config.model.path,
        num_weights=sum(one.numel() for one in plain.parameters()),
        dtype=str(dtype).removeprefix("torch."),
        prompt_tokens=prompt_tokens,
        work=_work(config, prompt_tokens),
        variants=variants,
        price=price,
    )


def _variant(
    gpu: Gpu,
    config: TrainConfig,
    settings: Mapping[str, Any],
    model: Any,
    prompt_tokens: int,
    layer_bytes: float | None,
) -> DeviceVariant:
    lean = is_lean(model)
    has_reference, has_critic = needed_models(config)
    # On a GPU, the libraries take CPU memory but no GPU memory, so they count as 0.
    memory = plan_memory(
        config,
        model,
        prompt_tokens,
        has_reference,
        has_critic,
        libraries_mib=0.0,
        lean=lean,
        gpu_mib=gpu.memory_mib,
        layer_bytes=layer_bytes,
    )
    rates = MachineRates(
        operations=REACHED_PRODUCTS * gpu.operations, bytes=REACHED_BANDWIDTH * gpu.bandwidth
    )
    expected = expect(config, units_from_rates(config, model, rates, lean), prompt_tokens)
    return DeviceVariant(settings, memory, expected, memory.total_mib <= gpu.usable_mib)


def needed_models(config: TrainConfig) -> tuple[bool, bool]:
    """Return whether the configured method needs a reference model, and whether it needs a
    critic."""
    if config.rl is not None:
        row = choose_algorithm(config)
        return row.kl_weight > 0, row.has_critic
    if config.preference is not None:
        return choose_preference(config.preference).needs_reference, False
    return False, False


def lighter_settings(config: TrainConfig) -> Iterator[dict[str, Any]]:
    """Yield changes of settings, from the configured run to the settings that need the least
    memory."""
    # Recomputation and smaller micro-batches do not change the updates, so they are tried first.
    # bfloat16 moments change the updates less than LoRA does, so they are tried before LoRA.
    yield {}
    settings: dict[str, Any] = {}
    if not config.model.activation_checkpointing:
        settings |= {"model.activation_checkpointing": True}
        yield {**settings}
    stage: Any = getattr(config, config.stage)
    if (stage.max_tokens_per_micro_batch or math.inf) > SMALL_MICRO_BATCH:
        settings |= {f"{config.stage}.max_tokens_per_micro_batch": SMALL_MICRO_BATCH}
        yield {**settings}
    if config.model.lora is None:
        if config.optimizer.name == "adamw" and config.optimizer.state_dtype != "bfloat16":
            yield settings | {"optimizer.state_dtype": "bfloat16"}
        yield {"model.lora": {}}
        settings = {"model.lora": {}} | settings
        yield {**settings}
    if config.drawing is not None and (config.engine.num_slots or math.inf) > FEW_SLOTS:
        yield settings | {"engine.num_slots": FEW_SLOTS}


def changed_config(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    tree = config.model_dump(exclude_none=True)
    for key, value in settings.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    tree["engine"] = {"num_slots": MOST_SLOTS, **tree.get("engine", {})}
    return configuration.build(tree)


def read_shape(config: ModelConfig) -> tuple[Any, bool]:
    """Return the Transformers configuration of the base model, and whether the model's path has
    adapters."""
    folder = Path(config.path).expanduser()
    if (folder / "config.json").is_file() and not (folder / ADAPTER_FILE).is_file():
        # A model folder without weights is enough for an estimate, although a run refuses it.
        check_config(folder, f"model.path {folder}")
        source = ModelSource(str(folder.resolve()), trust_remote_code=config.trust_remote_code)
        return read_outline(source).config, False
    source, adapter = find_parts(config)
    if source.gguf is not None:
        found = f"the GGUF file {source.gguf}"
        accepted = "a folder in Hugging Face layout, or a hub name"
        raise ModelError(message("assay plan --device: model.path", found, accepted))
    return read_outline(source).config, adapter is not None


def _work(config: TrainConfig, prompt_tokens: int) -> str:
    if config.drawing is not None:
        drawn = config.drawing
        sizes = f"{drawn.num_prompts} prompts x {drawn.group_size} completions"
        return f"{sizes}, prompts of {prompt_tokens} tokens and {config.sampling.max_tokens} new"
    return f"[{config.stage}] on rows of a file"


def _sections(settings: Mapping[str, Any]) -> str:
    """Format the changed settings as TOML, with one table per section."""
    tables: dict[str, list[str]] = {}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if value == {}:
            tables[key] = []
        else:
            tables.setdefault(section, []).append(toml_line(name, value))
    return "\n".join(line for table, rows in tables.items() for line in (f"[{table}]", *rows))
