"""The columns of the rollout log, and the way there and back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from assay.types import Completion, Group, Problem, Prompt, StepScore, ThinkFormat, Verdict

_INTS = pa.list_(pa.int32())
_FLOATS = pa.list_(pa.float32())
_THINK = pa.struct([("mode", pa.string()), ("open_tag", pa.string()), ("close_tag", pa.string())])
_STEP_SCORES = pa.list_(pa.struct([("score", pa.float64()), ("end", pa.int32())]))

SCHEMA_VERSION = 1
"""One more whenever a column is added."""
ADDED_IN: Mapping[str, int] = {}
"""Columns that the first version did not have, with the version that brought each: in older shards they are null."""

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),  # position in the step
        ("problem_id", pa.string()),
        ("draw", pa.int32()),
        ("group_id", pa.string()),
        ("completion_id", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("prompt", pa.string()),
        ("prompt_tokens", _INTS),
        ("prompt_think", _THINK),
        ("text", pa.string()),
        ("tokens", _INTS),
        ("sampled", pa.list_(pa.bool_())),
        ("num_think_tokens", pa.int32()),
        ("think", _THINK),
        ("finish_reason", pa.string()),
        ("policy_version", pa.int64()),
        ("behavior_logprobs", _FLOATS),
        ("model_logprobs", _FLOATS),
        ("old_logprobs", _FLOATS),
        ("ref_logprobs", _FLOATS),
        ("values", _FLOATS),
        ("advantages", _FLOATS),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("score", pa.float64()),
        ("reward", pa.float64()),
        ("components", pa.map_(pa.string(), pa.float64())),
        ("step_scores", _STEP_SCORES),
        ("extracted", pa.string()),
        ("detail", pa.string()),
        ("verifier", pa.string()),
        ("verifier_hash", pa.string()),
        ("judge_seconds", pa.float64()),
        ("sampling", pa.string()),  # JSON
    ]
)
LEARNED_COLUMNS = ("old_logprobs", "ref_logprobs", "values", "advantages")


def recorded_columns(
    step: int,
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    sampling: Mapping[str, Any],
    verifier_hashes: Mapping[str, str],
) -> dict[str, pa.Array]:
    """Return the columns that are known before learning; verdicts are aligned with the groups."""
    sizes = [len(group.completions) for group in groups]
    assert sizes == [len(one) for one in verdicts], "verdicts are not aligned with groups"
    of_row = [group for group, size in zip(groups, sizes, strict=True) for _ in range(size)]
    completions = [completion for group in groups for completion in group.completions]
    flat = [verdict for group_verdicts in verdicts for verdict in group_verdicts]
    num_rows = len(completions)
    names = [verdict.verifier for verdict in flat]
    return {
        "step": _repeat(step, num_rows, pa.int32()),
        "group": pa.array([n for n, size in enumerate(sizes) for _ in range(size)], pa.int32()),
        "problem_id": _strings(group.problem.id for group in of_row),
        "draw": pa.array([group.problem.draw for group in of_row], pa.int32()),
        "group_id": _strings(group.id for group in of_row),
        "completion_id": _strings(completion.id for completion in completions),
        "tags": pa.array([group.problem.tags for group in of_row], pa.list_(pa.string())),
        "prompt": _strings(group.prompt.text for group in of_row),
        "prompt_tokens": _lists([group.prompt.tokens for group in of_row], np.int32),
        "prompt_think": _thinks([group.prompt.think for group in of_row]),
        "text": _strings(completion.text for completion in completions),
        "tokens": _lists([completion.tokens for completion in completions], np.int32),
        "sampled": _lists([completion.sampled for completion in completions], np.bool_),
        "num_think_tokens": pa.array([c.num_think_tokens for c in completions], pa.int32()),
        "think": _thinks([completion.think for completion in completions]),
        "finish_reason": pa.array([completion.finish_reason for completion in completions]),
        "policy_version": pa.array([c.policy_version for c in completions], pa.int64()),
        "behavior_logprobs": _lists([c.behavior_logprobs for c in completions], np.float32),
        "model_logprobs": _lists([c.model_logprobs for c in completions], np.float32),
        "status": pa.array([verdict.status for verdict in flat]),
        "reason": pa.array([verdict.reason for verdict in flat], pa.string()),
        "score": pa.array([verdict.score for verdict in flat], pa.float64()),
        "reward": pa.array([verdict.reward for verdict in flat], pa.float64()),
        "components": _components([verdict.components for verdict in flat]),
        "step_scores": pa.array(
            [[{"score": s.score, "end": s.end} for s in verdict.step_scores] for verdict in flat],
            _STEP_SCORES,
        ),
        "extracted": _strings(verdict.extracted for verdict in flat),
        "detail": _strings(verdict.detail for verdict in flat),
        "verifier": _strings(names),
        "verifier_hash": _hashes(names, verifier_hashes),
        "judge_seconds": pa.array([verdict.seconds for verdict in flat], pa.float64()),
        "sampling": _repeat(json.dumps(dict(sampling)), num_rows, pa.string()),
    }


def learned_columns(batch: Any, advantages_T: Any, tokens: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the columns that the learner found, cut into rows like the tokens column.

    The batch holds the first rows of the log, or all: groups that dynamic sampling passed over are
    recorded last, are not learned from, and stay without.
    """
    lengths_R = tokens.combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    row_T = as_numpy(batch.row_T, np.int64)
    num_learned = len(batch.length_R)
    counts_R = np.bincount(row_T, minlength=num_learned)
    assert np.array_equal(counts_R, lengths_R[:num_learned]), (
        "the batch's rows are not the recorded completions"
    )
    assert np.all(np.diff(row_T) >= 0), "the batch's tokens are not in the order of its rows"
    ends_R = np.cumsum(np.where(np.arange(len(lengths_R)) < num_learned, lengths_R, 0))
    offsets = pa.array(np.concatenate([[0], ends_R]), pa.int32())
    missing = pa.array(np.arange(len(lengths_R)) >= num_learned)
    found = {
        "old_logprobs": batch.old_logprobs_T,
        "ref_logprobs": batch.ref_logprobs_T,
        "values": batch.values_T,
        "advantages": advantages_T,
    }
    return {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(as_numpy(values_T, np.float32)), mask=missing
        )
        for name, values_T in found.items()
        if values_T is not None
    }


def restore(table: pa.Table) -> tuple[list[Group], list[tuple[Verdict, ...]]]:
    """Return the groups and verdicts that `recorded_columns` was given; problems lack their spec."""
    rows = _Rows(table)
    groups: list[Group] = []
    verdicts: list[tuple[Verdict, ...]] = []
    for first, last in rows.groups():
        groups.append(rows.group(first, last))
        verdicts.append(tuple(rows.verdict(n) for n in range(first, last)))
    return groups, verdicts


class _Rows:
    """A shard's columns, cut into values by row."""

    def __init__(self, table: pa.Table) -> None:
        ragged = {"prompt_tokens", "tokens", "sampled", "behavior_logprobs", "model_logprobs"}
        self.arrays = {name: _cut(table.column(name)) for name in ragged}
        plain = [name for name in table.column_names if name not in ragged | {*LEARNED_COLUMNS}]
        self.plain = {name: table.column(name).to_pylist() for name in plain}

    def groups(self) -> list[tuple[int, int]]:
        positions = self.plain["group"]
        starts = [n for n, p in enumerate(positions) if n == 0 or p != positions[n - 1]]
        return list(zip(starts, [*starts[1:], len(positions)], strict=True))

    def group(self, first: int, last: int) -> Group:
        plain = self.plain
        text = plain["prompt"][first]
        problem = Problem(
            id=plain["problem_id"][first],
            prompt=text,
            tags=tuple(plain["tags"][first] or ()),
            draw=plain["draw"][first],
        )
        tokens = self.arrays["prompt_tokens"][first]
        prompt = Prompt(text, tokens, ThinkFormat(**plain["prompt_think"][first]))
        return Group(problem, prompt, tuple(self.completion(n) for n in range(first, last)))

    def completion(self, n: int) -> Completion:
        return Completion(
            id=self.plain["completion_id"][n],
            text=self.plain["text"][n],
            tokens=self.arrays["tokens"][n],
            behavior_logprobs=self.arrays["behavior_logprobs"][n],
            model_logprobs=self.arrays["model_logprobs"][n],
            sampled=self.arrays["sampled"][n],
            finish_reason=self.plain["finish_reason"][n],
            policy_version=self.plain["policy_version"][n],
            num_think_tokens=self.plain["num_think_tokens"][n],
            think=ThinkFormat(**self.plain["think"][n]),
        )

    def verdict(self, n: int) -> Verdict:
        same = ("score", "status", "verifier", "reward", "reason", "extracted")
        return Verdict(
            **{name: self.plain[name][n] for name in same},
            detail=self.plain["detail"][n] or "",
            components=dict(self.plain["components"][n] or ()),
            step_scores=tuple(StepScore(**one) for one in self.plain["step_scores"][n] or ()),
            seconds=self.plain["judge_seconds"][n] or 0.0,
        )


def _cut(column: pa.ChunkedArray) -> list[np.ndarray]:
    """Return a list column as arrays, one a row; they are parts of one writable array."""
    lists = column.combine_chunks()
    flat = lists.flatten().to_numpy(zero_copy_only=False).copy()
    ends = np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False)).tolist()
    return [flat[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _lists(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> pa.Array:
    flat = np.concatenate([np.zeros(0, dtype), *arrays]).astype(dtype, copy=False)
    offsets = pa.array([0, *accumulate(len(one) for one in arrays)], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(flat))


def _components(mappings: Sequence[Mapping[str, float]]) -> pa.Array:
    offsets = pa.array([0, *accumulate(len(one) for one in mappings)], pa.int32())
    names = _strings(name for one in mappings for name in one)
    values = pa.array([float(value) for one in mappings for value in one.values()], pa.float64())
    return pa.MapArray.from_arrays(offsets, names, values)


def _hashes(labels: Sequence[str], known: Mapping[str, str]) -> pa.Array:
    """The content hash of ``math@1``; of a sum ``math@1*1 + think_format@1*0.1`` those of its terms."""
    found: dict[str, str | None] = {}
    for label in set(labels):
        terms = [label] if label in known else label.split(" + ")
        names = [name for term in terms for name in (term.rpartition("*")[0] or term).split("|")]
        hashes = [known.get(name, "?") for name in names]
        found[label] = " + ".join(hashes) if set(hashes) != {"?"} else None
    return pa.array([found[label] for label in labels], pa.string())


def _thinks(formats: Sequence[ThinkFormat]) -> pa.Array:
    fields = [_strings(getattr(one, field.name) for one in formats) for field in _THINK]
    return pa.StructArray.from_arrays(fields, fields=list(_THINK))


def _strings(texts: Iterable[str | None]) -> pa.Array:
    texts = list(texts)
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:  # half a surrogate pair, which no UTF-8 file can hold
        whole = [t and t.encode("utf-8", "backslashreplace").decode() for t in texts]
        return pa.array(whole, pa.string())


def _repeat(value: Any, num_rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), num_rows)


def as_numpy(values: Any, dtype: type[np.generic]) -> np.ndarray:
    """Return a tensor (on any device) or an array as a numpy array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    return np.asarray(values, dtype)
