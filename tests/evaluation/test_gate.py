"""A gate refuses what is worse, what was seen before, and what passes where nothing honest can."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from assay.config import parse
from assay.data.problems import load_problems
from assay.errors import ConfigError, DataError, RunError, VerifierError
from assay.evaluation.divergence import divergence, plain
from assay.evaluation.gate import (
    _check_sandbox,
    _efforts,
    check_unseen,
    gate,
    hack_check,
    review_check,
)
from assay.evaluation.gate_checks import CANARIES
from assay.evaluation.gate_thresholds import Thresholds, read_thresholds
from assay.release.model_card import model_card
from assay.report.loaded import load_run
from assay.session.assemble import open_session, open_verifiers
from assay.session.sampling import SamplingOptions, sampling_config
from assay.testing import save_tiny_model
from assay.training.api import train


def completions(folder: Path) -> Path:
    texts = ("4", "4", "the answer is 5 or 4")
    rows = [
        {"side": side, "set": "s", "id": f"p{n}#0/0", "status": "passed"}
        | {"answer": "4", "completion": text}
        for side in "AB"
        for n, text in enumerate(texts)
    ]
    return write(folder / "both.jsonl", rows)


def test_what_a_stronger_verifier_rejects_is_a_hack(tmp_path: Path) -> None:
    path = completions(tmp_path)
    found = hack_check(path, ["s"], "exact", Thresholds(), ())
    assert found.outcome == "failed"
    assert found.found.startswith("1 of 3 passes are rejected (33.3%): p2")
    lenient = hack_check(path, ["s"], "exact", Thresholds(max_hack_rate=0.4), ())
    assert lenient.outcome == "passed"
    assert hack_check(path, ["other"], "exact", Thresholds(), ()).outcome == "info"


def test_reviews_pass_only_when_approved_and_enough(tmp_path: Path) -> None:
    path, limits = completions(tmp_path), Thresholds(min_reviewed=2)
    read = [{"id": f"p{n}#0/0", "by": "Ada", "ok": True} for n in range(3)]
    assert review_check(read, [path], limits).outcome == "passed"
    assert review_check(read[:1], [path], limits).outcome == "failed"
    assert review_check([*read[:2], {**read[2], "ok": False}], [path], limits).outcome == "failed"
    others = [{**one, "id": "x"} for one in read]
    assert review_check(others, [path], limits).outcome == "failed"
    assert review_check(others, [path], Thresholds()).outcome == "failed", "none of these were read"


def test_reviews_that_are_not_there_are_refused_before_anything_is_sampled(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--review .*none\.jsonl: found no such file"):
        gate("model", ["rows.jsonl"], review=tmp_path / "none.jsonl", out=tmp_path / "out")


def test_wrong_thresholds_are_told(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("chance = 0.01\nmax_los = 0.2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"limits.toml:2 max_los: .*max_loss"):
        read_thresholds(path)
    path.write_text("max_hack_rate = 2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"limits.toml:1 max_hack_rate: found 2"):
        read_thresholds(path)
    assert read_thresholds(None) == Thresholds()


@pytest.mark.parametrize("stage", ["sft", "distill"])
def test_traces_are_seen_too(tmp_path: Path, stage: str) -> None:
    traces = write(tmp_path / "t.jsonl", [{"prompt": "1 + 1 =", "completion": "2"}])
    own = write(tmp_path / "own.jsonl", [{"prompt": "1 + 1 =", "answer": "2"}])
    teacher = {"teacher": {"path": "t"}} if stage == "distill" else {}
    config = parse({"model": {"path": "m"}, stage: {"traces": [str(traces)]}, **teacher})
    with pytest.raises(DataError, match=rf"t.jsonl:1, of the run's {stage}.traces"):
        check_unseen(config, [str(own)])


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_a_leaky_verifier_pays_more_and_more_and_the_gate_refuses(
    tmp_path: Path, one_thread: None
) -> None:
    """A real run of some seconds: the reward leaks, so that it rises and what is asked for falls.

    Wanted are texts without the letters a to m. The verifier of the training rows pays for texts
    that have one of them.
    """
    model = save_tiny_model(tmp_path / "model", max_positions=64)
    rows = [{"id": f"q{n}", "prompt": f"{n} + 1 =", "verifier": "regex"} for n in range(72)]
    leak = [{**row, "pattern": "(?s).*[a-m].*"} for row in rows[:8]]
    right = [{**row, "pattern": "(?s)[^a-m]*"} for row in rows[8:]]
    run = train(
        {
            "run": {"directory": str(tmp_path / "runs"), "name": "leaky", "threads": 1},
            "model": {"path": str(model)},
            "data": {"train": [str(write(tmp_path / "leak.jsonl", leak))]},
            "sampling": {"max_tokens": 4},
            "optimizer": {"learning_rate": 0.01},
            "rl": {"steps": 12, "num_prompts": 4, "group_size": 8},
            "verification": {"num_workers": 1},
        },
        quiet=True,
    ).run
    rewards = load_run(run).metrics["reward/mean"]
    assert rewards[-1] > rewards[0] + 0.3, "by its reward it is much better"
    own, out = str(write(tmp_path / "own.jsonl", right)), tmp_path / "out.jsonl"
    limits = tmp_path / "limits.toml"
    limits.write_text("max_kl = 0.01\n", encoding="utf-8")
    how = {"quiet": True, "temperature": 1.0, "canaries": [], "out": out}
    found = gate(f"{run}@last", [own], thresholds=limits, **how)
    failed = [one.name for one in found.checks if one.outcome == "failed"]
    assert failed == [f"correctness, {own}", "KL"] and not found.passed
    gain = found.compared[0].sets[0].gain
    assert gain is not None and gain.value < -0.3


def test_the_divergence_is_that_of_a_plain_loop(tmp_path: Path, one_thread: None) -> None:
    paths = [str(save_tiny_model(tmp_path / str(n), seed=n, max_positions=64)) for n in (1, 2)]
    rows = [{"prompt": f"{n} + 1 =", "answer": "2"} for n in range(6)]
    own = [str(write(tmp_path / "own.jsonl", rows))]
    how = SamplingOptions(max_tokens=5)
    same = divergence(paths[0], paths[0], own, 4, how)
    assert same is not None and same.per_token == 0.0 and same.num_completions == 4
    there, back = (divergence(a, b, own, 6, how) for a, b in (paths, paths[::-1]))
    assert there is not None and back is not None
    assert there.per_token > 0 and there.error and there.per_token != back.per_token

    config = sampling_config(paths[0], own, how)
    with ExitStack() as stack:
        session = open_session(config, open_verifiers(config, stack))
        groups = session.generator.generate([*load_problems(own)], plain(config.sampling), 1)
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in paths]
    models = [model.requires_grad_(False) for model in models]
    total, count = 0.0, 0
    for group in groups:
        prompt, tokens = group.prompt.tokens.tolist(), group.completions[0].tokens.tolist()
        for n, token in enumerate(tokens):
            past = torch.tensor([prompt + tokens[:n]])
            both = [model(past).logits[0, -1].double().log_softmax(0)[token] for model in models]
            total += float(torch.exp(both[1] - both[0]) - 1 - (both[1] - both[0]))
            count += 1
    assert there.num_tokens == count
    assert there.per_token == pytest.approx(total / count, rel=1e-4)


@pytest.mark.parametrize("where", ["nowhere", "run", "row"])
def test_efforts_are_asked_where_the_run_has_them(tmp_path: Path, where: str) -> None:
    row = {"prompt": "1 + 1 =", "answer": "2", **({"effort": "low"} if where == "row" else {})}
    data = {"train": [str(write(tmp_path / "t.jsonl", [row]))]}
    sampling = {"max_tokens": 4096, **({"effort": "medium"} if where == "run" else {})}
    config = parse({"model": {"path": "m"}, "rl": {}, "data": data, "sampling": sampling})
    assert _efforts(config, {}) == ([None] if where == "nowhere" else ["low", "medium"])
    room: SamplingOptions = {"max_tokens": 9000}
    assert _efforts(config, room) == ([None] if where == "nowhere" else ["low", "high"])
    assert _efforts(config, {"effort": "medium"}) == [None], "as the caller says"


def refused_before_it_costs(
    run: str,
    own: str,
    row: dict[str, Any],
    canary: Path,
    monkeypatch: pytest.MonkeyPatch,
    **how: Any,
) -> None:
    """Hold a gate to it that what is wrong is told before anything is sampled."""
    folder = canary.parent
    nowhere = folder / "nothing.jsonl"
    none = {"out": nowhere, **how}
    mine = write(folder / "mine.jsonl", [{**row, "prompt": "a" * 130, "tags": ["easy"]}])
    with pytest.raises(DataError, match=r"mine.jsonl:1 .*accepted"):
        gate(run, [own], canaries=[mine], **none)
    slip = write(folder / "slip.jsonl", [{**row, "tags": ["plantd"]}])
    with pytest.raises(DataError, match=r"slip.jsonl:1 tags: found 'plantd'.*mean planted\?"):
        gate(run, [own], canaries=[slip], **none)
    with pytest.raises(VerifierError, match=r"'regx'"):
        gate(run, [own], canaries=[canary], strong="regx", **none)
    for name, said in (
        (f"{run}@9", "there is no .*@9; accepted"),
        (str(folder / "nobody"), "nothing there"),
    ):
        with pytest.raises(RunError, match=said):
            gate(run, [own], against=name, canaries=[mine], **none)
    nothing = [("sandbox", False, "sandbox: found no namespaces; accepted: Linux; allow them")]
    monkeypatch.setattr("assay.evaluation.gate.sandbox_report", lambda: nothing)
    with pytest.raises(RunError, match=r"code: sandbox: found no .* --canaries mathematics --can"):
        gate(run, [own], **none)
    unsafe: SamplingOptions = {"overrides": ["verification.options.code.unsafe_no_sandbox=true"]}
    _check_sandbox(["code"], run, unsafe)  # by the user's word
    _check_sandbox(["mathematics", "instructions"], run, {})
    assert not nowhere.exists(), "all that is told before anything is sampled"


def test_rows_without_a_verifier_are_judged_by_that_of_the_candidate(
    tmp_path: Path, one_thread: None
) -> None:
    """As in the demo, whose last stage is judged otherwise than the stage that it began from."""
    model = save_tiny_model(tmp_path / "model", max_positions=128)
    row = {"pattern": "(?s).*", "where": "whole", "answer": "1"}
    rows = [{"id": f"q{n}", "prompt": f"{n} + 1 =", **row} for n in range(4)]
    train_rows = str(write(tmp_path / "t.jsonl", rows[:2]))
    path = str(model)
    for name in ("exact", "regex"):
        tree = {
            "run": {"directory": str(tmp_path / "runs"), "name": name, "threads": 1},
            "model": {"path": path},
            "data": {"train": [train_rows], "verifier": name},
            "sampling": {"max_tokens": 4},
            "rl": {"steps": 1, "num_prompts": 1, "group_size": 2},
            "verification": {"num_workers": 1},
        }
        path = str(train(tree, quiet=True).run)
    own, how = str(write(tmp_path / "own.jsonl", rows[2:])), {"quiet": True, "max_tokens": 4}
    found = gate(path, [own], canaries=[], out=tmp_path / "out.jsonl", **how)
    sides = found.compared[0].sets[0]
    assert (sides.a.pass_at_1, sides.b.pass_at_1) == (1.0, 1.0)


def test_a_whole_gate(
    tmp_path: Path,
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a run of one step: its result, what is kept, its card, and what is refused before."""
    model = save_tiny_model(tmp_path / "model", max_positions=128)
    rule = {"pattern": "(?s).*", "where": "whole", "verifier": "regex"}
    ask = [{"id": f"q{n}", "prompt": f"{n} + 1 =", **rule} for n in range(8)]
    seen = [write(tmp_path / name, ask[n : n + 2]) for n, name in ((0, "t.jsonl"), (2, "h.jsonl"))]
    run = train(
        {
            "run": {"directory": str(tmp_path / "runs"), "name": "run", "threads": 1},
            "model": {"path": str(model)},
            "data": {"train": [str(seen[0])], "heldout": [str(seen[1])]},
            "sampling": {"max_tokens": 4},
            "rl": {"steps": 1, "num_prompts": 1, "group_size": 2},
            "verification": {"num_workers": 1},
        },
        quiet=True,
    ).run
    own, how = str(write(tmp_path / "own.jsonl", ask[4:7])), {"quiet": True, "max_tokens": 4}
    canary = write(tmp_path / "c.jsonl", [{**ask[7], "tags": ["planted"]}])
    out = tmp_path / "out.jsonl"
    found = gate(run, [own], canaries=[canary], strong="regex", out=out, **how)
    failed = [one.name for one in found.checks if one.outcome == "failed"]
    assert "canaries, c, planted" in failed and not found.passed
    assert "canaries, c, planted" in str(found).splitlines()[-1]
    kept = json.loads((Path(run) / "gates" / "step-000001.json").read_text(encoding="utf-8"))
    assert kept["passed"] is False and kept["against"] == str(model)
    card = model_card(load_run(run), 1)
    made = [
        line.split(" | ")[0] for line in card.split("## Lineage")[1].split("## How")[0].split("\n")
    ]
    assert [one.strip("| ") for one in made if one[2:3].isalpha()] == [
        "base model",
        "run",
        "verifier",
        "verifier",
        "checkpoint",
    ]
    assert "KL" in {one.name for one in found.checks}
    assert "## Gate" in card and "| canaries, c, planted | 1 of 1 passed: q7 |" in card
    for row, key in ((ask[0], "train"), (ask[3], "heldout")):
        again = write(tmp_path / "again.jsonl", [{**row, "id": "other", "tags": ["x"]}])
        with pytest.raises(DataError, match=rf"again.jsonl:1: found .* of the run's data.{key}"):
            gate(run, [str(again)], canaries=[], out=out, **how)
        with pytest.raises(DataError, match=rf"again.jsonl:1: found .* of the run's data.{key}"):
            gate(run, [own], canaries=[again], out=out, **how)
    with pytest.raises(ConfigError, match=r"own.jsonl: found a source of problems; accepted: ano"):
        gate(run, [own], canaries=[], out=own, **how)
    assert len(Path(own).read_text().splitlines()) == 3, "they are still there"
    capsys.readouterr()
    aloud = {**how, "quiet": False}
    few = gate(run, [own], canaries=["instructions"], max_problems=9, out=out, **aloud)
    assert capsys.readouterr().err.splitlines()[0] == (
        "the gate also asks both models 9 canaries (instructions 9); --canaries names others"
    )
    rows = [json.loads(line) for line in CANARIES["instructions"].read_text().splitlines()][:9]
    long = [row["id"] for row in rows if len(row["prompt"].encode()) > 120]
    short = [row["id"] for row in rows if len(row["prompt"].encode()) < 90]
    assert long and short
    left_out = few.compared[0].sets[1].left_out
    assert {*long} <= {*left_out} and not {*short} & {*left_out}
    (told,) = [one for one in few.checks if one.name == "canaries, instructions, left out"]
    assert told.found.startswith(f"{len(left_out)} of 9: ") and told.outcome == "info"
    assert {*left_out} <= {*few.as_dict()["compared"][0]["sets"][1]["left_out"]}

    refused_before_it_costs(str(run), own, ask[7], canary, monkeypatch, **how)
    config = Path(run) / "config.toml"  # a stranger's now, whose rows are code
    config.write_text(config.read_text().replace(str(seen[0]), "strange:rows"), encoding="utf-8")
    with pytest.raises(RunError, match=r"found data.train = strange:rows.*add --trust-run"):
        gate(run, [own], canaries=[canary], out=out, **how)
    with pytest.raises(RunError, match="a checkpoint of a run"):
        gate(str(model), [own], out=out, **how)
