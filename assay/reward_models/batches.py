"""Run a checkpoint on rows of tokens in batches of similar length.

Rows are padded on the right and the padding is masked. The other rows of a batch change a score
only by rounding: within 1e-5 in float32 (tested), and about 1e-2 in bfloat16.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from assay.host.accelerator import free_device_memory
from assay.host.imports import slow_import
from assay.reward_models.checkpoint import Checkpoint

Rows = Sequence[Sequence[int]]
T = TypeVar("T")

# Default numbers of tokens per batch, padding included, by device type.
BATCH_TOKENS = 16384
BATCH_TOKENS_CPU = 4096


def sequence_logits(
    checkpoint: Checkpoint, rows: Rows, batch_tokens: int | None
) -> list[list[float]]:
    """Return the head's logits of each row of tokens, in order."""

    def run(chosen: Sequence[int]) -> list[list[float]]:
        return _forward(checkpoint, [rows[row] for row in chosen]).float().cpu().tolist()

    return _in_batches(checkpoint, rows, batch_tokens, run)


def position_logits(
    checkpoint: Checkpoint,
    rows: Rows,
    positions: Rows,
    batch_tokens: int | None,
    columns: Sequence[int] | None = None,
) -> list[list[list[float]]]:
    """Return the logits at the given positions of each row. columns: indices of the vocabulary
    entries to return."""
    parameters = inspect.signature(checkpoint.model.forward).parameters
    # Vocabulary logits at every token need much memory, so only some positions are computed.
    sliced = columns is not None and "logits_to_keep" in parameters

    def run(chosen: Sequence[int]) -> list[list[list[float]]]:
        inputs = [rows[row] for row in chosen]
        if sliced:
            # `logits_to_keep` selects the same positions in all rows of a batch.
            # The batch therefore computes the union of its rows' positions.
            kept = sorted({position for row in chosen for position in positions[row]} or {0})
            logits = _forward(checkpoint, inputs, kept)
        else:
            kept = range(max(map(len, inputs)))
            logits = _forward(checkpoint, inputs)
        places = {position: index for index, position in enumerate(kept)}
        found: list[list[list[float]]] = []
        for index, row in enumerate(chosen):
            picked = logits[index, [places[position] for position in positions[row]]]
            picked = picked if columns is None else picked[:, list(columns)]
            found.append(picked.float().cpu().tolist())
        return found

    return _in_batches(checkpoint, rows, batch_tokens, run)


def length_batches(rows: Rows, batch_tokens: int) -> Iterator[list[int]]:
    """Yield the indices of rows of similar length. Each padded batch is within the limit or has a
    single row."""
    chosen: list[int] = []
    for row in sorted(range(len(rows)), key=lambda row: (-len(rows[row]), row)):
        # Rows come longest first, so the first row of a batch determines its padded length.
        if chosen and (len(chosen) + 1) * len(rows[chosen[0]]) > batch_tokens:
            yield chosen
            chosen = []
        chosen.append(row)
    if chosen:
        yield chosen


def _in_batches(
    checkpoint: Checkpoint,
    rows: Rows,
    batch_tokens: int | None,
    run: Callable[[Sequence[int]], list[T]],
) -> list[T]:
    """Return the results of ``run`` for each row. A batch that does not fit in memory is halved."""
    with slow_import():
        import torch
    if batch_tokens is None:
        batch_tokens = BATCH_TOKENS_CPU if checkpoint.device.type == "cpu" else BATCH_TOKENS
    found: dict[int, T] = {}
    waiting = list(length_batches(rows, batch_tokens))[::-1]
    while waiting:
        chosen = waiting.pop()
        try:
            with torch.inference_mode():
                found.update(zip(chosen, run(chosen), strict=True))
        except torch.OutOfMemoryError:
            if len(chosen) == 1:
                raise
            # The allocator still caches the memory of the failed batch, which the halves need.
            free_device_memory()
            middle = len(chosen) // 2
            waiting += [chosen[middle:], chosen[:middle]]
    return [found[row] for row in range(len(rows))]


def _forward(checkpoint: Checkpoint, rows: Rows, kept: Sequence[int] | None = None) -> Any:
    """Return the logits of a batch. kept: return only these positions.

    A sequence head finds a row's last token as the token before the padding, which the configured
    padding token identifies. Without a configured padding token, the padding is a token that ends
    none of these rows.
    """
    import torch

    device = checkpoint.device
    options = {} if kept is None else {"logits_to_keep": torch.tensor(kept, device=device)}
    shape: Any = checkpoint.model.config.get_text_config()
    given = shape.pad_token_id
    last = {row[-1] for row in rows}
    # If a row ended with the padding token, the head would read an earlier token.
    pad = given if given is not None else next(id for id in range(len(last) + 1) if id not in last)
    length = max(map(len, rows))
    input_ids = torch.full((len(rows), length), pad, dtype=torch.long)
    mask = torch.zeros((len(rows), length), dtype=torch.long)
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = 1
    shape.pad_token_id = pad
    try:
        return checkpoint.model(
            input_ids=input_ids.to(device), attention_mask=mask.to(device), **options
        ).logits
    finally:
        shape.pad_token_id = given
