"""The engine against Transformers' `generate` and plain passes; endings, limits, refills, errors."""

import numpy as np
import pytest
import torch
from generate_fakes import (
    GREEDY,
    bits_of,
    completions_of,
    engine_of,
    greedy_tokens,
    plain_logprobs,
    problem_of,
)

from assay.config import EngineConfig, SamplingConfig
from assay.errors import DataError, ModelError, OutOfMemory
from assay.generate.engine_stats import EngineStats
from assay.generate.sampler import truncate
from assay.model.weights import Weights
from assay.testing import tiny_model
from assay.types import Group, Problem

FAMILIES = ["llama", "qwen2", "qwen3", "gpt2"]
LENGTHS = [1, 5, 33, 63, 64, 65, 130]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_transformers(family: str) -> None:
    model = tiny_model(family=family)
    engine = engine_of(model)
    for group in engine.generate([problem_of(n) for n in LENGTHS], GREEDY, 1):
        expected = greedy_tokens(model, group, GREEDY.max_tokens)
        assert group.completions[0].tokens.tolist() == expected


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(max_tokens=40),
        SamplingConfig(max_tokens=40, temperature=0.6),
        SamplingConfig(max_tokens=40, temperature=1.3, top_k=20, top_p=0.8, min_p=0.05),
    ],
    ids=["plain", "tempered", "truncated"],
)
def test_logprobs_are_those_of_a_plain_pass(family: str, sampling: SamplingConfig) -> None:
    model = tiny_model(family=family)
    for group in engine_of(model).generate([problem_of(n) for n in LENGTHS], sampling, 3):
        for completion in group.completions:
            plain_LV = plain_logprobs(model, group, completion)
            picked = np.arange(len(completion.tokens)), completion.tokens
            expected = plain_LV.numpy()[picked]
            assert np.abs(completion.model_logprobs - expected).max() < 1e-4
            tempered_LV = (plain_LV / sampling.temperature).log_softmax(-1)
            if sampling.truncates:
                tempered_LV = truncate(tempered_LV, sampling)
            expected = tempered_LV.numpy()[picked]
            assert np.abs(completion.behavior_logprobs - expected).max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_close_to_a_plain_pass(family: str) -> None:
    model = tiny_model(family=family).to(torch.bfloat16)
    differences = []
    for group in engine_of(model).generate(
        [problem_of(n) for n in LENGTHS], SamplingConfig(max_tokens=40), 4
    ):
        for completion in group.completions:
            plain_LV = plain_logprobs(model, group, completion).numpy()
            expected = plain_LV[np.arange(len(completion.tokens)), completion.tokens]
            differences.append(np.abs(completion.model_logprobs - expected))
    difference = np.concatenate(differences)
    assert difference.mean() <= 0.05
    assert np.quantile(difference, 0.99) <= 0.25


def test_a_prompt_is_prefilled_once_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    forward = engine._choice.forward
    prefilled: list[int] = []
    original = forward.prefill

    def counting(tokens_L: torch.Tensor, known: int) -> torch.Tensor:
        prefilled.append(len(tokens_L))
        return original(tokens_L, known)

    monkeypatch.setattr(forward, "prefill", counting)
    list(engine.generate([problem_of(9), problem_of(10)], SamplingConfig(max_tokens=5), 11))
    assert prefilled == [9, 10]  # 22 completions through 8 slots
    assert engine.stats.prompt_tokens == 19


def test_a_group_can_be_sampled_on() -> None:
    engine, sampling = engine_of(), SamplingConfig(max_tokens=6)
    (whole,) = engine.generate([problem_of(9)], sampling, 5)
    (rest,) = engine.generate([problem_of(9)], sampling, 3, first_sibling=2)
    assert [one.id for one in rest.completions] == [one.id for one in whole.completions[2:]]
    for one, other in zip(rest.completions, whole.completions[2:], strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.behavior_logprobs, other.behavior_logprobs)


def test_slots_are_refilled_as_soon_as_a_completion_ends() -> None:
    engine = engine_of(eos_ids=range(0, 259, 8))  # ends early and unevenly
    groups = list(engine.generate([problem_of(5)], SamplingConfig(max_tokens=30), 64))
    lengths = [len(c.tokens) for c in groups[0].completions]
    in_waves = sum(max(lengths[n : n + 8]) for n in range(0, 64, 8))
    assert engine.stats.num_steps < 0.75 * in_waves
    assert engine.stats.tokens == sum(lengths)
    assert engine.stats.num_completions == 64


def test_groups_arrive_as_they_finish_and_are_returned_in_order() -> None:
    engine = engine_of(eos_ids=range(0, 259, 16))
    problems = [problem_of(n) for n in range(3, 20)]
    arrived: list[Group] = []
    groups = engine.generate(problems, SamplingConfig(max_tokens=60), 2, on_group=arrived.append)
    assert [group.problem for group in groups] == problems
    assert {*arrived} == {*groups} and arrived != groups


def test_names_marks_and_reasons() -> None:
    engine = engine_of(eos_ids=range(0, 259, 16), policy_version=7)
    problem = Problem("a/b", "hello", draw=3)
    (group,) = engine.generate([problem], SamplingConfig(max_tokens=12), 20)
    assert [c.id for c in group.completions] == [f"a/b#3/{n}" for n in range(20)]
    reasons = {c.finish_reason for c in group.completions}
    assert reasons == {"eos", "length"}
    for completion in group.completions:
        assert completion.policy_version == 7
        assert completion.sampled.all() and len(completion.sampled) == len(completion.tokens)
        assert completion.tokens.dtype == np.int32
        ended = completion.tokens[-1] % 16 == 0
        assert (completion.finish_reason == "eos") == ended
        assert not any(token % 16 == 0 for token in completion.tokens[:-1])
        assert completion.truncated == (not ended) and (ended or len(completion.tokens) == 12)
        text = engine.tokenizer.decode(completion.tokens[:-1] if ended else completion.tokens)
        assert completion.text == text


def test_a_model_without_eos_ends_at_the_limit_and_at_its_context() -> None:
    engine = engine_of(tiny_model(max_positions=64, eos_token_id=None), eos_ids=())
    short, long = engine.generate(
        [problem_of(10), problem_of(50)], SamplingConfig(max_tokens=20), 2
    )
    assert {len(c.tokens) for c in short.completions} == {20}
    assert {len(c.tokens) for c in long.completions} == {14}
    assert {c.finish_reason for c in long.completions} == {"length"}


@pytest.mark.parametrize("length", [64, 65, 200])
def test_a_prompt_without_room_is_an_error_that_names_its_row(length: int) -> None:
    engine = engine_of(tiny_model(max_positions=64))
    problem = Problem("x", "a" * length, source="rows.jsonl:12")
    with pytest.raises(DataError, match=rf"rows.jsonl:12: found a prompt of {length} tokens"):
        list(engine.generate([problem], GREEDY, 1))


def test_an_empty_prompt_is_an_error() -> None:
    with pytest.raises(DataError, match="no tokens"):
        list(engine_of().generate([Problem("x", "")], GREEDY, 1))


def test_no_problems_give_no_groups() -> None:
    assert list(engine_of().generate([], GREEDY, 4)) == []


def test_memory_bounds_the_slots_and_then_refuses() -> None:
    sampling = SamplingConfig(max_tokens=54)  # with 10 tokens of prompt: one block
    block_mib = (
        64 * 2 * 2 * 2 * 8 * 4 / 2**20
    )  # tokens, layers, keys and values, heads, width, bytes

    def used(max_kv_mib: float) -> int:
        engine = engine_of(settings=EngineConfig(num_slots=32, max_kv_mib=max_kv_mib))

        def look(group: Group) -> None:
            assert len(group.completions) == 40
            layers = engine._choice.forward.cache._layers
            held = sum(t.numel() * t.element_size() for pair in layers.values() for t in pair)
            assert 0 < held <= max_kv_mib * 2**20

        engine.generate([problem_of(10)], sampling, 40, on_group=look)
        return engine.stats.num_slots

    assert used(block_mib * 33.5) == 32
    assert used(block_mib * 20.5) == 16
    assert used(block_mib * 4.5) == 3
    with pytest.raises(OutOfMemory, match=r"engine\.max_kv_mib"):
        used(block_mib * 1.5)


def test_the_live_weights_are_used_and_can_be_trained_between_calls() -> None:
    for family in ("llama", "gpt2"):
        model = tiny_model(family=family)
        engine = engine_of(model)
        problems = [problem_of(12)]
        before = completions_of(list(engine.generate(problems, GREEDY, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        tokens = torch.randint(0, 256, (2, 30))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        engine.load_policy(Weights.of(model, 5))
        (group,) = engine.generate(problems, GREEDY, 1)
        after = group.completions[0]
        assert after.policy_version == 5
        assert bits_of(after) != bits_of(before["p12#0/0"])
        expected = plain_logprobs(model, group, after).argmax(-1)
        assert after.tokens.tolist() == expected.tolist()


def test_parameters_that_were_replaced_are_seen() -> None:
    model = tiny_model()
    engine = engine_of(model)
    list(engine.generate([problem_of(12)], GREEDY, 1))
    other = tiny_model(seed=1)
    for parameter, new in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = new.data.clone()
    model.lm_head.weight = model.model.embed_tokens.weight = torch.nn.Parameter(
        other.lm_head.weight.detach().clone()
    )
    (group,) = engine.generate([problem_of(12)], GREEDY, 1)
    (expected,) = engine_of(other).generate([problem_of(12)], GREEDY, 1)
    assert bits_of(group.completions[0]) == bits_of(expected.completions[0])


def test_a_model_cast_in_place_is_noticed() -> None:
    model = tiny_model()
    engine = engine_of(model)
    list(engine.generate([problem_of(12)], GREEDY, 1))
    model.to(torch.bfloat16)
    (group,) = engine.generate([problem_of(12)], GREEDY, 1)
    (expected,) = engine_of(model).generate([problem_of(12)], GREEDY, 1)
    assert bits_of(group.completions[0]) == bits_of(expected.completions[0])


def test_weights_of_another_module_are_copied() -> None:
    other = tiny_model(seed=1)
    engine = engine_of(tiny_model())
    list(engine.generate([problem_of(12)], GREEDY, 1))
    engine.load_policy(Weights.of(other, 3).sealed())
    (found,) = engine.generate([problem_of(12)], GREEDY, 1)
    (expected,) = engine_of(other).generate([problem_of(12)], GREEDY, 1)
    assert engine.policy_version == 3
    assert bits_of(found.completions[0]) == bits_of(expected.completions[0])


def test_whoever_takes_a_group_has_gradients() -> None:
    def look(group: Group) -> None:
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()

    problems = [problem_of(n) for n in range(3, 20)]
    engine_of().generate(problems, SamplingConfig(max_tokens=8), 2, on_group=look)


def test_weights_that_diverged_are_an_error() -> None:
    model = tiny_model()
    engine = engine_of(model)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="diverged"):
        list(engine.generate([problem_of(4)], SamplingConfig(max_tokens=4), 1))


def test_a_watch_is_told_of_every_step() -> None:
    engine = engine_of(settings=EngineConfig(num_slots=4))
    told: list[tuple[int, int, int]] = []

    def watch(stats: EngineStats) -> None:
        told.append((stats.num_wanted, stats.num_completions, stats.tokens))

    engine.watch = watch
    groups = list(engine.generate([problem_of(5), problem_of(6)], SamplingConfig(max_tokens=6), 3))
    lengths = [len(one.tokens) for group in groups for one in group.completions]
    assert told[0] == (6, 0, 4), "tokens of unfinished completions count"
    assert told[-1] == (6, 6, sum(lengths)) == (6, 6, engine.stats.tokens)
    assert len(told) == engine.stats.num_steps and told == sorted(told)
