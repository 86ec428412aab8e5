"""`assay run list` lists many runs from their directories, says how each stands, and finds some."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_fakes import FakeLearner, make_config, make_rollouts

from assay.errors import RunError, RunStopped
from assay.report.listing import list_runs
from assay.run.directory import Run
from assay.run.rollback import _write_event


def make_run(parent: Path, name: str, num_steps: int = 2, **sections: object) -> Path:
    sections = {"run": {"name": name}, "rl": {"steps": 2}, **sections}
    with Run.create(make_config(parent, **sections), quiet=True) as run:
        run.attach(learner=(learner := FakeLearner()))
        for accuracy in (0.5, 0.25)[:num_steps]:
            groups, verdicts = make_rollouts(run.step + 1)
            run.record(groups, verdicts)
            run.finish_step(learner.learn(groups, verdicts))
            run.record_evaluation({"eval/temperature": 0.0, "eval/pass_at_1": accuracy})
        return run.folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("runs")
    make_run(top, "first", guard={"price_per_hour": 3600.0})
    dapo = {"algorithm": {"name": "dapo"}, "sampling": {"temperature": 0.5}}
    make_run(top / "recipe", "second", **dapo)
    killed = make_run(top, "killed", num_steps=1, algorithm={"name": "rloo"})
    _write_event(killed, 1, "resumed", {})
    (top / "not a run").mkdir()
    (top / "not a run" / "notes.txt").write_text("none", encoding="utf-8")
    return top


def test_each_run_is_a_line(folder: Path) -> None:
    listed = list_runs(folder)
    found = {one.name: one for one in listed.runs}
    assert list(found) == ["killed", "second", "first"], "the newest first, also of folders below"
    first = found["first"]
    assert (first.state, first.step, first.of_steps) == ("finished", 2, 2)
    assert (first.stage, first.algorithm) == ("rl", "dr_grpo")
    assert (first.best, first.best_step) == (0.5, 1)
    assert first.money == pytest.approx(first.seconds) and first.seconds > 0
    assert (found["killed"].state, found["killed"].step) == ("killed", 1)
    assert found["second"].path == str(folder / "recipe" / "second")
    lines = str(listed).splitlines()
    assert "best held-out" in lines[0] and lines[-1] == f"(3 of 3 runs in {folder})"
    assert "50.0% at 1" in lines[1] and "rl rloo" in lines[1]
    assert json.loads(json.dumps(listed.as_dict()))["runs"][0]["name"] == "killed"


def test_runs_are_found_by_words_and_by_settings(folder: Path) -> None:
    def names(*asked: str) -> list[str]:
        return [one.name for one in list_runs(folder, asked).runs]

    assert names("dapo") == names("algorithm.name=dapo") == names("algorithm=dapo") == ["second"]
    assert names("sampling.temperature=0.50") == ["second"]
    assert names("rl.steps=2", "FIRST") == ["first"] and names("state=killed") == ["killed"]
    assert names("rl.steps=3") == []
    with pytest.raises(RunError, match=r"'rl\.step=2'.*rl\.steps"):
        names("rl.step=2")
    with pytest.raises(RunError, match=r"found no folder; accepted: a folder of runs"):
        list_runs(folder / "none")


def test_a_list_a_path_and_a_date_are_found(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "first", run := tmp_path / "first")
    (run / "config.toml").write_text(
        'day = 2026-11-23\n[data]\ntrain = ["gym:chain_sum", "rows/sums.jsonl"]\n', encoding="utf-8"
    )

    def found(asked: str) -> int:
        return len(list_runs(tmp_path, [asked]).runs)

    for one in ("gym:chain_sum", "rows/sums.jsonl", "sums.jsonl"):
        assert found(f"data.train={one}") == 1
    assert found("data.train=s.jsonl") == found("data.train=rows") == 0
    assert found('data.train=["gym:chain_sum", "rows/sums.jsonl"]') == 1
    assert (found("day=2026-11-23"), found("day=2026-11-24")) == (1, 0)
    assert json.dumps(list_runs(tmp_path).as_dict())


def test_what_finds_nothing_by_a_slip_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match=r"state: found 'finnished'; .*; did you mean finished\?"):
        list_runs(folder, ["state=finnished"])
    assert len(list_runs(folder, ["state=FINISHED"]).runs) == 2
    shutil.copytree(folder / "first", tmp_path / "others" / "deep" / "mine")
    monkeypatch.chdir(tmp_path)
    for asked, meant in (("others/deep", "others/deep"), ("others/deep/mine", "others/deep")):
        for top in (folder, tmp_path / "none"):
            with pytest.raises(
                RunError, match=rf"found the folder {asked}; .*--directory {meant}$"
            ):
                list_runs(top, [asked])
    with pytest.raises(RunError, match=rf"found the run .*first; .*--directory {folder}$"):
        list_runs(folder / "first")
    (tmp_path / "dapo").mkdir()
    assert len(list_runs(folder, ["dapo"]).runs) == 1, "a word that finds runs is a word"


def test_the_listing_shows_how_runs_ended(tmp_path: Path) -> None:
    with pytest.raises(RunStopped), Run.create(make_config(tmp_path), quiet=True) as run:
        run.attach()
        (one,) = list_runs(tmp_path).runs
        assert one.state == "running"
        raise RunStopped("step 0: enough")
    (one,) = list_runs(tmp_path).runs
    assert (one.state, one.why) == ("stopped", "RunStopped: step 0: enough")
    (run.folder / "config.toml").write_text("[[[", encoding="utf-8")
    (one,) = list_runs(tmp_path).runs
    assert one.state == "unreadable" and one.why


def test_links_to_folders_above_are_not_followed_again_and_again(
    folder: Path, tmp_path: Path
) -> None:
    """With two such links there would be 2^40 paths before the system refuses one."""
    shutil.copytree(folder / "first", tmp_path / "deep" / "first")
    for name in ("again", "deep/once more"):
        (tmp_path / name).symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "elsewhere").symlink_to(folder / "recipe", target_is_directory=True)
    assert sorted(one.name for one in list_runs(tmp_path).runs) == ["first", "second"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", 'guard = "strict"'),
        ("metrics.jsonl", '{"step": 1, "time/elapsed": "long"}'),
        ("evaluations.jsonl", '{"step": 1, "eval/pass_at_1": "high"}'),
    ],
)
def test_a_run_that_says_nonsense_hides_no_other(
    folder: Path, tmp_path: Path, file: str, text: str
) -> None:
    for name in ("well", "ill"):
        shutil.copytree(folder / "first", tmp_path / name)
    (tmp_path / "ill" / file).write_text(text + "\n", encoding="utf-8")
    states = {one.name: one.state for one in list_runs(tmp_path).runs}
    assert states == {"well": "finished", "ill": "unreadable"}


def test_of_long_journals_only_the_ends_are_read(folder: Path, tmp_path: Path) -> None:
    """What lies between is no JSON here: whoever parsed it would say so."""
    run = tmp_path / "long"
    shutil.copytree(folder / "first", run)
    for name in ("metrics", "events"):
        path = run / f"{name}.jsonl"
        first, *rest = path.read_text(encoding="utf-8").splitlines()
        lines = [first, *["not JSON at all"] * 100_000, *rest]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (one,) = list_runs(tmp_path).runs
    assert (one.state, one.step) == ("finished", 2) and one.start


def test_listing_loads_no_heavy_library(folder: Path) -> None:
    code = f"import sys; from assay.report.listing import list_runs; list_runs({str(folder)!r})"
    heavy = "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{code}; {heavy}"], check=True)
