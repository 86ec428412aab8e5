"""In-memory index of a run's rollout log: the short columns of every rollout, without tokens.

Filters and orders (`assay.report.selection`) use the index. Texts and tokens are read from the
shards (the Parquet files of steps), and only for selected rollouts. The log may change at any time:
training adds shards and rewrites them with advantages, and a rollback removes them.
`RolloutIndex.refresh` updates the index.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from assay.host.records import check_regular
from assay.run.rollout_log import RolloutLog, read_columns, read_shard
from assay.run.rollout_schema import DERIVED

# pyarrow generates its compute functions at import, so type checkers do not know them.
pc: Any = compute
Stamp = tuple[int, int, int]
"""Modification time, size and inode of a shard. A rewritten shard has a different stamp."""

_READ = ("problem_id", "group_id", "completion_id", "tags", "status", "reason", "score", "reward")
_READ += ("components", "finish_reason", "policy_version", "sampled", "advantages", "turn_ends")
_TEXTS = ("prompt", "text")
MOST_TEXT = 2**30
"""Maximum size of the cached texts for searches, in bytes. Other texts are read for each search."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """Indexed columns of a shard. table: None for a damaged shard."""

    stamp: Stamp
    table: pa.Table | None


@dataclass
class RolloutIndex:
    """Index of the shards in ``folder``. A new index is empty until `refresh` is called.

    steps: steps to index; None: all. table: columns of all indexed rollouts, ordered by step and
    row. damaged: paths of unreadable shards. pending: number of shards that are not indexed yet.
    """

    folder: Path
    steps: Sequence[int] | None = None
    table: pa.Table = field(default_factory=lambda: _narrow(None, 0))
    damaged: tuple[Path, ...] = ()
    pending: int = 0
    _shards: dict[int, _Shard] = field(default_factory=dict[int, _Shard])
    _texts: dict[int, tuple[Stamp, pa.Table]] = field(
        default_factory=dict[int, tuple[Stamp, pa.Table]]
    )
    _text_bytes: int = 0
    _lock: Lock = field(default_factory=Lock)

    def refresh(self, seconds: float | None = None) -> bool:
        """Index new and changed shards, the newest first, and drop removed shards.

        seconds: time limit, checked after each shard; None: no limit. Returns whether the index
        changed.
        """
        with self._lock:
            return self._refresh(seconds)

    def _refresh(self, seconds: float | None) -> bool:
        log, end = RolloutLog(self.folder), time.monotonic() + (seconds or 0.0)
        steps = log.steps() if self.steps is None else self.steps
        stamps = {step: stamp for step in steps if (stamp := _stamp(log.path(step)))}
        known = {step: one for step, one in self._shards.items() if step in stamps}
        changed = len(known) < len(self._shards)
        missing = [
            step for step in stamps if step not in known or known[step].stamp != stamps[step]
        ]
        # The newest shard is indexed first,
        # because users look at the newest step of a run in progress.
        for step in reversed(missing):
            # At least one shard is read per call, so that a short limit still makes progress.
            if seconds is not None and changed and time.monotonic() > end:
                break
            table = read_shard(log.path(step), _READ)
            known[step] = _Shard(stamps[step], None if table is None else _narrow(table, step))
            changed = True
        outdated = [step for step in missing if known.get(step, _NONE).stamp != stamps[step]]
        self.pending = len(outdated)
        if changed:
            self._shards = dict(sorted(known.items()))
            tables = [one.table for one in self._shards.values() if one.table is not None]
            # Compute functions on hundreds of small chunks are several times slower than on one.
            self.table = pa.concat_tables(tables or [_narrow(None, 0)]).combine_chunks()
            self.damaged = tuple(
                log.path(step) for step, one in self._shards.items() if one.table is None
            )
            self._texts = {step: one for step, one in self._texts.items() if step in stamps}
        return changed

    def ids(self) -> list[str]:
        """Return the ids of all problems with rollouts, in order of their first draw."""
        return self.table.column("problem_id").unique().to_pylist()

    def contains(self, text: str) -> np.ndarray:
        """Return for each rollout of `table` whether its prompt or completion contains ``text``.

        The comparison ignores case.
        """
        # Python's lower() differs from Arrow's for a few characters, such as İ.
        wanted = pc.utf8_lower(pa.scalar(text)).as_py()
        with self._lock:
            parts = [
                _match(self._text_of(step, one), wanted, len(one.table))
                for step, one in self._shards.items()
                if one.table is not None
            ]
        return np.concatenate([np.zeros(0, np.bool_), *parts])

    def keep_texts(self, seconds: float) -> bool:
        """Cache texts before the first search. Returns whether uncached shards remain."""
        end = time.monotonic() + seconds
        # Callers set a short time limit, because the viewer's pages wait for the lock of the index.
        with self._lock:
            for step, one in reversed(self._shards.items()):
                if time.monotonic() > end:
                    return self._text_bytes < MOST_TEXT
                if one.table is not None:
                    self._text_of(step, one)
        return False

    def _text_of(self, step: int, shard: _Shard) -> pa.Table | None:
        """Return the texts of a shard in lower case; None for a removed or changed shard."""
        known = self._texts.get(step)
        if known is not None and known[0] == shard.stamp:
            return known[1]
        table = read_shard(RolloutLog(self.folder).path(step), _TEXTS)
        if table is None or shard.table is None or len(table) != len(shard.table):
            return None
        # The completions of a group share one prompt, which is stored and searched once.
        prompts = table.column("prompt").combine_chunks().dictionary_encode()
        lowered = pa.DictionaryArray.from_arrays(prompts.indices, pc.utf8_lower(prompts.dictionary))
        found = pa.table({"prompt": lowered, "text": pc.utf8_lower(table.column("text"))})
        if known is not None:
            self._text_bytes -= known[1].nbytes
            del self._texts[step]
        if self._text_bytes + found.nbytes <= MOST_TEXT:
            self._texts[step] = (shard.stamp, found)
            self._text_bytes += found.nbytes
        return found

    def rows(self, places: Iterable[int], columns: Sequence[str]) -> list[dict[str, Any] | None]:
        """Read rollouts from their shards. places: positions of the rollouts in `table`.

        columns: columns of the log or of `DERIVED`. The result has None for each rollout whose
        shard was removed, damaged or replaced after it was indexed.
        """
        # One snapshot, because another thread may replace the table during this call.
        table = self.table
        asked = [(_of(table, "step", place), _of(table, "row", place), place) for place in places]
        shards = {
            step: read_columns(
                RolloutLog(self.folder).path(step),
                list({"completion_id": 0, **dict.fromkeys(columns)}),
            )
            for step in {step for step, _, _ in asked}
        }
        found: list[dict[str, Any] | None] = []
        for step, number, place in asked:
            shard = shards[step] or []
            row = shard[number] if number < len(shard) else None
            # After a rollback, the same step is sampled again, with other completions.
            same = row is not None and row["completion_id"] == _of(table, "completion_id", place)
            found.append(row if same else None)
        return found


_NONE = _Shard((0, 0, 0), None)


def _of(table: pa.Table, name: str, place: int) -> Any:
    return table.column(name)[place].as_py()


def _stamp(path: Path) -> Stamp | None:
    try:
        check_regular(path)
        found = os.stat(path)
    except FileNotFoundError:
        return None
    # A stamp that no real file has, so that the shard is read, and listed as damaged.
    except OSError:
        return (0, 0, 1)
    return found.st_mtime_ns, found.st_size, found.st_ino


def _narrow(table: pa.Table | None, step: int) -> pa.Table:
    """Return the indexed columns of a shard. table: the columns `_READ`; None gives no rows."""
    if table is None:
        return _SCHEMA.empty_table()
    size = len(table)
    same = {
        name: table.column(name).combine_chunks()
        for name in ("problem_id", "group_id", "completion_id", "tags", "score", "reward")
    }
    made = {
        "step": np.full(size, step, np.int32),
        "row": np.arange(size, dtype=np.int32),
        "status": table.column("status"),
        "finish_reason": table.column("finish_reason"),
        "policy_version": table.column("policy_version"),
        # The lists of this column have one entry per token, but an entry takes only a bit on disk.
        "num_tokens": pc.list_value_length(table.column("sampled")),
        "num_injected": pa.array(DERIVED["num_injected"][1](table.column("sampled")), pa.int32()),
        "num_turns": pc.list_value_length(table.column("turn_ends")).fill_null(0),
        "advantage": pa.array(DERIVED["advantage"][1](table.column("advantages")), pa.float64()),
        "conflict": _spreads(table.column("components").to_pylist()),
        "group_kind": _group_kinds(table.column("group_id"), table.column("status")),
    }
    columns = {**same, **made}
    return pa.table({name: columns[name] for name in _SCHEMA.names}).cast(_SCHEMA)


_SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("row", pa.int32()),
        ("problem_id", pa.string()),
        ("group_id", pa.string()),
        ("completion_id", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("status", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("finish_reason", pa.string()),
        ("policy_version", pa.int64()),
        ("num_tokens", pa.int32()),
        ("num_injected", pa.int32()),
        ("num_turns", pa.int32()),
        ("advantage", pa.float64()),
        ("conflict", pa.float64()),
        ("group_kind", pa.string()),
    ]
)


def _spreads(components: Sequence[Sequence[tuple[str, float]] | None]) -> list[float]:
    """Return for each verdict the largest difference between two of its components."""
    values = [[value for _, value in parts or ()] for parts in components]
    return [max(some) - min(some) if some else 0.0 for some in values]


def _group_kinds(groups: pa.ChunkedArray, statuses: pa.ChunkedArray) -> list[str]:
    """Return for each rollout the kind of its group: all_pass, mixed, all_fail or not_judged."""
    names, found = groups.to_pylist(), statuses.to_pylist()
    of_group: dict[str, set[str]] = {}
    for name, status in zip(names, found, strict=True):
        of_group.setdefault(name, set()).add(status)
    kinds: Mapping[str, str] = {name: _kind(some) for name, some in of_group.items()}
    return [kinds[name] for name in names]


def _kind(statuses: set[str]) -> str:
    judged = statuses & {"passed", "failed"}
    if len(judged) == 2:
        return "mixed"
    return {"passed": "all_pass", "failed": "all_fail"}[judged.pop()] if judged else "not_judged"


def _match(table: pa.Table | None, wanted: str, size: int) -> np.ndarray:
    if table is None:
        return np.zeros(size, np.bool_)
    prompts = table.column("prompt").combine_chunks()
    in_prompt = pc.match_substring(prompts.dictionary, wanted).take(prompts.indices)
    in_text = pc.match_substring(table.column("text"), wanted)
    either = pc.or_(in_prompt.fill_null(False), in_text.fill_null(False))
    # Arrow stores Booleans as bits, so a conversion must copy, which Array.to_numpy refuses
    # by default. A ChunkedArray always copies.
    return (
        either.to_numpy(zero_copy_only=False) if isinstance(either, pa.Array) else either.to_numpy()
    )
