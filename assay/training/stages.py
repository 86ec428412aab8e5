"""A whole run of reinforcement learning: open the parts, open the run, loop, evaluate."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from assay.run.guard import Guard
from assay.training.assemble import (
    choose_algorithm,
    choose_layout,
    fit_problems,
    make_learner,
    open_bench,
    open_verifiers,
    read_problems,
)
from assay.training.batch_plan import BatchPlan
from assay.training.rl import Loop, train_step
from assay.training.stage import (
    Stage,
    attach_sampling,
    evaluate_heldout,
    open_run,
    steps_of,
    try_verifiers,
)


def run_rl(stage: Stage) -> Path:
    """Run the RL stage; returns the run's folder. Raises RunStopped by a guard."""
    config = stage.config
    assert config.rl is not None
    algorithm = choose_algorithm(config)
    with ExitStack() as stack:
        guard = Guard(config.guard)
        verifiers = open_verifiers(config, stack)
        rows = read_problems(config, verifiers)
        bench = open_bench(config, verifiers)
        problems = fit_problems(rows, bench)
        tested = try_verifiers(config, bench.verifiers)
        layout = choose_layout(config, bench, problems.train)
        learner = make_learner(config, bench, algorithm, layout)
        run = open_run(stage, config.rl.steps, bench.loaded.model, stack, bench)
        sampling = attach_sampling(run, bench, problems, learner, layout, tested, stack)
        loop = Loop(
            curriculum=sampling.curriculum,
            generator=sampling.generator,
            verifiers=sampling.verifiers,
            run=run,
            learner=learner,
            guard=guard,
            plan=BatchPlan(
                num_prompts=config.rl.num_prompts,
                group_size=config.rl.group_size,
                sampling=config.sampling,
                max_refills=config.rl.max_refills if algorithm.dynamic_sampling else 0,
                max_group_size=config.rl.max_group_size,
                temperatures=config.rl.temperature_schedule,
            ),
        )
        heldout = problems.heldout
        for _ in steps_of(run, lambda: evaluate_heldout(run, bench, heldout)):
            train_step(loop)
    return run.folder
