"""`assay run replay`: a recorded step is judged and taken again, bit for bit, and every flip
explained."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import gettempdir

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from train_worlds import REWARD, World, rows_of
from vllm_fake import SamplingEngine, fake_vllm

from assay.cli.command import run_command
from assay.errors import RunError, UserError
from assay.evaluation.replay import _copy, replay, start_of
from assay.evaluation.replay_result import ReplayResult
from assay.generate import vllm_engine
from assay.run.environment import saved_source
from assay.run.rollout_log import RolloutLog, read_columns
from assay.training.api import train
from assay.verify.learned.store import JudgeStore

GENEROUS = """
def reward(problem, completion):
    '''Pays for every text of an even sum.'''
    return {"score": float(sum(map(ord, completion.text)) % 2 == 0), "extracted": completion.text[:2]}
"""
STRICT = GENEROUS.replace("% 2 == 0", "% 4 == 0").replace("even sum", "sum in fours")


def outcomes(result: ReplayResult) -> dict[str, str]:
    return {one.name: one.outcome for one in result.again}


def command(run: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["assay", "run", "replay", str(run), *arguments])
    return run_command()


def everything(run: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in run.rglob("*") if path.is_file() and path.name != "lock"]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in found}


def test_the_code_of_a_model_is_run_again_by_consent(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = world.tree(model={"trust_remote_code": True}, rl={"steps": 2})
    run = Path(train(tree, quiet=True).run)
    capsys.readouterr()
    assert command(run, "--step", "2", monkeypatch=monkeypatch) == 2
    consent = "model.trust_remote_code=true"
    assert f"add --set {consent}" in capsys.readouterr().err
    assert command(run, "--step", "2", "--set", consent, monkeypatch=monkeypatch) == 0
    with pytest.raises(UserError, match=r"--set: found rl.steps=3; accepted: model.trust_remote"):
        replay(run, 2, overrides=["rl.steps=3"])


def test_a_step_is_taken_again_bit_for_bit_and_what_was_changed_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dynamic sampling, a KL, minibatches and a moving weight: what is replayed is all of it."""
    tree = world.tree(
        algorithm={"name": "dapo", "kl_weight": 0.01, "kl_target": 0.05},
        rl={"steps": 5, "num_minibatches": 2},
        checkpoint={"every": 2, "keep_last": 2},
        curriculum={"order": "prioritized", "group_sizes": [2, 8]},
    )
    run = Path(train(tree, quiet=True).run)
    before = everything(run)
    capsys.readouterr()
    assert command(run, "--step", "4", "--json", monkeypatch=monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["agrees"] and (found["start"], found["step"]) == (2, 4)
    names = {one["name"]: one for one in found["again"]}
    assert all(one["differ"] == 0 for one in names.values())
    assert {"verdicts", "advantages", "metrics", "checkpoint"} < names.keys()
    assert {f"{name} of the update" for name in ("old_logprobs", "ref_logprobs", "advantages")} < (
        names.keys()
    )
    assert all(one["count"] > 0 for one in names.values()), "there was something to compare"
    assert everything(run) == before, "nothing in the run is touched"

    odd = replay(run, 3)  # of which there is no checkpoint
    assert odd.agrees and outcomes(odd)["checkpoint"] == "not there" and odd.start == 2

    with pytest.raises(RunError, match=r"--step: found 9, which the run has not finished; .*1-5"):
        replay(run, 9)
    shutil.rmtree(run / "checkpoints" / "step-000002")
    assert replay(run, 4).start == 0, "from the start, since all rollouts are there"
    (run / "rollouts" / "step-000001.parquet").unlink()
    with pytest.raises(RunError, match=r"without an undamaged earlier checkpoint.*accepted: a ste"):
        replay(run, 4)

    shard = run / "rollouts" / "step-000005.parquet"
    table = pq.ParquetFile(shard).read()
    advantages = table.column("advantages").to_pylist()
    advantages[0][0] += 0.25
    place, kind = table.column_names.index("advantages"), table.schema.field("advantages")
    pq.write_table(table.set_column(place, kind, pa.array(advantages, kind.type)), shard)
    assert command(run, "--step", "5", monkeypatch=monkeypatch) == 1
    said = capsys.readouterr().out
    assert "differs  advantages" in said and "by 0.25 at most" in said
    assert "equal    old_logprobs of the update" in said
    assert "what may explain it" in said and "not all agrees" in said


def test_a_step_that_vllm_sampled_is_taken_again_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens were weighed by how much more likely the learner held them; and they are again."""
    fake = fake_vllm(engine=SamplingEngine)
    monkeypatch.setattr(vllm_engine, "import_vllm", lambda: fake)
    run = Path(train(world.tree(scale={"generator": "vllm"}), quiet=True).run)
    found = replay(run, 3)
    assert len(fake.made) == 1, "nothing is sampled again"
    assert {*outcomes(found).values()} == {"equal"}, str(found)


def test_a_replay_after_a_change_of_the_verifier_explains_every_flip(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.folder)
    mine = world.folder / "my_length.py"
    mine.write_text(GENEROUS, encoding="utf-8")
    tree = world.tree(data={"verifier": "my_length:reward"}, rl={"steps": 2})
    run = Path(train(tree, quiet=True).run)
    (hash,) = {row["verifier_hash"] for row in read_columns(_shard(run), ["verifier_hash"]) or ()}
    assert saved_source(run, hash) == {"my_length": GENEROUS}
    assert "source" not in (run / "environment.json").read_text(encoding="utf-8")

    mine.write_text(STRICT, encoding="utf-8")
    result = replay(run, 2)
    rows = read_columns(_shard(run), ["completion_id", "text", "status"]) or []
    turned = {row["completion_id"] for row in rows if sum(map(ord, row["text"])) % 4 == 2}
    assert turned and {flip.completion for flip in result.flips} == turned
    for flip in result.flips:
        assert flip.status == ("passed", "failed") and flip.reward == (1.0, 0.0)
        assert flip.hash[0] == hash != flip.hash[1]
        assert flip.verifier == ("my_length:reward@1",) * 2
        assert flip.extracted[0] == flip.text[:2] and flip.why == "the verifier's code changed"
    (changed,) = result.sources.values()
    assert '-    return {"score": float(sum(map(ord, completion.text)) % 2 == 0)' in changed
    assert '+    return {"score": float(sum(map(ord, completion.text)) % 4 == 0)' in changed
    assert not result.agrees and outcomes(result)["checkpoint"] == "equal"
    assert outcomes(result)["advantages"] == "equal", "the update is that of the logged verdicts"
    assert "with different verifier code" in str(result) and hash in str(result)


def test_an_equal_hash_with_another_verdict_is_an_error(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the verifier reads beside its own source is not covered by its hash."""
    monkeypatch.chdir(world.folder)
    table = world.folder / "table.json"
    table.write_text("0", encoding="utf-8")
    (world.folder / "by_table.py").write_text(
        "import json, pathlib\n\ndef reward(problem, completion):\n"
        f"    odd = json.loads(pathlib.Path({str(table)!r}).read_text())\n"
        "    return float(len(completion.text) % 2 == odd)\n",
        encoding="utf-8",
    )
    tree = world.tree(data={"verifier": "by_table:reward"}, rl={"steps": 1})
    run = Path(train(tree, quiet=True).run)
    assert replay(run, 1).agrees
    table.write_text("1", encoding="utf-8")
    result = replay(run, 1)
    assert len(result.flips) == 8 and not result.sources
    assert all("an equal hash must give an equal verdict" in flip.why for flip in result.flips)


def test_what_cannot_be_replayed_is_told(world: World) -> None:
    tree = world.sft_tree()
    run = Path(train(tree, quiet=True).run)
    with pytest.raises(UserError, match=r"found a run of \[sft\]; accepted: a run of \[rl\]"):
        replay(run, 1)
    run = Path(train(world.tree(rl={"steps": 1}, data={"verifier": REWARD}), quiet=True).run)
    rows = [{"id": f"q{n}", "prompt": f"{n} + 2 =", "answer": f"{n + 2}"} for n in range(10)]
    world.write_rows("train.jsonl", rows)
    with pytest.raises(
        RunError, match=r"data\.train: found a completion that the rollout log does not"
    ):
        replay(run, 1)
    assert len(rows_of(run, "metrics")) == 1


def test_what_a_later_start_changed_is_told_with_its_source(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of before the change: the configuration and the environment are those of after it."""
    monkeypatch.chdir(world.folder)
    mine = world.folder / "my_ends.py"
    mine.write_text(GENEROUS, encoding="utf-8")
    tree = world.tree(data={"verifier": "my_ends:reward"}, rl={"steps": 2})
    run = Path(train(tree, quiet=True).run)
    first = (run / "verifiers").iterdir().__next__().name
    mine.write_text(STRICT, encoding="utf-8")
    changes = ["rl.steps=3", "optimizer.learning_rate=0.002"]
    train(resume=run, overrides=changes, accept_changed_verifiers=True, quiet=True)
    tables: list[int] = []
    table = RolloutLog.table
    monkeypatch.setattr(RolloutLog, "table", lambda log, one: tables.append(one) or table(log, one))
    assert start_of(run, 1) == 0 and tables == [1], "of a long run only what is needed is read"

    monkeypatch.chdir(run / "rollouts")
    monkeypatch.syspath_prepend(str(world.folder))
    result = replay(Path(".."), 1)
    assert not [*Path(gettempdir()).glob("config.toml")], "nothing beside the copy"
    ((title, changed),) = result.sources.items()
    assert f"({first}) then" in title and "+    return" in changed
    assert outcomes(result)["metrics"] == "differs"
    assert any("learning_rate: 0.001 before, 0.002 now" in one for one in result.causes)


def test_new_replies_of_a_judge_stay_out_of_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("", encoding="utf-8")
    kept = JudgeStore(run / "judge_replies.jsonl")
    kept.put("old", {"text": "yes"})
    before = everything(run)
    copy = _copy(run, tmp_path / "copy", 0, range(0))
    store = JudgeStore(copy / "judge_replies.jsonl")
    assert store.get("old") == {"text": "yes"}
    store.put("new", {"text": "no"})
    assert everything(run) == before


def _shard(run: Path, step: int = 2) -> Path:
    return run / "rollouts" / f"step-{step:06d}.parquet"
