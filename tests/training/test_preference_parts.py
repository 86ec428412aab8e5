"""The parts of a preference run: rendering, schedule, mismatches, verdicts to pairs, reference table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from assay.config import DataConfig, PreferenceConfig
from assay.data.chat import PromptRenderer
from assay.data.pairs import Labelled, Pair, load_preferences
from assay.errors import DataError
from assay.host.clock import PhaseClock
from assay.learn.algorithms import PREFERENCES
from assay.model.packing import Batch
from assay.session.pairwise import verdicts_of
from assay.testing import CHAT_TEMPLATE, byte_tokenizer
from assay.training import preference_reference
from assay.training.preference_data import (
    Example,
    ExampleReader,
    chosen_pairs,
    examples_of_group,
    mismatched,
)
from assay.training.preference_evaluation import accuracy_error
from assay.training.preference_reference import ReferenceTable
from assay.training.row_schedule import BAD, GOOD, RowSchedule
from assay.types import Completion, Group, Problem, Prompt, Verdict
from assay.verify.learned.pairwise import Comparison

DPO, KTO = PREFERENCES["dpo"], PREFERENCES["kto"]
CPU = torch.device("cpu")


def renderer(template: str | None = None) -> PromptRenderer:
    return PromptRenderer(byte_tokenizer(template), DataConfig(), None)


def preferences(rows: Sequence[Any], on_bad_row: Any = "stop") -> Any:
    global ROWS
    ROWS = list(rows)
    return load_preferences(["test_preference_parts:ROWS"], on_bad_row=on_bad_row)


ROWS: list[Any] = []


def reader(row: Any = DPO, template: str | None = None, **settings: Any) -> ExampleReader:
    return ExampleReader(row, PreferenceConfig(), renderer(template), 0, **settings)


def text_of(tokens: np.ndarray) -> str:
    return byte_tokenizer().decode(tokens.tolist())


def test_a_pair_is_rendered_as_traces_are() -> None:
    examples = reader().render(preferences([Pair("p", "yes", "no")]))
    group = examples[0].group
    assert examples[0].verdicts == (GOOD, BAD)
    assert text_of(group.prompt.tokens) == "p\n"
    assert [text_of(one.tokens) for one in group.completions] == ["yes<|eos|>", "no<|eos|>"]


def test_a_chat_is_rendered_by_its_template() -> None:
    turns = ({"role": "user", "content": "q"},)
    (example,) = reader(template=CHAT_TEMPLATE).render(preferences([Pair(turns, "yes", "no")]))
    assert text_of(example.group.prompt.tokens) == "<|user|>q<|end|><|assistant|>"


def test_a_pair_is_two_examples_where_labels_are_learned_from() -> None:
    rows = [Pair("p", "yes", "no"), Labelled("q", "bad", False)]
    examples = reader(KTO).render(preferences(rows))
    assert [example.verdicts for example in examples] == [(GOOD,), (BAD,), (BAD,)]
    assert all(len(example.group.completions) == 1 for example in examples)


def test_what_does_not_fit_is_skipped_and_told() -> None:
    rows = [Pair("p", "yes", "no"), Pair("p", "y" * 50, "no"), Labelled("p", "c", True)]
    reads = reader(on_bad_row="skip", max_tokens=20)
    assert len(reads.render(preferences(rows))) == 1 and len(reads.skipped) == 2
    assert "1 chosen: found 53 tokens" in reads.skipped[0]
    assert "2 label: found a single completion" in reads.skipped[1]
    with pytest.raises(DataError, match=r"preference\.pairs: found no row that fits"):
        reader(on_bad_row="skip", max_tokens=20).render(preferences(rows[1:]))


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([0.3, 1.0, 2.0, 2.5]))
def test_every_example_once_a_pass(num: int, per_step: int, epochs: float) -> None:
    schedule = RowSchedule(num, epochs, 3, per_step)
    steps = [schedule.draw(step) for step in range(schedule.num_steps)]
    assert all(len(step) == per_step for step in steps[:-1]) and 0 < len(steps[-1]) <= per_step
    order = [n for step in steps for n in step]
    assert len(order) == max(1, round(epochs * num))
    for first in range(0, len(order) - num + 1, num):
        assert sorted(order[first : first + num]) == list(range(num))


def example(prompt: int, completion: int) -> Example:
    tokens = np.array([completion, 1], np.int32)
    nothing = np.zeros(2, np.float32)
    one = Completion(f"{completion}", "", tokens, nothing, sampled=np.ones(2, np.bool_))
    group = Group(Problem("p", "?"), Prompt("?", np.array([prompt], np.int32)), (one,))
    return Example(group, (GOOD,))


def test_mismatched_completions_are_those_of_the_next_prompt() -> None:
    groups = mismatched([example(n, 10 + n) for n in range(3)])
    assert [g.prompt.tokens.tolist() for g in groups] == [[0], [1], [2]]
    assert [g.completions[0].tokens[0] for g in groups] == [11, 12, 10]
    groups = mismatched([example(0, 10), example(0, 11), example(1, 12)])
    assert [g.completions[0].tokens[0] for g in groups] == [12, 12, 10], "its own prompt's are not"
    groups = mismatched([example(0, 10), example(0, 11)])
    assert [g.completions[0].tokens[0] for g in groups] == [11, 10]
    assert mismatched([example(0, 10)]) == []


def group_of(num: int) -> Group:
    members = tuple(example(0, 10 + n).group.completions[0] for n in range(num))
    return Group(Problem("p", "?"), Prompt("?", np.array([5], np.int32)), members)


def of_rewards(*rewards: float | None) -> list[Verdict]:
    return [
        Verdict.not_judged("timeout", "v@1")
        if reward is None
        else Verdict.of_score(float(reward >= 1), "v@1", reward=reward)
        for reward in rewards
    ]


def pairs(rewards: Sequence[float | None], **settings: Any) -> list[tuple[int, int]]:
    verdicts = of_rewards(*rewards)
    judged = [n for n, one in enumerate(verdicts) if one.judged]
    rng = np.random.default_rng(0)
    return chosen_pairs(verdicts, judged, PreferenceConfig(**settings), rng)


def test_pairs_join_the_best_with_the_worst() -> None:
    assert pairs([0.2, 1.5, 0.1, 1.0]) == [(1, 2)]
    assert pairs([0.2, 1.5, 0.1, 1.0], pairs_per_group=5) == [(1, 2), (3, 0)]
    assert pairs([1.0, 0.0, 0.0, 0.0], pairs_per_group=5) == [(0, 3)], "ties make no pair"
    assert pairs([0.5, 0.5]) == [] and pairs([1.0, None]) == [] and pairs([None, None]) == []
    assert pairs([None, 0.0, 1.0]) == [(2, 1)]


def test_right_against_wrong_at_random() -> None:
    rewards = [1.0, 0.0, 1.0, 0.5, 0.0, None]
    found = pairs(rewards, choose="random", pairs_per_group=5)
    assert len(found) == 2 and {best for best, _ in found} == {0, 2}
    assert {worst for _, worst in found} < {1, 3, 4}
    assert len({worst for _, worst in found}) == 2
    assert pairs([1.0, 1.0], choose="random") == []


def test_examples_of_a_judged_group() -> None:
    group, verdicts = group_of(4), of_rewards(0.0, 1.0, None, 0.0)
    rng = np.random.default_rng(0)
    (pair,) = examples_of_group(group, verdicts, DPO, PreferenceConfig(), rng)
    assert pair.group.completions == (group.completions[1], group.completions[3])
    (single,) = examples_of_group(group, verdicts, KTO, PreferenceConfig(), rng)
    assert single.verdicts == (BAD, GOOD, BAD)
    assert single.group.completions == tuple(group.completions[n] for n in (0, 1, 3))
    nothing = of_rewards(None, None, None, None)
    for row in (DPO, KTO):
        assert examples_of_group(group, nothing, row, PreferenceConfig(), rng) == []
    same = Group(group.problem, group.prompt, (group.completions[0],) * 2)
    assert examples_of_group(same, of_rewards(1.0, 0.0), DPO, PreferenceConfig(), rng) == []


class Scorer:
    """Counts what it is asked, and may die."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.calls: list[int] = []
        self.dies_at = dies_at

    def __call__(self, batch: Batch) -> Tensor:
        if len(self.calls) == self.dies_at:
            raise KeyboardInterrupt
        self.calls.append(batch.num_rows)
        sums = torch.zeros(batch.num_rows, dtype=torch.float64)
        sums.index_add_(0, batch.row_T, batch.tokens_T.double())
        return -sums - batch.num_rows / 7  # what is scored together matters in the last bits


def test_a_table_goes_on_with_the_same_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preference_reference, "GROUPS_AT_ONCE", 4)
    monkeypatch.setattr(preference_reference, "SECONDS_BETWEEN_SAVES", -1.0)
    groups = [example(n, 20 + n).group for n in range(11)] + [example(2, 22).group]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    assert ReferenceTable(whole).fill(groups, Scorer(), CPU, PhaseClock()) == 11
    with pytest.raises(KeyboardInterrupt):
        ReferenceTable(killed).fill(groups, Scorer(dies_at=2), CPU, PhaseClock())
    table, scorer = ReferenceTable(killed), Scorer()
    assert len(table) == 8
    assert table.fill(groups, scorer, CPU, PhaseClock()) == 3 and scorer.calls == [3]
    name = preference_reference.FILE
    assert (killed / name).read_bytes() == (whole / name).read_bytes()
    assert torch.equal(table.rows(groups, CPU), ReferenceTable(whole).rows(groups, CPU))
    (killed / name).write_bytes(b"cut short")
    assert len(ReferenceTable(killed)) == 0


def test_a_key_is_of_all_that_a_score_depends_on() -> None:
    table_of = preference_reference.keys_of
    keys = [table_of(example(*each).group)[0] for each in [(1, 2), (1, 3), (2, 2)]]
    assert len({*keys}) == 3
    assert table_of(example(1, 2).group) == keys[:1]


@pytest.mark.parametrize(
    ("outcomes", "scores"),
    [
        ({(0, 1): "first", (0, 2): "first", (1, 2): "second"}, [1.0, 0.0, 0.5]),
        ({(0, 1): "tie", (0, 2): "first", (1, 2): None}, [0.75, 0.5, 0.0]),
        ({(0, 1): None, (0, 2): None, (1, 2): "first"}, [None, 1.0, 0.0]),
    ],
)
def test_scores_of_comparisons(outcomes: Any, scores: list[float | None]) -> None:
    found = {
        pair: Comparison(
            "p", outcome, reason=None if outcome else "unavailable", detail="" if outcome else "off"
        )
        for pair, outcome in outcomes.items()
    }
    verdicts = verdicts_of(3, found)
    assert [one.score for one in verdicts] == scores
    assert all(one.detail == "off" for one in verdicts if not one.judged)


def test_errors_of_accuracies() -> None:
    assert accuracy_error(0.8, 25) == pytest.approx(math.sqrt(0.16 / 25))
    rng = np.random.default_rng(0)
    chosen, rejected = rng.normal(1, 1, (2000, 30)), rng.normal(0, 1, (2000, 20))
    areas = (chosen[:, :, None] > rejected[:, None]).mean((1, 2))
    assert accuracy_error(areas.mean(), 30, 20) == pytest.approx(areas.std(), rel=0.1)
