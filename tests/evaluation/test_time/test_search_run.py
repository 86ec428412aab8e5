"""Searches with a real engine and real reward models; and input that is wrong, in one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import assay
from assay import cli
from assay.config import DataConfig, SamplingConfig
from assay.data.chat import PromptRenderer
from assay.errors import ConfigError, DataError, UserError, VerifierError
from assay.evaluation.test_time.drawing import Drawer
from assay.evaluation.test_time.methods import METHODS, SAMPLED, Search, Shape
from assay.evaluation.test_time.tree import Node, StepLimits
from assay.generate.engine import Engine
from assay.session.prefixes import PrefixRenderer
from assay.testing import byte_tokenizer, save_tiny_model, tiny_model
from assay.types import Problem

TREES = [name for name in METHODS if name not in SAMPLED]
ROWS = [{"id": f"p{n}", "prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy and two reward models."""
    import transformers

    path = tmp_path_factory.mktemp("models")
    save_tiny_model(path / "policy", max_positions=64)
    for name, family in (("scalar", "Sequence"), ("process", "Token")):
        config = transformers.AutoConfig.from_pretrained(path / "policy", num_labels=1)
        config.pad_token_id = 258
        torch.manual_seed(0)
        kind = getattr(transformers, f"Llama{'For'}{family}Classification")
        kind(config).save_pretrained(path / name)
        byte_tokenizer().save_pretrained(path / name)
    return path


@pytest.fixture(autouse=True)
def here(one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found_in(folder: Path, methods: Any, **changes: Any) -> assay.SearchResult:
    how: dict[str, Any] = {
        "budgets": 20,
        "max_tokens": 6,
        "expand": 2,
        "step": "a",
        "verifier": "think_format",  # judged in this process
        "overrides": ["verification.num_workers=1", "engine.num_slots=8"],
        "quiet": True,
    }
    problems = changes.pop("problems", ROWS)
    return assay.search(folder / "policy", problems, methods, **{**how, **changes})


def test_steps_go_on_from_the_tokens_of_their_prefix() -> None:
    """The chance of each step is that of a plain forward pass over the prompt and all before it."""
    model, tokenizer = tiny_model(eos_token_id=None), byte_tokenizer()
    render = PrefixRenderer(PromptRenderer(tokenizer, DataConfig()))
    engine = Engine(model, tokenizer, render, seed=3)
    stops = [chr(letter) for letter in range(48, 123)]  # so that steps are short
    sampling = SamplingConfig(max_tokens=12)
    drawer = Drawer(
        engine,
        sampling,
        StepLimits(12, (), lambda tokens: str(tokenizer.decode(tokens))),
        stops[0],
        3,
    )
    base = Node(Problem("p", "2+3="), render(Problem("p", "2+3=")))
    search = Search(base, 100, 12, Shape(expand=3))
    limited = sampling.model_copy(update={"max_tokens": 4})
    below = [drawer_step(drawer, node, limited) for node in drawer_step(drawer, base, limited)]
    for node in [one for each in below for one in each]:
        tokens = [*base.prompt.tokens.tolist(), *node.tokens.tolist()]
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        start = len(tokens) - len(node.own)
        plain = sum(float(logprobs[n - 1, tokens[n]]) for n in range(start, len(tokens)))
        assert node.logprob == pytest.approx(plain, abs=1e-3)
        assert node.text == tokenizer.decode(node.tokens)
    assert search.affords([base]) == 8


def drawer_step(drawer: Drawer, node: Node, sampling: SamplingConfig) -> list[Node]:
    """Draw a block of children that end by their length, and let them go on."""
    (group,) = drawer.generator.generate([node.problem_to_draw], sampling, drawer.block)
    children = [node.add("step", one, drawer.limits) for one in group.completions]
    for child in children:
        child.finish_reason = None
    return children


def test_all_methods_go_through_with_a_process_model(folder: Path) -> None:
    found = found_in(folder, list(METHODS), scorer=str(folder / "process"), out="trees.jsonl")
    again = found_in(folder, list(METHODS), scorer=str(folder / "process"), reduce="last")
    assert [row.method for row in found.rows] == ["greedy", "one_sample", *METHODS, "oracle"]
    assert all(row.tokens <= 20 and row.accuracy is not None for row in found.rows)
    assert all(row.score is not None for row in found.rows[:-1])
    assert found.step == "a" and found.longest == 6 and found.num_problems == 3
    sampled = ("one_sample", "self_consistency", "oracle")
    for name in sampled:  # the same draws, whatever the scorer makes of steps
        budget = None if name == "one_sample" else 20
        assert found.row(name, budget).by_problem == again.row(name, budget).by_problem
    rows = [json.loads(line) for line in Path("trees.jsonl").read_text().splitlines()]
    assert {row["method"] for row in rows} == {*METHODS}
    assert all(
        row["labels"] for row in rows if row["method"] in TREES and row["completion"].strip("a \n")
    )
    told = json.dumps(found.as_dict(), allow_nan=False)
    assert "by_problem" not in told
    assert str(found).splitlines()[3].split()[:3] == ["method", "budget", "accuracy"]


def test_a_search_repeats_and_scores_rise_with_the_budget(folder: Path) -> None:
    scorer = str(folder / "scalar")
    one, two = (
        found_in(folder, ["best_of_n", "beam"], scorer=scorer, budgets=[12, 60], max_tokens=6)
        for _ in range(2)
    )
    assert [row.as_dict() for row in one.rows] == [row.as_dict() for row in two.rows]
    scores = [one.row("best_of_n", budget).score for budget in (12, 60)]
    assert scores[0] is not None and scores[1] is not None and scores[0] < scores[1]


def test_a_vote_needs_no_scorer(folder: Path) -> None:
    found = found_in(folder, "self_consistency")
    assert found.row("self_consistency", 20).score is None and found.scorer is None


def test_a_function_of_ones_own_may_guide_a_tree(folder: Path) -> None:
    found = found_in(folder, "beam", scorer="search_rewards:few_marks", max_problems=1)
    assert found.row("beam", 20).score in (0.0, 0.5, 1.0) and found.num_problems == 1


def test_faults_are_one_line(folder: Path) -> None:
    process, policy = str(folder / "process"), str(folder / "policy")
    wrong: list[tuple[type[UserError], str, Any, dict[str, Any]]] = [
        (
            ConfigError,
            "--method: found bestofn; accepted: best_of_n, .*did you mean",
            "bestofn",
            {},
        ),
        (ConfigError, "--method best_of_n: found no --scorer; accepted: a run", "best_of_n", {}),
        (ConfigError, "--reduce: found no --scorer", "self_consistency", {"reduce": "min"}),
        (
            ConfigError,
            "--budget: found 5, less than one completion of 6",
            "mcts",
            {"budgets": [60, 5]},
        ),
        (ConfigError, "--budget: found none", "self_consistency", {"budgets": []}),
        (
            ConfigError,
            "temperature: found 0 with several",
            "self_consistency",
            {"temperature": 0.0},
        ),
        (
            ConfigError,
            "--method beam: found a thinking budget",
            "beam",
            {"scorer": process, "problems": [{**ROWS[0], "effort": "low"}]},
        ),
        (ConfigError, "--expand: found 0", "self_consistency", {"expand": 0}),
        (
            ConfigError,
            "--exploration: found nan",
            "self_consistency",
            {"exploration": float("nan")},
        ),
        (
            VerifierError,
            "--scorer .*policy: found LlamaForCausalLM, which is no",
            "beam",
            {"scorer": policy},
        ),
        (
            VerifierError,
            "--scorer: found 'maths'; accepted: .*mean math",
            "beam",
            {"scorer": "maths"},
        ),
        (
            VerifierError,
            "--method beam: found math, which judges only whole",
            "beam",
            {"scorer": "math"},
        ),
        (
            ConfigError,
            "--reduce: found most; accepted: min",
            "beam",
            {"scorer": process, "reduce": "most"},
        ),
        (ConfigError, "--reduce: found min, but", "best_of_n", {"scorer": "math", "reduce": "min"}),
        (
            DataError,
            "rows:0 answer: missing",
            "self_consistency",
            {"verifier": "math", "problems": [{"prompt": "?"}]},
        ),
        (
            DataError,
            "rows:0 answer: missing",
            "best_of_n",
            {"scorer": "math", "problems": [{"prompt": "?"}]},
        ),
        (UserError, "--out .: found a folder", "self_consistency", {"out": "."}),
    ]
    for kind, text, method, changes in wrong:
        with pytest.raises(kind, match=text) as told:
            found_in(folder, method, **changes)
        assert "\n" not in str(told.value)


def test_the_command_prints_one_line_of_json_and_says_what_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*changes: str) -> tuple[int, str, str]:
        rows = "".join(json.dumps(row) + "\n" for row in ROWS)
        Path("rows.jsonl").write_text(rows)
        told = ("--problems", "rows.jsonl", "--max-tokens", "6", "--verifier", "think_format")
        given = ["assay", "search", str(folder / "policy"), *told, *changes]
        monkeypatch.setattr("sys.argv", given)
        monkeypatch.setattr("sys.path", [*sys.path])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    code, out, err = run("--method", "self_consistency", "--budget", "12", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert [row["method"] for row in rows] == ["greedy", "one_sample", "self_consistency", "oracle"]
    assert rows[2]["budget"] == 12 and rows[2]["tokens"] <= 12
    code, out, err = run("--method", "beam", "--budget", "12")
    assert code == 2 and out == "" and err.count("error: --method beam: found no --scorer") == 1
    code, out, err = run("--method", "self_consistency")
    assert code == 2 and "--budget" in err
