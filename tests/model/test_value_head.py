"""Values come from the states in which tokens were chosen, and a critic's model saves as what it is."""

from pathlib import Path
from typing import Any

import pytest
import torch
from model_batches import make_batch
from torch import Tensor

from assay.config import LoraConfig
from assay.errors import ModelError, RunError
from assay.model.decoder import hidden_states, module_hidden_states
from assay.model.family import Decoder
from assay.model.load import add_adapter, save_model
from assay.model.packing import Batch
from assay.model.value_head import ValueHead, ValueModel
from assay.testing import byte_tokenizer, save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def a_batch() -> Batch:
    return make_batch([3, 5], [[4, 2], [3, 6]])


def drawn(head: ValueHead, seed: int = 0) -> ValueHead:
    """The head with weights drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        head.weight.normal_(generator=generator)
        head.bias.normal_(generator=generator)
    return head


def slow_values(model: Any, head: ValueHead, batch: Batch) -> Tensor:
    """One completion at a time, by the model's own forward pass and its last normed hidden state."""
    found: list[Tensor] = []
    for row in range(batch.num_rows):
        completion = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        tokens = torch.cat([prompt, completion])[None]
        states = model(input_ids=tokens, output_hidden_states=True).hidden_states[-1][0]
        found += [
            states[t - 1].float() @ head.weight + head.bias
            for t in range(len(prompt), len(tokens[0]))
        ]
    return torch.cat(found)


@pytest.mark.parametrize("layout", ["tree", "plain"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_a_copy_values_the_states_that_its_policy_sees(family: str, layout: Any) -> None:
    policy = tiny_model(family=family, hidden_size=16)
    model, batch = ValueModel.of_policy(policy), a_batch()
    assert not model.head(torch.randn(3, 16)).any()
    head = drawn(model.head)
    (micro_batch,) = batch.split(10_000, layout)
    inputs = micro_batch.inputs(layout)
    with torch.no_grad():
        values_T = head(hidden_states(model.backbone, inputs))
        torch.testing.assert_close(values_T, slow_values(policy, head, batch))
        assert values_T.std() > 0
        if family != "gpt2":
            Decoder.of(model.backbone)  # the lean path is what was taken
        torch.testing.assert_close(values_T, head(module_hidden_states(model.backbone, inputs)))


def test_a_copy_shares_nothing_with_its_policy() -> None:
    policy = tiny_model(hidden_size=16)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    model = ValueModel.of_policy(policy)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"head.weight", "head.bias"} < trained
    assert not any("score" in name for name in trained)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[n]) for n, tensor in policy.state_dict().items())


def test_adapters_are_merged_into_a_copy() -> None:
    pytest.importorskip("peft")
    policy: Any = add_adapter(tiny_model(hidden_size=16), LoraConfig(rank=2), seed=0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    model = ValueModel.of_policy(policy)
    assert all(torch.equal(tensor, before[n]) for n, tensor in policy.state_dict().items())
    assert not any("lora" in name for name, _ in model.named_parameters())
    (micro_batch,) = a_batch().split(10_000, "plain")
    with torch.no_grad():
        own = hidden_states(model.backbone, micro_batch.plain_inputs)
        torch.testing.assert_close(own, hidden_states(policy, micro_batch.plain_inputs))
    assert all(p.requires_grad for name, p in model.named_parameters() if "score" not in name)


def test_a_bf16_copy_has_a_float32_head() -> None:
    policy: Any = tiny_model(hidden_size=16)
    model = ValueModel.of_policy(policy.to(torch.bfloat16))
    assert {p.dtype for p in model.backbone.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.head.parameters()} == {torch.float32}
    assert model.head(torch.ones(2, 16, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_saved_copy_is_a_model_that_scores_tokens(tmp_path: Path) -> None:
    from transformers import AutoModelForTokenClassification

    model, batch = ValueModel.of_policy(tiny_model(hidden_size=16)), a_batch()
    drawn(model.head)
    model.write_score()
    save_model(model.backbone, byte_tokenizer(), tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path).eval()
    prompt = batch.prompts[0]
    row = torch.cat([prompt, batch.tokens_T[batch.row_T == 0]])[None]
    with torch.no_grad():
        scores = loaded(input_ids=row).logits[0, len(prompt) - 1 : -1, 0]
        (micro_batch,) = batch.split(10_000, "plain")
        values_T = model.head(hidden_states(model.backbone, micro_batch.plain_inputs))
    torch.testing.assert_close(values_T[batch.row_T == 0], scores)
    again = ValueModel.load(str(tmp_path), torch.float32, torch.device("cpu"), byte_tokenizer())
    want = dict(model.state_dict())
    assert all(torch.equal(tensor, want[name]) for name, tensor in again.state_dict().items())


def test_a_reward_model_brings_its_head(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    save_tiny_model(tmp_path / "base")
    config = AutoConfig.from_pretrained(tmp_path / "base", num_labels=1)
    with torch.random.fork_rng(devices=[]):
        scorer: Any = AutoModelForSequenceClassification.from_config(config)
    save_model(scorer, byte_tokenizer(), tmp_path / "rm")
    model = ValueModel.load(
        str(tmp_path / "rm"), torch.float32, torch.device("cpu"), byte_tokenizer()
    )
    assert torch.equal(model.head.weight, scorer.score.weight[0])
    assert not model.head.bias.any()
    assert torch.equal(model.backbone.model.embed_tokens.weight, scorer.model.embed_tokens.weight)
    assert model.head.weight.requires_grad and not model.backbone.score.weight.requires_grad


def test_a_causal_model_brings_none(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    model = ValueModel.load(str(tmp_path), torch.bfloat16, torch.device("cpu"), byte_tokenizer())
    assert not model.head.weight.any()
    assert model.backbone.model.norm.weight.dtype == torch.bfloat16


def test_an_unsuitable_critic_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "base")
    device, own = torch.device("cpu"), byte_tokenizer()
    with pytest.raises(ModelError, match=r"critic\.path .*nowhere"):
        ValueModel.load(str(tmp_path / "nowhere" / "x" / "y"), torch.float32, device, own)
    own.add_tokens(["<|more|>"])
    with pytest.raises(ModelError, match="another tokenizer"):
        ValueModel.load(str(tmp_path / "base"), torch.float32, device, own)


def test_a_head_is_restored_to_the_bit(tmp_path: Path) -> None:
    head = drawn(ValueHead(5))
    head.save(tmp_path / "critic")
    other = ValueHead(5)
    other.load(tmp_path / "critic")
    assert torch.equal(other.weight, head.weight) and torch.equal(other.bias, head.bias)
    with pytest.raises(RunError, match="the value head of an earlier save, 6 wide"):
        ValueHead(6).load(tmp_path / "critic")
    with pytest.raises(RunError, match=r"value_head\.safetensors"):
        ValueHead(5).load(tmp_path)
