import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from learn_batches import make_batch
from torch import Tensor, nn

import assay.learn.update as update_module
from assay.config import OptimizerConfig
from assay.errors import OutOfMemory
from assay.learn.advantages import compute_advantages, loss_mask
from assay.learn.algorithms import Algorithm, algorithm
from assay.learn.losses import policy_loss, token_weights
from assay.learn.optimizer import StepReport
from assay.learn.update import Learner, Update
from assay.model.packing import Batch
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB = 16
RATE = OptimizerConfig(learning_rate=1e-3)


def a_model(seed: int = 0) -> Any:
    return tiny_model(vocab_size=VOCAB, seed=seed, hidden_size=16, eos_token_id=None)


def a_batch(seed: int = 0) -> Batch:
    return make_batch(
        [[1.0, 0.0, 0.0, 1.0], [0.5, None, 0.0], [1.0, 1.0], [1.0, None], [0.0, 1.0, 0.25]],
        seed=seed,
        truncated=[(0, 1)],
        unsampled=[(0, 0, 0)],
        num_think=2,
        vocab_size=VOCAB,
    )


def a_learner(row: Algorithm, model: Any = None, **settings: Any) -> Learner:
    settings = {"total_steps": 100, "layout": "plain", **settings}
    return Learner(model or a_model(), row, settings.pop("optimizer", RATE), **settings)


def learn(learner: Learner, batch: Batch) -> Update:
    batch = learner.score(batch)
    return learner.update(batch, compute_advantages(batch, learner.algorithm))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def collect_gradients(learner: Learner, batch: Batch) -> list[dict[str, Tensor]]:
    """The gradient of each optimizer step, none of which is taken."""
    collected: list[dict[str, Tensor]] = []

    def step() -> StepReport:
        masters = learner.optimizer.masters
        collected.append({n: m.grad.clone() for n, m in masters.items() if m.grad is not None})
        learner.optimizer.zero_grad()
        return StepReport(0.0, 0.0, skipped=True)

    learner.optimizer.step = step  # type: ignore[method-assign]
    learn(learner, batch)
    return collected


def plain_logprobs(model: Any, batch: Batch, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy of each token, one completion at a time."""
    logprobs: list[Tensor] = []
    entropies: list[Tensor] = []
    for row in range(batch.num_rows):
        completion = batch.tokens_T[batch.row_T == row]
        prompt = batch.prompts[int(batch.group_R[row])]
        logits = model(input_ids=torch.cat([prompt, completion])[None]).logits[0] / temperature
        all_logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1)
        logprobs.append(all_logprobs.gather(1, completion[:, None])[:, 0])
        entropies.append(-(all_logprobs.exp() * all_logprobs).sum(-1))
    return torch.cat(logprobs), torch.cat(entropies)


def plain_gradient(model: Any, reference: Any, batch: Batch, row: Algorithm) -> dict[str, Tensor]:
    """The whole batch at once, nothing passed over."""
    logprobs_T, entropy_T = plain_logprobs(model, batch, temperature=0.7)
    with torch.no_grad():
        ref_T, _ = plain_logprobs(reference, batch, temperature=0.7)
    filled = replace(batch, old_logprobs_T=logprobs_T.detach(), ref_logprobs_T=ref_T)
    constant = row.constant_length() if row.aggregation == "constant_length" else 1.0
    weights_T = token_weights(
        loss_mask(batch, row), batch.row_T, batch.num_rows, row.aggregation, constant
    )
    parts = policy_loss(
        logprobs_T,
        logprobs_T.detach(),
        compute_advantages(filled, row),
        weights_T,
        row,
        ref_logprobs_T=ref_T,
        entropy_T=entropy_T,
    )
    parts.loss.backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor], **tolerance: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **tolerance)


ROWS = {
    "grpo": algorithm("grpo"),
    "dr_grpo": algorithm("dr_grpo", max_tokens=9),
    "dapo": algorithm("dapo", max_tokens=9),
    "rloo": algorithm("rloo"),
    "rloo, KL in the reward": algorithm("rloo", kl_weight=0.1),
    "grpo, entropy bonus": algorithm("grpo", kl_weight=0.0, entropy_weight=0.1),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("layout", ["plain", "tree"])
def test_gradient_equals_the_plain_one(name: str, layout: str) -> None:
    row, batch = ROWS[name], a_batch()
    learner = a_learner(row, layout=layout, temperature=0.7, keep_reference=True)
    with torch.no_grad():  # away from the reference
        for parameter in learner.policy.parameters():
            parameter.add_(0.01)
    model = a_model()
    model.load_state_dict(learner.policy.state_dict())
    [got] = collect_gradients(learner, batch)
    want = plain_gradient(model, a_model(), batch, row)
    assert_same(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("max_tokens", [1, 9, 20, 60])
def test_any_split_into_micro_batches_gives_the_same_gradient(name: str, max_tokens: int) -> None:
    batch = a_batch()
    [whole] = collect_gradients(a_learner(ROWS[name]), batch)
    parts = a_learner(ROWS[name], max_tokens_per_micro_batch=max_tokens)
    [split] = collect_gradients(parts, batch)
    assert_same(split, whole, rtol=1e-5, atol=1e-7)


def test_an_update_is_repeatable_to_the_bit() -> None:
    results = []
    for _ in range(2):
        learner = a_learner(algorithm("grpo"), epochs=2, num_minibatches=2)
        update = learn(learner, a_batch())
        results.append((weights(learner.policy), update.metrics))
    assert_same(results[0][0], results[1][0], rtol=0, atol=0)
    assert results[0][1] == results[1][1]


def test_first_pass_stands_in_for_scoring() -> None:
    row, batch = algorithm("dr_grpo", max_tokens=9), a_batch()
    learner = a_learner(row)
    assert learner.score(batch) is batch  # no forward pass at all
    before, _ = plain_logprobs(learner.policy, batch)
    update = learn(learner, batch)
    assert update.batch is not None
    torch.testing.assert_close(update.batch.old_logprobs_T, before.detach())
    assert update.metrics["ratio/mean"] == update.metrics["ratio/max"] == 1.0
    assert update.metrics["loss/clip_fraction"] == 0.0


def test_several_minibatches_and_a_kl_in_the_reward_score_first() -> None:
    batch = a_batch()
    for learner in (
        a_learner(algorithm("rloo"), num_minibatches=2),
        a_learner(algorithm("rloo", kl_weight=0.1)),
    ):
        before, _ = plain_logprobs(learner.policy, batch)
        torch.testing.assert_close(learner.score(batch).old_logprobs_T, before.detach())


@pytest.mark.parametrize("num_minibatches", [1, 2])
def test_epochs_hold_on_to_the_old_logprobs(num_minibatches: int) -> None:
    """From the second pass on the ratio moves, and it is measured from where the update began."""
    batch = a_batch()
    learner = a_learner(
        algorithm("dapo", max_tokens=9),
        epochs=3,
        num_minibatches=num_minibatches,
        optimizer=OptimizerConfig(learning_rate=0.01),
    )
    before, _ = plain_logprobs(learner.policy, batch)
    update = learn(learner, batch)
    assert update.batch is not None
    torch.testing.assert_close(update.batch.old_logprobs_T, before.detach())
    assert update.metrics["ratio/max"] > 1.05 and update.metrics["ratio/min"] < 0.95
    assert update.metrics["loss/clip_fraction"] > 0
    assert update.policy_version == learner.policy_version == 3 * num_minibatches


def test_second_epoch_by_hand() -> None:
    batch, row = a_batch(), algorithm("grpo", kl_weight=0.0)
    learner = a_learner(row, epochs=2)
    update = learn(learner, batch)
    model, advantages_T = a_model(), compute_advantages(batch, row)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    weights_T = token_weights(loss_mask(batch, row), batch.row_T, batch.num_rows, row.aggregation)
    old_T = plain_logprobs(model, batch)[0].detach()
    for _ in range(2):
        logprobs_T, _ = plain_logprobs(model, batch)
        policy_loss(logprobs_T, old_T, advantages_T, weights_T, row).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
    assert_same(weights(learner.policy), weights(model), rtol=1e-3, atol=1e-5)
    assert update.metrics["optimizer/steps"] == 2


def test_minibatches_share_out_the_groups_and_normalize_on_their_own() -> None:
    batch = make_batch([[1.0, 0.0]] * 6, vocab_size=VOCAB)
    learner = a_learner(algorithm("grpo", kl_weight=0.0), num_minibatches=3, seed=5)
    shares = [groups for _, groups in learner._minibatches(batch.num_groups)]
    assert sorted(group for share in shares for group in share) == list(range(6))
    assert shares != [[0, 1], [2, 3], [4, 5]]  # shuffled
    gradients = collect_gradients(learner, batch)
    assert len(gradients) == 3
    for share, gradient in zip(shares, gradients, strict=True):
        [alone] = collect_gradients(
            a_learner(algorithm("grpo", kl_weight=0.0)), batch.select_groups(sorted(share))
        )
        assert_same(gradient, alone, rtol=1e-4, atol=1e-6)


def test_more_minibatches_than_groups() -> None:
    learner = a_learner(algorithm("rloo"), num_minibatches=9)
    assert learn(learner, make_batch([[1.0, 0.0]] * 2, vocab_size=VOCAB)).policy_version == 2


def test_groups_without_gradient_get_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rewards, and one judged sibling: measured, not learned from."""
    batch = make_batch([[1.0, 0.0], [1.0, 1.0], [0.0, None]], vocab_size=VOCAB)
    seen: list[tuple[int, bool]] = []
    original = update_module.token_logprobs

    def spy(model: Any, micro_batch: Any, **settings: Any) -> Any:
        seen.append((micro_batch.batch.num_groups, torch.is_grad_enabled()))
        return original(model, micro_batch, **settings)

    monkeypatch.setattr(update_module, "token_logprobs", spy)
    update = learn(a_learner(algorithm("rloo"), epochs=2), batch)
    assert seen == [(2, False), (1, True), (1, True)]
    assert update.batch is not None and update.batch.old_logprobs_T is not None
    assert (update.batch.old_logprobs_T != 0).all()
    seen.clear()
    learn(a_learner(algorithm("grpo")), batch)  # the KL gives equal rewards a gradient too
    assert [one for one in seen if one[1]] == [(2, True)]


def test_a_batch_without_gradient_takes_no_step() -> None:
    learner = a_learner(algorithm("rloo"))
    learn(learner, a_batch())  # so that momentum could move the weights
    before = weights(learner.policy)
    update = learn(learner, make_batch([[1.0, 1.0], [0.0, None], [None, None]], vocab_size=VOCAB))
    assert update.policy_version == 1
    assert update.metrics["optimizer/steps"] == update.metrics["optimizer/skipped"] == 0
    assert update.metrics["loss/token_share"] == 0
    assert_same(before, weights(learner.policy), rtol=0, atol=0)


def test_an_empty_batch_takes_no_step() -> None:
    update = learn(a_learner(algorithm("grpo")), make_batch([]))
    assert update.policy_version == 0 and update.metrics["tokens/trained"] == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_counted() -> None:
    learner = a_learner(algorithm("rloo"))
    before = weights(learner.policy)
    batch = a_batch()
    advantages_T = compute_advantages(batch, learner.algorithm)
    advantages_T[loss_mask(batch, learner.algorithm)] = float("nan")
    update = learner.update(batch, advantages_T)
    assert update.metrics["optimizer/skipped"] == 1 and update.policy_version == 0
    assert_same(before, weights(learner.policy), rtol=0, atol=0)


def test_reference_is_the_starting_policy() -> None:
    learner = a_learner(algorithm("grpo"), optimizer=OptimizerConfig(learning_rate=0.01))
    first, second = learn(learner, a_batch()), learn(learner, a_batch(seed=1))
    assert first.metrics["kl/mean"] == pytest.approx(0.0, abs=1e-9)
    assert second.metrics["kl/mean"] > 1e-6
    reference_T, _ = plain_logprobs(a_model(), a_batch(seed=1))
    assert second.batch is not None and second.batch.ref_logprobs_T is not None
    torch.testing.assert_close(second.batch.ref_logprobs_T, reference_T.detach())
    assert all(not p.requires_grad for p in learner.reference._model.parameters())  # type: ignore[union-attr]


def test_no_reference_where_no_kl_is_asked_for() -> None:
    learner = a_learner(algorithm("rloo"))
    assert learner.reference is None
    assert not any(key.startswith("kl/") for key in learn(learner, a_batch()).metrics)
    watching = a_learner(algorithm("rloo"), keep_reference=True)
    assert learn(watching, a_batch()).metrics["kl/mean"] == pytest.approx(0.0, abs=1e-9)


def test_kl_is_split_into_think_and_answer() -> None:
    batch = a_batch()
    learner = a_learner(algorithm("rloo"), keep_reference=True)
    with torch.no_grad():
        for parameter in learner.policy.parameters():
            parameter.add_(0.05)
    metrics = learn(learner, batch).metrics
    now_T, _ = plain_logprobs(learner.policy, batch)
    num_think = int((batch.think_T & batch.sampled_T).sum())
    num_answer = int((~batch.think_T & batch.sampled_T).sum())
    assert num_think and num_answer and len(now_T) > num_think + num_answer
    together = metrics["kl/think"] * num_think + metrics["kl/answer"] * num_answer
    assert together / (num_think + num_answer) == pytest.approx(metrics["kl/mean"])


def test_mismatch_is_between_generator_and_learner() -> None:
    batch = a_batch()
    learner = a_learner(algorithm("rloo"))
    with torch.no_grad():
        logprobs_T, entropy_T = plain_logprobs(learner.policy, batch)
    off_T = torch.where(torch.arange(batch.num_tokens) == 1, 0.5, 0.0)
    batch = replace(batch, behavior_logprobs_T=logprobs_T + off_T)
    metrics = learn(learner, batch).metrics
    num_sampled = int(batch.sampled_T.sum())
    assert metrics["mismatch/mean"] == pytest.approx(0.5 / num_sampled, abs=1e-5)
    assert metrics["mismatch/p99"] == pytest.approx(0.5, abs=1e-5)
    entropy = entropy_T[batch.sampled_T].mean().item()
    assert metrics["entropy/mean"] == pytest.approx(entropy, rel=1e-4)


def test_metrics_by_hand() -> None:
    row, batch = algorithm("dr_grpo", max_tokens=9), a_batch()
    metrics = learn(a_learner(row), batch).metrics
    mask_T = loss_mask(batch, row)
    advantages_T = compute_advantages(batch, row)
    assert metrics["tokens/trained"] == mask_T.sum()
    assert metrics["advantage/mean"] == pytest.approx(advantages_T[mask_T].mean().item())
    std = advantages_T[mask_T].std(correction=0).item()
    assert metrics["advantage/std"] == pytest.approx(std)
    share = ((advantages_T != 0) & mask_T).sum() / batch.sampled_T.sum()
    assert metrics["loss/token_share"] == pytest.approx(share.item())
    assert metrics["optimizer/learning_rate"] == 1e-3 and metrics["optimizer/grad_norm"] > 0


@pytest.mark.parametrize("row", ["rloo", "grpo"])
def test_bf16_takes_steps_too_small_for_bf16(row: str) -> None:
    model = a_model().to(torch.bfloat16)
    learner = a_learner(
        algorithm(row), model, optimizer=OptimizerConfig(learning_rate=1e-7), total_steps=400
    )
    masters = {name: m.detach().clone() for name, m in learner.optimizer.masters.items()}
    for _ in range(3):
        learn(learner, a_batch())
    moved = [not torch.equal(m, masters[name]) for name, m in learner.optimizer.masters.items()]
    assert all(moved)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        rounded = learner.optimizer.masters[name].to(torch.bfloat16)
        assert torch.equal(parameter, rounded)


def test_reward_is_learned() -> None:
    """Completions that begin with token 3 are right; their share rises."""
    learner = a_learner(
        algorithm("dr_grpo", max_tokens=2), optimizer=OptimizerConfig(learning_rate=0.01)
    )

    def log_chance(batch: Batch) -> float:
        with torch.no_grad():
            logits = learner.policy(input_ids=batch.prompts[0][None]).logits[0, -1]
        return logits.log_softmax(-1)[3].item()

    batch = make_batch([[1.0] + [0.0] * 7], [[2] * 8], vocab_size=VOCAB)
    tokens_T = batch.tokens_T.clone()
    tokens_T[0] = 3
    tokens_T[2::2] = torch.tensor([0, 1, 2, 4, 5, 6, 7])
    batch = replace(batch, tokens_T=tokens_T)
    before = log_chance(batch)
    for _ in range(10):
        learn(learner, batch)
    assert log_chance(batch) > before + 0.5


class Adapted(nn.Module):
    """A model whose adapter is a switch: what Reference needs of peft."""

    def __init__(self) -> None:
        super().__init__()
        self.on = True
        self.weight = nn.Parameter(torch.zeros(1))

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        yield
        self.on = True


def test_adapters_off_is_the_reference() -> None:
    model = Adapted()
    reference = update_module.Reference(model)
    assert reference.shares_weights
    with reference.policy() as off:
        assert off is model and not model.on
    assert model.on


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_lora_learns_and_its_reference_is_the_base_model() -> None:
    peft = pytest.importorskip("peft")
    base = a_model()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(base, config)
    learner = a_learner(algorithm("grpo"), model, optimizer=OptimizerConfig(learning_rate=0.01))
    assert all("lora" in name for name in learner.optimizer.trained)
    base_weights = {n: w for n, w in weights(model).items() if "lora" not in n}
    scored = learner.score(a_batch())
    want, _ = plain_logprobs(a_model(), a_batch())
    assert scored.ref_logprobs_T is not None
    torch.testing.assert_close(scored.ref_logprobs_T, want.detach(), rtol=1e-4, atol=1e-5)
    assert learn(learner, a_batch()).metrics["kl/mean"] > 0
    after = weights(model)
    assert_same(base_weights, {n: after[n] for n in base_weights}, rtol=0, atol=0)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_recomputed_activations_change_nothing_else(family: str) -> None:
    def model() -> Any:
        return tiny_model(vocab_size=VOCAB, hidden_size=16, family=family, eos_token_id=None)

    row, batch = algorithm("grpo"), a_batch()
    [plain] = collect_gradients(a_learner(row, model()), batch)
    learner = a_learner(row, model(), activation_checkpointing=True)
    layers = learner._recomputed._layers  # type: ignore[union-attr]
    assert len(layers) == 2
    [recomputed] = collect_gradients(learner, batch)
    assert_same(plain, recomputed, rtol=1e-6, atol=1e-8)
    assert not any(layer.training for layer in layers)


def test_recomputed_activations_are_recomputed() -> None:
    learner = a_learner(algorithm("rloo"), activation_checkpointing=True)
    calls: list[bool] = []
    attention = learner.policy.model.layers[0].self_attn  # type: ignore[union-attr,index]
    attention.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))  # type: ignore[union-attr,operator]
    collect_gradients(learner, make_batch([[1.0, 0.0]], vocab_size=VOCAB))
    assert len(calls) == 2


def test_out_of_memory_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate")

    monkeypatch.setattr(update_module, "token_logprobs", run_out)
    learner = a_learner(algorithm("grpo"))
    with pytest.raises(OutOfMemory, match=r"rl\.max_tokens_per_micro_batch"):
        learner.score(a_batch())
    with pytest.raises(OutOfMemory, match=r"rl\.max_tokens_per_micro_batch"):
        learn(a_learner(algorithm("rloo")), a_batch())
    with pytest.raises(OutOfMemory, match=r"sft\.max_tokens_per_micro_batch"):
        learner.update_sft(a_batch())


def test_other_errors_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(update_module, "token_logprobs", fail)
    with pytest.raises(RuntimeError, match="shapes"):
        learn(a_learner(algorithm("rloo")), a_batch())


@pytest.mark.parametrize("max_tokens", [8, 8192])
def test_sft_step_by_hand(max_tokens: int) -> None:
    traces = make_batch([[1.0]] * 4, [[5], [3], [8], [4]], vocab_size=VOCAB, unsampled=[(0, 0, 1)])
    learner = a_learner(algorithm("rloo"), max_tokens_per_micro_batch=max_tokens)
    model = a_model()
    logprobs_T, entropy_T = plain_logprobs(model, traces)
    loss = -logprobs_T[traces.sampled_T].mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0
    ).step()
    update = learner.update_sft(traces)
    assert update.policy_version == 1 and update.batch is None
    assert update.metrics["loss/nll"] == pytest.approx(loss.item(), rel=1e-5)
    entropy = entropy_T[traces.sampled_T].mean().item()
    assert update.metrics["entropy/mean"] == pytest.approx(entropy, rel=1e-5)
    assert update.metrics["optimizer/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert update.metrics["tokens/trained"] == 19
    assert_same(weights(learner.policy), weights(model), rtol=1e-3, atol=1e-5)


def test_sft_learns_its_traces() -> None:
    traces = make_batch([[1.0]] * 3, vocab_size=VOCAB)
    learner = a_learner(algorithm("rloo"), optimizer=OptimizerConfig(learning_rate=0.01))
    losses = [learner.update_sft(traces).metrics["loss/nll"] for _ in range(15)]
    assert losses[-1] < losses[0] / 2
