"""The rollout log gives back exactly what it was given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from run_fakes import FakeBatch, make_problem, make_rollouts, make_update

from assay.run import rollout_log
from assay.run.rollout_log import RolloutLog, read_columns
from assay.run.rollout_schema import ADDED_IN, SCHEMA, SCHEMA_VERSION
from assay.types import Completion, Group, Problem, Prompt, Verdict

SAMPLING = {"temperature": 1.0, "top_k": None}
HASHES = {"math@1": "abc"}


def assert_same_completion(one: Completion, other: Completion) -> None:
    arrays = ("tokens", "sampled", "behavior_logprobs", "model_logprobs", "token_versions")
    for name in arrays:
        left, right = getattr(one, name), getattr(other, name)
        if left is None or right is None:
            assert left is right is None, name
            continue
        assert left.dtype == right.dtype and left.tobytes() == right.tobytes(), name
    rest = ("id", "text", "finish_reason", "policy_version", "num_think_tokens", "think")
    for name in rest:
        assert getattr(one, name) == getattr(other, name), name


def assert_same_group(one: Group, other: Group) -> None:
    assert one.problem == other.problem
    assert (one.prompt.text, one.prompt.think) == (other.prompt.text, other.prompt.think)
    assert one.prompt.tokens.tobytes() == other.prompt.tokens.tobytes()
    for left, right in zip(one.completions, other.completions, strict=True):
        assert_same_completion(left, right)


def problem_of(id: str) -> Problem:
    return make_problem(int(id.removeprefix("p")))


@pytest.fixture
def log(tmp_path: Path):
    log = RolloutLog(tmp_path / "rollouts")
    yield log
    log.close()


def test_reads_back_exactly_what_was_recorded(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(5)
    log.record(7, groups, verdicts, SAMPLING, HASHES)
    found = log.read(7, problem_of)
    assert found is not None
    assert found.verdicts == verdicts
    for one, other in zip(found.groups, groups, strict=True):
        assert_same_group(one, other)


def test_is_whole_on_disk_before_it_is_completed(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    table = pq.ParquetFile(log.path(1)).read()
    assert table.schema.names == SCHEMA.names
    assert table.column("advantages").null_count == table.num_rows == 12
    assert set(table.column("verifier_hash").to_pylist()) == {"abc"}
    assert not list(log.folder.glob(".*"))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("math@1", "abc"),
        ("math@1*1 + think_format@2*0.1", "abc + def"),
        ("math@1*0.5", "abc"),
        ("math@1*1 + mine@1*1", "abc + ?"),
        ("mine@1", None),
    ],
)
def test_every_row_names_the_content_that_judged_it(
    log: RolloutLog, label: str, expected: str | None
) -> None:
    groups, _ = make_rollouts(1, num_groups=1, group_size=1)
    hashes = {"math@1": "abc", "think_format@2": "def"}
    log.record(1, groups, [(Verdict.of_score(1.0, label),)], SAMPLING, hashes)
    table = pq.ParquetFile(log.path(1)).read()
    assert table.column("verifier_hash").to_pylist() == [expected]


def test_completion_adds_the_learners_columns_and_changes_nothing_else(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    before = pq.ParquetFile(log.path(1)).read()
    update = make_update(groups, 3)
    log.complete(1, update.batch, update.advantages_T)
    log.flush()
    after = pq.ParquetFile(log.path(1)).read()
    learned = {"old_logprobs", "ref_logprobs", "values", "advantages"}
    assert before.drop_columns(learned).equals(after.drop_columns(learned))
    assert update.batch is not None
    for name, values in [
        ("old_logprobs", update.batch.old_logprobs_T),
        ("ref_logprobs", update.batch.ref_logprobs_T),
        ("advantages", update.advantages_T),
    ]:
        rows = after.column(name).to_pylist()
        assert [len(row) for row in rows] == [len(c.tokens) for g in groups for c in g.completions]
        flat = np.array([value for row in rows for value in row], np.float32)
        assert flat.tobytes() == values.tobytes()
    assert after.column("values").null_count == after.num_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_completes_from_tensors_with_a_graph(log: RolloutLog, dtype: torch.dtype) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    update = make_update(groups, 3)
    assert update.batch is not None
    old_T = torch.from_numpy(update.batch.old_logprobs_T).to(dtype).requires_grad_()
    batch = FakeBatch(update.batch.length_R, torch.from_numpy(update.batch.row_T), old_T)
    log.complete(1, batch, torch.from_numpy(update.advantages_T))
    log.flush()
    rows = pq.ParquetFile(log.path(1)).read().column("old_logprobs").to_pylist()
    assert torch.tensor([v for row in rows for v in row]).equal(old_T.detach().float())


def test_a_batch_of_other_rows_is_refused(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    update = make_update(groups[1:], 3)
    with pytest.raises(AssertionError, match="not the recorded completions"):
        log.complete(1, update.batch, update.advantages_T)


def test_groups_that_were_passed_over_stay_without_advantages(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    update = make_update(groups[:2])
    log.complete(1, update.batch, update.advantages_T)
    log.flush()
    table = pq.ParquetFile(log.path(1)).read()
    advantages = table.column("advantages").to_pylist()
    assert advantages[8:] == [None] * 4
    flat = np.array([value for row in advantages[:8] for value in row], np.float32)
    assert flat.tobytes() == update.advantages_T.tobytes()
    found = log.read(1)
    assert found is not None and found.verdicts == verdicts


def test_rows_out_of_order_are_refused(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    batch = make_update(groups, 3).batch
    assert batch is not None
    batch.row_T = batch.row_T[::-1].copy()
    with pytest.raises(AssertionError, match="order"):
        log.complete(1, batch, batch.old_logprobs_T)


def test_an_empty_completion_and_a_single_row_survive(log: RolloutLog) -> None:
    empty = Completion.from_text("", id="p0#0/0")
    group = Group(make_problem(0), Prompt("", np.zeros(0, np.int32)), (empty,))
    verdicts = [(Verdict.not_judged("error", "math@1"),)]
    log.record(1, [group], verdicts, SAMPLING, HASHES)
    batch = SimpleNamespace(
        length_R=np.zeros(1),
        row_T=np.zeros(0, int),
        old_logprobs_T=np.zeros(0),
        ref_logprobs_T=None,
        values_T=None,
    )
    log.complete(1, batch, np.zeros(0))
    found = log.read(1, problem_of)
    assert found is not None and found.verdicts == verdicts
    assert_same_group(found.groups[0], group)


def test_the_same_problem_twice_in_a_step_stays_two_groups(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1, num_groups=1)
    log.record(1, groups * 2, verdicts * 2, SAMPLING, HASHES)
    found = log.read(1)
    assert found is not None and len(found.groups) == 2


def test_a_missing_torn_or_foreign_shard_is_none(log: RolloutLog) -> None:
    assert log.read(3) is None
    groups, verdicts = make_rollouts(1)
    log.record(3, groups, verdicts, SAMPLING, HASHES)
    data = log.path(3).read_bytes()
    log.path(3).write_bytes(data[: len(data) // 2])
    assert log.read(3) is None
    pq.write_table(pq.read_table(_copy(log, data)).drop_columns(["text"]), log.path(3))
    assert log.read(3) is None


def test_an_older_shard_is_read_and_a_newer_one_is_not(
    log: RolloutLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, verdicts = make_rollouts(2)
    log.record(3, groups, verdicts, SAMPLING, HASHES)
    data = log.path(3).read_bytes()
    pq.write_table(pq.read_table(_copy(log, data)).drop_columns(["judge_seconds"]), log.path(3))
    monkeypatch.setattr(rollout_log, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    newer = {**ADDED_IN, "judge_seconds": SCHEMA_VERSION + 1}
    monkeypatch.setattr(rollout_log, "ADDED_IN", newer)
    found = log.read(3, problem_of)
    assert found is not None
    assert found.verdicts == [tuple(replace(v, seconds=0.0) for v in one) for one in verdicts]
    columns = read_columns(log.path(3), ["judge_seconds", "text"])
    assert columns is not None and columns[0]["judge_seconds"] is None
    log.record(3, groups, verdicts, SAMPLING, HASHES)
    assert log.read(3) is not None
    monkeypatch.setattr(rollout_log, "SCHEMA_VERSION", SCHEMA_VERSION)
    assert log.read(3) is None


def test_a_shard_of_the_first_version_has_no_turns(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(2)
    log.record(3, groups, verdicts, SAMPLING, HASHES)
    table = pq.read_table(_copy(log, log.path(3).read_bytes()))
    about = {**table.schema.metadata, b"assay.version": b"1"}
    first = table.drop_columns(["token_versions", "turn_ends"])
    pq.write_table(first.replace_schema_metadata(about), log.path(3))
    found = log.read(3, problem_of)
    assert found is not None
    assert_same_group(found.groups[0], groups[0])
    assert {one.num_turns for group in found.groups for one in group.completions} == {1}


def _copy(log: RolloutLog, data: bytes) -> Path:
    path = log.folder / "copy.parquet"
    path.write_bytes(data)
    return path


def test_discard_after_leaves_what_was_before(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    for step in (1, 2, 3):
        log.record(step, groups, verdicts, SAMPLING, HASHES)
    assert log.discard_after(1) == [2, 3]
    assert log.steps() == [1]


def test_arrays_that_come_back_can_become_tensors(log: RolloutLog) -> None:
    groups, verdicts = make_rollouts(1)
    log.record(1, groups, verdicts, SAMPLING, HASHES)
    found = log.read(1)
    assert found is not None
    tokens = found.groups[0].completions[0].tokens
    torch.from_numpy(tokens)[0] = 5  # warns (an error here) where the array cannot be written
    assert tokens[0] == 5


any_text = st.text(st.characters(exclude_categories=()), max_size=20)


def test_a_shard_with_a_flipped_bit_is_not_read_as_another(log: RolloutLog) -> None:
    """Checksums cover the pages; of what lies between them nearly all fails to decode, or says nothing new."""
    log.record(1, *make_rollouts(1), SAMPLING, HASHES)
    path, whole = log.path(1), log.read(1)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    unread, wrong = 0, 0
    for place in range(100, len(data), 37):
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        found = log.read(1)
        read_columns(path, SCHEMA.names)  # told, not raised
        unread += found is None
        wrong += found is not None and repr(found) != repr(whole)
    assert unread > 200 and wrong <= 3


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=40),
    detail=any_text,
    score=st.floats(0, 1),
    reward=st.floats(allow_nan=False),
    components=st.dictionaries(st.text(max_size=8), st.floats(allow_nan=False), max_size=4),
)
def test_any_verdict_and_text_survive(
    tmp_path_factory: pytest.TempPathFactory,
    text: str,
    detail: str,
    score: float,
    reward: float,
    components: dict[str, float],
) -> None:
    log = RolloutLog(tmp_path_factory.mktemp("log"))
    completion = replace(make_rollouts(1)[0][0].completions[0], text=text)
    group = Group(make_problem(0), Prompt(text, np.zeros(1, np.int32)), (completion,))
    verdict = Verdict.of_score(score, "v@1", reward=reward, components=components, detail=detail)
    log.record(1, [group], [(verdict,)], SAMPLING, HASHES)
    found = log.read(1, problem_of)
    log.close()
    assert found is not None
    assert_same_group(found.groups[0], group)
    written = detail.encode("utf-8", "backslashreplace").decode()
    assert found.verdicts == [(replace(verdict, detail=written),)]
    assert list(found.verdicts[0][0].components) == list(components)


def test_a_pipe_for_a_shard_is_not_waited_for(log: RolloutLog) -> None:
    log.folder.mkdir(exist_ok=True)
    os.mkfifo(log.path(3))
    assert log.read(3) is None and log.put_back(3) is None
    assert read_columns(log.path(3), ["tokens"]) is None
