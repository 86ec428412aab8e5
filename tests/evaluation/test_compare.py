"""Two models on the same problems: the same figures as two evaluations, from models and from files."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, obedient
from train_worlds import World, verdict

import assay
from assay import cli
from assay.errors import ConfigError, DataError, RunError, VerifierError
from assay.evaluation.compare import _configs, compare
from assay.evaluation.compare_result import CompareResult, compared, with_p_of_all
from assay.run.paired import holm, paired_interval, sign_flip_p
from assay.session.evaluate import Evaluation, summarize
from assay.testing import save_tiny_model
from assay.types import Completion, Group, Problem, Prompt
from assay.verify.learned.panel import close_judges

EVEN = "train_worlds:even_text"
HOW: dict[str, Any] = {"max_tokens": 8, "verifier": EVEN, "quiet": True}


@pytest.fixture
def other(world: World) -> str:
    """Another model; in the world, for the tests of this file alone."""
    return str(save_tiny_model(world.folder / "other", max_positions=64, seed=1))


def shares_of(found: Evaluation) -> dict[str, float]:
    return dict(found.by_problem)


def test_a_comparison_is_two_evaluations_problem_by_problem(world: World, other: str) -> None:
    """And from the file that it wrote it comes out the same, without a model."""
    model, rows = str(world.folder / "model"), str(world.folder / "train.jsonl")
    heldout, out = str(world.folder / "heldout.jsonl"), world.folder / "both.jsonl"
    how = {**HOW, "num_samples": 3, "temperature": 1.0}
    found = compare(model, other, rows, out_of_domain=heldout, out=out, **how)
    first, second = (assay.evaluate(name, rows, **how) for name in (model, other))
    near, far = found.sets
    assert shares_of(near.a) == shares_of(first) and shares_of(near.b) == shares_of(second)
    differences = {id: second.by_problem[id] - share for id, share in first.by_problem.items()}
    assert near.gain is not None and near.gain.num_problems == 10
    assert near.gain.value == pytest.approx(statistics.mean(differences.values()))
    assert near.gain.interval == pytest.approx(paired_interval([*differences.values()]))
    assert near.p_value == pytest.approx(sign_flip_p([*differences.values()]))
    assert {*near.better} == {id for id, one in differences.items() if one > 0} != set()
    assert {*near.worse} == {id for id, one in differences.items() if one < 0}
    assert (near.out_of_domain, far.out_of_domain) == (False, True) and far.gain is not None
    assert found.num_samples == 3 and near.characters[0] > 0

    (world.folder / "model").rename(world.folder / "away")
    again = compare(str(out), str(out), rows, out_of_domain=heldout, **HOW)
    for old, new in zip(found.sets, again.sets, strict=True):
        assert new.gain == old.gain and new.p_value == old.p_value
        assert (new.better, new.worse, new.characters) == (old.better, old.worse, old.characters)
        assert new.a.mean_tokens == old.a.mean_tokens and new.a.truncated == old.a.truncated
        assert shares_of(new.b) == shares_of(old.b)
    assert again.temperature is None and "recorded, 3 completions a problem" in str(again)


def test_a_model_is_no_better_than_itself(world: World) -> None:
    """The same problems with the same random numbers."""
    model, rows = str(world.folder / "model"), str(world.folder / "train.jsonl")
    (one,) = compare(model, model, rows, num_samples=2, temperature=1.0, **HOW).sets
    assert one.gain is not None and (one.gain.value, one.p_value) == (0.0, 1.0)
    assert one.better == one.worse == () and one.gain.interval[0] < 0 < one.gain.interval[1]


def test_completions_of_eval_stand_for_a_model(world: World, other: str) -> None:
    """Some problems only: what both have is compared."""
    rows = str(world.folder / "train.jsonl")
    out = world.folder / "few.jsonl"
    few = assay.evaluate(str(world.folder / "model"), rows, max_problems=4, out=out, **HOW)
    (one,) = compare(out, other, rows, **HOW).sets
    assert shares_of(one.a) == shares_of(few) and len(one.b.by_problem) == 10
    assert one.gain is not None and one.gain.num_problems == 4


def test_two_files_of_completions_hold_their_problems_and_verdicts(
    world: World, other: str
) -> None:
    rows = str(world.folder / "train.jsonl")
    files = [world.folder / f"{side}.jsonl" for side in "ab"]
    for model, out in zip((str(world.folder / "model"), other), files, strict=True):
        assay.evaluate(model, rows, out=out, num_samples=2, temperature=1.0, **HOW)
    (asked,) = compare(*files, rows, **HOW).sets
    (found,) = compare(*files, quiet=True).sets
    assert (found.name, found.gain, found.better) == (str(files[0]), asked.gain, asked.better)
    assert shares_of(found.a) == shares_of(asked.a) and shares_of(found.b) == shares_of(asked.b)
    (again,) = compare(*files, verifier="train_worlds:always_right", quiet=True).sets
    assert again.a.pass_at_1 == again.b.pass_at_1 == 1.0

    lines = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    del lines[0]["status"]
    files[0].write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    (judged,) = compare(*files, quiet=True).sets
    assert judged.a.pass_at_1 == 0.0 < found.a.pass_at_1, "one has no verdict: math judges them all"


def test_a_file_of_both_models_holds_the_problems_of_each_set(world: World, other: str) -> None:
    model, out = str(world.folder / "model"), world.folder / "both.jsonl"
    rows = [str(world.folder / f"{name}.jsonl") for name in ("train", "heldout")]
    found = compare(model, other, rows, out=out, **HOW)
    again = compare(out, out, quiet=True)
    for old, new in zip(found.sets, again.sets, strict=True):
        assert (new.name, new.gain, new.characters) == (old.name, old.gain, old.characters)
    with pytest.raises(ConfigError, match="no problems"):
        compare(out, other, quiet=True)


def test_a_model_that_is_no_run_is_asked_as_the_run_beside_it(world: World) -> None:
    changes = {"prompt_template": "Q: {question}\nA:", "verifier": EVEN}
    tree = world.tree(rl={"steps": 1}, data=changes, sampling={"max_tokens": 5})
    run = assay.train(tree, quiet=True)
    base, rows = str(world.folder / "model"), str(world.folder / "heldout.jsonl")
    found = compare(base, run.run, rows, quiet=True)
    (one,) = found.sets
    before = json.loads((Path(run.run) / "evaluations.jsonl").read_text().splitlines()[0])
    assert shares_of(one.a) == before["eval/by_problem"]
    assert one.a.mean_tokens <= 5 and not found.notes


def test_a_relative_model_beside_a_configuration_is_no_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory may hold the configuration of the next run."""
    tree = world.tree(rl={"steps": 1}, data={"verifier": EVEN}, sampling={"max_tokens": 5})
    run = assay.train(tree, quiet=True).run
    monkeypatch.chdir(world.folder)
    Path("config.toml").write_text("[model]\n", encoding="utf-8")
    for names in (("model", str(run)), (str(run), "model")):
        assert [config.sampling.max_tokens for config in _configs(names, [], {})] == [5, 5]


def test_a_budget_that_no_prompt_can_use_is_reported(world: World) -> None:
    model, rows = str(world.folder / "model"), str(world.folder / "train.jsonl")
    control = ["sampling.think_stop_text={close}", "data.think_close=}"]
    how: dict[str, Any] = {**HOW, "max_problems": 2, "overrides": control}
    found = compare(model, model, rows, think_budget=4, **how)
    words = "sampling.think_budget: found 4, but no prompt has a think block"
    assert [note.partition(";")[0] for note in found.notes] == [
        f"note: {side}: {words}" for side in "AB"
    ]
    how["overrides"] = [*control, "data.think=opened"]
    assert not compare(model, model, rows, think_budget=4, **how).notes
    assert not compare(model, model, rows, **{**how, "overrides": control}).notes


def test_runs_must_be_judged_alike(world: World) -> None:
    runs: list[str] = []
    for name in ("even_text", "always_right"):
        sections = {"data": {"verifier": f"train_worlds:{name}"}, "run": {"name": name}}
        runs.append(assay.train(world.tree(rl={"steps": 1}, **sections), quiet=True).run)
    rows = str(world.folder / "heldout.jsonl")
    with pytest.raises(
        ConfigError, match=r"in the run of A and .* add --verifier '.*always_right'"
    ):
        compare(runs[0], runs[1], rows, quiet=True)
    found = compare(runs[0], runs[1], rows, verifier="train_worlds:always_right", quiet=True)
    assert found.sets[0].a.pass_at_1 == found.sets[0].b.pass_at_1 == 1.0


def written(folder: Path, name: str, texts: dict[str, str], **more: Any) -> Path:
    """Write recorded completions."""
    path = folder / name
    rows = [{"id": id, "completion": text, **more} for id, text in texts.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def judged() -> Iterator[JudgeServer]:
    with JudgeServer(obedient) as server:
        yield server
    close_judges()


def test_a_judge_is_asked_in_both_orders_where_nothing_can_be_verified(
    tmp_path: Path, judged: JudgeServer
) -> None:
    """It prefers the longer text."""
    problems = [{"id": f"q{n}", "prompt": f"say {n}"} for n in range(12)]
    short = written(tmp_path, "a.jsonl", {f"q{n}": "x" * (5 + n % 5) for n in range(12)})
    longer = written(tmp_path, "b.jsonl", {f"q{n}": "y" * (6 + n % 4) for n in range(12)})
    options = [f"judge.{key}={value}" for key, value in {"url": judged.url, "model": "m"}.items()]
    overrides = [f"verification.options.{one}" for one in options]
    found = compare(short, longer, problems, judge="pairwise", overrides=overrides, quiet=True)
    (one,) = found.sets
    wins, even = one.wins, one.wins_at_equal_length
    assert wins is not None and even is not None and one.gain is None and not found.found_nothing
    pairs = [(5 + n % 5, 6 + n % 4) for n in range(12)]
    expected = [sum(b > a for a, b in pairs), sum(b < a for a, b in pairs)]
    assert [wins.wins, wins.losses] == expected and wins.ties == 12 - sum(expected)
    assert wins.by_place == (wins.rate, wins.rate) and wins.inconsistent == 0
    assert len(judged.asked) == 24, "each pair in both orders"
    assert even.length_effect is not None and even.length_effect > 0, "longer texts win"
    text = str(found)
    assert "not verified" in text and f"judge: B wins {wins.rate:.1%}" in text
    assert "place: B wins" in text and "at equal length" in text
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_verifier_can_be_the_judge(tmp_path: Path) -> None:
    problems = [{"id": f"q{n}", "prompt": "?", "answer": "7"} for n in range(4)]
    a = written(tmp_path, "a.jsonl", {"q0": "1", "q1": "1", "q2": "7", "q3": "7"})
    b = written(tmp_path, "b.jsonl", {"q0": "7", "q1": "7", "q2": "1", "q3": "7"})
    (one,) = compare(a, b, problems, judge="math", quiet=True).sets
    assert one.wins is not None and one.gain is not None
    assert (one.wins.wins, one.wins.losses, one.wins.ties) == (2, 1, 1)
    assert one.wins.rate == 0.625 and one.wins.by_place is None
    assert one.gain.value == 0.25 and one.better == ("q0", "q1") and one.worse == ("q2",)
    assert one.p_value == 1.0


def test_what_nobody_can_judge_is_told(tmp_path: Path) -> None:
    problems = [{"id": "q", "prompt": "?", "verifier": "train_worlds:never_judged"}]
    file = written(tmp_path, "a.jsonl", {"q": "1"})
    never = "train_worlds:never_judged"
    found = compare(file, file, problems, judge=never, allow=["train_worlds"], quiet=True)
    assert found.found_nothing and "no pair of 1 was judged" in str(found)


def test_bad_input_is_told_before_a_model_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("assay.evaluation.compare.open_sampling", never)
    monkeypatch.delenv("ASSAY_JUDGE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    problems = [{"id": "q", "prompt": "?", "answer": "7"}]
    file = written(tmp_path, "a.jsonl", {"other#0/0": "1"})
    with pytest.raises(ConfigError, match=r"no problems; accepted: .* assay run compare A B$"):
        compare("a/b", "c/d")
    with pytest.raises(DataError, match="the same source twice"):
        compare("a/b", "c/d", "x.jsonl", out_of_domain=["x.jsonl"])
    with pytest.raises(RunError, match="runs/nope: found nothing there"):
        compare("runs/nope", file, problems, quiet=True)
    with pytest.raises(
        DataError, match=r"found no completion of its problems \(q, ...\) but of other"
    ):
        compare(file, file, problems, quiet=True)
    with pytest.raises(VerifierError, match="judge"):
        compare("a/b", file, problems, judge="pairwise", quiet=True)
    with pytest.raises(VerifierError, match="mth"):
        compare("a/b", file, problems, judge="mth", quiet=True)
    with pytest.raises(DataError, match="answer"):
        compare("a/b", file, [{"id": "q", "prompt": "?"}], quiet=True)
    with pytest.raises(ConfigError, match="temperature"):
        compare("a/b", "c/d", problems, num_samples=2)


def test_the_command_compares_files_and_models(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file, and of a model; where nothing could be judged the exit code is 1."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["assay", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    monkeypatch.chdir(world.folder)
    file = written(world.folder, "a.jsonl", {f"p{n}": "x" * n for n in range(4)})
    given = ("--problems", "train.jsonl", "--verifier", EVEN)
    code, text, _ = call(file, file, *given, "--flips", 2)
    assert code == 0 and text.startswith(f"A: {file}\nB: {file}\nrecorded, 1 completion a problem")
    assert "\nB minus A +0.0 points, 95% interval" in text and ", p 1\n" in text
    more = ("--out-of-domain", "heldout.jsonl", "--max-tokens", 4, "--json")
    code, text, _ = call("model", "model", *given, *more)
    table = json.loads(text)
    assert code == 0 and [one["out_of_domain"] for one in table["sets"]] == [False, True]
    assert table["sets"][0]["gain"]["value"] == 0.0 and table["sets"][0]["b"]["interval"]
    code, _, said = call("model", "model")
    assert code == 2 and "error: compare: found no problems" in said
    code, _, said = call(file, file, *given[:3], "train_worlds:never_judged")
    assert code == 1 and "nothing was judged" in said


def evaluation(shares: dict[str, bool]) -> Evaluation:
    groups = [
        Group(
            Problem(id, "?"),
            Prompt("?", assay.testing._bytes_of("?")),
            (Completion.from_text("x"),),
        )
        for id in shares
    ]
    return summarize(groups, [[verdict(right)] for right in shares.values()])


def test_flips_and_p_values_of_several_sets() -> None:
    """Largest changes first; p counts how many sets there are; text shows as many ids as asked."""
    before = evaluation({f"p{n}": n < 5 for n in range(20)})
    better = evaluation({f"p{n}": n != 0 and n < 14 for n in range(20)})
    sets = with_p_of_all(
        [
            compared("near", False, (before, better), (10.0, 12.0)),
            compared("far", True, (before, before), (10.0, 10.0)),
        ]
    )
    near, far = sets
    assert near.better == tuple(f"p{n}" for n in range(5, 14)) and near.worse == ("p0",)
    assert near.p_value == pytest.approx(2 * 11 / 2**10)
    assert [near.p_value_of_all, far.p_value_of_all] == holm([near.p_value or 0.0, 1.0])
    text = CompareResult("a", "b", sets).text(2)
    assert "turned right: 9 (p5, p6, ...)\nturned wrong: 1 (p0)" in text
    assert "B minus A +40.0 points ± 13.4, 95% interval" in text
    assert "p 0.021 (of all: 0.043)" in text and "=== far, 20 problems, out of domain ===" in text
    assert "turned right: 9\n" in CompareResult("a", "b", sets).text(0)
    alone = CompareResult("a", "b", [replace(near, p_value_of_all=near.p_value)])
    assert "of all" not in str(alone) and "McNemar's" in str(alone)
