"""Texts that share their beginning score as they do alone, and the model's own head agrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import ModelError
from assay.model.layouts import Layout
from assay.model.score_batch import ScoredGroup, ScoredText, micro_batches, pack_scores
from assay.model.score_head import (
    Scores,
    choose_score_layout,
    padding_token,
    read_scores,
    score_head,
    with_score_head,
)
from assay.testing import CHAT_TEMPLATE, byte_tokenizer, tiny_model

Tokens = list[int]


def text(tokens: Tokens, places: Tokens | None = None) -> ScoredText:
    chosen = places or [len(tokens) - 1]
    return ScoredText(
        np.array(tokens, np.int32), np.array(chosen, np.int32), np.ones(len(chosen), np.float32)
    )


def groups_of(rng: np.random.Generator) -> list[ScoredGroup]:
    """Pairs that share much, little and nothing; one begins the other; scores inside what is shared."""
    start = rng.integers(0, 250, 9).tolist()

    def more(count: int) -> Tokens:
        return start + rng.integers(0, 250, count).tolist()

    whole = more(4)
    return [
        ScoredGroup((text(more(5)), text(more(8)))),
        ScoredGroup((text(rng.integers(0, 100, 3).tolist()), text(more(1)))),
        ScoredGroup((text(whole), text([*whole, 7, 8]))),
        ScoredGroup((text(whole, [2, 10, 12]), text([*whole, 9, 3], [5, 14]))),
        ScoredGroup((text([5]),)),
    ]


def alone(model: Any, group: ScoredGroup, by_token: bool) -> torch.Tensor:
    """Each text by itself through the model's own forward pass."""
    rows: list[torch.Tensor] = []
    for one in group.texts:
        tokens = torch.from_numpy(one.tokens.astype(np.int64))[None]
        for place in one.places.tolist():
            logits = model(input_ids=tokens[:, : place + 1], use_cache=False).logits
            rows.append(logits[0, -1] if by_token else logits[0])
    return torch.stack(rows)


@pytest.mark.parametrize("layout", ["tree", "plain"])
@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("scores", ["text", "token"])
def test_scores_and_gradients_are_those_of_texts_alone(
    layout: Layout, lean: bool, family: str, scores: Scores
) -> None:
    groups = groups_of(np.random.default_rng(0))
    model = with_score_head(tiny_model(family=family), scores, 2 if scores == "token" else 1, 0)
    model.config.pad_token_id = None
    found = read_scores(model, pack_scores(groups), layout, lean)
    expected = torch.cat([alone(model, group, scores == "token") for group in groups])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, found.numel()).view_as(found)
    by_pass: list[dict[str, torch.Tensor]] = []
    for scored in (found, expected):
        model.zero_grad()
        (scored * weights).sum().backward()
        by_pass.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert by_pass[0].keys() == by_pass[1].keys()
    for name, gradient in by_pass[0].items():
        torch.testing.assert_close(gradient, by_pass[1][name], rtol=2e-4, atol=2e-5)


def test_what_is_shared_is_fed_once() -> None:
    pair = ScoredGroup((text([1, 2, 3, 4, 5]), text([1, 2, 3, 9])))
    assert pair.num_shared == 3
    assert pair.num_tokens("tree") == 6 and pair.num_tokens("plain") == 9
    fed = pack_scores([pair]).inputs("tree").rectangles
    assert sum(one.tokens.numel() for one in fed) <= 3 + 2 * 2
    assert ScoredGroup((text([1, 2, 3], [0, 2]), text([1, 2, 4]))).num_shared == 1


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9),
    st.integers(1, 30),
)
def test_no_pair_is_divided_and_none_is_lost(sizes: list[tuple[int, int]], room: int) -> None:
    groups = [
        ScoredGroup((text([1, *[2] * a]), text([1, *[3] * b])), source=str(n))
        for n, (a, b) in enumerate(sizes)
    ]
    parts = list(micro_batches(groups, room, "tree"))
    assert [group.source for part in parts for group in part] == [str(n) for n in range(len(sizes))]
    for part in parts:
        assert len(part) == 1 or sum(group.num_tokens("tree") for group in part) <= room


def test_the_way_is_proved_on_the_loaded_model() -> None:
    groups = groups_of(np.random.default_rng(1))
    model = with_score_head(tiny_model(), "text", 1, 0)
    way = choose_score_layout(model, groups)
    assert (way.layout, way.lean) == ("tree", True)
    assert choose_score_layout(model, [groups[-1]]).layout == "plain", "nothing is shared"
    own = model.score.forward
    model.score.forward = lambda hidden: own(hidden) + 1.0
    with pytest.raises(ModelError, match="scores 1 from its own"):
        choose_score_layout(model, groups)


def test_places_are_checked() -> None:
    for places in ([3], [-1], [1, 1], []):
        with pytest.raises(ValueError, match="places"):
            ScoredText(
                np.arange(3, dtype=np.int32), np.array(places, np.int32), np.ones(1, np.float32)
            )
    with pytest.raises(ValueError, match="labels"):
        ScoredText(np.arange(3, dtype=np.int32), np.array([1], np.int32), np.ones(2, np.float32))


def test_a_fresh_head_is_the_seeds_and_the_layers_are_the_models() -> None:
    causal = tiny_model()
    first, second = (with_score_head(causal, "text", 1, seed) for seed in (0, 1))
    again = with_score_head(causal, "text", 1, 0)
    assert first.model is causal.model
    assert torch.equal(score_head(first).weight, score_head(again).weight)
    assert not torch.equal(score_head(first).weight, score_head(second).weight)
    wide = with_score_head(tiny_model(hidden_size=512, num_layers=1), "text", 1, 0)
    assert score_head(wide).weight.std().item() == pytest.approx(513**-0.5, rel=0.1)
    assert first.config.architectures == ["LlamaForSequenceClassification"]
    assert not any(parameter.is_meta for parameter in first.parameters())


def test_padding_ends_no_text() -> None:
    plain, chat = byte_tokenizer(), byte_tokenizer(CHAT_TEMPLATE)
    assert padding_token(plain) == 258
    chat.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    chat.pad_token = "<|end|>"
    token = padding_token(chat)
    assert token is not None and token != chat.pad_token_id
