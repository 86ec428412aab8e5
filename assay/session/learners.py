"""Build the learner of one process, from the configuration and the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.config import RLConfig, TrainConfig
from assay.config.preference import Preference
from assay.learn.algorithms import Algorithm
from assay.learn.optimizer import Optimizer, peak_learning_rate
from assay.learn.passes import Passes
from assay.learn.preference_update import PreferenceLearner
from assay.learn.ranks import ALONE, Ranks
from assay.learn.sharding import ShardedOptimizer, Shards, copy_to_shard
from assay.learn.spans import AnyTeacher
from assay.learn.update import PolicyLearner
from assay.model.load import LoadedModel
from assay.model.packing import Layout
from assay.model.probe import LayoutChoice
from assay.model.value_head import ValueModel


def rl_learner(
    config: TrainConfig,
    loaded: LoadedModel,
    ranks: Ranks = ALONE,
    *,
    row: Algorithm,
    layout: LayoutChoice,
    teacher_of: Callable[[LoadedModel], AnyTeacher] | None = None,
) -> PolicyLearner:
    """Return the learner for RL in one process.

    row: algorithm preset that the function `for_generator` returned. teacher_of: function that
    returns the teacher for the policy.
    """
    rl = config.rl
    assert rl is not None
    start = None
    if row.has_critic and config.critic.path is not None:
        start = ValueModel.load(config.critic.path, loaded.dtype, loaded.device, loaded.tokenizer)
    total, a_step = num_updates(rl), rl.epochs * rl.num_minibatches
    # The policy takes no step during the critic's warm-up, so its schedule is shorter.
    waits = config.critic.warmup_steps * a_step if row.has_critic else 0
    forward = (layout.layout, layout.lean, config.sampling.temperature)
    return PolicyLearner(
        make_passes(config, loaded, max(1, total - waits), *forward, ranks=ranks),
        row,
        total_steps=total,
        # The guard's limit on the KL needs a reference model, even if the loss has no KL term.
        keep_reference=config.guard.max_kl is not None,
        teacher=None if teacher_of is None else teacher_of(loaded),
        critic=config.critic,
        critic_start=start,
        epochs=rl.epochs,
        num_minibatches=rl.num_minibatches,
        seed=config.run.seed,
        kl_factors={name: part.kl_factor for name, part in config.data.mixture.items()},
    )


def preference_learner(
    config: TrainConfig,
    loaded: LoadedModel,
    ranks: Ranks = ALONE,
    *,
    row: Preference,
    steps: int,
    layout: LayoutChoice,
    keep_reference: bool = False,
) -> PreferenceLearner:
    """Return the learner for preferences in one process."""
    passes = make_passes(config, loaded, steps, layout.layout, layout.lean, ranks=ranks)
    return PreferenceLearner(passes, row, keep_reference)


def make_passes(
    config: TrainConfig,
    loaded: LoadedModel,
    total_steps: int,
    layout: Layout,
    lean: bool,
    temperature: float = 1.0,
    ranks: Ranks = ALONE,
) -> Passes:
    """Return the runner of the forward and backward passes of a trained model.

    layout, lean: results of `assay.model.probe` for this model. temperature: sampling temperature;
    1 in stages that do not sample.
    """
    section: Any = getattr(config, config.stage)
    steps = (config.optimizer, total_steps, config.stage, ranks)
    shards = shards_of(loaded, ranks) if config.scale.shard else None
    model = loaded.model if shards is None else shards.model
    optimizer: Optimizer
    if shards is not None and shards.divides_trained:
        optimizer = ShardedOptimizer(shards, *steps)
    else:
        optimizer = Optimizer(model, *steps)
    return Passes(
        model,
        optimizer,
        section=config.stage,
        temperature=temperature,
        layout=layout,
        lean=lean,
        max_tokens_per_micro_batch=section.max_tokens_per_micro_batch,
        activation_checkpointing=config.model.activation_checkpointing,
        tokenizer=loaded.tokenizer,
        ranks=ranks,
        shards=shards,
    )


def shards_of(loaded: LoadedModel, ranks: Ranks) -> Shards:
    """Return the shards of a model's weights. Rank 0 keeps the whole loaded model, from which it
    samples.
    """
    if ranks.rank:
        return Shards(loaded.model, ranks)
    return Shards(copy_to_shard(loaded.model), ranks, loaded.model)


def rate_words(config: TrainConfig, model: Any) -> str:
    """Format the peak learning rate, and whether it was configured or is a default."""
    rate = peak_learning_rate(config.optimizer, config.stage, model)
    if config.optimizer.learning_rate is not None:
        return f"{rate:g}, as configured"
    trained = "adapters" if hasattr(model, "disable_adapter") else "all weights"
    return f"{rate:g}, the default of [{config.stage}] for {trained}"


def num_updates(rl: RLConfig) -> int:
    """Return the number of optimizer steps of a run, which is the length of the learning-rate
    schedule.
    """
    return rl.steps * rl.epochs * rl.num_minibatches
