"""The built-in generator: schedule, run, postprocess.

Schedule: each free slot gets a waiting sibling, which is a completion of a group. A prompt is
prefilled once, and all siblings use the same keys and values. If the next group has the same prompt
as the last group, the prefill is skipped. If only the beginnings of consecutive prompts are equal,
the keys and values of the equal blocks are reused. Run: the model reads each slot's last token, and
the next token is sampled. Postprocess: finished completions leave their slots, and groups whose
completions are all finished are returned.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.config import EngineConfig, SamplingConfig
from assay.errors import OutOfMemory
from assay.generate.base import CompletionLog, TurnController
from assay.generate.captured import CapturedForward
from assay.generate.controllers import TurnControllers
from assay.generate.drawing import draw_on
from assay.generate.engine_call import EngineCall, room_of
from assay.generate.engine_stats import EngineStats
from assay.generate.finish import TextEnds, finished_completion
from assay.generate.forward import Choice, choose_forward, plain_probe, probe
from assay.generate.kv_cache import Room
from assay.generate.memory import default_kv_mib, num_that_fit
from assay.generate.oversampling import OversamplingCutoff
from assay.generate.prompt_reading import PromptReader
from assay.generate.sampler import completion_key, uniforms
from assay.generate.slots import PartialCompletion, Slots, Waiting
from assay.generate.threads import fastest_threads, on_threads
from assay.model.allocator import out_of_memory_names, return_freed_memory
from assay.model.family import NotLean
from assay.model.transfer import on_device
from assay.model.weights import Weights, fingerprint
from assay.types import FinishReason, Floats, Group, Problem, Prompt

MEMORY_SETTINGS = "engine.max_kv_mib or engine.num_slots"


class Engine:
    """Samples completions from a live Hugging Face causal language model.

    Memory is allocated when generation starts. Keys and values are freed at the end of each call of
    `generate`. On a CPU, packed copies of the linear maps are reused by later calls and freed at
    `sleep`. On CUDA, stacked copies of the linear maps are made in each call and freed at `sleep`.

    exact: the engine reads the learner's own parameters with a verified decoder. ``render``
    converts a problem to a prompt. The bits of a completion depend only on the weights, the seed,
    its prompt and index (problem, draw, sibling), the number of slots, the dtype and the thread
    count. Except in a mixture of experts, a completion does not depend on the other completions of
    the batch (`independent`). Models without ``eos_ids`` sample up to the token limit. watch:
    called with the call's `Stats` after each decoding step. make_controller: creates a completion's
    turn controller, in addition to the thinking controller. log: finished completions of an
    interrupted step, which are not sampled again.
    """

    exact = True
    gives_model_logprobs = True

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        render: Callable[[Problem], Prompt],
        *,
        eos_ids: Sequence[int] = (),
        settings: EngineConfig | None = None,
        seed: int = 0,
        context_length: int | None = None,
        policy_version: int = 0,
    ) -> None:
        self.tokenizer = tokenizer
        self.render = render
        self.settings = settings or EngineConfig()
        self.seed = seed
        self.policy_version = policy_version
        self.stats = EngineStats()
        self.watch: Callable[[EngineStats], None] | None = None
        self.make_controller: Callable[[Problem, Prompt], TurnController | None] | None = None
        self.log: CompletionLog | None = None
        config: Any = getattr(model, "config", None)
        self.context_length = context_length or getattr(config, "max_position_embeddings", None)
        self._eos_ids = np.array(sorted(set(eos_ids)), np.int64)
        self._choice = self._prove(model)

    @property
    def path(self) -> str:
        """The verified decoding path, such as ``lean``."""
        return self._choice.forward.name

    @property
    def reasons(self) -> tuple[str, ...]:
        """Error messages of the faster decoding paths that were rejected for this model and
        machine."""
        return self._choice.reasons

    @property
    def independent(self) -> bool:
        """Whether completions are bitwise independent of the rest of the batch."""
        return self._choice.independent

    @property
    def note(self) -> str:
        """Note on the cost or reproducibility of the decoding path; "": no note."""
        return self._choice.note

    @property
    def skips_idle_rows(self) -> bool:
        """Whether idle rows can be dropped, because the check of the decoding path found bitwise
        equal results for steps with fewer rows."""
        return len(self._choice.row_counts) > 1

    def load_policy(self, weights: Weights) -> None:
        """Load weights into the model; tensors that already are the model's own memory are not
        copied."""
        weights.load_into(self._model)
        self.policy_version = weights.version

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the current weights by name, as in `Weights`."""
        return self._model.state_dict()

    def fingerprint(self) -> str:
        """Return the hash of the current weights."""
        return fingerprint(self.tensors())

    def probe(self) -> Floats:
        """Return log-probabilities of fixed tokens, computed by the decoding path."""
        rows = self._choice.row_counts[-1]
        with self._threads():
            return probe(self._choice.forward, self._model, rows, self.context_length).numpy()

    def plain_probe(self) -> Floats:
        """Return the expected result of `probe`, computed by a plain forward pass."""
        return plain_probe(self._model, self.context_length).numpy()

    def generate(
        self,
        problems: Sequence[Problem],
        sampling: SamplingConfig,
        group_size: int,
        first_sibling: int = 0,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
    ) -> list[Group]:
        """Sample and return one group per problem, in the order of the problems.

        first_sibling: index of each group's first completion, as in `Generator.generate`. on_group:
        called with each finished group. cutoff: the oversampling cutoff; groups that the cutoff
        does not select are canceled and not returned. Raises DataError if a prompt fills the
        model's context, and OutOfMemory if no slot fits in ``engine.max_kv_mib``.
        """
        waiting = [self.admit(n, problem, sampling) for n, problem in enumerate(problems)]
        for group in waiting:
            group.begin(first_sibling, group_size, self.log)
        self.sample(waiting, sampling, on_group, cutoff)
        return [group.group() for group in waiting if group.is_finished]

    def sample(
        self,
        waiting: Sequence[Waiting],
        sampling: SamplingConfig,
        on_group: Callable[[Group], None] | None = None,
        cutoff: OversamplingCutoff | None = None,
        must_end: Callable[[int], bool] = lambda num_idle: False,
    ) -> None:
        """Sample the missing completions of groups from `admit`.

        must_end: called before each decoding step with the number of idle slots. If it returns
        True, the call ends, and the unfinished completions stay in their groups. A later call
        continues these completions, also with other weights: their earlier tokens are read again.
        """
        try:
            with self._threads():
                call = self._begin([one for one in waiting if one.todo], sampling)
            while call.queue or call.slots.active_S.any():
                if must_end(0 if call.queue else self._num_idle(call)):
                    for slot in np.flatnonzero(call.slots.active_S)[::-1].tolist():
                        call.slots.interrupt(slot, call.policy_version)
                    return
                with out_of_memory_names(MEMORY_SETTINGS, "generation"), self._threads():
                    self._schedule(call)
                    self._run(call)
                ended = self._postprocess(call)
                if self.watch is not None:
                    self.watch(self.stats)
                if on_group is not None:
                    for group in ended:
                        on_group(group)
                if cutoff is not None:
                    for group in ended:
                        cutoff.ended(group)
                    cutoff.tokens += self._give_up(call, cutoff.limit)
        finally:
            self._choice.forward.end_call()
            return_freed_memory()

    def sleep(self) -> None:
        """Free the packed copies of the weights, which calls under one policy share."""
        self._choice.forward.release()
        return_freed_memory()

    def _prove(self, model: nn.Module) -> Choice:
        """Choose the decoding path and the number of threads."""
        self._model = model
        self._dtype, self._device = _kind_of(model)
        budget = self.settings.max_kv_mib or default_kv_mib(self._device)

        def choice() -> Choice:
            with out_of_memory_names(MEMORY_SETTINGS, "generation"), self._threads():
                return choose_forward(model, self.settings.slots, self.context_length, budget)

        found = choice()
        if self.settings.threads is not None or self._device.type != "cpu":
            return found
        threads = fastest_threads(model, found.forward, found.row_counts[0])
        # Sums may round differently with another thread count, so the path is verified again.
        self.settings = self.settings.model_copy(update={"threads": threads})
        return found if threads == torch.get_num_threads() else choice()

    @contextmanager
    def _threads(self) -> Iterator[None]:
        """Set the number of decoding threads, and the model's device, for the ``with`` block."""
        there, on_cuda = torch.get_num_threads(), self._device.type == "cuda"
        # Graphs and Triton kernels run on the current device, whatever the device of the tensors.
        device = torch.cuda.device(self._device) if on_cuda else nullcontext()
        with on_threads(min(self.settings.threads or there, there)), device:
            yield

    def _begin(self, waiting: list[Waiting], sampling: SamplingConfig) -> EngineCall:
        # The learner may move the model to another device or type between calls.
        # Rounding differs between types and devices, so the decoding path is verified again.
        if (self._dtype, self._device) != _kind_of(self._model):
            self._choice = self._prove(self._model)
        room = room_of(waiting)
        try:
            num_rows = self._make_ready(room)
        except NotLean:
            # This decoding path would bypass the wrapper or hook that the model got.
            self._choice = self._prove(self._model)
            num_rows = self._make_ready(room)
        num_slots = min(num_rows, self.settings.slots)
        is_full = num_slots < min(self.settings.slots, room.num_groups * room.group_size)
        self.stats = EngineStats(num_slots=num_slots, num_wanted=sum(g.size for g in waiting))
        self.stats.num_completions = sum(len(group.done) for group in waiting)
        forward = self._choice.forward
        text_ends = TextEnds(self.tokenizer, sampling.stop) if sampling.stop else None
        return EngineCall(
            sampling=sampling,
            queue=deque(waiting),
            slots=Slots(num_slots, num_rows, room.extent.own),
            text_ends=text_ends,
            policy_version=self.policy_version,
            controllers=TurnControllers(self.tokenizer, sampling, waiting, self.make_controller),
            reader=PromptReader(forward.prefill, forward.reads_in_blocks, self._device),
            most_slots=num_slots if is_full else self.settings.slots,
            draw=draw_on(self._device, sampling, isinstance(forward, CapturedForward)),
        )

    def admit(self, position: int, problem: Problem, sampling: SamplingConfig) -> Waiting:
        """Render a problem's prompt for `sample`. Raises DataError if the prompt fills the model's
        context."""
        prompt = self.render(problem)
        return Waiting.of(position, problem, prompt, sampling.max_tokens, self.context_length)

    def _make_ready(self, room: Room) -> int:
        """Allocate the key-value cache and read the weights; return the number of rows of a
        step."""
        num_rows = self._allocate(room)
        with out_of_memory_names(MEMORY_SETTINGS, "generation"), torch.inference_mode():
            self._choice.forward.refresh(self._choice.row_counts[0])
        return num_rows

    def _allocate(self, room: Room) -> int:
        """Allocate the requested rows as far as memory permits, padded with idle rows.

        Returns the number of rows.
        """
        cache, counts = self._choice.forward.cache, self._choice.row_counts
        budget = self.settings.max_kv_mib or default_kv_mib(self._device)
        wanted = min(self.settings.slots, room.num_groups * room.group_size)
        # The surplus rows are idle, but without them an unverified row count could change the bits.
        num_rows = min(n for n in counts if n >= wanted)
        num_rows = num_that_fit(cache, room, num_rows, self._choice.row_multiple, budget)
        if num_rows < 1:
            tokens = cache.num_tokens(1, room) + cache.prompt_tokens(room)
            needed = tokens * cache.bytes_per_token / 2**20
            raise OutOfMemory(
                f"engine.max_kv_mib: {budget:.0f} MiB cannot hold one completion of"
                f" {room.extent.total} tokens and its prompt ({needed:.0f} MiB); raise it, or"
                " lower sampling.max_tokens"
            )
        with out_of_memory_names(MEMORY_SETTINGS, "generation"), torch.inference_mode():
            cache.make_room(num_rows, room)
        return num_rows

    @torch.inference_mode()
    def _schedule(self, call: EngineCall) -> None:
        """Start the next waiting completions in all free slots of the batch."""
        slots, forward = call.slots, self._choice.forward
        call.num_decoding = int(slots.active_S.sum())
        if not call.queue:
            self._drop_idle_rows(slots)
            return
        started = time.perf_counter()
        free = slots.free()
        while len(free) and call.queue:
            group = call.queue[0]
            if group.todo and group.todo[0] in group.open:
                self._take_up(call, group, int(free[0]))
                free = free[1:]
                continue
            logits_V = call.reader.read(group.prompt.tokens)
            siblings = [group.todo.popleft() for _ in range(min(len(free), len(group.todo)))]
            chosen, free = free[: len(siblings)], free[len(siblings) :]
            forward.cache.place(torch.from_numpy(chosen))
            call.fresh.append((on_device(chosen, self._device), logits_V))
            for slot, sibling in zip(chosen, siblings, strict=True):
                key = self._key_of(group, sibling)
                slots.take(int(slot), group, sibling, key, call.controllers.of(group))
            if not group.todo:
                call.queue.popleft()
        self.stats.prompt_tokens = call.reader.num_computed
        self.stats.prefill_seconds += time.perf_counter() - started

    def _take_up(self, call: EngineCall, group: Waiting, slot: int) -> None:
        """Continue the group's next interrupted completion in a slot: read its tokens again."""
        sibling, chosen = group.todo.popleft(), np.array([slot])
        one: PartialCompletion = group.open[sibling]
        logits_V = call.reader.read(
            np.concatenate([group.prompt.tokens, one.tokens[: one.num_read]])
        )
        self._choice.forward.cache.place(torch.from_numpy(chosen))
        call.slots.take_up(slot, group, sibling, self._key_of(group, sibling))
        # The next decoding step feeds the newest token, so that the step can also feed the token
        # again while the completion is paused.
        if len(one.tokens):
            call.num_decoding += 1
        else:
            call.fresh.append((on_device(chosen, self._device), logits_V))
        if not group.todo:
            call.queue.popleft()

    def _num_idle(self, call: EngineCall) -> int:
        # The call itself may have fewer slots, because the rows of idle slots are dropped.
        return max(0, call.most_slots - int(call.slots.active_S.sum()))

    def _key_of(self, group: Waiting, sibling: int) -> int:
        """Return the random key of a completion."""
        problem, number = group.problem, group.first_sibling + sibling
        return completion_key(self.seed, problem.id, problem.draw, number)

    def _drop_idle_rows(self, slots: Slots) -> None:
        """Halve the number of rows repeatedly, while enough rows are idle and the smaller row count
        is verified."""
        active, counts = np.flatnonzero(slots.active_S), self._choice.row_counts
        num_rows = min((n for n in counts if n >= len(active)), default=0)
        if len(slots.group) not in counts or num_rows == len(slots.group):
            return
        idle = np.flatnonzero(~slots.active_S)[: num_rows - len(active)]
        kept = np.concatenate([active, idle])
        slots.keep(kept)
        self._choice.forward.cache.keep_slots(on_device(kept, self._device), len(active))

    @torch.inference_mode()
    def _run(self, call: EngineCall) -> None:
        """Feed the last token of every slot and sample the next. Slots with a new completion sample
        the first token instead."""
        slots, device = call.slots, self._device
        if not slots.going().any():
            return
        started = time.perf_counter()
        uniforms_S = uniforms(slots.keys_S, slots.draws())
        # All inputs are copied to the device together, because each copy has a fixed cost.
        inputs_3S = np.stack([slots.tokens_S, slots.positions(), uniforms_S.view(np.int64)])
        tokens_S, positions_S, uniform_bits_S = on_device(inputs_3S, device)
        if call.num_decoding:
            logits_SV = self._choice.forward.decode(tokens_S, positions_S, slots.extent())
        else:
            logits_V = call.fresh[0][1]
            # All rows are sampled, but only the tokens of new completions are used.
            logits_SV = logits_V.new_zeros(len(slots.tokens_S), len(logits_V))
        for index, logits_V in call.fresh:
            logits_SV[index] = logits_V
        call.fresh.clear()
        slots.record(call.draw(logits_SV, uniform_bits_S.view(torch.float64)))
        self.stats.num_steps += 1
        self.stats.rows += len(slots.group)
        self.stats.tokens += int(slots.going().sum())
        self.stats.decode_seconds += time.perf_counter() - started

    def _postprocess(self, call: EngineCall) -> list[Group]:
        """Remove finished completions from their slots and return the groups whose completions are
        all finished."""
        started = time.perf_counter()
        slots = call.slots
        if slots.controlled:
            slots.wake()
            self.stats.wait_seconds += time.perf_counter() - started
            started = time.perf_counter()
        going_S = slots.going()
        at_eos_S = np.isin(slots.tokens_S, self._eos_ids) & going_S
        chosen_S, rows = going_S, slots.rows
        # Injected tokens never end a completion, even if they contain a stop string.
        if slots.controlled:
            chosen_S, rows = going_S & slots.newest_sampled(), slots.rows_after_injected
            at_eos_S &= chosen_S
        stopped: set[int] = set()
        if call.text_ends is not None:
            going = np.flatnonzero(chosen_S & ~at_eos_S)
            stopped = call.text_ends.found(going, slots.token_log, rows)
        if slots.controlled:
            for slot in np.flatnonzero(going_S).tolist():
                if slots.ask(slot, ends=bool(at_eos_S[slot]) or slot in stopped):
                    at_eos_S[slot] = False
                    stopped.discard(slot)
        ended_S = at_eos_S | ((slots.counts_S >= slots.limits_S) & slots.going())
        if stopped:
            ended_S[list(stopped)] = True
        finished: list[Group] = []
        for slot in np.flatnonzero(ended_S).tolist():
            reason: FinishReason = "stop_string" if slot in stopped else "length"
            group = self._take_out(call, slot, "eos" if at_eos_S[slot] else reason)
            if group.is_finished:
                finished.append(group.group())
        # The cache cannot remove tokens that were read together with the prompt.
        for slot in slots.must_read_again().tolist():
            group = slots.group[slot]
            slots.interrupt(slot, call.policy_version)
            if group is not None and group not in call.queue:
                call.queue.appendleft(group)
        self.stats.postprocess_seconds += time.perf_counter() - started
        return finished

    def _give_up(self, call: EngineCall, limit: int | None) -> int:
        """Cancel groups with a completion above ``limit``; return the number of lost tokens."""
        slots, num_tokens = call.slots, 0
        if limit is None:
            return 0
        # Only the first waiting group can have siblings in slots: slots are filled by group.
        longest = dict.fromkeys([*call.queue][:1], 0)
        for slot in np.flatnonzero(slots.active_S).tolist():
            group = slots.group[slot]
            assert group is not None, "an active slot has a group"
            # A completion in a slot is unfinished, so its final length is at least one token more.
            coming = int(slots.counts_S[slot]) + int(slots.going()[slot])
            longest[group] = max(coming, longest.get(group, 0))
        for group, length in longest.items():
            done = [len(one.tokens) for one in group.done.values()]
            if max([length, *done]) <= limit:
                continue
            num_tokens += sum(done)
            for slot in [n for n, one in enumerate(slots.group) if one is group]:
                num_tokens += int(slots.counts_S[slot])
                slots.release(slot)
            if group in call.queue:
                call.queue.remove(group)
        return num_tokens

    def _take_out(self, call: EngineCall, slot: int, reason: FinishReason) -> Waiting:
        slots = call.slots
        group, sibling = slots.group[slot], slots.sibling[slot]
        assert group is not None, "an idle slot ended"
        rows = slots.rows(slot)
        versions, sampled = slots.token_versions(slot, call.policy_version), slots.sampled_log
        oldest = int(versions[sampled[rows, slot]].min(initial=call.policy_version))
        group.done[sibling] = finished_completion(
            self.tokenizer,
            group.name_of(sibling),
            group.prompt,
            slots.token_log[rows, slot],
            slots.behavior_log[rows, slot],
            reason,
            begun=slots.turns[slot],
            eos_ids=self._eos_ids.tolist(),
            model_logprobs=slots.model_log[rows, slot],
            sampled=sampled[rows, slot],
            policy_version=oldest,
            token_versions=versions if (versions != oldest).any() else None,
        )
        slots.release(slot)
        self.stats.num_completions += 1
        if self.log is not None:
            self.log.add(group.problem, group.prompt, group.done[sibling])
        return group


def _kind_of(model: nn.Module) -> tuple[torch.dtype, torch.device]:
    parameter = next(model.parameters())
    return parameter.dtype, parameter.device
