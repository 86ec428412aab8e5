"""[verification] reaches a run's verdicts, and a run keeps the evidence of its verifiers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from train_worlds import REWARD, World, events_of, rows_of

from assay.config import parse
from assay.errors import DataError, RunError, VerifierError
from assay.evaluation.rejudge import rescore
from assay.session.assemble import verifier_options
from assay.training.api import dry_run, evaluate, train

SUM = f"{REWARD} + length_target"


def tree(world: World, **verification: Any) -> dict[str, Any]:
    options = {"length_target": {"target_tokens": 4}}
    return world.tree(
        data={"verifier": SUM},
        verification={"options": options, **verification},
        evaluation={"every": 1},
    )


def rollouts_of(run: Path) -> list[dict[str, Any]]:
    files = sorted((run / "rollouts").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_options_and_schedule_reach_the_rollouts_and_the_evidence(world: World) -> None:
    schedule = {"length_target": [[0, 0.0], [2, 1.0]]}
    run = Path(train(tree(world, schedule=schedule), quiet=True).run)
    environment = json.loads((run / "environment.json").read_text())
    assert len(environment["verifiers"]["length_target"]["options"]) == 12
    assert "options" not in environment["verifiers"][REWARD]
    seen: set[int] = set()
    for row in rollouts_of(run):
        parts = dict(row["components"])
        factor = min(1.0, row["policy_version"] / 2)
        reward = parts[REWARD] + 0.1 * factor * parts["length_target"]
        assert row["reward"] == pytest.approx(reward)
        seen.add(row["policy_version"])
    assert seen == {0, 1, 2}
    for row in rows_of(run, "metrics"):
        assert row[f"verify/{REWARD}/count"] >= 8
        assert row[f"verify/{REWARD}/p99"] >= row[f"verify/{REWARD}/p50"] > 0
        assert row["verify/length_target/per_second"] > 0
        assert 0 < row["verify/worker_1"] < row["time/elapsed"]


def test_other_options_are_another_verifier(world: World) -> None:
    run = Path(train(tree(world), quiet=True).run)
    longer = ["rl.steps=4", "verification.options.length_target.target_tokens=6"]
    with pytest.raises(RunError, match=r"length_target.*options .* before.*options .* now"):
        train(resume=run, overrides=longer, quiet=True)
    train(resume=run, overrides=longer, accept_changed_verifiers=True, quiet=True)
    assert "verifiers_changed" in events_of(run)
    assert len(rows_of(run, "metrics")) == 4


def test_a_run_with_a_term_that_reads_verdicts_is_resumed(world: World) -> None:
    """`kimi_length` cannot stand first, and is one of the verifiers that the run has used."""
    whole = tree(world)
    whole["data"]["verifier"] = f"{REWARD} + kimi_length*0.1"
    run = Path(train(whole, quiet=True).run)
    train(resume=run, overrides=["rl.steps=4"], quiet=True)
    assert len(rows_of(run, "metrics")) == 4


def test_options_that_are_wrong_stop_a_run_before_it_begins(world: World) -> None:
    wrong = tree(world, options={"length_target": {"target_token": 4}})
    with pytest.raises(VerifierError, match="did you mean target_tokens"):
        train(wrong, quiet=True)
    assert not (world.folder / "runs").exists()


def test_kills_are_written_down_in_evaluations_too(world: World) -> None:
    """The held-out rows alone have a verifier that hangs."""
    rows = [{"id": "h0", "prompt": "1 + 50 =", "verifier": "train_worlds:hangs"}]
    world.write_rows("heldout.jsonl", rows)
    config = world.tree(
        verification={"deadline": 0.6, "allow": ["train_worlds:hangs"]}, evaluation={"every": 3}
    )
    run = Path(train(config, quiet=True).run)
    killed = [row for row in rows_of(run, "events") if row["kind"] == "worker_killed"]
    assert {row["verifier"] for row in killed} == {"train_worlds:hangs"}
    assert [row["step"] for row in killed] == [0, 3]
    assert rows_of(run, "evaluations")[0]["eval/num_not_judged"] == 1


def test_a_judges_replies_are_kept_in_the_run(world: World) -> None:
    from judge_server import JudgeServer

    with JudgeServer(
        lambda asked: json.dumps({"reasoning": "no", "verdict_CODE": "incorrect"})
    ) as server:
        options = {"judge": {"url": server.url, "model": "local"}}
        settings = world.tree(
            data={"verifier": "math|judge", "heldout": []},
            rl={"steps": 1},
            verification={"options": options},
        )
        run = Path(train(settings, quiet=True).run)
        kept = [json.loads(line) for line in (run / "judge_replies.jsonl").read_text().splitlines()]
        assert kept and all(row["model"] == "local" for row in kept)
        asked = len(server.asked)
        again = rescore(run)
        assert (len(server.asked), again.unchanged, again.completions) == (asked, 8, 8)
        before = (run / "judge_replies.jsonl").read_bytes()
        rescore(run, options={"judge": {**options["judge"], "model": "another"}})
        assert len(server.asked) > asked and (run / "judge_replies.jsonl").read_bytes() == before


def test_learned_verifiers_get_the_runs_device_and_tokenizer(world: World) -> None:
    options = {"process_reward_model": {"path": "prm"}, "reward_model": {"device": "cuda"}}
    config = parse(world.tree(run={"device": "cpu"}, verification={"options": options}))
    found = verifier_options(config)
    assert found["reward_model"] == {"device": "cuda"}
    model = config.model.path
    assert found["process_reward_model"] == {
        "path": "prm",
        "device": "cpu",
        "policy_tokenizer": model,
    }
    assert config.verification.options == options


def test_an_import_error_of_a_reward_names_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    Path("needs.py").write_text("import nothing_of_this_name\n")
    why = re.escape("needs:f: found an import that fails (ModuleNotFoundError")
    there = world.config_file(world.tree())
    with pytest.raises(VerifierError, match=f"^--set data.verifier {why}.* in needs.py:1\\)"):
        dry_run(there, overrides=["data.verifier=needs:f"], quiet=True)
    named = world.config_file(world.tree(data={"verifier": "needs:f"}))
    line = named.read_text().splitlines().index('verifier = "needs:f"') + 1
    with pytest.raises(VerifierError, match=f"^{named}:{line} data.verifier {why}"):
        train(named, quiet=True)
    rows = [{"prompt": "1", "answer": "1", "verifier": "needs:f"}]
    world.write_rows("named.jsonl", rows)
    with pytest.raises(DataError, match=f"named.jsonl:1 verifier {why}"):
        evaluate(world.tree()["model"]["path"], "named.jsonl", allow=["needs"], quiet=True)
