import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_batches import judge, make_batch, make_groups

from assay.model.packing import Batch, Layout, pack
from assay.types import StepScore, Verdict

SHAPE = ([3, 1, 5], [[4, 2, 7, 1], [3], [6, 6]])
shapes = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1, max_size=5)),
    min_size=1,
    max_size=6,
).map(lambda groups: ([length for length, _ in groups], [rows for _, rows in groups]))


def test_tokens_and_rows_are_those_of_the_completions() -> None:
    groups = make_groups(*SHAPE)
    verdicts = judge(groups)
    batch = pack(groups, verdicts)
    flat = [
        (number, completion, verdict)
        for number, (group, judged) in enumerate(zip(groups, verdicts, strict=True))
        for completion, verdict in zip(group.completions, judged, strict=True)
    ]
    assert (batch.num_groups, batch.num_rows, batch.num_tokens) == (3, 7, 29)
    for prompt, group in zip(batch.prompts, groups, strict=True):
        assert prompt.tolist() == group.prompt.tokens.tolist()
    for row, (number, completion, verdict) in enumerate(flat):
        mine = batch.row_T == row
        assert batch.tokens_T[mine].tolist() == completion.tokens.tolist()
        assert batch.sampled_T[mine].tolist() == completion.sampled.tolist()
        think = [n < completion.num_think_tokens for n in range(len(completion.tokens))]
        assert batch.think_T[mine].tolist() == think
        np.testing.assert_array_equal(batch.behavior_logprobs_T[mine], completion.behavior_logprobs)
        assert batch.group_R[row] == number
        assert batch.length_R[row] == len(completion.tokens)
        assert bool(batch.truncated_R[row]) == completion.truncated
        assert bool(batch.judged_R[row]) == verdict.judged
        if verdict.judged:
            assert batch.rewards_R[row] == verdict.reward
            assert batch.correct_R[row] == float(verdict.correct)
            assert verdict.score is not None
            assert batch.scores_R[row] == np.float32(verdict.score)
        else:
            assert batch.rewards_R[row].isnan() and batch.correct_R[row].isnan()
            assert batch.scores_R[row].isnan()


def test_judged_steps_stand_at_their_last_tokens() -> None:
    groups = make_groups([2], [[4, 3, 2]])
    stepped = Verdict.of_score(0.5, "prm@1", step_scores=(StepScore(0.25, 1), StepScore(0.75, 3)))
    verdicts = [[stepped, Verdict.not_judged("timeout", "prm@1"), Verdict.of_score(1.0, "prm@1")]]
    batch = pack(groups, verdicts)
    assert batch.step_ends_T is not None and batch.step_scores_T is not None
    assert batch.step_ends_T.nonzero()[:, 0].tolist() == [1, 3]
    assert batch.step_scores_T.tolist() == [0, 0.25, 0, 0.75, 0, 0, 0, 0, 0]
    weighed = pack(groups, [[replace(stepped, step_weight=2.0), *verdicts[0][1:]]])
    assert weighed.step_scores_T is not None
    assert weighed.step_scores_T.tolist() == [0, 0.5, 0, 1.5, 0, 0, 0, 0, 0]
    assert pack(groups, judge(groups)).step_ends_T is None
    beyond = Verdict.of_score(0.5, "prm@1", step_scores=(StepScore(0.25, 4),))
    with pytest.raises(ValueError, match="a step ends at token 4 of a completion of 4"):
        pack(groups, [[beyond, *verdicts[0][1:]]])


def test_packing_no_groups_makes_an_empty_batch() -> None:
    batch = pack([], [])
    assert (batch.num_groups, batch.num_rows, batch.num_tokens) == (0, 0, 0)
    assert batch.split(10) == batch.split(10, "plain") == []


def test_a_judgement_without_a_reward_is_an_error() -> None:
    groups = make_groups([2], [[3]])
    with pytest.raises(ValueError, match="has no reward"):
        pack(groups, [[Verdict.of_score(1.0, "fake@1", reward=None)]])


@pytest.mark.parametrize("missing", ["verdict", "group of verdicts"])
def test_a_missing_verdict_is_an_error(missing: str) -> None:
    groups = make_groups(*SHAPE)
    verdicts = judge(groups)
    if missing == "verdict":
        verdicts[1] = verdicts[1][:-1]
    else:
        verdicts = verdicts[:-1]
    with pytest.raises(ValueError, match="zip"):
        pack(groups, verdicts)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"think_T": torch.zeros(28, dtype=torch.bool)}, r"think_T has shape \(28,\); T is 29"),
        ({"judged_R": torch.zeros(29, dtype=torch.bool)}, r"judged_R has shape \(29,\); R is 7"),
        ({"values_T": torch.zeros(29, 1)}, r"values_T has shape \(29, 1\); T is 29"),
        ({"row_T": torch.zeros(29, dtype=torch.long)}, "row_T contradicts length_R"),
        ({"group_R": torch.tensor([0, 0, 0, 1, 0, 2, 2])}, "group_R must rise from 0 to 2"),
        ({"group_R": torch.tensor([0, 0, 0, 0, 0, 1, 1])}, "group_R must rise from 0 to 2"),
        ({"prompts": (torch.ones(3), torch.ones(0), torch.ones(5))}, "at least one token"),
        ({"tokens_T": torch.zeros(29, device="meta")}, "is on cpu; tokens_T is on meta"),
    ],
)
def test_a_shape_that_contradicts_its_suffix_is_refused(
    wrong: dict[str, Any], complaint: str
) -> None:
    batch = make_batch(*SHAPE)
    with pytest.raises(ValueError, match=complaint):
        replace(batch, **wrong)


def test_batches_are_picklable() -> None:
    batch = make_batch(*SHAPE)
    batch.shape  # what is derived travels along or is derived again
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again.tokens_T, batch.tokens_T)
    assert again.num_groups == 3


def fields_of(batch: Batch, row: int) -> dict[str, Any]:
    mine = batch.row_T == row
    values: dict[str, Any] = {"prompt": batch.prompts[int(batch.group_R[row])].tolist()}
    for name, value in vars(batch).items():
        if isinstance(value, torch.Tensor) and name not in ("row_T", "group_R"):
            part = value[mine] if name.endswith("_T") else value[row]
            values[name] = part.nan_to_num(nan=-99.0).tolist()
    return values


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(1, 60), st.sampled_from(["tree", "plain"]), st.data())
def test_a_split_holds_every_row_once(
    shape: Any, max_tokens: int, layout: Layout, data: st.DataObject
) -> None:
    batch = make_batch(*shape)
    batch = replace(batch, old_logprobs_T=torch.randn(batch.num_tokens))
    chosen = data.draw(st.lists(st.sampled_from(range(batch.num_groups)), unique=True))
    parts = batch.split(max_tokens, layout, chosen)
    seen: list[int] = []
    for part in parts:
        assert part.batch.num_rows == len(part.row_index_R)
        for row, whole_row in enumerate(part.row_index_R.tolist()):
            assert fields_of(part.batch, row) == fields_of(batch, whole_row)
        assert torch.equal(batch.tokens_T[part.token_index_T], part.batch.tokens_T)
        tokens = part.batch.num_tokens
        if layout == "tree":
            tokens += sum(len(prompt) for prompt in part.batch.prompts)
        else:
            tokens += sum(len(part.batch.prompts[group]) for group in part.batch.group_R)
        assert tokens <= max_tokens or part.batch.num_rows == 1
        seen += part.row_index_R.tolist()
    assert sorted(seen) == [n for n, g in enumerate(batch.group_R.tolist()) if g in chosen]


def test_groups_stay_whole_where_they_fit() -> None:
    batch = make_batch(*SHAPE)
    first, second, third = batch.split(17)
    assert first.row_index_R.tolist() == [0, 1, 2, 3]
    assert second.row_index_R.tolist() == [4]
    assert third.row_index_R.tolist() == [5, 6]


def test_a_split_that_fits_is_the_batch_itself() -> None:
    batch = make_batch(*SHAPE)
    for layout in ("tree", "plain"):
        (part,) = batch.split(10**6, layout)
        assert part.batch is batch
        assert part.token_index_T.tolist() == list(range(29))


def test_selected_groups_come_in_the_order_asked_for() -> None:
    batch = make_batch(*SHAPE).select_groups([2, 0])
    whole = make_batch(*SHAPE)
    assert batch.num_groups == 2
    assert [fields_of(batch, row) for row in range(6)] == [
        fields_of(whole, row) for row in (5, 6, 0, 1, 2, 3)
    ]


def test_to_moves_all_but_the_prompts() -> None:
    batch = make_batch(*SHAPE)
    assert batch.to("cpu").device.type == "cpu"
    assert {prompt.device.type for prompt in batch.to("cpu").prompts} == {"cpu"}
