"""What samples is what learns: weighed where it is not to the last digits, stopped where it is not at all."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from train_worlds import World, rows_of

from assay.config import SamplingConfig, parse
from assay.errors import RunStopped
from assay.generate.engine import Engine
from assay.learn.algorithms import IMPORTANCE_CAP, for_generator
from assay.model.probe import probe_layouts
from assay.session.assemble import choose_algorithm, open_session
from assay.session.learners import rl_learner
from assay.testing import ScriptedGenerator
from assay.training.api import train


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_is_far_below_the_bound(world: World, dtype: str) -> None:
    rows = rows_of(train(world.tree(model={"dtype": dtype}), quiet=True).run, "metrics")
    most = 1e-5 if dtype == "float32" else 0.03
    assert len(rows) == 3 and all(0 <= row["mismatch/mean"] < most for row in rows)


def test_a_generator_that_samples_something_else_stops_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Engine.generate

    def hotter(self: Engine, problems: Any, sampling: SamplingConfig, *rest: Any) -> Any:
        temperature = 2 * sampling.temperature
        return original(
            self, problems, sampling.model_copy(update={"temperature": temperature}), *rest
        )

    monkeypatch.setattr(Engine, "generate", hotter)
    tree = world.tree(sampling={"temperature": 0.1})
    with pytest.raises(RunStopped, match=r"step 1: mismatch/mean is .*above guard.max_mismatch"):
        train(tree, quiet=True)
    assert train({**tree, "guard": {"max_mismatch": 1e9}}, quiet=True).steps == 3


@pytest.mark.parametrize(
    ("exact", "own", "want"),
    [(True, None, None), (True, 3.0, 3.0), (False, None, IMPORTANCE_CAP), (False, 3.0, 3.0)],
)
def test_what_another_generator_samples_is_weighed(
    world: World, exact: bool, own: float | None, want: float | None
) -> None:
    config = parse(world.tree(algorithm={} if own is None else {"importance_cap": own}))
    with ExitStack() as stack:
        session = open_session(config, stack)
        layout = probe_layouts(session.loaded.model, 4, 4, group_size=4)
        if not exact:
            scripted: Any = ScriptedGenerator(lambda problem, sibling: "1")
            session = replace(session, generator=scripted)
        row = for_generator(choose_algorithm(config), session.sampler.exact)
        learner = rl_learner(config, session.loaded, row=row, layout=layout)
    assert learner.algorithm.importance_cap == want
