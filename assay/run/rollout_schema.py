"""Columns of the rollout log, and the conversion of completions to and from columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from assay.types import Completion, Group, Problem, Prompt, StepScore, ThinkFormat, Verdict

_TEXT, _INT, _LONG, _DOUBLE = pa.string(), pa.int32(), pa.int64(), pa.float64()
_INTS, _FLOATS, _BOOLS = pa.list_(_INT), pa.list_(pa.float32()), pa.list_(pa.bool_())
_THINK = pa.struct([("mode", _TEXT), ("open_tag", _TEXT), ("close_tag", _TEXT)])
_STEP_SCORES = pa.list_(pa.struct([("score", _DOUBLE), ("end", _INT)]))
_DTYPES = {_INTS: np.int32, _FLOATS: np.float32, _BOOLS: np.bool_}
"""NumPy types of the list columns whose values are NumPy arrays."""

_SECOND = {
    "status": "second_status",
    "reason": "second_reason",
    "verifier": "second_verifier",
    "extracted": "second_extracted",
    "detail": "second_detail",
}
"""Columns of the second verifier's verdict, by field. Null for a completion without one."""
SCHEMA_VERSION = 5
"""Version of the columns. Increase the version whenever a column is added."""
ADDED_IN: Mapping[str, int] = {
    **{"token_versions": 2, "turn_ends": 2, "said": 3, "step_weight": 4},
    **dict.fromkeys(_SECOND.values(), 5),
}
"""Columns added after version 1, with their version. They are null in older shards."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A completion and its context.

    position: index of the completion's group within the step. hash_of: map from a verifier label to
    the verifier's content hash. sampling: sampling settings as JSON.
    """

    step: int
    position: int
    group: Group
    completion: Completion
    verdict: Verdict
    hash_of: Callable[[str], str | None]
    sampling: str


_COLUMNS: Mapping[str, tuple[pa.DataType, Callable[[_Row], Any] | None]] = {
    "step": (_INT, lambda row: row.step),
    "group": (_INT, lambda row: row.position),
    "problem_id": (_TEXT, lambda row: row.group.problem.id),
    "draw": (_INT, lambda row: row.group.problem.draw),
    "group_id": (_TEXT, lambda row: row.group.id),
    "completion_id": (_TEXT, lambda row: row.completion.id),
    "tags": (pa.list_(_TEXT), lambda row: row.group.problem.tags),
    "prompt": (_TEXT, lambda row: row.group.prompt.text),
    "prompt_tokens": (_INTS, lambda row: row.group.prompt.tokens),
    "prompt_think": (_THINK, lambda row: row.group.prompt.think),
    "text": (_TEXT, lambda row: row.completion.text),
    "tokens": (_INTS, lambda row: row.completion.tokens),
    "sampled": (_BOOLS, lambda row: row.completion.sampled),
    "num_think_tokens": (_INT, lambda row: row.completion.num_think_tokens),
    "think": (_THINK, lambda row: row.completion.think),
    "finish_reason": (_TEXT, lambda row: row.completion.finish_reason),
    "policy_version": (_LONG, lambda row: row.completion.policy_version),
    # If one policy version sampled all tokens, the column is null, which saves 4 bytes per token.
    "token_versions": (_INTS, lambda row: row.completion.token_versions),
    "turn_ends": (pa.list_(_LONG), lambda row: row.completion.turn_ends),
    "said": (pa.list_(pa.list_(_INT)), lambda row: row.completion.said),
    "behavior_logprobs": (_FLOATS, lambda row: row.completion.behavior_logprobs),
    "model_logprobs": (_FLOATS, lambda row: row.completion.model_logprobs),
    # Columns with the value None stay null until the learner has computed their values.
    "old_logprobs": (_FLOATS, None),
    "ref_logprobs": (_FLOATS, None),
    "values": (_FLOATS, None),
    "advantages": (_FLOATS, None),
    "status": (_TEXT, lambda row: row.verdict.status),
    "reason": (_TEXT, lambda row: row.verdict.reason),
    "score": (_DOUBLE, lambda row: row.verdict.score),
    "reward": (_DOUBLE, lambda row: row.verdict.reward),
    "components": (pa.map_(_TEXT, _DOUBLE), lambda row: [*row.verdict.components.items()]),
    "step_scores": (
        _STEP_SCORES,
        lambda row: [(one.score, one.end) for one in row.verdict.step_scores],
    ),
    "step_weight": (_DOUBLE, lambda row: row.verdict.step_weight),
    "extracted": (_TEXT, lambda row: row.verdict.extracted),
    "detail": (_TEXT, lambda row: row.verdict.detail),
    "verifier": (_TEXT, lambda row: row.verdict.verifier),
    "verifier_hash": (_TEXT, lambda row: row.hash_of(row.verdict.verifier)),
    "judge_seconds": (_DOUBLE, lambda row: row.verdict.seconds),
    **{
        column: (_TEXT, lambda row, name=name: getattr(row.verdict.second, name, None))
        for name, column in _SECOND.items()
    },
    # Sampling settings are JSON text in one column, so a new setting needs no new column.
    "sampling": (_TEXT, lambda row: row.sampling),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
LEARNED_COLUMNS = tuple(name for name, (_, of_row) in _COLUMNS.items() if of_row is None)


def recorded_columns(
    step: int,
    groups: Sequence[Group],
    verdicts: Sequence[Sequence[Verdict]],
    sampling: Mapping[str, Any],
    verifier_hashes: Mapping[str, str],
) -> list[pa.Array]:
    """Return all columns of a shard as they are before the optimizer update. The learner's columns
    are null.

    verdicts: one sequence per group, in the order of the completions of the group.
    """
    about = (cache(lambda label: hash_of_label(label, verifier_hashes)), json.dumps(dict(sampling)))
    rows = [
        _Row(step, position, group, completion, verdict, *about)
        for position, (group, judged) in enumerate(zip(groups, verdicts, strict=True))
        for completion, verdict in zip(group.completions, judged, strict=True)
    ]
    return [
        pa.nulls(len(rows), kind) if of_row is None else _as_array(map(of_row, rows), kind)
        for kind, of_row in _COLUMNS.values()
    ]


def _as_array(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    values = list(values)
    # Concatenation is about 20 times as fast as pa.array on a list of arrays (pyarrow 26).
    if kind in _DTYPES:
        dtype = _DTYPES[kind]
        known = [np.zeros(0, dtype) if value is None else value for value in values]
        flat = np.concatenate([np.zeros(0, dtype), *known]).astype(dtype, copy=False)
        offsets = pa.array([0, *accumulate(map(len, known))], _INT)
        missing = pa.array([value is None for value in values], pa.bool_())
        return pa.ListArray.from_arrays(offsets, pa.array(flat), mask=missing)
    # Nearly all completions share a think format, so each distinct format is converted once.
    if kind == _THINK:
        known = {think: place for place, think in enumerate(dict.fromkeys(values))}
        fields = [(think.mode, think.open_tag, think.close_tag) for think in known]
        return _as_plain_array(fields, kind).take(pa.array([known[one] for one in values], _INT))
    return _as_plain_array(values, kind)


def _as_plain_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    # User code may return text with an unpaired surrogate, which UTF-8 cannot encode.
    except UnicodeEncodeError:
        return pa.array(_whole(values), kind)


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value


def names_in_label(label: str) -> list[str]:
    """Return the name and version of all verifiers in a label such as ``math@1 + 0.1*format@2``."""
    terms = label.split(" + ")
    return [name for term in terms for name in (term.rpartition("*")[0] or term).split("|")]


def hash_of_label(label: str, known: Mapping[str, str]) -> str | None:
    """Return the content hash of a label such as ``math@1``; None if the hash is unknown.

    For a sum of verifiers, the result lists the content hashes of all terms.
    """
    names = [label] if label in known else names_in_label(label)
    hashes = [known.get(name, "?") for name in names]
    return " + ".join(hashes) if {*hashes} != {"?"} else None


def learned_columns(batch: Any, advantages_T: Any, tokens: pa.ChunkedArray) -> dict[str, pa.Array]:
    """Return the learner's columns, with the values of all tokens split into one list per row.

    The batch contains either the first rows of the shard or all rows of the shard. All other rows
    are null.
    """
    # Dynamic sampling rejects some groups.
    # Rows after those of the batch belong to groups that are not trained on.
    lengths_R = tokens.combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    row_T = as_numpy(batch.row_T, np.int64)
    num_learned = len(batch.length_R)
    counts_R = np.bincount(row_T, minlength=num_learned)
    assert np.array_equal(counts_R, lengths_R[:num_learned]), (
        "the batch's rows are not the recorded completions"
    )
    assert np.all(np.diff(row_T) >= 0), "the batch's tokens are not in the order of its rows"
    is_learned_R = np.arange(len(lengths_R)) < num_learned
    ends_R = np.cumsum(np.where(is_learned_R, lengths_R, 0))
    offsets = pa.array(np.concatenate([[0], ends_R]), _INT)
    found = {
        "old_logprobs": batch.old_logprobs_T,
        "ref_logprobs": batch.ref_logprobs_T,
        "values": batch.values_T,
        "advantages": advantages_T,
    }
    return {
        name: pa.ListArray.from_arrays(
            offsets, pa.array(as_numpy(values_T, np.float32)), mask=pa.array(~is_learned_R)
        )
        for name, values_T in found.items()
        if values_T is not None
    }


def restore(table: pa.Table) -> tuple[list[Group], list[tuple[Verdict, ...]]]:
    """Rebuild the recorded groups and verdicts of a step from columns. The problems have no
    spec."""
    names = [name for name in table.column_names if name not in LEARNED_COLUMNS]
    columns = [_values_of(table.column(name), _COLUMNS[name][0]) for name in names]
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    groups: list[Group] = []
    verdicts: list[tuple[Verdict, ...]] = []
    for _, siblings in groupby(rows, key=lambda row: row["group"]):
        members = list(siblings)
        first = members[0]
        text, tags, draw = first["prompt"], tuple(first["tags"] or ()), first["draw"]
        problem = Problem(id=first["problem_id"], prompt=text, tags=tags, draw=draw)
        prompt = Prompt(text, first["prompt_tokens"], first["prompt_think"])
        groups.append(Group(problem, prompt, tuple(map(_completion, members))))
        verdicts.append(tuple(map(_verdict, members)))
    return groups, verdicts


def _completion(row: Mapping[str, Any]) -> Completion:
    same = ("text", "tokens", "behavior_logprobs", "model_logprobs", "sampled", "finish_reason")
    kept = {name: row[name] for name in (*same, "policy_version", "num_think_tokens")}
    kept |= {"token_versions": row["token_versions"], "turn_ends": tuple(row["turn_ends"] or ())}
    kept["said"] = tuple((start, end) for start, end in row["said"] or ())
    return Completion(id=row["completion_id"], think=row["think"], **kept)


def _verdict(row: Mapping[str, Any]) -> Verdict:
    same = ("score", "status", "verifier", "reward", "reason", "extracted")
    return Verdict(
        **{name: row[name] for name in same},
        detail=row["detail"] or "",
        components=dict(row["components"] or ()),
        step_scores=tuple(StepScore(**one) for one in row["step_scores"] or ()),
        step_weight=1.0 if row["step_weight"] is None else row["step_weight"],
        seconds=row["judge_seconds"] or 0.0,
        second=_second_verdict(row),
    )


def _second_verdict(row: Mapping[str, Any]) -> Verdict | None:
    fields = {name: row[column] for name, column in _SECOND.items()}
    if fields["status"] is None:
        return None
    fields["detail"] = fields["detail"] or ""
    # The log has no score of a second verdict, because only its status is used.
    score = {"passed": 1.0, "failed": 0.0}.get(fields["status"])
    return Verdict(score=score, **fields)


def _values_of(column: pa.ChunkedArray, kind: pa.DataType) -> list[Any]:
    """Return the values of a column of a shard. The returned arrays are writable views of one
    buffer.
    """
    if kind == _THINK:
        parts = [part.to_pylist() for part in column.combine_chunks().flatten()]
        return list(map(cache(ThinkFormat), *parts))
    if kind not in _DTYPES:
        return column.to_pylist()
    lists = column.combine_chunks()
    # Arrow's buffers are read-only, and torch warns about read-only arrays: values are copied.
    flat = lists.flatten().to_numpy(zero_copy_only=False).copy()
    ends = np.cumsum(lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)).tolist()
    bounds = zip([0, *ends[:-1]], ends, lists.is_valid().to_pylist(), strict=True)
    return [flat[start:end] if is_there else None for start, end, is_there in bounds]


def _lengths(column: pa.ChunkedArray) -> list[int | None]:
    return column.combine_chunks().value_lengths().to_pylist()


def _means(column: pa.ChunkedArray) -> list[float | None]:
    """Return the mean of each list in a column; None for empty lists and nulls."""
    lists = _values_of(column, _FLOATS)
    return [None if one is None or not len(one) else float(one.mean()) for one in lists]


def _counts_of_injected(column: pa.ChunkedArray) -> list[int]:
    return [0 if one is None else int((~one).sum()) for one in _values_of(column, _BOOLS)]


DERIVED: Mapping[str, tuple[str, Callable[[pa.ChunkedArray], list[Any]]]] = {
    "num_tokens": ("tokens", _lengths),
    "num_injected": ("sampled", _counts_of_injected),
    "advantage": ("advantages", _means),
}
"""Short columns computed from long ones: (source column, function) by name."""


def as_numpy(values: Any, dtype: type[np.generic]) -> np.ndarray:
    """Convert a tensor on any device, or an array, to a NumPy array."""
    # Reading a log must not import torch, so tensors are recognized by a method.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        # NumPy has no bfloat16, so floating-point tensors are first converted to float32.
        values = values.float().numpy() if values.is_floating_point() else values.numpy()
    return np.asarray(values, dtype)
