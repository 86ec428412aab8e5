"""Inspection: forms, refused rows with reasons, repeats, leaked answers and long prompts are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stage_runs import rows_file

from assay.cli import main
from assay.curation.inspection import Inspection, SourceFacts, inspect_rows, settings_of
from assay.errors import ConfigError, DataError
from assay.testing import save_tiny_model

LONG = "A farmer has twelve cows and sells four of them at the market for ninety dollars each"
NUMINA = {"problem_type": "Algebra", "question_type": "open", "source": "made"}


def inspected(inputs: list[str], **more: Any) -> Inspection:
    return inspect_rows(settings_of({"inputs": inputs, **more}, []))


def facts(tmp_path: Path, rows: list[dict[str, Any]], **more: Any) -> SourceFacts:
    (found,) = inspected([rows_file(tmp_path / "rows.jsonl", rows)], **more).sources
    return found


def test_refused_rows_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [
        {"problem": "What is 2+3?", "answer": "5", **NUMINA},
        {"problem": "Show p.", "answer": "proof", **NUMINA},
        {"problem": "Show q.", "answer": "notfound", **NUMINA},
        {"problem": "No answer.", "answer": " ", **NUMINA},
    ]
    found = facts(tmp_path, rows)
    assert (found.rows, found.usable, sum(found.refused.values())) == (4, 1, 3)
    assert found.forms == {"NuminaMath-1.5, OpenR1-Math": 4} and found.verifiers == {"math": 1}
    first, second = found.refused.most_common()
    assert first[1] == 2 and "rows.jsonl:2 answer: found 'proof'" in first[0]
    assert second[1] == 1 and "rows.jsonl:4 answer" in second[0]


def test_broken_lines_and_a_spec_that_the_verifier_refuses_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "p", "answer": "7"}, {"prompt": "q"}]
    file.write_text("\n".join([*map(json.dumps, rows), '{"prompt": ']))
    (found,) = inspected([str(file)]).sources
    assert (found.rows, found.usable) == (3, 1) and found.forms["not readable"] == 1
    assert any("rows.jsonl:2 answer: missing" in text for text in found.refused)
    assert any("rows.jsonl:3: found broken JSON" in text for text in found.refused)


def test_rows_that_this_machine_cannot_judge_are_refused_with_the_reason(tmp_path: Path) -> None:
    row = {"prompt": "Add.", "tests": ["import no_such_package\nassert f() == 1"]}
    found = facts(tmp_path, [row], verifier="code")
    (reason,) = found.refused
    assert found.usable == 0 and "rows.jsonl:1: cannot be judged on this machine: " in reason
    assert "no_such_package" in reason


def test_repeats_leaks_and_heldout_questions_are_counted_across_sources(tmp_path: Path) -> None:
    heldout = rows_file(
        tmp_path / "held.jsonl", [{"prompt": text, "answer": "1"} for text in (LONG, "Why?")]
    )
    one = rows_file(
        tmp_path / "one.jsonl",
        [
            {"prompt": "Is it 7 or 8?", "answer": "7"},
            {"prompt": "is it 7 or 8", "answer": "7"},
            {"prompt": "WHY", "answer": "2"},
            {"prompt": f"{LONG} today", "answer": "3"},
        ],
    )  # fmt: skip
    other = rows_file(tmp_path / "other.jsonl", [{"prompt": "Is it 7, or 8?", "answer": "1"}])
    result = inspected([one, other], heldout=[heldout])
    first, second = result.sources
    assert (first.own_answer, first.repeats, first.heldout_same, first.heldout_near) == (2, 1, 1, 1)
    assert (second.own_answer, second.repeats) == (0, 1)
    assert "held-out questions: 1 repeated exactly, 1 nearly, 0 similar" in str(result)
    assert f"{one}:4 ~ {heldout}:1 (100%)" in str(result)
    plain = result.as_dict()
    assert plain["sources"][0]["longest"] is None and plain["max_tokens"] is None
    assert inspected([one]).as_dict()["sources"][0]["heldout_same"] is None


def test_long_prompts_are_counted_with_the_models_tokenizer(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model", max_positions=64)
    rows = [{"prompt": "x" * 10, "answer": "1"}, {"prompt": "x" * 90, "answer": "1"}]
    found = facts(tmp_path, rows, model=str(tmp_path / "model"))
    assert found.too_long == 1 and found.longest >= 90
    assert facts(tmp_path, rows, model=str(tmp_path / "model"), max_tokens=5).too_long == 2
    with pytest.raises(DataError, match="max_tokens: found no model"):
        facts(tmp_path, rows, max_tokens=5)


def test_the_form_decides_on_the_verifier_unless_one_is_set(tmp_path: Path) -> None:
    rows = [{"question": "Add.", "input_output": '{"inputs": ["1"], "outputs": ["2"]}'}]
    assert facts(tmp_path, rows).verifiers == {"code": 1}
    assert facts(tmp_path, rows, verifier="math").usable == 0


def test_a_row_of_no_form_ends_the_command_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = rows_file(tmp_path / "rows.jsonl", [{"query": "q", "tools": "[]"}])
    monkeypatch.setattr("sys.argv", ["assay", "data", "inspect", file])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1
    assert "nearest form: xLAM, which also has answers" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["rows.jsonl", "--json"], 0, '"usable": 1'),
        (["rows.jsonl", "--heldout", "rows.jsonl"], 0, "held-out questions: 1 repeated exactly"),
        ([], 0, "near_duplicate_overlap: "),
        (["rows.jsonl", "--out", "there"], 2, "assay data inspect: writes nothing"),
        (["rows.jsonl", "--set", "modle=x"], 2, "did you mean model"),
        (["none.jsonl"], 2, "none.jsonl: found no such file"),
    ],
)
def test_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    rows_file(tmp_path / "rows.jsonl", [{"prompt": "p", "answer": "7"}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["assay", "data", "inspect", *arguments])
    try:
        main()
        found = 0
    except SystemExit as ended:
        found = ended.code or 0
    both = capsys.readouterr()
    assert (found, said in both.out + both.err) == (code, True), both


def test_options_of_inspect_are_refused_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["assay", "data", "tag", "rows.jsonl", "--model", "m"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (
        ended.value.code == 2
        and "--model is an option of `assay data inspect`" in capsys.readouterr().err
    )


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="inputs"):
        settings_of({}, ["model=m"])


STORY = "A baker sells 14 loaves on Monday and twice as many on Friday. How many loaves in all?"


def test_similar_questions_are_listed_nearest_first(tmp_path: Path) -> None:
    heldout = rows_file(tmp_path / "held.jsonl", [{"prompt": STORY, "answer": "42"}])
    texts = [
        "A baker sells 14 loaves, and twice as many on Friday. How many loaves does he sell?",
        STORY.replace("14", "25"),
        f"{STORY} Show your work.",
        "What is 2+3?",
    ]
    rows = [{"prompt": text, "answer": "1"} for text in texts]
    file = rows_file(tmp_path / "rows.jsonl", rows)
    result = inspected([file], heldout=[heldout], near_duplicate_similarity=0.4)
    (found,) = result.sources
    assert (found.heldout_near, found.heldout_similar) == (1, 2)
    listed = [line for line in str(result).splitlines() if "~" in line]
    assert [line.partition("rows.jsonl:")[2][0] for line in listed] == ["3", "2", "1"]
    assert [one["is_similar"] for one in result.as_dict()["sources"][0]["near"]] == [1, 1, 0]
    short = inspected([file], heldout=[heldout], near_duplicate_similarity=0.4, max_listed=1)
    assert "and 2 more (all with --json)" in str(short)


def test_stated_answers_are_named(tmp_path: Path) -> None:
    rows = [{"prompt": "Are 5 cats 5?", "answer": "5"}, {"prompt": "Answer: 5", "answer": "5"}]
    result = inspected([rows_file(tmp_path / "rows.jsonl", rows)])
    assert "prompts that contain their own answer: 2\n" in str(result)
    assert f"state their own answer: 1 (the first: {tmp_path}/rows.jsonl:2)" in str(result)


def test_few_shot_examples_with_held_out_rows_are_listed(tmp_path: Path) -> None:
    answer = "first add all numbers, then halve the sum that you found"
    rows = [{"prompt": LONG, "answer": "1"}, {"prompt": "Say how.", "answer": answer}]
    heldout = rows_file(tmp_path / "held.jsonl", rows)
    shots = rows_file(
        tmp_path / "shots.jsonl",
        [
            {"question": "2+2=", "answer": "4"},
            {"messages": [{"role": "user", "content": f"Example: {LONG}."}]},
            {"text": f"One would {answer}."},
        ],
    )
    file = rows_file(tmp_path / "rows.jsonl", [{"prompt": "p", "answer": "7"}])
    result = inspected([file], heldout=[heldout], shots=[shots])
    assert "few-shot examples: 3, 2 leaks" in str(result)
    assert f"{shots}:2 has the question of {heldout}:1" in str(result)
    assert f"{shots}:3 has the answer of {heldout}:2" in str(result)
    with pytest.raises(DataError, match="shots: found no held-out rows"):
        inspected([file], shots=[shots])


def test_difficulty_is_shown_for_each_source(tmp_path: Path) -> None:
    counts = [{"passed": n, "judged": 4} for n in (0, 1, 4)]
    one = [{"prompt": f"p{n}", "answer": "1", "difficulty": own} for n, own in enumerate(counts)]
    other = [{"problem": f"q{n}", "answer": "1", "level": n, "type": "A"} for n in (1, 1, 5)]
    files = [rows_file(tmp_path / "a.jsonl", one), rows_file(tmp_path / "b.jsonl", other)]
    first, second = inspected(files).sources
    assert str(first.difficulty).startswith("pass rate 0: 1, to 0.25: 1, to 0.5: 0")
    assert first.as_dict(False)["difficulty"]["mean_pass_rate"] == pytest.approx(5 / 12)
    assert not second.difficulty.is_known and "  difficulty:" not in str(inspected(files[1:]))
    levels = inspected(files[1:], label="level").sources[0]
    assert str(levels.difficulty) == "level 1: 2, 5: 1"


def test_pass_rates_come_from_a_runs_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Recorded:
        def rollouts(self, columns: Any) -> list[dict[str, str]]:
            rows = [("rows.jsonl:1", "passed"), ("rows.jsonl:1", "failed"), ("own", "not_judged")]
            return [
                {"problem_id": one, "status": status} for one, status in [*rows, ("own", "passed")]
            ]

    monkeypatch.setattr("assay.curation.inspection.load_run", lambda run: Recorded())
    rows = [{"prompt": "p", "answer": "1"}, {"id": "own", "prompt": "q", "answer": "1"}]
    rows += [{"prompt": "r", "answer": "1"}]
    found = facts(tmp_path, rows, pass_rates_of="runs/first").difficulty
    assert (found.rates, found.unknown) == ({"to 0.5": 1, "1": 1}, 1)
    with pytest.raises(DataError, match="found no problem of the sources; accepted: a run that"):
        facts(tmp_path, [{"id": "x", "prompt": "r", "answer": "1"}], pass_rates_of="runs/first")
