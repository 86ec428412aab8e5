"""Host state of a generation: unfinished groups, and the completion in each slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.errors import DataError, RunStopped, message
from assay.generate.base import CompletionLog, InjectedTokens, Promise, SoFar, TurnController
from assay.generate.kv_cache import Extent
from assay.types import Completion, Group, Problem, Prompt, ThinkFormat, Tokens

PATIENCE = 600.0
"""Seconds to wait for any turn controller when all completions are paused."""
LOOK = 1.0
"""Maximum seconds of one wait, so that the caller can interrupt paused completions."""
Asking = tuple[ThinkFormat, str | None]
"""Prompt kind: the think format, and the row's own thinking effort, if any."""


@dataclass(frozen=True, eq=False)
class PartialCompletion:
    """A completion whose sampling was interrupted. A later call continues the completion, possibly
    with other weights.

    logs: the completion's values in the order of `_LOGS`. versions: policy version of each token.
    The other fields are those of the completion's slot (`Slots`).
    """

    logs: Sequence[np.ndarray]
    versions: Tokens
    controller: TurnController | None = None
    injected: tuple[int, ...] = ()
    turns: tuple[tuple[int, int], ...] = ()
    num_undone: int = 0
    promise: Promise | None = None

    @property
    def tokens(self) -> Tokens:
        """The tokens so far."""
        return self.logs[0]

    @property
    def num_read(self) -> int:
        """Number of tokens that are read together with the prompt: all except the newest token,
        which the next decoding step feeds."""
        return max(len(self.tokens) - 1, 0)


@dataclass(eq=False)
class Waiting:
    """An unfinished group and its finished completions.

    todo: indices of the siblings that wait for a slot, from 0. Names and random keys of the
    completions contain the sibling's index plus ``first_sibling``. open: interrupted completions by
    sibling; their siblings are in ``todo``.
    """

    position: int
    problem: Problem
    prompt: Prompt
    limit: int
    first_sibling: int = 0
    size: int = 0
    todo: deque[int] = field(default_factory=deque[int])
    done: dict[int, Completion] = field(default_factory=dict[int, Completion])
    open: dict[int, Any] = field(default_factory=dict[int, Any])
    _group: Group | None = None

    @classmethod
    def of(
        cls, position: int, problem: Problem, prompt: Prompt, most: int, context: int | None
    ) -> Waiting:
        """Create a group whose completions have up to ``most`` tokens.

        Raises DataError if the prompt is empty or leaves no room in the model's context.
        """
        where, length = problem.place, len(prompt.tokens)
        if not length:
            raise DataError(f"{where}: the prompt has no tokens; give it text, or a template")
        room = most if context is None else min(most, context - length)
        if room < 1:
            accepted = f"at most {context} - 1, so that a completion has room"
            remedy = "shorten the prompt, or skip long rows (data.max_prompt_tokens)"
            raise DataError(message(where, f"a prompt of {length} tokens", accepted, remedy))
        return cls(position, problem, prompt, room)

    def begin(self, first_sibling: int, group_size: int, log: CompletionLog | None) -> None:
        """Queue the siblings to sample, and read finished siblings from the log."""
        self.first_sibling, self.size = first_sibling, group_size
        for number in range(group_size):
            known = None if log is None else log.find(self.problem, self.name_of(number))
            if known is not None:
                self.done[number] = known
            else:
                self.todo.append(number)

    def name_of(self, sibling: int) -> str:
        """Return a completion's name."""
        return f"{self.problem.group_id}/{self.first_sibling + sibling}"

    @property
    def is_finished(self) -> bool:
        """Whether all completions are finished."""
        return len(self.done) == self.size

    def group(self) -> Group:
        """Return the finished group; all its siblings must be finished."""
        # Every call returns the same object, because judging compares groups by identity.
        if self._group is None:
            siblings = tuple(self.done[n] for n in range(len(self.done)))
            self._group = Group(self.problem, self.prompt, siblings)
        return self._group

    @property
    def asking(self) -> Asking:
        """The prompt kind."""
        return self.prompt.think, self.problem.effort


_ARRAYS = ("active_S", "waits_S", "keys_S", "prompt_length_S", "counts_S", "limits_S", "tokens_S")
_ARRAYS += ("undone_S", "read_S")
_LOGS = ("token_log", "behavior_log", "model_log", "sampled_log")
_LISTS = ("group", "sibling", "controllers", "injected", "turns", "promised", "held", "versions")
_NO_VERSIONS = np.zeros(0, np.int32)


class Slots:
    """Host state of every slot, as arrays [S]. Idle slots feed token 0 at position 0."""

    def __init__(self, num_slots: int, num_rows: int, longest: int) -> None:
        self.num_usable = num_slots
        self.active_S = np.zeros(num_rows, np.bool_)
        self.keys_S = np.zeros(num_rows, np.uint64)
        self.prompt_length_S = np.zeros(num_rows, np.int64)
        self.counts_S = np.zeros(num_rows, np.int64)
        self.limits_S = np.zeros(num_rows, np.int64)
        self.tokens_S = np.zeros(num_rows, np.int64)
        self.group: list[Waiting | None] = [None] * num_rows
        self.sibling = [0] * num_rows
        # Whether any slot has had a turn controller.
        # Without any turn controller, the bookkeeping of injected tokens is skipped.
        self.controlled = False
        self.controllers: list[TurnController | None] = [None] * num_rows
        # Tokens to inject. An injected token replaces the sampled token of a step.
        # Every decoding path, even a captured graph, therefore supports injection.
        self.injected: list[deque[int]] = [deque() for _ in range(num_rows)]
        self.turns: list[list[tuple[int, int]]] = [[] for _ in range(num_rows)]
        # Number of removed tokens, which is added to the index of the next random draw.
        # The random number of a removed token is therefore never used again.
        self.undone_S = np.zeros(num_rows, np.int64)
        # Number of tokens that were read together with the prompt when the completion continued,
        # and the policy versions of all tokens from earlier calls.
        self.read_S = np.zeros(num_rows, np.int64)
        self.versions: list[Tokens] = [_NO_VERSIONS] * num_rows
        # A paused slot feeds its last token again, which writes the same bits to the cache.
        # `held` stores its logs.
        self.waits_S = np.zeros(num_rows, np.bool_)
        self.promised: list[Promise | None] = [None] * num_rows
        self.held: list[Sequence[np.ndarray]] = [[] for _ in range(num_rows)]
        # Seconds without any result while all completions are paused.
        self.waited = 0.0
        # The logs are ring buffers [rows, S] with one row per step.
        # The log of one completion needs at most `longest` rows.
        self.step = -1
        self.token_log = np.zeros((longest, num_rows), np.int32)
        self.behavior_log = np.zeros((longest, num_rows), np.float32)
        self.model_log = np.zeros((longest, num_rows), np.float32)
        self.sampled_log = np.ones((longest, num_rows), np.bool_)

    def free(self) -> np.ndarray:
        return np.flatnonzero(~self.active_S[: self.num_usable])

    def going(self) -> np.ndarray:
        """Return for each slot whether the slot has a completion that is not paused."""
        # Paused slots are computed too, because the shape of a step determines its bits.
        return self.active_S & ~self.waits_S if self.controlled else self.active_S

    def take(
        self,
        slot: int,
        group: Waiting,
        sibling: int,
        key: int,
        controller: TurnController | None = None,
    ) -> None:
        """Begin a completion in a slot."""
        self._occupy(slot, group, sibling, key)
        if controller is not None:
            self.controlled = True
            self.controllers[slot] = controller
            self.ask(slot)

    def take_up(self, slot: int, group: Waiting, sibling: int, key: int) -> None:
        """Continue an interrupted completion in a slot. The cache must hold the keys and values of
        the completion's first ``num_read`` tokens."""
        one: PartialCompletion = group.open.pop(sibling)
        self._occupy(slot, group, sibling, key)
        self.counts_S[slot], self.read_S[slot] = len(one.tokens), one.num_read
        self.undone_S[slot] = one.num_undone
        self.controlled |= one.controller is not None or one.num_undone > 0 or bool(one.injected)
        self.controllers[slot], self.turns[slot] = one.controller, [*one.turns]
        self.injected[slot].extend(one.injected)
        self.versions[slot] = one.versions
        self._put_back(slot, one.logs)
        if len(one.tokens):
            self.tokens_S[slot] = one.tokens[-1]
        if one.promise is not None:
            self.promised[slot], self.waits_S[slot] = one.promise, True
            self.held[slot] = one.logs

    def interrupt(self, slot: int, policy_version: int) -> None:
        """Return a slot's completion to its group, unfinished, and release the slot."""
        group, rows = self.group[slot], self.rows(slot)
        assert group is not None, "an idle slot has no completion"
        # The log of a paused slot ends at an earlier step, so its saved log is used.
        logs = [getattr(self, name)[rows, slot] for name in _LOGS]
        group.open[self.sibling[slot]] = PartialCompletion(
            self.held[slot] if self.waits_S[slot] else logs,
            self.token_versions(slot, policy_version),
            self.controllers[slot],
            tuple(self.injected[slot]),
            tuple(self.turns[slot]),
            int(self.undone_S[slot]),
            self.promised[slot],
        )
        group.todo.appendleft(self.sibling[slot])
        self.release(slot)

    def must_read_again(self) -> np.ndarray:
        """Return the slots with removed completion tokens that the model had read in one pass with
        the prompt."""
        return np.flatnonzero(self.active_S & (self.read_S > 0) & (self.counts_S <= self.read_S))

    def token_versions(self, slot: int, policy_version: int) -> Tokens:
        """Return the policy version of each token. policy_version: version of the current call."""
        earlier = self.versions[slot]
        now = np.full(self.counts_S[slot] - len(earlier), policy_version, np.int32)
        return np.concatenate([earlier, now])

    def _occupy(self, slot: int, group: Waiting, sibling: int, key: int) -> None:
        self.active_S[slot] = True
        self.keys_S[slot] = key
        self.prompt_length_S[slot] = len(group.prompt.tokens)
        self.limits_S[slot] = group.limit
        self.group[slot] = group
        self.sibling[slot] = sibling
        self.counts_S[slot] = self.undone_S[slot] = self.read_S[slot] = 0
        self.versions[slot] = _NO_VERSIONS

    def release(self, slot: int) -> None:
        self.active_S[slot] = False
        self.group[slot] = self.controllers[slot] = self.promised[slot] = None
        self.waits_S[slot] = False
        self.injected[slot].clear()
        self.turns[slot] = []

    def keep(self, kept: np.ndarray) -> None:
        """Keep only these slots, in this order."""
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[kept])
        for name in _LOGS:
            setattr(self, name, getattr(self, name)[:, kept])
        for name in _LISTS:
            setattr(self, name, [getattr(self, name)[slot] for slot in kept])
        self.num_usable = min(self.num_usable, len(kept))

    def positions(self) -> np.ndarray:
        """Return the position of each slot's last token.

        A slot without tokens has the position of its first token, right after the prompt.
        """
        positions_S = self.prompt_length_S + np.maximum(self.counts_S, 1) - 1
        return np.where(self.active_S, positions_S, 0)

    def extent(self) -> Extent:
        """Return the maximum lengths over all slots, including the token that each slot feeds."""
        return Extent(
            total=int(self.positions().max()) + 1,
            prompt=int((self.prompt_length_S + self.read_S)[self.active_S].max(initial=1)),
            own=int((self.counts_S - self.read_S)[self.active_S].max(initial=1)),
        )

    def record(self, sampled: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
        self.step += 1
        row = self.step % len(self.token_log)
        if self.controlled:
            self._insert_injected(row, sampled)
        tokens_S, going_S = sampled[0].astype(np.int64), self.going()
        self.tokens_S = np.where(going_S, tokens_S, self.tokens_S) if self.controlled else tokens_S
        self.token_log[row], self.behavior_log[row], self.model_log[row] = sampled
        self.counts_S += going_S

    def rows(self, slot: int) -> np.ndarray:
        """Return the log rows of a slot's completion."""
        # In each step all slots write to one row, so a completion is the last `counts_S` rows.
        first = self.step + 1 - self.counts_S[slot]
        return np.arange(first, self.step + 1) % len(self.token_log)

    def draws(self) -> np.ndarray:
        """Return the index of each slot's next draw. Removed tokens count too, so that their draws
        are not repeated."""
        return self.counts_S + self.undone_S if self.controlled else self.counts_S

    def ask(self, slot: int, ends: bool = False) -> bool:
        """Call the slot's turn controller, unless injected tokens are queued.

        Return True if the controller injects tokens or pauses the completion, so that the
        completion cannot end now.
        """
        controller, queue = self.controllers[slot], self.injected[slot]
        # The controller is not called while tokens that it injected are still queued.
        if controller is None or queue:
            return bool(queue)
        answer = self.promised[slot] or controller(self._so_far(slot, ends))
        self.promised[slot] = None
        if isinstance(answer, Future):
            # A slot without tokens cannot pause: it has no last token to feed again.
            if self.counts_S[slot] and not answer.done():
                self._hold(slot, answer)
                return True
            answer = answer.result()
        if answer is not None:
            self._take_injected(slot, answer)
        return bool(queue)

    def _so_far(self, slot: int, ends: bool) -> SoFar:
        count = int(self.counts_S[slot])
        newest = int(self.tokens_S[slot]) if count else None
        injected = bool(count) and not self.newest_sampled()[slot]
        return SoFar(count, newest, ends, lambda: self.token_log[self.rows(slot), slot], injected)

    def _take_injected(self, slot: int, found: InjectedTokens) -> None:
        self._undo(slot, found.replaces)
        self.injected[slot].extend(found.tokens)
        if found.begins_turn:
            start = int(self.counts_S[slot])
            self.turns[slot].append((start, start + len(found.tokens)))

    def _hold(self, slot: int, promise: Promise) -> None:
        self.promised[slot], self.waits_S[slot] = promise, True
        rows = self.rows(slot)
        self.held[slot] = [getattr(self, name)[rows, slot] for name in _LOGS]

    def wake(self) -> None:
        """Resume slots whose futures are done; if all slots are paused, wait for one future."""
        waiting = {slot: self.promised[slot] for slot in np.flatnonzero(self.waits_S).tolist()}
        promises = {one for one in waiting.values() if one is not None}
        # While any slot samples, the step does not wait for the futures of paused slots.
        if promises and not self.going().any():
            seconds = min(LOOK, PATIENCE)
            kept, _ = wait(promises, seconds, return_when=FIRST_COMPLETED)
            self.waited = 0.0 if kept else self.waited + seconds
            if self.waited >= PATIENCE:
                raise no_answer([group for slot in waiting if (group := self.group[slot])])
        for slot, promise in waiting.items():
            if promise is not None and promise.done():
                self.waits_S[slot] = False
                self._put_back(slot, self.held[slot])

    def _put_back(self, slot: int, logs: Sequence[np.ndarray]) -> None:
        """Copy a slot's saved logs to the last `counts_S` rows, which end at the newest step."""
        rows = self.rows(slot)
        for name, values in zip(_LOGS, logs, strict=True):
            getattr(self, name)[rows, slot] = values

    def newest_sampled(self) -> np.ndarray:
        """Return for each slot whether its newest token was sampled by the policy, not injected."""
        return self.sampled_log[self.step % len(self.sampled_log)]

    def rows_after_injected(self, slot: int) -> np.ndarray:
        """Return the part of the log rows (see `rows`) after the completion's last injected
        token."""
        rows = self.rows(slot)
        injected = np.flatnonzero(~self.sampled_log[rows, slot])
        return rows[injected[-1] + 1 :] if len(injected) else rows

    def _insert_injected(
        self, row: int, sampled: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> None:
        """Replace sampled tokens by injected tokens, which have log-probability 0."""
        self.sampled_log[row] = True
        for slot, queue in enumerate(self.injected):
            if queue:
                for values_S, value in zip(sampled, (queue.popleft(), 0.0, 0.0), strict=True):
                    values_S[slot] = value
                self.sampled_log[row, slot] = False

    def _undo(self, slot: int, num_tokens: int) -> None:
        """Remove the newest tokens of a slot, so that the slot feeds the last remaining token
        again."""
        if not num_tokens:
            return
        kept = self.rows(slot)[:-num_tokens]
        held = [getattr(self, name)[kept, slot] for name in _LOGS]
        self.counts_S[slot] -= num_tokens
        self.undone_S[slot] += num_tokens
        self.versions[slot] = self.versions[slot][: len(kept)]
        self._put_back(slot, held)
        if len(kept):
            self.tokens_S[slot] = held[0][-1]


def no_answer(groups: Sequence[Waiting]) -> RunStopped:
    """Return the error that reports paused completions whose futures did not finish in time."""
    found = f"{len(groups)} completions that wait for a tool or environment that does not answer"
    accepted = f"an answer within {PATIENCE:g} seconds"
    remedy = "set a time limit in the tool or environment, then resume"
    return RunStopped(message(groups[0].problem.place, found, accepted, remedy))
