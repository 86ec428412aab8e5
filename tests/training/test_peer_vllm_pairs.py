"""Features of a run that vLLM itself samples; the fake's cells are in test_combinations.

Each run starts vLLM, which takes half a minute. The learning rate is high, so that a sampler with
earlier weights would differ from the learner by far more than vLLM's rounding.
"""

from __future__ import annotations

import json
import operator
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from combination_cells import FEATURES
from safetensors import safe_open
from taught import teach
from test_combinations import ASKED, CALLS, PARTS, SHOWS, Rows, completions_of, tree_of
from test_vllm import STALE
from train_worlds import World, rows_of

from assay.config import ModelConfig, load
from assay.errors import WorkerDied
from assay.generate import vllm_engine
from assay.model.load import load_model
from assay.run.directory import Run
from assay.testing import tiny_model
from assay.training.api import evaluate, train

pytestmark = [
    pytest.mark.peer("vllm", "vllm"),
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]
WIDE = 128  # heads as wide as vLLM takes them
NOISE = 1e-4  # mean difference of the log-probabilities of vLLM and of the learner, float32
RATE = 1e-2
EAGER = """
from assay.cli import main
from assay.run import sampled_log
sampled_log.SECONDS_BETWEEN_WRITES = 0.0
main()
"""


@pytest.fixture(scope="session")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the calculator once, and then answers 42 or 421, so that rewards differ."""
    other = [*CALLS[:-1], ("421", True)]
    folder = tmp_path_factory.mktemp("wide") / "model"
    return teach(folder, CALLS, ASKED, other, hidden_size=WIDE)


@pytest.fixture(scope="session")
def sure_caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that always calls the calculator once, and answers 42."""
    return teach(tmp_path_factory.mktemp("sure") / "model", CALLS, ASKED, hidden_size=WIDE)


def tree_with(
    world: World,
    request: pytest.FixtureRequest,
    *names: str,
    actors: str = "cluster",
    **sections: Any,
) -> dict[str, Any]:
    """Return the configuration of a run of two steps with some features, sampled by vLLM.

    actors: fixture in which rollout actors run.
    """
    if "ahead" in names:
        request.getfixturevalue(actors)
    tree = tree_of(world, ("vllm", *names), request)
    if "tools" not in names:
        tiny_model(hidden_size=WIDE, max_positions=192).save_pretrained(world.folder / "model")
    # A tool call that was learned by heart must survive the updates.
    rate = {"learning_rate": 1e-3 if "tools" in names else RATE}
    tree["guard"] = {"max_mismatch": 99.0}  # tokens of older policies are far from the newest
    tree["checkpoint"]["keep_last"] = 9
    tree = {**tree, "engine": {**tree["engine"], "max_kv_mib": 64.0}, "optimizer": rate}
    for section, values in sections.items():
        tree[section] = {**tree.get(section, {}), **values}
    return tree


def differences(run: Path, rows: Rows) -> Mapping[int, list[float]]:
    """Return how far log-probabilities are from those of the weights that their tokens name.

    The keys are policy versions: the numbers of updates, which a step may lack.
    """
    found: dict[int, list[float]] = {}
    places = {0: load(run / "config.toml").model.path}
    for folder in sorted((run / "checkpoints").iterdir()):
        with safe_open(folder / "optimizer.safetensors", "pt") as file:
            places[json.loads(file.metadata()["state"])["num_steps"]] = str(folder)
    policies: dict[int, Any] = {}
    for row in rows:
        prompt, tokens = row["prompt_tokens"], row["tokens"]
        versions = row["token_versions"] or [row["policy_version"]] * len(tokens)
        for version in {*versions}:
            if version not in policies:
                settings = ModelConfig(path=places[version])
                policies[version] = load_model(settings, "cpu", 0).model.eval()
            with torch.no_grad():
                logits_TV = policies[version](torch.tensor([[*prompt, *tokens]])).logits[0]
            logprobs_TV = logits_TV.log_softmax(-1)[len(prompt) - 1 : -1]
            for place, token in enumerate(tokens):
                if row["sampled"][place] and versions[place] == version:
                    expected = float(logprobs_TV[place, token])
                    found.setdefault(version, []).append(
                        abs(row["behavior_logprobs"][place] - expected)
                    )
    return found


def check_run(run: Path, names: tuple[str, ...], num_steps: int = 2, unseen: str = "") -> Rows:
    """Assert that a run finished, that its features took effect, and that vLLM had its weights.

    unseen: a feature that need not show.
    """
    rows, metrics = completions_of(run), rows_of(run, "metrics")
    assert [row["step"] for row in metrics] == [*range(1, num_steps + 1)]
    assert all(np.isfinite(value) for row in metrics for value in row.values())
    # The look at a mixture expects two steps.
    shown = {*SHOWS} - {unseen} - ({"mixture"} if num_steps != 2 else set())
    assert [name for name in names if name in shown and not SHOWS[name](run, rows)] == []
    assert max(Counter(row["completion_id"] for row in rows).values()) == 1, "nothing twice"
    assert not [row for row in rows_of(run, "events") if row["kind"] == "actor_lost"]
    found = differences(run, rows)
    for version, values in sorted(found.items()):
        assert np.mean(values) < NOISE, f"policy {version}"
    assert {*found} <= {*range(num_steps)}
    # Growing groups have no right completion, so nothing is learned from them.
    assert "growing" in names or max(found) > 0
    if "ahead" not in names:
        assert 0 < max(row["mismatch/mean"] for row in metrics) < NOISE
    return rows


@pytest.mark.parametrize(
    "names",
    [
        ("oversample",),
        ("oversample", "tools"),
        ("lora",),
        ("ahead",),
        ("ahead", "lora"),
        ("ahead", "tools"),
        ("mixture",),
        ("ahead", "mixture"),
        ("budget", "growing"),
        ("ahead", "growing"),
        ("ahead", "budget", "mixture"),
        ("min_think", "lora"),
        ("environment", "growing"),
        ("teacher",),
        ("siblings", "audit"),
        ("ranks",),
    ],
    ids="-".join,
)
def test_features_of_a_run_that_vllm_samples(
    world: World, request: pytest.FixtureRequest, names: tuple[str, ...]
) -> None:
    steps = 5 if "ahead" in names else 2
    tree = tree_with(world, request, *names, rl={"steps": steps})
    rows = check_run(Path(train(tree, quiet=True).run), names, steps)
    if names == ("ahead",):
        assert any(row["token_versions"] is not None for row in rows), "some span an update"


def cut_after_one(patch: pytest.MonkeyPatch) -> None:
    """Interrupt runs after their first step."""
    patch.setattr(Run, "stop_reason", property(lambda run: "interrupted" if run.step else None))


@pytest.mark.parametrize(
    "names", [("oversample",), ("lora",), ("ahead",), ("tools",)], ids="-".join
)
def test_a_stopped_run_goes_on(
    world: World,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
) -> None:
    with monkeypatch.context() as cut:
        cut_after_one(cut)
        run = Path(train(tree_with(world, request, *names), quiet=True).run)
    (shard,) = sorted((run / "rollouts").glob("step-*.parquet"))
    before = pq.read_table(shard).to_pylist()
    assert [row["step"] for row in rows_of(run, "metrics")] == [1]
    train(resume=run, quiet=True)
    assert pq.read_table(shard).to_pylist() == before, "a recorded step is not sampled again"
    # After a start, nothing was sampled ahead of the next step.
    check_run(run, names, unseen="ahead")


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of vLLM that keep the weights that they had first."""
    monkeypatch.setattr(vllm_engine, "RECEIVER", STALE)
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(here))


def test_stale_adapters_end_the_run(
    world: World, request: pytest.FixtureRequest, deaf: None
) -> None:
    with pytest.raises(WorkerDied, match="stale"):
        train(tree_with(world, request, "lora"), quiet=True)


def test_a_stale_actor_that_samples_ahead_is_replaced(
    world: World, request: pytest.FixtureRequest, deaf: None
) -> None:
    tree = tree_with(world, request, "ahead", actors="in_threads", rl={"steps": 4})
    run = Path(train(tree, quiet=True).run)
    lost = [row["why"] for row in rows_of(run, "events") if row["kind"] == "actor_lost"]
    assert lost and all("stale" in why for why in lost)


def test_parts_of_a_mixture_have_their_own_sampling(
    world: World, request: pytest.FixtureRequest
) -> None:
    """A part that stops at letters and is short, and one with a thinking budget."""
    # The groups of the first three steps are started with the first weights.
    tree = tree_with(world, request, "ahead", "budget", "mixture", rl={"steps": 5})
    del tree["sampling"]["think_budget"]
    tree["data"]["mixture"] = {
        PARTS[0]: {"stop": [*"aeiou"], "max_tokens": 9, "group_size": 2},
        PARTS[1]: {"think_budget": 6, "group_size": 6},
    }
    rows = check_run(run := Path(train(tree, quiet=True).run), ("ahead", "mixture"), 5)
    assert load(run / "config.toml").data.mixture[PARTS[0]].max_tokens == 9
    short = [row for row in rows if row["tags"] == [PARTS[0]]]
    other = [row for row in rows if row["tags"] == [PARTS[1]]]
    assert len(short) == 10 and len(other) == 30
    assert all(len(row["tokens"]) <= 9 and all(row["sampled"]) for row in short)
    # The text that ends thinking has two tokens, and follows four; a shorter completion ended itself.
    within = [row["finish_reason"] == "eos" and len(row["tokens"]) <= 4 for row in other]
    closed = [ord("}") in row["tokens"][:6] for row in other]
    assert all(map(operator.or_, closed, within)), "thinking ends at the budget"
    assert any(not all(row["sampled"]) for row in other), "the end of thinking was injected"
    ends = {row["finish_reason"] for row in other}
    assert "stop_string" not in ends


def test_an_evaluation_gives_the_verdicts_of_the_engine(world: World, sure_caller: Path) -> None:
    """Greedy decoding of a model that knows its answers; nothing here is a near tie."""
    rows = [{"id": f"q{n}", "prompt": q, "answer": "42"} for n, q in enumerate(ASKED)]
    problems = [str(world.write_rows("asked.jsonl", rows))]
    settings = {f"tools.{key}": value for key, value in FEATURES["tools"].sets["tools"].items()}
    settings["data.prompt_template"] = "{question}"
    tools = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    given: dict[str, Any] = {"verifier": "exact", "max_tokens": 48, "quiet": True}
    found: dict[str, dict[str, Any]] = {}
    for name in ("engine", "vllm"):
        out = world.folder / f"{name}.jsonl"
        overrides = [f"scale.generator={name}", "engine.max_kv_mib=64", *tools]
        one = evaluate(str(sure_caller), problems, out=out, overrides=overrides, **given)
        assert one.pass_at_1 == 1.0
        found[name] = {row["id"]: row for row in map(json.loads, out.read_text().splitlines())}
    assert found["engine"].keys() == found["vllm"].keys() and len(found["vllm"]) == len(ASKED)
    for name, row in found["vllm"].items():
        other = found["engine"][name]
        assert [row[key] for key in ("completion", "injected", "score")] == [
            other[key] for key in ("completion", "injected", "score")
        ]


def kill_when(command: subprocess.Popen[bytes], run: Path, logged: int) -> None:
    """Kill a training once its log holds so many completions of an unfinished step."""
    give_up = time.monotonic() + 300
    while command.poll() is None and time.monotonic() < give_up:
        if len(sampled_of(run)) >= logged:
            break
        time.sleep(0.05)
    assert command.poll() is None, "it should have been killed"
    command.kill()
    command.wait()


def sampled_of(run: Path) -> Mapping[str, list[int]]:
    """Return the tokens of finished completions of an unfinished step, by id."""
    found: dict[str, list[int]] = {}
    for path in (run / "rollouts").glob("sampled-*.parquet"):
        try:
            table = pq.read_table(path)
        except OSError:  # half written
            continue
        names = table["completion_id"].to_pylist()
        found |= dict(zip(names, table["tokens"].to_pylist(), strict=True))
    return found


def test_a_run_killed_in_the_middle_of_sampling_goes_on(
    world: World, request: pytest.FixtureRequest
) -> None:
    """With tools: no completion that was finished and logged is sampled again."""
    size = {"steps": 3, "num_prompts": 4, "group_size": 8}
    tree = tree_with(world, request, "tools", rl=size, engine={"num_slots": 4})
    file = world.config_file(tree)
    run = world.folder / "runs" / "run"
    command = [sys.executable, "-c", EAGER, "train"]
    kept: dict[str, list[int]] = {}
    for arguments in ([str(file)], ["--resume", str(run)]):
        started = subprocess.Popen([*command, *arguments], start_new_session=True)
        try:
            kill_when(started, run, 5)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
        kept |= sampled_of(run)
    subprocess.run([*command, "--resume", str(run)], check=True, start_new_session=True)
    rows = check_run(run, ("tools",), 3)
    logged = {row["completion_id"]: row["tokens"] for row in rows}
    assert kept and {name: logged[name] for name in kept} == kept
    assert len(rows) == 96 and {*Counter(row["group_id"] for row in rows).values()} == {8}
