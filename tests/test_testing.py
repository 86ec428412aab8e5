"""The public fakes do what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay.config import SamplingConfig
from assay.model.weights import Weights
from assay.testing import (
    CHAT_TEMPLATE,
    ScriptedGenerator,
    byte_tokenizer,
    save_tiny_model,
    tiny_model,
)
from assay.types import Problem, ThinkFormat

TOKENIZER = byte_tokenizer()


@given(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: "<|" not in text))
def test_tokens_are_bytes(text: str) -> None:
    tokens = TOKENIZER(text).input_ids
    assert tokens == list(text.encode())
    assert TOKENIZER.decode(tokens, clean_up_tokenization_spaces=False) == text


def test_special_tokens_follow_the_bytes() -> None:
    ids = (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id)
    assert ids == (256, 257, 258)
    assert len(TOKENIZER) == 259


def test_the_chat_template_renders_turns() -> None:
    tokenizer = byte_tokenizer(CHAT_TEMPLATE)
    turns = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>hi<|end|><|assistant|>"


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_a_tiny_model_repeats_by_seed(family: str) -> None:
    tokens_RL = torch.tensor([[72, 105, 33]])
    random_before = torch.random.get_rng_state()
    first, again, other = (tiny_model(seed=seed, family=family) for seed in (0, 0, 1))
    assert torch.equal(random_before, torch.random.get_rng_state())
    with torch.no_grad():
        logits, same, different = (model(tokens_RL).logits for model in (first, again, other))
    assert torch.equal(logits, same)
    assert not torch.equal(logits, different)
    assert logits.dtype == torch.float32 and not first.training
    assert first.config.eos_token_id == TOKENIZER.eos_token_id


def test_a_saved_tiny_model_loads_as_any_model(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", CHAT_TEMPLATE, seed=3)
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == CHAT_TEMPLATE
    tokens_RL = torch.tensor([tokenizer("Hi!").input_ids])
    with torch.no_grad():
        assert torch.equal(model(tokens_RL).logits, tiny_model(seed=3)(tokens_RL).logits)


def test_scripted_groups() -> None:
    think = ThinkFormat("opened")
    generator = ScriptedGenerator(lambda p, n: f"{p.id}{n}</think> {n}", think=think)
    problems = [Problem("a", "1+1"), Problem("b", "2+2", draw=1)]
    groups = generator.generate(problems, SamplingConfig(), group_size=3)
    assert [group.id for group in groups] == ["a#0", "b#1"]
    last = groups[1].completions[2]
    assert last.id == "b#1/2"
    assert last.reasoning_text == "b2" and last.answer_text == " 2"
    assert bytes(last.tokens.tolist()).decode() == last.text
    assert len(last.tokens) == len(last.behavior_logprobs) == len(last.sampled)
    assert bytes(groups[0].prompt.tokens.tolist()) == b"1+1"


def test_scripted_policy_version() -> None:
    generator = ScriptedGenerator(lambda problem, sibling: "")
    generator.load_policy(Weights(7, {}))
    [group] = generator.generate([Problem("a", "q")], SamplingConfig(), group_size=1)
    assert group.completions[0].policy_version == 7
    assert len(group.completions[0].tokens) == 1  # an empty text still has a token to learn from
