"""What a run from elsewhere names is not imported by being opened; one's own run asks for nothing."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from train_worlds import REWARD, World, events_of

from assay import cli
from assay import config as configuration
from assay.curation.base import run_stage
from assay.errors import AssayError, DataError, ModelError, RunError
from assay.evaluation.rejudge import rescore
from assay.release.export import export
from assay.training.api import evaluate, sample, train

STRANGE = """
import pathlib
from assay import source
pathlib.Path(__file__).with_name("was-imported").touch()

@source
def rows():
    return [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": f"{n + 1}"} for n in range(10)]

def reward(problem, completion):
    return float(sum(completion.tokens.tolist()) % 2)
"""
ALL = {"resume", "rescore", "eval", "sample", "label"}


@pytest.fixture
def marker(world: World) -> Iterator[Path]:
    """A stranger's module; the file that is there once it was imported."""
    (world.folder / "strange.py").write_text(STRANGE)
    sys.path.append(str(world.folder))
    yield world.folder / "was-imported"
    sys.path.remove(str(world.folder))
    sys.modules.pop("strange", None)


@pytest.fixture
def own(world: World) -> Path:
    return Path(train(world.tree(rl={"steps": 1}, data={"heldout": []}), quiet=True).run)


def changed(run: Path, **sections: Any) -> Path:
    """Make a run a stranger's: its configuration says something else, and nobody here signed it."""
    tree = configuration.load(run / "config.toml").model_dump(mode="json", exclude_none=True)
    for section, values in sections.items():
        tree[section] |= values
    (run / "config.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
    return run


def commands(world: World, run: Path, **consent: Any) -> dict[str, Callable[[], Any]]:
    rows = str(world.folder / "heldout.jsonl")
    trust = {"trust_run": consent["trust_run"]} if "trust_run" in consent else {}
    completions = [{"prompt": "1 + 1 =", "completion": "one\ntwo", "answer": "2"}]
    judged = str(world.write_rows("completions.jsonl", completions))
    settings = {"inputs": [judged], "model": str(run), "num_samples": 1, "max_tokens": 4}
    return {
        "resume": lambda: train(resume=run, quiet=True, **trust),
        "rescore": lambda: rescore(run, num_workers=1, **consent),
        "eval": lambda: evaluate(str(run), [rows], max_tokens=4, **consent),
        "sample": lambda: sample(str(run), prompt="1 +", answer="2", num_samples=1, **consent),
        "label": lambda: run_stage("label_steps", settings | trust, world.folder / "labels"),
    }


@pytest.mark.parametrize(
    ("sections", "said", "used_by"),
    [
        ({"data": {"verifier": "strange:reward"}}, "data.verifier = strange:reward", ALL),
        ({"data": {"verifier": "math + strange:reward@1"}}, "strange:reward@1", ALL),
        ({"data": {"verifier_by_tag": {"chat": "strange:reward"}}}, "= strange:reward", ALL),
        ({"verification": {"allow": ["strange"]}}, "verification.allow = strange", ALL),
        (
            {"data": {"train": ["strange:rows?a=1"], "verifier": "math"}},
            "data.train = strange:rows",
            {"resume", "rescore"},
        ),
        ({"data": {"heldout": ["strange:rows"]}}, "data.heldout = strange:rows", {"resume"}),
        (
            {"tools": {"names": ["search"], "corpus": ["strange:rows"]}},
            "tools.corpus = strange:rows",
            {"resume", "eval", "sample"},
        ),
        ({"guard": {"rules": ["strange:rule"]}}, "guard.rules = strange:rule", {"resume"}),
        ({"log": {"to": ["wandb"], "project": "theirs"}}, "log.to", {"resume"}),
        ({"algorithm": {"name": "strange:row"}}, "algorithm.name = strange:row", {"resume"}),
        (
            {"verification": {"options": {"judge": {"url": "http://there", "api_key_env": "K"}}}},
            "verification.options.judge.url, verification.options.judge.api_key_env",
            ALL,
        ),
        (
            {"verification": {"options": {"remote": {"url": "http://there", "token_env": "K"}}}},
            "verification.options.remote.url, verification.options.remote.token_env",
            ALL,
        ),
        (
            {"scale": {"rollout_actors": 1, "address": "there:6379"}},
            "scale.address",
            {"resume"},
        ),
        (
            {"verification": {"options": {"code": {"unsafe_no_sandbox": True}}}},
            "verification.options.code.unsafe_no_sandbox",
            ALL,
        ),
    ],
)
def test_code_named_by_a_foreign_run_is_listed_and_not_imported(
    world: World, own: Path, marker: Path, sections: Any, said: str, used_by: set[str]
) -> None:
    run = changed(own, **sections)
    for name, command in commands(world, run).items():
        if name not in used_by:
            continue
        with pytest.raises(RunError) as caught:
            command()
        text = str(caught.value)
        assert said in text and "add --trust-run" in text and "\n" not in text, name
        assert str(run / "config.toml") in text and "or it was edited since" in text
    assert not marker.exists()


def test_completions_of_a_strangers_run_are_not_read_through_its_sources(
    world: World, own: Path, marker: Path
) -> None:
    run = changed(own, data={"train": ["strange:rows"]})
    settings = {"inputs": [str(run)], "model": str(world.folder / "model"), "verifier": "math"}
    with pytest.raises(RunError, match=r"data\.train = strange:rows"):
        run_stage("label_steps", settings, world.folder / "labels")
    assert not marker.exists()


@pytest.mark.parametrize("consent", [{"trust_run": True}, {"allow": ["strange", REWARD]}])
def test_with_consent_it_is_opened(
    world: World, own: Path, marker: Path, consent: dict[str, Any]
) -> None:
    run = changed(own, data={"verifier": "strange:reward"})
    told = commands(world, run, **consent)
    for name in ("rescore", "eval", "sample"):
        told[name]()
    assert marker.exists()


def test_the_users_own_value_needs_no_consent(world: World, own: Path, marker: Path) -> None:
    run = changed(own, data={"verifier": "strange:reward"})
    rows = [str(world.folder / "heldout.jsonl")]
    evaluate(str(run), rows, max_tokens=4, verifier="math")
    evaluate(str(run), rows, max_tokens=4, overrides=["data.verifier=math"])
    rescore(run, "math", num_workers=1)
    assert not marker.exists()


def test_ones_own_run_asks_for_nothing(world: World, own: Path) -> None:
    """Its verifier is Python code; that a run has been copied changes nothing."""
    told = commands(world, own.rename(own.with_name("moved")))
    assert set(told) == ALL
    assert all(command() is not None for command in told.values())


def test_a_run_never_brings_the_code_of_its_model(world: World, own: Path, marker: Path) -> None:
    """Not even one's own: the person gives it again."""
    (checkpoint,) = (own / "checkpoints").glob("step-*")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name, kind in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        settings = json.loads((checkpoint / name).read_text())
        value = ["strange.It", None] if kind == "AutoTokenizer" else "strange.It"
        settings |= {"auto_map": {kind: value, "AutoModelForCausalLM": "strange.It"}}
        (checkpoint / name).write_text(json.dumps(settings))
        del manifest["files"][name]  # who makes a checkpoint makes its manifest
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    (checkpoint / "strange.py").write_text(STRANGE.replace("__file__", repr(str(marker))))
    run = changed(own, model={"trust_remote_code": True})
    for name in ("resume", "eval", "sample", "label"):
        with pytest.raises(RunError, match=r"found true.*--set model\.trust_remote_code=true"):
            commands(world, run, trust_run=True)[name]()
    for number, folder in enumerate((run, checkpoint)):
        with contextlib.suppress(AssayError):
            export(str(folder), world.folder / f"out{number}")
    tree = world.tree(model={"path": str(run)}, rl={"steps": 1}, run={"name": "next"})
    train(tree, quiet=True)
    assert not marker.exists()
    with contextlib.suppress(AssayError):  # what it would have done
        commands(world, run, trust_run=True, overrides=["model.trust_remote_code=true"])["eval"]()
    assert marker.exists()


def test_a_run_never_brings_the_code_of_its_teacher(world: World, own: Path) -> None:
    """Nor a folder that its teacher's words are written to."""
    teacher = {"path": str(world.folder / "model"), "trust_remote_code": True}
    tree = configuration.load(own / "config.toml").model_dump(mode="json", exclude_none=True)
    traces = [str(world.folder / "traces.jsonl")]
    distill = {"traces": traces, "keep": str(world.folder / "kept")}
    tree = {**tree, "teacher": teacher, "distill": distill}
    del tree["rl"]
    (own / "config.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
    with pytest.raises(RunError, match=r"found true.*--set teacher\.trust_remote_code=true"):
        train(resume=own, quiet=True, trust_run=True)
    with pytest.raises(RunError, match=r"distill\.keep.*add --trust-run"):
        train(resume=own, overrides=["teacher.trust_remote_code=false"], quiet=True)


def assay(*arguments: object) -> int:
    """Run one command in this process, and return its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def test_each_command_takes_consent(
    world: World, own: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, short = world.folder / "model", ("--max-tokens", 4)
    row = {"prompt": "1 + 1 =", "answer": "2", "verifier": "strange:reward"}
    rows = world.write_rows("rows.jsonl", [{**row, "completion": "2"}])
    for command in (
        ("verify", rows),
        ("eval", model, "--problems", rows, *short),
        ("sample", model, "--problems", rows, *short),
    ):
        assert assay(*command) == 2 and not marker.exists()
        assert "rows.jsonl:1 verifier: found strange:reward" in capsys.readouterr().err
        assert assay(*command, "--allow", "strange") == 0
        marker.unlink()
    run = changed(own, data={"verifier": "strange:reward"})
    held = world.folder / "heldout.jsonl"
    for command in (
        ("verify", "--rescore", run),
        ("eval", run, "--problems", held, *short),
        ("sample", run, "--problems", held, *short),
        ("data", "label_steps", held, "--out", world.folder / "o", "--set", f"model={run}"),
        ("train", "--resume", run),
    ):
        assert assay(*command) == 2 and not marker.exists()
        assert "data.verifier = strange:reward" in capsys.readouterr().err
        if command[0] in ("verify", "eval", "sample"):
            assert assay(*command, "--trust-run") == 0
            marker.unlink()


def test_pickled_weights_run_nothing(world: World) -> None:
    marker = world.folder / "was-unpickled"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (marker,)

    model = world.folder / "model"
    (model / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Evil()}, model / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        sample(str(model), prompt="1 +")
    assert not marker.exists()


def test_rows_name_code_only_where_it_is_allowed(world: World, marker: Path) -> None:
    row = {"prompt": "1 + 1 =", "answer": "2", "verifier": "strange:reward"}
    rows = [str(world.write_rows("rows.jsonl", [row]))]
    model = str(world.folder / "model")
    refused = r"rows.jsonl:1 verifier: found strange:reward, Python code.*add --allow strange"
    with pytest.raises(DataError, match=refused):
        evaluate(model, rows, max_tokens=4)
    with pytest.raises(DataError, match=refused):
        sample(model, problems=rows, max_tokens=4)
    with pytest.raises(DataError, match=refused):
        train(world.tree(data={"train": rows}), quiet=True)
    assert not marker.exists()
    evaluate(model, rows, max_tokens=4, allow=["strange"])
    assert marker.exists()
    config = world.tree(data={"train": rows}, verification={"allow": ["strange:reward"]})
    assert train(config, overrides=["rl.steps=1"], quiet=True).ended == "finished"


@pytest.mark.parametrize(
    ("verifier", "override", "said"),
    [
        (
            "exact",
            "data.verifier=exact + think_format*0.1",
            "data.verifier: exact before, exact + think_format",
        ),
        ("math", 'data.verifier_by_tag={chat="exact"}', "data.verifier_by_tag: {} before"),
        ("math", "verification.options.math.fallback=none", "math: version "),
        (
            "exact",
            "verification.schedule.exact=[[0, 2.0]]",
            "verification.schedule: {} before",
        ),
    ],
)
def test_a_resumed_run_keeps_its_reward_unless_told(
    world: World, verifier: str, override: str, said: str
) -> None:
    tree = world.tree(rl={"steps": 1}, data={"verifier": verifier, "heldout": []})
    run = train(tree, quiet=True).run
    more = ["rl.steps=2", override]
    with pytest.raises(RunError, match="--accept-changed-verifiers") as error:
        train(resume=run, overrides=more, quiet=True)
    assert said in str(error.value)
    again = train(resume=run, overrides=more, accept_changed_verifiers=True, quiet=True)
    assert again.steps == 2 and "verifiers_changed" in events_of(run)
    assert train(resume=run, overrides=["rl.steps=3"], quiet=True).steps == 3
