"""lm-eval's samples as problems, and both verdicts sorted by why they differ."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay.config import ModelConfig
from assay.data.problems import load_problems
from assay.model.load import load_model
from assay.testing import save_tiny_model
from bench.harness_agreement import (
    command,
    first_difference,
    main,
    margin_of,
    pairs,
    problems,
    read_samples,
    summary,
    until_stop,
)

UNTIL = ["Question:", "</s>"]


def sample(number: int, text: str, passed: bool, **changes: Any) -> dict[str, Any]:
    """A row in the form of lm-eval 0.4.13."""
    settings = {"until": UNTIL, "do_sample": False, "max_gen_toks": 8}
    return {
        "doc_id": number,
        "doc": {"question": f"{number}?", "answer": "So <<1+2=3>>3.\n#### 1,003"},
        "arguments": {"gen_args_0": {"arg_0": f"Question: {number}?\nAnswer:", "arg_1": settings}},
        "resps": [[text]],
        "filtered_resps": ["3"],
        "filter": "strict-match",
        "exact_match": float(passed),
    } | changes


def write(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_the_kinds_of_difference(tmp_path: Path) -> None:
    texts = ["It is 3.", "It is 3.", "It is", "It is 3, or 4"]
    told = [sample(n, text, True) for n, text in enumerate([*texts, "It"])]
    ours = ["It is 3.Question: next", " It is 3.", "It is 3.", "It is 3. Then"]
    rows = [
        {"id": f"harness-{n}#0/0", "completion": text, "status": status, "extracted": "3"}
        for n, (text, status) in enumerate(zip(ours, ["passed", *["failed"] * 3], strict=True))
    ]
    rows.append({"id": "harness-4#0/0", "completion": "It", "status": "not_judged"})
    found = list(pairs(read_samples(write(tmp_path / "samples.jsonl", told)), rows))
    assert [one.kind for one in found] == ["agree", "extraction", "stop", "sampling"]
    assert [one.differs_at for one in found] == [None, None, 5, 7]
    counted = summary(found)
    assert counted["passed"] == {"lm-eval": 4, "assay": 1} and counted["equal_texts"] == 2
    assert [one["id"] for one in counted["differ"]] == ["harness-1", "harness-2", "harness-3"]


@pytest.mark.usefixtures("one_thread")
def test_the_margin_is_that_of_the_first_tokens_in_which_texts_part(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    loaded = load_model(ModelConfig(path=str(model)), "cpu", 0)
    tokens = loaded.tokenizer("Q:ab").input_ids
    with torch.no_grad():
        logits_V = loaded.model(input_ids=torch.tensor([tokens])).logits[0, -1]
    c, d = (loaded.tokenizer(f"Q:ab{end}").input_ids[-1] for end in "cd")
    margin = margin_of(str(model))
    assert margin("Q:", "abc!", "abd?") == pytest.approx(float(logits_V[c] - logits_V[d]), abs=1e-4)
    assert margin("Q:", "ab", "abc") is None


def test_texts_part_where_they_part() -> None:
    assert first_difference("abc", "abd") == 2 and first_difference("ab", "abc") == 2
    assert first_difference("", "") is None
    assert until_stop(" a</s>bQuestion:", UNTIL) == "a"


def test_programs_keep_their_tests(tmp_path: Path) -> None:
    document = {
        "text": "Add.",
        "test_list": ["assert f(1) == 2\r\n"],
        "test_setup_code": "import os",
    }
    row = sample(7, "x", True, doc=document)
    (problem,) = problems(read_samples(write(tmp_path / "samples.jsonl", [row, row])))
    assert problem["tests"] == [{"assert": "assert f(1) == 2\n"}]
    assert (problem["verifier"], problem["setup"]) == ("code", "import os")


@pytest.mark.usefixtures("one_thread")
def test_assay_is_asked_the_very_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command, with a model in it."""
    model = save_tiny_model(tmp_path / "model", chat_template="{{ messages }}")
    samples = write(tmp_path / "samples.jsonl", [sample(n, "3", True) for n in range(2)])
    rows, out = tmp_path / "rows.jsonl", tmp_path / "assay.jsonl"
    monkeypatch.setattr("sys.argv", ["harness_agreement", "rows", str(samples), str(rows)])
    main()
    words = shlex.split(capsys.readouterr().out)
    assert words == shlex.split(command(read_samples(samples), rows))
    changes = [word for before, word in pairwise(words) if before == "--set"]
    most = int(words[words.index("--max-tokens") + 1])
    assay.evaluate(model, rows, max_tokens=most, overrides=changes, out=out, quiet=True)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt"] for row in written] == [f"Question: {n}?\nAnswer:" for n in range(2)]
    assert [load_problems([str(rows)])[n].spec["answer"] for n in range(2)] == ["1,003"] * 2
    monkeypatch.setattr(
        "sys.argv", ["harness_agreement", "agree", str(samples), str(out), "--json"]
    )
    main()
    told = json.loads(capsys.readouterr().out)["strict-match"]
    assert told["num_problems"] == 2 and sum(told["kinds"].values()) == 2
