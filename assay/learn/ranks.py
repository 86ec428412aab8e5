"""Learner ranks: processes that hold the same policy and share the passes of every update.

All ranks have the same weights, get the same batches, and run the same code, so each makes the same
decisions. Forward and backward passes are divided: a rank computes its own groups. Gradients are
summed before each optimizer step, and per-token results are exchanged, so losses and metrics are
those of the whole batch. The optimizer state is divided too (`assay.learn.state_slices`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from assay.errors import RunError, WorkerDied, cause
from assay.host.files import system_error

if TYPE_CHECKING:
    # The import is optional, because some builds of torch have no distributed part, and a single
    # process does not need it.
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

# Bytes of gradients that one collective call sums.
# Small tensors are summed together in a bucket, because each call waits for the network.
# Gradients are summed in buckets, because one buffer for all gradients would double their memory.
BUCKET_BYTES = 2**25
# Ranks wait for the next call while rank 0 samples, evaluates or saves, however long that takes.
# If rank 0 is lost, it closes its connections, which ends the wait at once.
CALL_PATIENCE = timedelta(days=365)

Item = TypeVar("Item")


class Ranks:
    """This process's rank among the learner ranks, and the operations that connect them.

    Rank 0 is the process of the command. The other ranks repeat the calls of rank 0 (`follow`).
    Outside of shared calls rank 0 works alone, and every operation returns its argument. size: the
    number of ranks.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._depth = 0
        self._is_broken = False
        # Whether all ranks have left the current call because of an error in one of them.
        self._has_ended_together = False
        self._calls: Any = None
        self._reason: Callable[[str], str] = str

    @classmethod
    def join(
        cls,
        store: Store,
        rank: int,
        size: int,
        patience: float,
        device: str,
        reason: Callable[[str], str] = str,
        ready: Callable[[], None] = lambda: None,
    ) -> Ranks:
        """Join the other ranks. Raises WorkerDied if not all ranks join within ``patience``.

        patience: seconds that a rank waits for the others in one collective operation. device: type
        of the learner's device. reason: function that returns which other rank ended and why, for
        the error message, from the error of the communication. ready: waits until all ranks are
        about to join; raises RuntimeError.
        """
        if dist.is_initialized():
            raise RunError(
                "scale.learner_ranks: this process is in a torch.distributed group already"
            )
        ranks = cls(rank, size)
        ranks._reason = reason
        hook = sys.excepthook
        # nccl handles CUDA tensors only; gloo handles CPU tensors and pickled objects.
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        limit = timedelta(seconds=patience)
        try:
            with ranks.waiting("the start"):
                ready()
                dist.init_process_group(
                    backend, store=store, rank=rank, world_size=size, timeout=limit
                )
                # Only ranks other than 0 need the long timeout, because only these ranks wait for
                # calls.
                wait = CALL_PATIENCE if rank else limit
                ranks._calls = dist.new_group(backend="gloo", timeout=wait)
        except BaseException:
            ranks.leave()
            raise
        finally:
            # torch's own exception hook would prefix every later traceback of this process with the
            # rank.
            sys.excepthook = hook
        return ranks

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        self._calls = None
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def divides(self) -> bool:
        """Whether passes are divided now, because all ranks are inside the same call."""
        return self.size > 1 and (self.rank > 0 or self._depth > 0)

    def share(self, groups: Sequence[int], costs: Sequence[int]) -> list[int]:
        """Return this rank's groups. costs: cost of each group, in input tokens.

        The most expensive group goes first, to the rank with the least work so far.
        """
        if not self.divides:
            return list(groups)
        # Every rank computes the same assignment, so no message is needed.
        work, mine = [0] * self.size, list[int]()
        for cost, group in sorted(zip(costs, groups, strict=True), key=lambda one: -one[0]):
            rank = work.index(min(work))
            work[rank] += cost
            if rank == self.rank:
                mine.append(group)
        return sorted(mine)

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, with equal bits on all ranks."""
        if self.divides:
            self._in_buckets(tensors, dist.all_reduce, "a sum")

    def spread(self, tensors: Sequence[Tensor], source: int) -> None:
        """Replace each tensor by the tensor of rank ``source``."""
        if self.divides:
            self._in_buckets(tensors, partial(dist.broadcast, src=source), "the weights")

    def bring(self, tensors: Sequence[Tensor], source: int) -> None:
        """Replace each tensor of rank 0 by the tensor of rank ``source``, which calls this too."""
        sends = partial(dist.send, dst=0) if self.rank else partial(dist.recv, src=source)
        self._in_buckets(tensors, sends, "the optimizer state")

    def _in_buckets(
        self, tensors: Sequence[Tensor], operation: Callable[[Tensor], Any], what: str
    ) -> None:
        """Apply an operation that changes a tensor in place to buckets of tensors."""
        for bucket in _buckets(tensors):
            # A large tensor is used in place, which saves a copy in a flat buffer.
            if len(bucket) == 1 and bucket[0].is_contiguous():
                with self.waiting(what):
                    operation(bucket[0])
                continue
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            with self.waiting(what):
                operation(flat)
            parts = flat.split([tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def gather(self, item: Item) -> list[Item]:
        """Return the items of all ranks, in the order of the ranks. Items are pickled."""
        if not self.divides:
            return [item]
        found: list[Any] = [None] * self.size
        with self.waiting("an exchange"):
            dist.all_gather_object(found, item)
        return found

    def concatenate(self, items: list[Item]) -> list[Item]:
        """Return one list that concatenates the lists of all ranks, in the order of the ranks."""
        return [one for part in self.gather(items) for one in part] if self.divides else items

    @contextmanager
    def calling(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Generator[None]:
        """Send a call of rank 0 to the other ranks, which make the same call. Nested calls are not
        sent."""
        is_outer = self._depth == 0
        self._depth += 1
        self._has_ended_together = False
        try:
            if is_outer and self.size > 1 and self.rank == 0:
                if self._is_broken:
                    why = "the other learner ranks are still inside a call that failed here"
                    raise WorkerDied(f"{why}; continue with --resume")
                self._send((name, args, kwargs))
            yield
        except BaseException:
            # No call is sent, because the other ranks are still inside the failed call and cannot
            # receive a further call.
            self._is_broken = not self._has_ended_together
            raise
        finally:
            self._depth -= 1

    def await_first(self) -> None:
        """Wait for rank 0 inside a shared call, however long rank 0 works alone."""
        # All other operations end after `scale.patience`, which a large checkpoint may exceed.
        if self.divides and self.rank == 0:
            self._send(None)
        elif self.divides:
            self._receive()

    @contextmanager
    def in_step(self) -> Generator[None]:
        """Let all ranks wait for each other at the end of the ``with`` block, and let an error of
        one rank end the current call in all ranks.

        The block must not contain an operation that connects the ranks. Rank 0 raises its own
        error, or else the first error of the other ranks, as OSError or RunError. The ranks can
        make further calls afterwards.
        """
        if not self.divides:
            yield
            return
        own: Exception | None = None
        try:
            yield
        except Exception as error:  # libraries that write files have exceptions of their own
            own = error
        self.await_first()
        # Errors of other processes are sent as text, because not every error can be pickled.
        facts = None if own is None else _facts(own)
        failures = self.gather(facts)
        found = [(rank, one) for rank, one in enumerate(failures) if one is not None]
        if not found:
            return
        self._has_ended_together = True
        if self.rank:
            raise _CallEnded from own
        if own is not None:
            raise own
        rank, (number, text, file) = found[0]
        if number is None:
            raise RunError(f"learner rank {rank}: {text}")
        raise OSError(number, f"{text} (learner rank {rank})", file or "writing")

    def check_same(self, what: str, value: object) -> None:
        """Raise WorkerDied if a value differs between ranks."""
        if not self.divides:
            return
        # Values are compared as text, because NaN is not equal to itself.
        texts = self.gather(repr(value))
        for rank, text in enumerate(texts):
            if text != texts[0]:
                raise WorkerDied(
                    f"learner rank {rank} disagrees with rank 0 about {what}; its machine may round"
                    " differently; use machines of one kind, and continue with --resume"
                )

    def follow(self, learner: Any) -> None:
        """Repeat the calls of rank 0 on this rank's learner until rank 0 leaves."""
        while (call := self._receive()) is not None:
            name, args, kwargs = call
            with suppress(_CallEnded):
                getattr(learner, name)(*args, **kwargs)

    def dismiss(self) -> bool:
        """End `follow` on the other ranks. Returns False if the other ranks are still inside a call
        that failed on this rank."""
        if self._is_broken:
            return False
        self._send(None)
        return True

    @contextmanager
    def waiting(self, what: str) -> Generator[None]:
        """Raise WorkerDied, with the name of the wait, if another rank is lost or too slow."""
        try:
            yield
        except RuntimeError as error:
            reason = self._reason(cause(error)[:300])
            waited = f"learner rank {self.rank} waited for the other {self.size - 1} at {what}"
            remedy = "continue with --resume (scale.patience bounds the wait)"
            raise WorkerDied(f"{waited}: {reason}; {remedy}") from error

    @contextmanager
    def losing_none(self, what: str) -> Generator[None]:
        """Do as `waiting` around code that communicates inside of torch; other exceptions pass
        unchanged."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and "gloo" not in str(error):
                raise
            with self.waiting(what):
                raise

    def _send(self, call: Any) -> None:
        with self.waiting("a call"):
            dist.broadcast_object_list([call], src=0, group=self._calls)

    def _receive(self) -> Any:
        found: list[Any] = [None]
        with self.waiting("the next call"):
            dist.broadcast_object_list(found, src=0, group=self._calls)
        return found[0]


def _facts(error: Exception) -> tuple[int | None, str, str | None]:
    """Return (errno, text, file) of an error; errno and file are None for other errors than those
    of the system."""
    if (found := system_error(error)) is not None and found.errno is not None:
        return found.errno, found.strerror or cause(error), found.filename
    return None, cause(error)[:300], None


class _CallEnded(Exception):
    """The current call has ended in all ranks because of an error in one of them."""


ALONE = Ranks()
"""A learner of one process."""


def call_on_all_ranks(learner: Any, names: Sequence[str]) -> None:
    """Wrap methods of a learner, so that the other ranks repeat the calls of rank 0.

    After a call all ranks compare their weights and metrics.
    """
    ranks: Ranks = learner.passes.ranks

    def on_all_ranks(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with ranks.calling(name, args, kwargs):
                result = method(*args, **kwargs)
                ranks.check_same(f"the weights after {name}", learner.digest())
                ranks.check_same(f"the metrics of {name}", getattr(result, "metrics", None))
            return result

        return call

    for name in names:
        if (method := getattr(learner, name, None)) is not None:
            setattr(learner, name, on_all_ranks(name, method))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield consecutive tensors of one type and device, of about `BUCKET_BYTES` together."""
    bucket, size = list[Tensor](), 0
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        alike = not bucket or (bucket[0].dtype, bucket[0].device) == (tensor.dtype, tensor.device)
        if bucket and (not alike or size + num_bytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += num_bytes
    if bucket:
        yield bucket
