"""Choose dtype, adapters and sampling sizes that fit the machine.

The search for sizes starts with the largest sizes. If the free memory is too small, the search adds
adapters and then activation checkpointing. If a run would exceed `WANTED_HOURS`, the search reduces
steps, completions and their length. Time and memory are estimated as in `assay plan`, from a model
without weights and measured rates of matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from assay import config as configuration
from assay.config import LoraConfig, TrainConfig
from assay.errors import ModelError
from assay.host.accelerator import device_memory_mib
from assay.host.machine import free_mib
from assay.init.detection import LookedModel
from assay.model.family import is_lean
from assay.model.load import choose_device, choose_dtype
from assay.model.rates import NOISE, name_of, rates_here
from assay.model.skeleton import skeleton
from assay.plan.arithmetic import Expected, MachineRates, expect, units_from_rates
from assay.plan.memory import plan_memory, resident_mib
from assay.plan.step_seconds import GivenWork
from assay.session.assemble import with_slots

WANTED_HOURS = 2.0
"""Maximum hours of training. Evaluations may take half as long in addition."""
# Share of the free memory that a run may plan for, since estimates are accurate to 15 %.
SHARE_OF_MEMORY = 0.85
# Assumed memory of this process if the operating system does not report the memory.
LIBRARIES_MIB = 500.0
EVALUATED = (None, 400, 200, 100, 50)
Tree = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Rung:
    """Sizes of a training run that samples completions.

    whole: whether completions may have the maximum useful length, or a shorter length.
    """

    steps: int
    num_prompts: int
    group_size: int
    whole: bool


# Sizes to try, from the longest to the shortest run.
# Steps are reduced before the group size is 4, because four completions often have equal verdicts.
# Below 50 steps, `assay plan` recommends another method.
LADDER = (
    Rung(200, 8, 16, True),
    Rung(200, 8, 8, True),
    Rung(100, 8, 8, True),
    Rung(100, 8, 8, False),
    Rung(100, 8, 4, False),
    Rung(50, 8, 4, False),
    Rung(50, 4, 4, False),
)
TINY = (Rung(100, 8, 16, True),)
UNKNOWN = Rung(200, 8, 8, True)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and completions in tokens.

    prompt: length of a long prompt. typical: median length of prompts. whole: completion length
    that is sufficient for the answers to all rows. cut: completion length that is sufficient for a
    right answer to most rows.
    """

    prompt: int
    typical: int
    whole: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Chosen sizes of a training run, with the reasons for the choice.

    model: keys of ``[model]``. expected, memory_mib: expected duration and memory, None if unknown.
    sure: whether the processor was idle while the rates of matrix products were measured. notes:
    reasons for the choice.
    warnings: reasons why the run may exceed the time limit or the free memory.
    """

    rung: Rung
    model: Mapping[str, Any]
    max_problems: int | None = None
    expected: Expected | None = None
    memory_mib: float | None = None
    sure: bool = True
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def header(self, command: str) -> list[str]:
        """Return the lines about time and memory at the start of the configuration file.

        command: `assay plan` command that measures time and memory.
        """
        if self.expected is None or self.memory_mib is None:
            return [f"Time and memory are not known:  {command}  measures them."]
        busy = "" if self.sure else ", while other programs had the processor"
        lines = [
            f"Expected on this machine: {self.expected},",
            f"{self.memory_mib:,.0f} MiB of memory. Estimated from rates of matrix products{busy};",
            f"the model was not timed:  {command}  measures the model itself.",
        ]
        return [*lines, *(f"Warning: {one}" for one in self.warnings)]


class Machine:
    """Estimates time and memory of a model on this machine, from rates that are measured once."""

    def __init__(self, looked: LookedModel, say: Callable[[str], None]) -> None:
        device = choose_device(None)
        self.device, self.looked = str(device), looked
        say("measuring rates of matrix products")
        rates, self.sure = rates_here(self.device)
        narrow, wide = rates["bfloat16"], rates["float32"]
        dtype = default = choose_dtype(None, device)
        # Some CPUs emulate bfloat16 instructions, which is slower than float32.
        # If bfloat16 is clearly faster, bfloat16 is chosen, although a CPU's default is float32.
        if narrow < NOISE * wide:
            dtype = torch.float32
        elif narrow * NOISE > wide and not looked.is_tiny:
            dtype = torch.bfloat16
        self.dtype, self.is_default = dtype, dtype == default
        speeds = f"bfloat16 {narrow / 1e9:,.0f} GFLOP/s, float32 {wide / 1e9:,.0f}"
        self.why = f"products on {device.type}: {speeds}"
        self.rates = MachineRates.of(dtype, self.device)
        self.free_mib = free_mib()
        if device.type != "cpu" and (own := device_memory_mib(device)):
            self.free_mib = own[0]
        self._skeletons: dict[str, Any] = {}

    def estimate(
        self, tree: Tree, lengths: Lengths, num_heldout: int, work: GivenWork | None
    ) -> tuple[float, Expected | None]:
        """Return the estimated peak memory in MiB, without verifier workers, and the duration."""
        config = configuration.build(tree)
        config = with_slots(config, config.completions_a_step)
        model = self._model(config)
        lean = is_lean(model)
        on_cpu = self.device == "cpu"
        memory = plan_memory(
            config,
            model,
            lengths.prompt,
            has_reference=False,
            libraries_mib=(resident_mib() or LIBRARIES_MIB) if on_cpu else 0.0,
            num_heldout=num_heldout,
            lean=lean,
        )
        units = units_from_rates(config, model, self.rates, lean)
        expected = expect(config, units, lengths.typical, num_heldout, work)
        return memory.total_mib, expected

    def _model(self, config: TrainConfig) -> Any:
        # `estimate` is called for many sizes, so the model without weights is cached by adapters.
        lora = config.model.lora or (LoraConfig() if self.looked.has_adapters else None)
        if (found := self._skeletons.get(str(lora))) is None:
            found = skeleton(self.looked.config, self.dtype, self.device, lora)
            self._skeletons[str(lora)] = found
        return found

    def has_room(self, memory_mib: float) -> bool:
        """Whether this amount of memory is free, with a margin for the error of the estimate."""
        return self.free_mib is None or memory_mib <= SHARE_OF_MEMORY * self.free_mib


def choose_sizes(
    base: Tree,
    looked: LookedModel,
    lengths: Lengths,
    num_heldout: int = 0,
    work: GivenWork | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Sizes:
    """Choose sizes of a run that fit this machine.

    base: sections of the configuration that are already determined. work: token counts of a stage
    that trains on rows; None for a stage that samples.
    """
    rungs = (UNKNOWN,) if work is not None else TINY if looked.is_tiny else LADDER
    try:
        machine = Machine(looked, say)
        model: dict[str, Any] = {}
        if not machine.is_default:
            model["dtype"] = name_of(machine.dtype)

        def estimate(rung: Rung, most: int | None = None) -> tuple[float, Expected | None]:
            evaluated = 0 if most == 0 else num_heldout
            tree = _tree_of(base, model, rung, lengths, most or None, work)
            return machine.estimate(tree, lengths, evaluated, work)

        # Settings are skipped if their memory is too large even at the smallest sizes.
        for way in _ways(looked, base):
            model = {**model, **way}
            if machine.has_room(estimate(rungs[-1])[0]):
                break
        rung = next((one for one in rungs if _is_short(*estimate(one, 0), machine)), rungs[-1])
        most = next((n for n in EVALUATED if _is_quick(estimate(rung, n)[1])), EVALUATED[-1])
        memory, expected = estimate(rung, most)
    except ModelError as error:
        return Sizes(TINY[0] if looked.is_tiny else UNKNOWN, {}, notes=(str(error),))
    notes = [machine.why] if machine.is_default else [f"{machine.why}: {model['dtype']} is taken"]
    notes += [_ADAPTERS] if "lora" in model else []
    warnings = [expected.warning] if expected is not None and expected.warning else []
    if not machine.has_room(memory):
        free = f"{machine.free_mib:,.0f} MiB are free"
        remedy = "take a smaller model, or lower sampling.max_tokens"
        warnings.append(f"it needs {memory:,.0f} MiB with a margin, and {free}: {remedy}")
    if most is not None and most >= num_heldout:
        most = None
    return Sizes(rung, model, most, expected, memory, machine.sure, tuple(notes), tuple(warnings))


_ADAPTERS = "adapters (LoRA) are trained: training all weights needs more memory than is free"


def _ways(looked: LookedModel, base: Tree) -> tuple[dict[str, Any], ...]:
    """Return alternative settings of ``[model]``, in the order of decreasing memory."""
    recomputed = {"activation_checkpointing": True}
    # A reward model is trained without adapters, and a model with adapters gets no second ones.
    # Adapters also need the library peft, which is an optional extra.
    if looked.has_adapters or "reward_model" in base or find_spec("peft") is None:
        return {}, recomputed
    return {}, {"lora": {}}, {"lora": {}, **recomputed}


def _tree_of(
    base: Tree,
    model: Mapping[str, Any],
    rung: Rung,
    lengths: Lengths,
    most: int | None,
    work: GivenWork | None,
) -> Tree:
    tree = {**base, "model": {**base["model"], **model}}
    if most is not None:
        tree["evaluation"] = {**base.get("evaluation", {}), "max_problems": most}
    if work is None:
        sizes = {name: getattr(rung, name) for name in ("steps", "num_prompts", "group_size")}
        tree["rl"] = {**base.get("rl", {}), **sizes}
        tree["sampling"] = {"max_tokens": lengths.whole if rung.whole else lengths.cut}
    return tree


def _is_short(memory_mib: float, expected: Expected | None, machine: Machine) -> bool:
    """Whether a run, without its evaluations, fits the time limit and the free memory."""
    short = expected is None or expected.hours <= WANTED_HOURS
    return short and machine.has_room(memory_mib)


def _is_quick(expected: Expected | None) -> bool:
    """Whether all evaluations together fit the time limit."""
    return expected is None or expected.evaluations / 3600 <= WANTED_HOURS / 2
