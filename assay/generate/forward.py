"""Decoding paths through a model, and their verification against a plain forward pass."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from assay.errors import ModelError, message
from assay.generate.captured import CapturedForward
from assay.generate.compiled import CompiledForward
from assay.generate.fused import FusedForward
from assay.generate.fused_cache import has_triton
from assay.generate.kv_cache import (
    BLOCK,
    Extent,
    KeyValues,
    Room,
    SlotCache,
    attend,
    blocked_bias,
)
from assay.generate.lean import LeanForward, kv_mib_of_a_block
from assay.generate.memory import num_that_fit
from assay.generate.own_cache import OwnCacheForward
from assay.generate.prompt_reading import LEAST_READ, READ_BLOCK, read_bounds
from assay.model.family import STATIC_ROPES

SLOT_ATTENTION = "assay_slots"
ROW_MULTIPLES = (8, 16, 64)
# Lower limit of a step's row count: idle rows are dropped only down to this number.
# For fewer rows than this, matrix libraries select other kernels, which would change the bits.
LEAST_ROWS = 4
# The probe's prompt is longer than a block of prompt reading and a block of the cache.
PROBE_PROMPT, PROBE_STEPS = READ_BLOCK + LEAST_READ + 6, 2
PROBE_BEYOND = 3 * BLOCK
# Tokens that the probe scores after a load: a few suffice, as every weight affects every position.
LOAD_TOKENS = 16
# Number of vocabulary entries whose log-probabilities a probe transfers and compares.
PROBED_TOKENS = 256
# If one block of keys and values over all slots has at least this size, siblings share prompts.
# Even without sharing, smaller blocks stay in the CPU's cache.
SHARED_FROM_MIB = 64
# Maximum error of a decoding path's float32 log-probabilities, over the whole vocabulary.
MAX_DIFFERENCE = 1e-3
# Maximum mean and 99th percentile of the log-probability error in types narrower than float32;
# rounding alone reaches half.
MEAN_DIFFERENCE, P99_DIFFERENCE = 0.15, 0.75


class Forward(Protocol):
    """A decoding path with its own key-value cache. by_blocks: whether attention runs in blocks of
    one size."""

    name: str
    by_blocks: bool

    @property
    def reads_in_blocks(self) -> bool:
        """Whether prompts are read in blocks, so that `prefill` can reuse known blocks."""
        ...

    @property
    def cache(self) -> KeyValues:
        """The key-value cache."""
        ...

    def refresh(self, num_rows: int) -> None:
        """Read the live model's parameters, for steps of ``num_rows`` slots. Raises NotLean."""
        ...

    def end_call(self) -> None:
        """Free the memory that only a call of `Engine.generate` needs."""
        ...

    def release(self) -> None:
        """Free all memory that generation needs."""
        ...

    def prefill(self, tokens_L: Tensor, known: int = 0) -> Tensor:
        """Store a prompt's keys and values in the cache and return its last logits [V].

        known: number of leading tokens, in whole blocks, that are reused from the previous prompt;
        0 unless the previous prompt was read in blocks under the same weights.
        """
        ...

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        """Feed one token per slot and return the next logits [S, V], valid until the next step."""
        ...


class ModuleForward:
    """A decoding path that calls the module's own forward.

    by_blocks: whether decoding uses batch-invariant attention, so that other rows cannot change a
    result. The model's own attention is not used here, because over gathered keys it lets other
    rows change the last bits.
    in_blocks: whether prompts are read in blocks, if the model permits blocks.
    """

    def __init__(self, model: nn.Module, by_blocks: bool, in_blocks: bool = True) -> None:
        self.model = model
        self.name = "module" if by_blocks else "module with its own attention"
        self.cache: SlotCache = SlotCache() if by_blocks else GatheringCache()
        self.by_blocks = by_blocks
        # The forward of an adapter's wrapper accepts any argument, so the inner model is inspected.
        inner: Any = model
        base = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        accepts = inspect.signature(base.forward).parameters
        # Only the last logits are computed: 1,000 tokens of 150,000 logits would take 600 MB.
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepts else {}
        configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None))}
        self._configs = [c for c in configs.values() if hasattr(c, "_attn_implementation")]
        # Some rotary embeddings need the prompt's length, unknown in the prompt's first block.
        ropes = {name for config in self._configs for name in _rope_types(config)}
        on_cpu = next(model.parameters()).device.type == "cpu"
        self.reads_in_blocks = in_blocks and on_cpu and ropes <= STATIC_ROPES

    def refresh(self, num_rows: int) -> None:
        """Do nothing: this path calls the live module, which always has the newest weights."""

    def end_call(self) -> None:
        self.cache.release()

    def release(self) -> None:
        self.cache.release()

    def prefill(self, tokens_L: Tensor, known: int = 0) -> Tensor:
        length, logits = len(tokens_L), tokens_L
        self.cache.begin_prompt(known)
        positions_L = torch.arange(length, device=tokens_L.device)
        for first, end in read_bounds(length, known) if self.reads_in_blocks else [(0, length)]:
            self.cache.begin_block(first)
            block = tokens_L[None, first:end], positions_L[None, first:end]
            logits = self._call(*block, None, **self._last_only)
        return logits[0, -1]

    def decode(self, tokens_S: Tensor, positions_S: Tensor, extent: Extent) -> Tensor:
        self.cache.begin_step(positions_S, extent)
        with self._slot_attention():
            logits = self._call(tokens_S[:, None], positions_S[:, None], self.cache.mask)
        return logits[:, -1]

    def _call(self, tokens: Tensor, positions: Tensor, mask: Tensor | None, **rest: Any) -> Tensor:
        with in_eval(self.model):
            return self.model(
                input_ids=tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
                **rest,
            ).logits

    @contextmanager
    def _slot_attention(self) -> Iterator[None]:
        if not self.by_blocks:
            yield
            return
        before = [config._attn_implementation for config in self._configs]
        for config in self._configs:
            config._attn_implementation = SLOT_ATTENTION
        try:
            yield
        finally:
            for config, name in zip(self._configs, before, strict=True):
                config._attn_implementation = name


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Disable dropout and gradient checkpointing, which the learner may have enabled."""
    # Gradient checkpointing makes Transformers ignore the key-value cache.
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


class GatheringCache(SlotCache):
    """Cache that copies keys and values to the standard layout [S, H, K, D] in every step."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store keys and values, and gather the blocks of each slot."""
        keys, values = super().update(*args, **kwargs)
        if keys.dim() == 4:
            return keys, values
        keys, values = (one.permute(1, 2, 0, 3, 4).flatten(2, 3) for one in (keys, values))
        return keys, values


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend one query per slot to the cache's blocks, with Transformers' attention interface.

    query: [S, H, 1, D]. key, value: as returned by `SlotCache.write`. attention_mask: [S, 1, 1, K].
    """
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("attention with position_bias")
    num_slots, num_queries, _, width = query.shape
    heads = key.shape[2]
    bias_SK = attention_mask[:, 0, 0]
    if sliding_window is not None:
        order = torch.arange(bias_SK.shape[-1], device=bias_SK.device)
        length_S1 = (bias_SK == 0).sum(-1, keepdim=True)
        bias_SK = bias_SK.masked_fill(order < length_S1 - sliding_window, float("-inf"))
    out = attend(
        query.reshape(num_slots * heads, num_queries // heads, width),
        key,
        value,
        blocked_bias(bias_SK, heads),
        width**-0.5 if scaling is None else scaling,
        kwargs.get("softcap"),
        kwargs.get("s_aux"),
    )
    return out.reshape(num_slots, 1, num_queries, -1), None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)


@dataclass(frozen=True)
class Choice:
    """A verified decoding path.

    row_counts: the number of slots padded to a multiple of ``row_multiple``, then smaller row
    counts that give the same bits, in descending order. independent: whether completions are
    bitwise independent of the rest of the batch. A mixture of experts is not independent, because
    the routes of other completions determine the shapes of the products. reasons: error messages of
    the faster decoding paths that were rejected.
    """

    forward: Forward
    row_counts: tuple[int, ...]
    row_multiple: int
    independent: bool
    reasons: tuple[str, ...]

    @property
    def note(self) -> str:
        """Note on the cost or reproducibility of the decoding path, for the run's notes; "": no
        note."""
        if isinstance(self.forward, OwnCacheForward):
            return (
                "sampling calls the model for one completion at a time, through its own cache: this"
                " is slow, and the bits of a completion do not depend on other completions"
            )
        if not self.independent:
            return (
                "the last bits of a completion depend on its neighbors in this model, so a step"
                " that was killed is sampled again as a whole"
            )
        return ""


@torch.inference_mode()
def choose_forward(
    model: nn.Module, num_slots: int, context_length: int | None, kv_mib: float = math.inf
) -> Choice:
    """Return the fastest correct decoding path. Raises ModelError if no decoding path is correct.

    The prefill and the cached steps of a correct path reproduce a plain forward pass. The number of
    slots is padded until all rows give the same bits for the same input at every extent, because
    some matrix products compute the last rows of an odd batch differently. The key-value cache that
    the verification allocates stays within ``kv_mib``.
    """
    reasons: list[str] = []
    tokens_L = _probe_tokens(model, context_length, PROBE_PROMPT + PROBE_STEPS)
    try:
        with in_eval(model):
            logits_LV = model(input_ids=tokens_L[None], use_cache=False).logits[0]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Third-party model code may raise any exception.
        found = f"a forward pass that raises {_first_line(error)}"
        accepted = "a causal language model of Transformers"
        raise ModelError(message(type(model).__name__, found, accepted)) from error
    for way in ways_through(model, num_slots):
        try:
            forward = way()
            if isinstance(forward, OwnCacheForward):
                logprobs, _ = _through_cache(forward, tokens_L, 1, kv_mib)
                _check_close(logprobs, logits_LV[-len(logprobs) :])
                forward.release()
                # This path computes each row alone, so even experts keep rows independent.
                return Choice(forward, (num_slots,), 1, True, tuple(reasons))
            same_bits, num_rows = False, 0
            for multiple in ROW_MULTIPLES:
                num_rows = -(-num_slots // multiple) * multiple
                forward.refresh(num_rows)
                logprobs, same_bits = _through_cache(forward, tokens_L, num_rows, kv_mib)
                _check_close(logprobs, logits_LV[-len(logprobs) :])
                if same_bits or not forward.by_blocks:
                    break
            independent = same_bits and forward.by_blocks and not _has_experts(model)
            counts = [num_rows]
            if independent and tokens_L.device.type == "cpu":
                counts += _fewer_rows(forward, tokens_L, num_rows, logprobs, kv_mib)
            forward.release()
            return Choice(forward, tuple(counts), multiple, independent, tuple(reasons))
        # Running out of memory is no fault of the decoding path, and the caller's error names the
        # settings to lower.
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Third-party model code may raise any exception.
            reason = _first_line(error)
            reasons += [reason] if reason not in reasons else []
    # The reported error is the error of the last and most general path, the model's own cache.
    found = f"no cache that continues a prompt as a plain pass does ({reasons[-1]})"
    accepted = "a causal language model that `generate` of Transformers decodes with a cache"
    raise ModelError(message(type(model).__name__, found, accepted))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".removesuffix(": ").removeprefix("ModelError: ")


def ways_through(model: nn.Module, num_slots: int) -> tuple[Callable[[], Forward], ...]:
    """Return the decoding paths that may work for this model, fastest first."""
    shared = shares_prompts(model, num_slots)
    kind = next(model.parameters()).device.type
    fast: list[Callable[[], Forward]] = []
    if kind == "cpu":
        fast += [lambda packed=packed: CompiledForward(model, packed) for packed in (True, False)]
    elif kind == "cuda" and has_triton():
        fast.append(lambda: FusedForward(model))
    for sharing in (True, False) if shared else (False,):
        if kind == "cuda":
            fast.append(lambda sharing=sharing: CapturedForward(model, sharing))
        elif kind == "cpu":
            fast.append(lambda sharing=sharing: LeanForward(model, packed=True, shared=sharing))
        elif sharing:
            fast.append(lambda: LeanForward(model, shared=True))
    return (
        *fast,
        lambda: LeanForward(model),
        lambda: ModuleForward(model, by_blocks=True),
        lambda: ModuleForward(model, by_blocks=True, in_blocks=False),
        lambda: ModuleForward(model, by_blocks=False),
        lambda: ModuleForward(model, by_blocks=False, in_blocks=False),
        lambda: OwnCacheForward(model),
    )


def shares_prompts(model: nn.Module, num_slots: int) -> bool:
    """Return whether the cache is large enough for siblings to share their prompt."""
    return kv_mib_of_a_block(model) * num_slots >= SHARED_FROM_MIB


def probe_tokens(
    num_embedded: int, context_length: int | None, length: int = LOAD_TOKENS
) -> Tensor:
    """Return the fixed tokens [L] that probes score."""
    length = min(length, context_length or length)
    return torch.randint(num_embedded, (length,), generator=torch.Generator().manual_seed(0))


def probed_ids(num_words: int) -> range:
    """Return the vocabulary entries whose log-probabilities a probe compares."""
    return range(0, num_words, max(1, num_words // PROBED_TOKENS))


def _probe_tokens(
    model: nn.Module, context_length: int | None, length: int = LOAD_TOKENS
) -> Tensor:
    embeddings: Any = model.get_input_embeddings()  # type: ignore[operator]
    tokens_L = probe_tokens(embeddings.num_embeddings, context_length, length)
    return tokens_L.to(embeddings.weight.device)


def _fewer_rows(
    forward: Forward, tokens_L: Tensor, num_rows: int, expected_LV: Tensor, kv_mib: float
) -> Iterator[int]:
    """Yield half of ``num_rows``, a quarter and so on, as long as steps give the same bits.

    On a GPU the caller skips the test of smaller row counts: fewer rows save little time there, and
    each row count needs a captured graph of its own.
    """
    first_V = forward.prefill(tokens_L[: _num_prompt(tokens_L)])
    while num_rows % 2 == 0 and num_rows > LEAST_ROWS:
        num_rows //= 2
        found, same_bits = _through_cache(forward, tokens_L, num_rows, kv_mib, first_V=first_V)
        if not same_bits or not torch.equal(found, expected_LV):
            return
        yield num_rows


def _through_cache(
    forward: Forward,
    tokens_L: Tensor,
    num_rows: int,
    kv_mib: float = math.inf,
    beyond: int = PROBE_BEYOND,
    first_V: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Return log-probabilities of the last positions, and whether rows and extents agree bitwise.

    beyond: number of positions by which the long extent exceeds the short extent; 0: one extent
    only. first_V: the prompt's last logits, if the cache already holds the prompt.
    """
    num_prompt = _num_prompt(tokens_L)
    found = [forward.prefill(tokens_L[:num_prompt]) if first_V is None else first_V]
    cache = forward.cache
    far = Extent(len(tokens_L) + beyond, num_prompt + beyond, PROBE_STEPS + beyond)
    num_rows = max(num_that_fit(cache, Room(far, 1, num_rows), num_rows, 1, kv_mib), 1)
    cache.make_room(num_rows, Room(far, 1, num_rows))
    cache.place(torch.arange(num_rows, device=tokens_L.device))
    same_bits = True
    for position in range(num_prompt, len(tokens_L)):
        step = (
            tokens_L[position].repeat(num_rows),
            torch.full_like(tokens_L[:1], position).repeat(num_rows),
        )
        near = Extent(position + 1, num_prompt, position + 1 - num_prompt)
        logits_SV = forward.decode(*step, near).clone()
        same_bits &= torch.equal(logits_SV, logits_SV[:1].expand_as(logits_SV))
        if beyond:
            same_bits &= torch.equal(logits_SV, forward.decode(*step, far))
        found.append(logits_SV[0])
    return torch.stack(found).float().log_softmax(-1), same_bits


def _num_prompt(tokens_L: Tensor) -> int:
    """Return the length of the probe's prompt, which is at least 1 even in a short context."""
    return max(len(tokens_L) - PROBE_STEPS, 1)


def _rope_types(config: Any) -> set[str]:
    """Return the types of a model's rotary embeddings, which may differ between layers."""
    all_layers = getattr(config, "rope_parameters", None) or {}
    by_layer = [one for one in all_layers.values() if isinstance(one, dict)]
    return {one["rope_type"] for one in (all_layers, *by_layer) if one.get("rope_type")}


def _has_experts(model: nn.Module) -> bool:
    config = getattr(model, "config", None)
    return any(getattr(config, name, 0) for name in ("num_experts", "num_local_experts"))


def _check_close(found_LV: Tensor, logits_LV: Tensor) -> None:
    check_close(found_LV, logits_LV.float().log_softmax(-1), logits_LV.dtype)


def check_close(found: Tensor, plain: Tensor, dtype: torch.dtype) -> None:
    """Raise ModelError if log-probabilities differ from a plain pass by more than rounding."""
    difference = (found - plain).abs().flatten()
    if dtype == torch.float32:
        close = bool(difference.max() <= MAX_DIFFERENCE)
    else:
        p99 = difference.kthvalue(max(int(0.99 * len(difference)), 1)).values
        close = bool(difference.mean() <= MEAN_DIFFERENCE and p99 <= P99_DIFFERENCE)
    if not close:
        raise ModelError(f"log-probabilities differ from a plain pass by {difference.max():.2g}")


@torch.inference_mode()
def probe(forward: Forward, model: nn.Module, num_rows: int, context_length: int | None) -> Tensor:
    """Return log-probabilities at the last positions of the fixed tokens by a decoding path."""
    tokens_L = _probe_tokens(model, context_length)
    forward.refresh(num_rows)
    logprobs_LV, _ = _through_cache(forward, tokens_L, num_rows, beyond=0)
    forward.end_call()
    return _thinned(logprobs_LV)


@torch.inference_mode()
def plain_probe(model: nn.Module, context_length: int | None) -> Tensor:
    """Return the expected result of `probe`, computed by one plain forward pass."""
    tokens_L = _probe_tokens(model, context_length)
    with in_eval(model):
        logits_LV = model(input_ids=tokens_L[None], use_cache=False).logits[0]
    num_steps = min(PROBE_STEPS, len(tokens_L) - 1)
    return _thinned(logits_LV[-1 - num_steps :].float().log_softmax(-1))


def _thinned(logprobs_LV: Tensor) -> Tensor:
    return logprobs_LV[:, probed_ids(logprobs_LV.shape[1])].cpu()
