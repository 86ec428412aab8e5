"""Runner that sends packed micro-batches forward and backward through a trained model, for every
learner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import torch.utils.checkpoint
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from assay.errors import ModelError, RunError, message
from assay.host.clock import PhaseClock
from assay.learn.optimizer import Optimizer
from assay.learn.ranks import ALONE, Ranks, call_on_all_ranks
from assay.learn.sharding import Shards
from assay.model.allocator import Holes, out_of_memory_names
from assay.model.decoder import hidden_states
from assay.model.determinism import fixed_order
from assay.model.family import unwrap
from assay.model.head import Gains, HeadRoom, Target
from assay.model.layouts import micro_batch_tokens
from assay.model.load import ADAPTER_FILE, save_model
from assay.model.logprobs import TokenStats, token_logprobs
from assay.model.packing import Batch, Layout, MicroBatch
from assay.model.weights import Weights

Item = TypeVar("Item")

# Names of the learner methods that all ranks run together.
# All other methods of the learner run only on rank 0.
SHARED_CALLS = (
    "score_batch",
    "update",
    "save_state",
    "load_state",
    # Type of the state of the preference learner and of the reward model learner.
    "logprobs",
    "reference_logprobs",
    "refresh_reference",
    "load_reference",
    "look",
    "scores",
)
# Names of the learner methods that all ranks also run together if the weights are sharded.
SHARDED_CALLS = ("gather",)
# Number of elements per parameter that the checksum of `PassesLearner.digest` reads.
DIGESTED = 16


class Passes:
    """Forward/backward runner of a policy and its optimizer.

    section: configuration section that out-of-memory errors name.
    temperature: temperature of the distributions whose log-probabilities are computed.
    max_tokens_per_micro_batch: None: chosen by device.
    lean: use `assay.model.lean_decoder` for the model families that it supports.
    tokenizer: tokenizer that is saved with the policy, so that a checkpoint loads as a model; with
        None, a checkpoint supports only `load_state`.
    ranks: the learner ranks among which the passes are divided.
    shards: rows of the policy's weights that this rank stores; None means that every rank stores
        all rows. If a rank stores only some rows, passes use the plain layout without the lean
        decoder.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        section: str,
        temperature: float = 1.0,
        layout: Layout = "tree",
        lean: bool = True,
        max_tokens_per_micro_batch: int | None = None,
        activation_checkpointing: bool = False,
        tokenizer: Any = None,
        ranks: Ranks = ALONE,
        shards: Shards | None = None,
    ) -> None:
        self.policy = model
        self.optimizer = optimizer
        self.section = section
        self.temperature = temperature
        self.layout: Layout = layout if shards is None else "plain"
        self.lean = lean and shards is None
        self.shards = shards
        self.tokenizer = tokenizer
        self.ranks = ranks
        self.max_tokens = micro_batch_tokens(max_tokens_per_micro_batch, self.device.type)
        self.clock = PhaseClock()
        self._room = HeadRoom()
        self._holes = Holes()
        self._recomputed = RecomputedActivations(model) if activation_checkpointing else None

    @property
    def device(self) -> torch.device:
        """Device of the policy and of batches."""
        return next(self.policy.parameters()).device

    @contextmanager
    def open(self) -> Generator[None]:
        """Context that names the micro-batch setting in out-of-memory errors, adds in a fixed
        order, and frees shared buffers on exit."""
        setting = f"{self.section}.max_tokens_per_micro_batch"
        try:
            with out_of_memory_names(setting), fixed_order(self.device):
                yield
        finally:
            self._room.release()

    def recomputed(self) -> AbstractContextManager[None]:
        """Return the activation checkpointing context for one forward and backward pass."""
        return self._recomputed or nullcontext()

    def split(self, batch: Batch, groups: Sequence[int] | None = None) -> list[MicroBatch]:
        """Split the batch, or some of its groups, into the micro-batches of this rank."""
        if self.ranks.divides:
            chosen = range(batch.num_groups) if groups is None else groups
            costs = batch.shape.group_tokens(self.layout)
            groups = self.ranks.share(chosen, [int(costs[group]) for group in chosen])
            if not groups:
                return []
        return batch.split(self.max_tokens, self.layout, groups)

    def stats(
        self,
        micro_batch: MicroBatch,
        *,
        model: nn.Module | None = None,
        expected: Gains | None = None,
        target: Target | None = None,
    ) -> TokenStats:
        """Return the log-probabilities and entropies of the tokens of a micro-batch.

        model: model that scores the tokens; None means the policy.
        expected: gradients that the backward pass will receive, if known in advance.
        target: distributions for a divergence.
        """
        self._return_holes(micro_batch)
        if self.shards is not None:
            assert model in (None, self.policy) and target is None, "refused by the configuration"
            return self.shards.stats(
                token_logprobs,
                micro_batch,
                temperature=self.temperature,
                layout=self.layout,
                lean=self.lean,
                expected=expected,
                room=self._room,
            )
        return token_logprobs(
            model or self.policy,
            micro_batch,
            temperature=self.temperature,
            layout=self.layout,
            lean=self.lean,
            expected=expected,
            accumulators=self.optimizer.accumulator if model is None else None,
            room=self._room,
            target=target,
        )

    def each(
        self, micro_batches: Sequence[MicroBatch], what: str, part: tuple[int, int] = (0, 1)
    ) -> Generator[MicroBatch]:
        """Yield the micro-batches of this rank, as `PhaseClock.each` does.

        With sharded weights, a rank with fewer micro-batches still takes part in the passes of
        other ranks.
        """
        if self.shards is None:
            yield from self.counted(micro_batches, what, part)
            return
        padded, empty = self.shards.aligned(micro_batches, self.device)
        yield from self.counted(padded, what, part)
        for micro_batch in empty:
            with self.recomputed():
                stats = self.stats(micro_batch)
                if torch.is_grad_enabled():
                    # In the backward pass, the other ranks sum their gradients as well.
                    self.backward(0.0 * stats.logprobs_T.sum())

    def counted(
        self, items: Sequence[Item], what: str, part: tuple[int, int] = (0, 1)
    ) -> Generator[Item]:
        """Yield items and count them for the progress display, as `PhaseClock.each` does.

        Shared passes go on after an interrupt, because a checkpoint needs all ranks, and only the
        clock of rank 0 knows of the interrupt.
        """
        yield from self.clock.each(items, what, part, can_stop=not self.ranks.divides)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss to the accumulated gradients of the parameters."""
        with self.ranks.losing_none("a backward pass"):
            loss.backward()

    def hidden(self, micro_batch: MicroBatch) -> Tensor:
        """Return the hidden states that predict the tokens, [T, D], with gradient."""
        self._return_holes(micro_batch)
        inputs = micro_batch.inputs(self.layout)
        return hidden_states(self.policy, inputs, self.lean, self.optimizer.accumulator)

    def _return_holes(self, micro_batch: MicroBatch) -> None:
        """Release freed activations to the system if the next micro-batch would not fit into their
        memory."""
        if self.device.type == "cpu" and torch.is_grad_enabled():
            self._holes.prepare_for(micro_batch.inputs(self.layout).num_tokens)

    def beside(self, model: nn.Module, optimizer: Optimizer) -> Passes:
        """Return a runner with the same settings for another model and optimizer."""
        other = copy.copy(self)
        other.policy, other.optimizer, other._room = model, optimizer, HeadRoom()
        other._holes = Holes()
        if self._recomputed is not None:
            other._recomputed = RecomputedActivations(model)
        return other

    @torch.no_grad()
    def logprobs(
        self, batch: Batch, model: nn.Module | None = None, what: str = "scoring"
    ) -> Tensor:
        """Return the log-probability of each token under the policy or ``model``, [T] float32.

        ``model`` may be on a different device than the batch. what: name of the work, which
        progress displays show.
        """
        logprobs_T = torch.zeros_like(batch.behavior_logprobs_T)
        there = batch if model is None else batch.to(next(model.parameters()).device)
        for micro_batch in self.each(self.split(there), what):
            stats = self.stats(micro_batch, model=model)
            index_T = micro_batch.token_index_T.to(batch.device)
            logprobs_T[index_T] = stats.logprobs_T.float().to(batch.device)
        # At the tokens of other ranks, the result of this rank is 0, so the sum is exact.
        self.ranks.add([logprobs_T])
        return logprobs_T

    @torch.no_grad()
    def logprobs_and(self, head: Callable[[Tensor], Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities, and the output of ``head`` on the hidden states, [T] float32
        each.
        """
        logprobs_T, found_T = torch.zeros_like(batch.behavior_logprobs_T).repeat(2, 1)
        for micro_batch in self.counted(self.split(batch), "scoring"):
            stats = self.stats(micro_batch)
            logprobs_T[micro_batch.token_index_T] = stats.logprobs_T.float()
            found_T[micro_batch.token_index_T] = head(stats.hidden_TD).float()
        self.ranks.add([logprobs_T, found_T])
        return logprobs_T, found_T

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout and the state of the optimizer.

        All ranks call this method, and rank 0 writes the files.
        """
        policy: Any = self.policy if self.shards is None else self.shards.full
        if self.shards is not None:
            self.shards.gather()
        self.optimizer.save_state(folder)
        with self.ranks.in_step():
            if self.ranks.rank == 0 and self.tokenizer is not None:
                save_model(policy, self.tokenizer, folder)
            elif self.ranks.rank == 0:
                policy.save_pretrained(folder)

    def load_state(self, folder: Path) -> None:
        """Restore a state that `save_state` wrote, bit for bit, into the live policy. Raises
        RunError.
        """
        if self.shards is None or not self.shards.divides_trained:
            restore_weights(self.policy, folder)
        else:
            with self.ranks.in_step():
                if self.ranks.rank == 0:
                    restore_weights(self.shards.full, folder)
            self.shards.scatter()
        self.optimizer.load_state(folder)


class PassesLearner:
    """Base class of learners, with the live model, the policy version and the saved state."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self._gathered = 0
        if passes.ranks.size > 1:
            names = SHARED_CALLS if passes.shards is None else SHARED_CALLS + SHARDED_CALLS
            call_on_all_ranks(self, names)

    @property
    def clock(self) -> PhaseClock:
        """Clock that counts the seconds of scoring and of updates; inside a run, it is the run's
        clock.
        """
        return self.passes.clock

    @clock.setter
    def clock(self, clock: PhaseClock) -> None:
        for passes in self.all_passes:
            passes.clock = clock

    @property
    def all_passes(self) -> list[Passes]:
        """Runners of the policy and of all other trained models."""
        return [self.passes]

    @property
    def all_optimizers(self) -> list[Optimizer]:
        """Optimizers of the policy and of all other trained models."""
        return [passes.optimizer for passes in self.all_passes]

    @property
    def policy(self) -> Any:
        """The live model. Learners of reward models use this name for the reward model too."""
        return self.passes.policy

    @property
    def policy_version(self) -> int:
        """Number of optimizer steps of the policy so far."""
        return self.passes.optimizer.num_steps

    @property
    def state_version(self) -> int:
        """Number of optimizer steps of each trained model."""
        return self.policy_version

    @property
    def device(self) -> torch.device:
        """Device of the policy and of batches."""
        return self.passes.device

    def digest(self) -> int:
        """Return a checksum of the first elements of every trained parameter."""
        # Ranks with sharded weights store different elements of each tensor.
        shards = self.passes.shards
        if shards is not None and shards.divides_trained:
            return self.state_version
        # A step changes nearly all elements, so a few of them show whether ranks differ.
        crc = self.state_version
        for optimizer in self.all_optimizers:
            trained = optimizer.trained.values()
            first = torch.cat([p.detach().reshape(-1)[:DIGESTED].float() for p in trained])
            crc = crc32(first.cpu().numpy().tobytes(), crc)
        return crc

    def weights(self) -> Weights:
        """Return the live weights of the policy for a generator; sharded weights are gathered
        first.
        """
        shards = self.passes.shards
        if shards is None:
            return Weights.of(self.passes.policy, self.policy_version)
        if shards.divides_trained and self._gathered != self.policy_version:
            self.gather()
        return Weights.of(shards.full, self.policy_version)

    def gather(self) -> None:
        """Copy the sharded weights of all ranks to the full model of rank 0."""
        assert self.passes.shards is not None
        self.passes.shards.gather()
        self._gathered = self.policy_version

    def save_state(self, folder: Path) -> None:
        """Write the policy in Hugging Face layout, and the optimizer state."""
        self.passes.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """Restore a state that `save_state` wrote, bit for bit, into the live policy. Raises
        RunError.
        """
        self.passes.load_state(folder)
        self._gathered = self.policy_version


class RecomputedActivations:
    """Context with activation checkpointing for a Transformers model.

    Inside the context, the model stores only the input of each layer for the backward pass.
    Transformers recomputes only in training mode, so the context sets training mode on the layers,
    but not on their children, whose dropout stays off. Outside the context the layers are
    unchanged, because a checkpointing layer rejects the cache that generation needs.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            found = f"{type(model).__name__}, which has no layer that supports it"
            raise ModelError(message("model.activation_checkpointing", found, "false"))
        self._layers: list[Any] = list(layers)
        for layer in self._layers:
            # Reentrant checkpointing would drop gradients if no input needs one (frozen embedding).
            recompute = partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
            layer._gradient_checkpointing_func = recompute

    def __enter__(self) -> None:
        self._switch(True)

    def __exit__(self, *_: object) -> None:
        self._switch(False)

    def _switch(self, on: bool) -> None:
        for layer in self._layers:
            layer.gradient_checkpointing = layer.training = on


def restore_weights(model: nn.Module, folder: Path) -> None:
    """Copy weights that `model.load.save_model` wrote into the live model, in place.

    The parameters remain the same objects, because the optimizer and a generator may share them.
    Raises RunError if the folder does not have the weights of this model.
    """
    try:
        if (folder / ADAPTER_FILE).is_file():
            _restore_adapter(model, folder)
        else:
            _restore_model(model, folder)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        accepted = f"a save of this {type(unwrap(model)).__name__}"
        raise RunError(message(str(folder), reason, accepted)) from error


def _restore_model(model: nn.Module, folder: Path) -> None:
    dtype = next(model.parameters()).dtype
    saved, found = type(unwrap(model)).from_pretrained(
        folder, dtype=dtype, output_loading_info=True
    )
    if found["missing_keys"]:
        raise ValueError(f"a save without {sorted(found['missing_keys'])[0]}")
    model.load_state_dict(saved.state_dict())


def _restore_adapter(model: nn.Module, folder: Path) -> None:
    import peft

    tensors = peft.load_peft_weights(str(folder), device="cpu")
    outcome: Any = peft.set_peft_model_state_dict(model, tensors)
    if outcome.unexpected_keys:
        raise ValueError(f"the adapter of another model ({outcome.unexpected_keys[0]})")
