"""Published benchmarks of `assay eval --suite`: rows, prompts, kept results and bad input."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import assay
from assay.cli import main
from assay.errors import ConfigError, DataError
from assay.evaluation.suites import evaluate_suites, find_suites, read_suites, suite_rows
from assay.testing import save_tiny_model
from assay.verify.service import VerifierService

GSM8K = {"question": "2+3=", "answer": "First <<2+3=5>>5.\n#### 5"}
SUM = {"question": "4+4=", "answer": "#### 8"}
SHOT = {"question": "7+1=", "answer": "#### 8"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny_model(folder, max_positions=512)
    return str(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "rows"
    place.mkdir()
    write(place, "gsm8k", SUM, GSM8K)
    write(place, "gsm8k_5shot", SUM)
    write(place, "gsm8k_5shot_shots", GSM8K, SHOT)
    row = {"key": 7, "prompt": "Say no comma.", "kwargs": [{}]}
    write(place, "ifeval", {**row, "instruction_id_list": ["punctuation:no_comma"]})
    return place


def write(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / f"{name}.jsonl").write_text(lines)


def sampled(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("suite", read_suites().values(), ids=lambda suite: suite.name)
def test_every_suite_has_a_verifier_and_a_rule(suite: Any) -> None:
    with VerifierService(suite.verifier, num_workers=1):
        pass
    assert suite.source.startswith("hf:") and suite.form in ("chat", "base") and suite.scoring
    assert (suite.shots is None) == (suite.num_shots == 0)
    assert suite.temperature > 0 or suite.samples == 1


def test_each_suite_is_asked_in_its_own_form_and_judged(
    model: str, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    names = ["gsm8k,gsm8k_5shot", "ifeval"]
    found = evaluate_suites(model, names, folder=folder, out=out, max_tokens=4, quiet=True)
    assert [one.name for one in found.suites] == ["gsm8k", "gsm8k_5shot", "ifeval"]
    assert [one.accuracy["num_problems"] for one in found.suites] == [2, 1, 1]
    (asked, _), (shown,) = (sampled(out / f"{name}.jsonl") for name in ("gsm8k", "gsm8k_5shot"))
    assert asked["prompt"].rstrip().endswith("Put the final answer in \\boxed{}.")
    worked = "Question: 2+3=\nAnswer: First 5.\n#### 5\n\n"
    assert shown["prompt"] == f"{worked}Question: 7+1=\nAnswer: #### 8\n\nQuestion: 4+4=\nAnswer:"
    assert (out / "suites.md").read_text() == f"{found}\n"
    assert "| gsm8k | 2 | " in str(found) and "Cobbe et al., 2021" in str(found)


def test_a_finished_suite_is_not_sampled_again_until_something_changes(
    model: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.evaluation import suites as module

    out, counted, plain = tmp_path / "out", [], module.evaluate

    def evaluate(*args: Any, **options: Any) -> Any:
        counted.append(options)
        return plain(*args, **options)

    def again(**changed: Any) -> int:
        counted.clear()
        given = {"folder": folder, "out": out, "max_tokens": 4, "quiet": True} | changed
        evaluate_suites(model, ["gsm8k"], **given)
        return len(counted)

    monkeypatch.setattr(module, "evaluate", evaluate)
    assert [again(), again(), again(max_tokens=5), again(max_tokens=5)] == [1, 0, 1, 0]
    assert again(max_tokens=5, overrides=["data.system_prompt=Be brief."]) == 1
    write(folder, "gsm8k", GSM8K)
    assert [again(), again()] == [1, 0]
    (out / "gsm8k.json").write_text("{")
    assert [again(), again()] == [1, 0]
    kept = json.loads((out / "gsm8k.json").read_text())
    kept["accuracy"]["num_not_judged"] = 1
    (out / "gsm8k.json").write_text(json.dumps(kept))
    assert [again(), again()] == [1, 0]
    template = Path(model) / "chat_template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert [again(), again()] == [1, 0]
    template.unlink()


def test_options_of_the_command_replace_those_of_a_suite(model: str, tmp_path: Path) -> None:
    write(tmp_path, "aime24", {"id": 60, "problem": "1+1=", "answer": "2"})
    found = evaluate_suites(
        model, ["aime24"], folder=tmp_path, max_tokens=4, num_samples=3, quiet=True
    )
    assert found.suites[0].facts["sampling"]["temperature"] == 0.6
    assert found.suites[0].accuracy["num_completions"] == 3
    with pytest.raises(ConfigError, match="equal"):
        evaluate_suites(model, ["aime24"], folder=tmp_path, temperature=0.0, quiet=True)


def test_the_page_lists_every_suite_with_its_settings() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    for one in read_suites().values():
        start = f"| `{one.name}` | `{one.source}` | `{one.verifier}` | {one.max_tokens:,} | "
        assert start in page and f" | {one.scoring} |" in page


def test_settings_of_a_run_change_no_benchmark(model: str, folder: Path, tmp_path: Path) -> None:
    tree = {
        "run": {"directory": str(tmp_path), "name": "own"},
        "model": {"path": model},
        "data": {
            **{"train": [str(folder / "gsm8k.jsonl")], "heldout": [], "verifier": "exact"},
            **{"template": "base", "prompt_template": "Q {question}", "system_prompt": "Be odd."},
        },
        "verification": {"num_workers": 1, "options": {"math": {"tolerance": 0.05}}},
        "sampling": {"max_tokens": 2, "stop": ["x"]},
        "rl": {"steps": 1, "num_prompts": 1, "group_size": 2},
    }
    run = assay.train(tree, quiet=True).run
    facts = [
        evaluate_suites(one, ["gsm8k"], folder=folder, max_tokens=4, quiet=True).suites[0].facts
        for one in (model, str(run))
    ]
    for key in ("data", "verification", "sampling", "rows"):
        base, trained = (one[key] for one in facts)
        if key == "verification":
            base, trained = base["options"], trained["options"]
        assert base == trained, key


def test_published_ids_are_kept_and_missing_ones_numbered(tmp_path: Path) -> None:
    suite = read_suites()["gsm8k"]
    write(tmp_path, "gsm8k", {**SUM, "id": "mine"}, SUM)
    assert [row["id"] for row in suite_rows(suite, tmp_path)] == ["mine", "gsm8k-2"]
    assert len(list(suite_rows(suite, tmp_path, 1))) == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["gsm"], "did you mean gsm8k"),
        (["gsm8k,"], "no such suite"),
        (["gsm8k", "gsm8k"], "gsm8k twice"),
    ],
)
def test_bad_names_of_suites_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_suites(names)


def test_a_missing_file_is_named_before_a_model_is_loaded(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no math500\.jsonl.*hf:HuggingFaceH4/MATH-500"):
        evaluate_suites("no/model", ["gsm8k", "math500"], folder=folder)


def test_a_row_without_a_question_is_named(tmp_path: Path) -> None:
    write(tmp_path, "gsm8k", {"answer": "5"})
    with pytest.raises(DataError, match="gsm8k row 1: found the keys answer"):
        list(suite_rows(read_suites()["gsm8k"], tmp_path))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "neither"),
        (["--problems", "x.jsonl", "--suite", "gsm8k"], "both"),
        (["--problems", "x.jsonl", "--suite-folder", "x"], "--suite-folder alone"),
        (["--problems", "x.jsonl", "--samples", "2"], "found 0 with several samples"),
        # The suite samples at a temperature of its own.
        (["--suite", "aime24", "--samples", "2", "--suite-folder", "x"], "no aime24.jsonl"),
    ],
)
def test_the_command_takes_problems_or_suites(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["assay", "eval", "model", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and said in line


def test_a_worked_example_that_is_a_row_of_the_suite_is_a_warning(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder, "gsm8k_5shot_shots", GSM8K, SUM)
    (suite,) = find_suites(["gsm8k_5shot"])
    assert list(suite_rows(suite, folder))
    assert "shots.jsonl row 2 has the question of gsm8k_5shot row" in capsys.readouterr().err
