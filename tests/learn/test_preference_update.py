"""The preference learner: one step's gradient is that of the loss, however its completions are split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from learn_batches import make_batch
from learn_learners import RATE, VOCAB, a_model, assert_same, plain_logprobs, weights
from torch import Tensor

from assay.config import OptimizerConfig
from assay.learn.algorithms import PREFERENCES, preference
from assay.learn.optimizer import Optimizer, StepReport
from assay.learn.passes import Passes
from assay.learn.preference_losses import preference_loss, reference_point
from assay.learn.preference_update import PreferenceBatch, PreferenceLearner, sequence_logprobs
from assay.model.packing import Batch

pytestmark = pytest.mark.usefixtures("one_thread")


def a_learner(name: str, model: Any = None, **settings: Any) -> PreferenceLearner:
    model = model or a_model()
    optimizer = Optimizer(model, settings.pop("optimizer", RATE), total_steps=100)
    passes = Passes(model, optimizer, section="preference", **settings)
    return PreferenceLearner(passes, preference(name))


def some_pairs(name: str, seed: int = 0) -> PreferenceBatch:
    """Pairs, one of them long; or the same completions alone, with mismatched ones."""
    lengths = [[5, 3], [2, 7], [11, 9], [4, 4], [1, 6]]
    unsampled = [(0, 0, 1), (2, 1, 0)]
    if PREFERENCES[name].paired:
        batch = make_batch(
            [[1.0, 0.0]] * 5, lengths, seed=seed, vocab_size=VOCAB, unsampled=unsampled
        )
        return PreferenceBatch(batch, made_reference(batch))
    flat = [[n] for pair in lengths for n in pair]
    labels = [[1.0], [0.0], [0.0], [1.0], [1.0], [1.0], [0.0], [0.0], [1.0], [0.0]]
    batch = make_batch(labels, flat, seed=seed, vocab_size=VOCAB)
    others = make_batch(labels, flat[1:] + flat[:1], seed=seed + 1, vocab_size=VOCAB)
    return PreferenceBatch(batch, made_reference(batch), others, made_reference(others))


def made_reference(batch: Batch) -> Tensor:
    """What another model says, so that no log-ratio is zero."""
    with torch.no_grad():
        logprobs_T, _ = plain_logprobs(a_model(seed=3), batch)
    return sequence_logprobs(batch, logprobs_T)


def gradient_of(
    learner: PreferenceLearner, pairs: PreferenceBatch
) -> tuple[float, dict[str, Tensor]]:
    """The loss and gradient of an update whose step is not taken."""
    found: dict[str, Tensor] = {}

    def step() -> StepReport:
        found.update({n: g.clone() for n, g in learner.passes.optimizer.gradients.items()})
        learner.passes.optimizer.zero_grad()
        return StepReport(0.0, 0.0, skipped=True)

    learner.passes.optimizer.step = step  # type: ignore[method-assign]
    return learner.update(pairs).metrics["loss/total"], found


def direct_gradient(name: str, pairs: PreferenceBatch) -> tuple[float, dict[str, Tensor]]:
    """The same by autograd through every row at once, one completion at a time, without packing."""
    model, batch, row = a_model(), pairs.batch, PREFERENCES[name]
    logprobs_T, _ = plain_logprobs(model, batch)
    lengths = [float(batch.sampled_T[batch.row_T == n].sum()) for n in range(batch.num_rows)]
    sums = [
        logprobs_T[(batch.row_T == n) & batch.sampled_T].double().sum()
        for n in range(batch.num_rows)
    ]
    z0 = None
    if pairs.mismatched is not None:
        others_T, _ = plain_logprobs(model, pairs.mismatched)
        assert pairs.mismatched_ref_logprobs_R is not None
        others_R = sequence_logprobs(pairs.mismatched, others_T)
        z0 = reference_point(others_R, pairs.mismatched_ref_logprobs_R)
    parts = preference_loss(
        torch.stack(sums),
        torch.tensor(lengths, dtype=torch.float64),
        pairs.chosen_R,
        row,
        beta=row.beta,
        normalizer=batch.num_groups if row.paired else batch.num_rows,
        ref_logprobs_R=pairs.ref_logprobs_R,
        z0=z0,
    )
    parts.loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return parts.loss.item(), gradients


@pytest.mark.parametrize("name", PREFERENCES)
@pytest.mark.parametrize("layout", ["tree", "plain"])
@pytest.mark.parametrize("max_tokens", [6, 20, 8192])
def test_gradient_equals_autograd_through_all_rows(name: str, layout: str, max_tokens: int) -> None:
    """At 6 tokens all pairs go through apart, at 20 some do, at 8192 all are one micro-batch."""
    pairs = some_pairs(name)
    learner = a_learner(name, layout=layout, max_tokens_per_micro_batch=max_tokens)
    loss, gradients = gradient_of(learner, pairs)
    expected_loss, expected = direct_gradient(name, pairs)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    assert_same(gradients, expected, rtol=2e-4, atol=2e-6 * largest)


@pytest.mark.parametrize("max_tokens", [6, 8192])
def test_kto_learns_from_whole_groups(max_tokens: int) -> None:
    """As sampled groups are: several completions of a prompt, of which some are desirable."""
    batch = make_batch(
        [[1.0, 0.0, 1.0], [0.0, 0.0], [1.0]], [[4, 7, 2], [3, 5], [6]], vocab_size=VOCAB
    )
    others = make_batch([[1.0] * 3, [1.0], [1.0] * 2], [[3, 5, 6], [6], [4, 7]], vocab_size=VOCAB)
    pairs = PreferenceBatch(batch, made_reference(batch), others, made_reference(others))
    learner = a_learner("kto", layout="tree", max_tokens_per_micro_batch=max_tokens)
    loss, gradients = gradient_of(learner, pairs)
    expected_loss, expected = direct_gradient("kto", pairs)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert_same(gradients, expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("max_tokens", [6, 8192])
def test_recomputed_activations_give_the_same_gradient(max_tokens: int) -> None:
    pairs = some_pairs("dpo")
    learner = a_learner("dpo", activation_checkpointing=True, max_tokens_per_micro_batch=max_tokens)
    _, gradients = gradient_of(learner, pairs)
    assert_same(gradients, direct_gradient("dpo", pairs)[1], rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("layout", ["tree", "plain"])
def test_bfloat16_is_the_same_up_to_its_rounding(layout: str) -> None:
    pairs = some_pairs("dpo")
    _, expected = direct_gradient("dpo", pairs)
    for max_tokens in (6, 8192):
        learner = a_learner(
            "dpo", a_model().bfloat16(), layout=layout, max_tokens_per_micro_batch=max_tokens
        )
        _, gradients = gradient_of(learner, pairs)
        for name, gradient in gradients.items():
            assert gradient.dtype == torch.float32
            apart = torch.cosine_similarity(gradient.flatten(), expected[name].flatten(), dim=0)
            assert apart > 0.97, name


@pytest.mark.parametrize(("max_tokens", "num_apart"), [(6, 5), (10, 2), (20, 1), (8192, 0)])
def test_only_pairs_that_fit_nowhere_go_apart(max_tokens: int, num_apart: int) -> None:
    learner = a_learner("dpo", max_tokens_per_micro_batch=max_tokens)
    batch = some_pairs("dpo").batch
    whole, apart = learner._plan(batch)  # pyright: ignore[reportPrivateUsage]
    assert len(apart) == num_apart
    assert sum(part.batch.num_groups for part in whole) == 5 - num_apart
    for part in whole:
        assert part.batch.num_rows == 2 * part.batch.num_groups
        assert int(part.batch.shape.prompt_length_P.sum()) + part.batch.num_tokens <= max_tokens


@pytest.mark.parametrize("name", ["dpo", "kto", "orpo"])
def test_metrics_are_those_of_the_policy_before_its_step(name: str) -> None:
    pairs = some_pairs(name)
    looked = a_learner(name).look(pairs)
    for max_tokens in (6, 8192):
        learned = a_learner(name, max_tokens_per_micro_batch=max_tokens).update(pairs).metrics
        for key, value in looked.items():
            assert learned[key] == pytest.approx(value, rel=1e-5, abs=1e-6), key


def test_a_look_leaves_the_weights() -> None:
    learner = a_learner("dpo")
    before = weights(learner.policy)
    learner.look(some_pairs("dpo"))
    assert_same(weights(learner.policy), before, rtol=0, atol=0)
    assert learner.policy_version == 0


def test_entropy_and_counts() -> None:
    pairs = some_pairs("dpo")
    _, entropy_T = plain_logprobs(a_model(), pairs.batch)
    metrics = a_learner("dpo").update(pairs).metrics
    sampled_T = pairs.batch.sampled_T
    assert metrics["entropy/mean"] == pytest.approx(entropy_T[sampled_T].mean().item(), rel=1e-5)
    assert metrics["tokens/trained"] == 50
    assert metrics["preference/beta"] == 0.1
    assert metrics["optimizer/steps"] == 1


def test_beta_of_a_step_is_the_steps() -> None:
    pairs = some_pairs("dpo")
    given = a_learner("dpo").update(pairs, beta=0.7).metrics
    model = a_model()
    optimizer = Optimizer(model, RATE, total_steps=100)
    own = PreferenceLearner(
        Passes(model, optimizer, section="preference"), preference("dpo", beta=0.7)
    ).update(pairs)
    assert given == own.metrics


def test_kto_measures_from_the_mismatched_completions() -> None:
    pairs = some_pairs("kto")
    metrics = a_learner("kto").look(pairs)
    assert pairs.mismatched is not None and pairs.mismatched_ref_logprobs_R is not None
    with torch.no_grad():
        logprobs_T, _ = plain_logprobs(a_model(), pairs.mismatched)
    ratios_R = sequence_logprobs(pairs.mismatched, logprobs_T) - pairs.mismatched_ref_logprobs_R
    assert metrics["preference/kl"] == pytest.approx(max(0.0, ratios_R.mean().item()), rel=1e-5)
    alone = PreferenceBatch(pairs.batch, pairs.ref_logprobs_R)
    assert a_learner("kto").look(alone)["preference/kl"] == 0.0


@pytest.mark.parametrize("name", PREFERENCES)
def test_what_is_chosen_becomes_likelier_than_what_is_not(name: str) -> None:
    pairs = some_pairs(name)
    learner = a_learner(name, optimizer=OptimizerConfig(learning_rate=3e-3))
    first = learner.look(pairs)
    for _ in range(20):
        learner.update(pairs)
    last = learner.look(pairs)
    assert last["loss/total"] < first["loss/total"]
    assert last["preference/margin"] > first["preference/margin"]
    assert last["preference/accuracy"] >= 0.8


def test_state_comes_back_bit_for_bit(tmp_path: Any) -> None:
    pairs = some_pairs("dpo")
    learner, other = a_learner("dpo"), a_learner("dpo", a_model(seed=1))
    learner.update(pairs)
    learner.save_state(tmp_path)
    other.load_state(tmp_path)
    assert other.policy_version == 1
    step: Callable[[PreferenceLearner], dict[str, float]] = lambda one: one.update(pairs).metrics  # noqa: E731
    assert step(learner) == step(other)
    assert_same(weights(learner.policy), weights(other.policy), rtol=0, atol=0)
