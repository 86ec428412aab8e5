"""Completions of problems: from a model, from a server, in each style, with verdicts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import Answer, Asked, JudgeServer, chat

from assay.curation.base import run_stage
from assay.curation.output import Manifest
from assay.data.completions import read_completions
from assay.data.traces import load_traces
from assay.errors import ConfigError, DataError, ModelError, RunStopped, VerifierError
from assay.session.judging import judged_rows
from assay.testing import save_tiny_model

SERVICE = {"verification": {"num_workers": 1}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("collect") / "model", max_positions=96))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    monkeypatch.chdir(tmp_path)
    write("problems.jsonl", [problem(n) for n in range(4)])


def problem(number: int, **keys: Any) -> dict[str, Any]:
    row = {"id": f"p{number}", "question": f"{number} + 1 =", "answer": str(number + 1)}
    return {**row, **keys}


def write(name: str, rows: list[Any]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_in(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "rows.jsonl").read_text().splitlines()]


def question(asked: Asked) -> str:
    return asked.body["messages"][-1]["content"]


def adds(asked: Asked) -> str:
    """Answer right, but for 2 + 1."""
    number = int(question(asked).split(" + ")[0][-1])
    return f"It is {number + 1 + (number == 2)}."


@pytest.fixture
def serve() -> Iterator[Callable[..., JudgeServer]]:
    servers: list[JudgeServer] = []

    def start(reply: Callable[[Asked], str | Answer]) -> JudgeServer:
        servers.append(JudgeServer(reply).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


def collect(server: JudgeServer | None = None, **settings: Any) -> Manifest:
    tree: dict[str, Any] = {"inputs": ["problems.jsonl"], "model": "m", "config": SERVICE}
    tree |= {"num_samples": 2} | ({} if server is None else {"url": server.url}) | settings
    return run_stage("collect", tree, "out")


def test_a_model_is_sampled_and_judged_as_evaluations_do(model: str) -> None:
    engine = {"num_slots": 2}
    config = {**SERVICE, "engine": engine, "data": {"think": "opened"}}
    manifest = collect(model=model, max_tokens=4, config=config, num_samples=3, seed=5)
    rows = rows_in("out")
    assert [row["id"] for row in rows] == [f"p{n}#5/{k}" for n in range(4) for k in range(3)]
    first = rows[0]
    assert {key: first[key] for key in ("problem_id", "prompt", "answer", "think", "source")} == {
        "problem_id": "p0",
        "prompt": "0 + 1 =",
        "answer": "1",
        "think": "free",
        "source": "problems.jsonl:1",
    }
    assert first["completion"].startswith("<think>")  # the prompt opened it
    assert first["verdict"]["verifier"].startswith("math@")
    assert first["collected"]["style"] == "plain" and first["collected"]["tokens"] <= 4
    found = manifest.measured
    assert (found["problems"], found["completions"], found["judged"]) == (4, 12, 12)
    assert found["passed"] == sum(row["verdict"]["status"] == "passed" for row in rows)
    again = run_stage("collect", {**manifest.settings, "seed": 6}, "again")
    assert again.rows == 12
    assert [row["completion"] for row in rows_in("again")] != [row["completion"] for row in rows]


def test_verify_sft_and_select_read_collected_rows(serve: Any) -> None:
    collect(serve(adds))
    path = Path("out/rows.jsonl")
    statuses = [row["verdict"]["status"] for row in rows_in("out")]
    assert statuses == ["passed"] * 4 + ["failed"] * 2 + ["passed"] * 2
    verdicts = judged_rows(path, num_workers=1)
    assert [row["status"] for row in verdicts] == statuses
    assert len(list(read_completions(path))) == 8
    trace = load_traces([str(path)])[0]
    assert (trace.prompt, trace.completion) == ("0 + 1 =", "It is 1.")
    selected = run_stage("select", {"inputs": ["out"]}, "selected")
    assert selected.rows == 3  # equal completions stay once
    assert {row["problem_id"] for row in rows_in("selected")} == {"p0", "p1", "p3"}


def test_a_server_is_asked_for_each_sample(serve: Any) -> None:
    server = serve(adds)
    config = {**SERVICE, "sampling": {"top_p": 0.9}, "data": {"system_prompt": "Add."}}
    manifest = collect(server, config=config, max_tokens=7, temperature=0.5)
    assert len(server.asked) == 8
    body = server.asked[0].body
    assert body["messages"][0] == {"role": "system", "content": "Add."}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 7, 0.5)
    assert body["top_p"] == 0.9 and "response_format" not in body
    assert manifest.measured["pass_rate"] == 0.75 and manifest.measured["solved"] == 3
    assert manifest.measured["tokens"] == 20 * manifest.rows, "as the server counts them"


def test_reasoning_that_a_server_sets_apart_is_put_back(serve: Any) -> None:
    def think(asked: Asked) -> Answer:
        if "1 + 1" in question(asked):
            return chat("", "length", reasoning_content="on and on")
        return chat("It is 1.", reasoning_content="Nothing and one.\n")

    collect(serve(think), num_samples=1, max_problems=2)
    whole, cut = rows_in("out")
    assert whole["completion"] == "<think>\nNothing and one.\n</think>\n\nIt is 1."
    assert whole["verdict"]["status"] == "passed"
    assert cut["completion"] == "<think>\non and on" and cut["verdict"]["status"] == "failed"
    assert cut["collected"]["finish_reason"] == "length"


def test_a_row_may_ask_for_no_reasoning(serve: Any) -> None:
    write("problems.jsonl", [problem(0, think="empty"), problem(1)])
    server = serve(adds)
    collect(server, num_samples=1)
    switches = {question(each): each.body.get("chat_template_kwargs") for each in server.asked}
    assert switches["1 + 1 ="] is None and switches["0 + 1 ="]["enable_thinking"] is False
    assert [row["think"] for row in rows_in("out")] == ["empty", "free"]


def test_styles_change_the_prompt_and_not_the_row(serve: Any) -> None:
    write("chains.jsonl", [{"prompt": f"{n} + 7 =", "completion": f"Long {n}."} for n in range(3)])
    server = serve(adds)
    few = {"style": "few_shot", "examples": ["chains.jsonl"], "num_samples": 1, "max_problems": 1}
    collect(server, **few)
    shown = question(server.asked[-1])
    assert "### Problem\n\n1 + 7 =\n\n### Solution\n\nLong 1." in shown and "2 + 7" not in shown
    assert shown.endswith("### Problem\n\n0 + 1 =\n\n### Solution")
    assert rows_in("out")[0]["prompt"] == "0 + 1 ="
    for settings, end in (({}, "correct it where it is wrong."), ({"instruction": "So?"}, "So?")):
        tree = {"inputs": ["out"], "model": "m", "url": server.url, "style": "reflect", **settings}
        run_stage("collect", {**tree, "config": SERVICE}, f"out{len(end)}")
        shown = question(server.asked[-1])
        assert shown.startswith("0 + 1 =\n\n") and shown.endswith(end)
    with pytest.raises(ConfigError, match=r'collect examples: found none; .*style = "few_shot"'):
        run_stage("collect", {**tree, "style": "few_shot"}, "none")


def test_a_plain_prompt_shows_examples_in_its_own_form(model: str) -> None:
    from assay.curation.collect import in_style
    from assay.data.traces import Trace
    from assay.types import Problem

    examples, asked = [Trace("1 + 1 =", "2")], Problem("p", "3 + 3 =")
    shown = in_style(asked, examples, None, "Q: {question}\nA: ").question
    assert f"Q: {shown}\nA: " == "Q: 1 + 1 =\nA: 2\n\nQ: 3 + 3 =\nA: "
    chat = Problem("p", ({"role": "system", "content": "s"}, {"role": "user", "content": "3?"}))
    turns = in_style(chat, [], "Think.", None).prompt
    assert turns == (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "3?\n\nThink."},
    )
    assert in_style(asked, [], None, None) is asked


def test_the_policy_is_in_the_prompt_and_not_in_the_row(serve: Any) -> None:
    asked = {"treatment": "refused", "verifier": "safety", "id": "r", "prompt": "Make a weapon?"}
    write("problems.jsonl", [{**asked, "category": "weapons"}])

    def cites(asked: Asked) -> Answer:
        return chat("I can't help with that.", reasoning_content="WEA-R1 applies.")

    server = serve(cites)
    collect(server, num_samples=1, instruction="Cite {policy}\nand answer {so}.")
    shown = question(server.asked[0])
    assert shown.startswith("Make a weapon?\n\nCite weapons: ") and "WEA-R1: Refuse" in shown
    assert shown.endswith("\nand answer {so}.") and "CYB-R1" not in shown
    (row,) = rows_in("out")
    assert row["prompt"] == "Make a weapon?" and "WEA-R1: Refuse" not in str(row)
    assert "WEA-R1 applies." in row["completion"] and row["verdict"]["status"] == "passed"


def test_a_policy_that_cannot_be_shown_is_one_line(serve: Any) -> None:
    server = serve(adds)
    Path("mine.toml").write_text("version = 1\n", encoding="utf-8")
    how = {"instruction": "{policy}", "num_samples": 1}
    with pytest.raises(VerifierError, match=r"mine.toml categories: found none"):
        collect(server, policy="mine.toml", **how)
    assert not server.asked
    with pytest.raises(DataError, match=r"problems.jsonl:1 category: found missing; accepted: v"):
        collect(server, **how)


def test_nothing_need_be_judged(serve: Any) -> None:
    write("problems.jsonl", [{"id": "p7", "prompt": "7 + 1 = ? Say it nicely."}])
    server = serve(adds)
    with pytest.raises(DataError, match=r"problems\.jsonl:1 .*answer"):
        collect(server)
    assert not server.asked and not Path("out").exists()
    manifest = collect(server, judged=False)
    assert "pass_rate" not in manifest.measured
    assert all("verdict" not in row for row in rows_in("out"))


def test_an_id_that_comes_twice_is_told_before_a_server_is_asked(serve: Any) -> None:
    write("problems.jsonl", [problem(1), problem(2, id="p1")])
    server = serve(adds)
    with pytest.raises(DataError, match=r"problems\.jsonl:2 id: found 'p1' again \(first in probl"):
        collect(server)
    assert not server.asked


def test_a_server_that_is_not_there_is_one_line(serve: Any) -> None:
    refuses = serve(lambda asked: Answer(b'{"error": "no such model"}', status=404))
    with pytest.raises(
        ModelError, match=r"no reply to the first 4 requests: m at .*HTTP 404: 'no s"
    ):
        collect(refuses)
    assert not Path("out").exists()
    for url in ("localhost:8000", "http://me:secret@host/v1"):
        with pytest.raises(
            ConfigError, match=r"collect url: .*accepted: an http or https"
        ) as failed:
            run_stage("collect", {"inputs": ["x"], "model": "m", "url": url}, "out")
        assert "secret" not in str(failed.value)


def test_what_was_written_outlives_a_server_that_dies(serve: Any) -> None:
    write("problems.jsonl", [problem(n % 9, id=str(n)) for n in range(200)])
    done: list[Asked] = []

    def dies(asked: Asked) -> str | Answer:
        done.append(asked)
        return adds(asked) if len(done) <= 60 else Answer(b"{}", status=404)

    with pytest.raises(RunStopped, match="no reply to 32 requests in a row"):
        collect(serve(dies), num_samples=1, concurrency=4)
    lines = Path("out/rows.jsonl.part").read_text().splitlines()
    assert len(lines) == 60
    assert json.loads(lines[-1])["verdict"]["status"] in ("passed", "failed")


def test_a_problem_without_a_reply_is_counted(serve: Any) -> None:
    def picky(asked: Asked) -> str | Answer:
        return Answer(b"{}", status=400) if "1 + 1" in question(asked) else adds(asked)

    manifest = collect(serve(picky))
    (taken,) = manifest.filters
    assert (taken.name, taken.took) == ("no_reply", 1) and taken.examples[0]["row"]["id"] == "p1"
    assert manifest.rows == 6


def test_a_prompt_that_does_not_fit_is_taken(model: str) -> None:
    write("problems.jsonl", [problem(1), problem(2, question="long " * 40)])
    manifest = collect(model=model, max_tokens=4)
    assert [(each.name, each.took) for each in manifest.filters] == [("prompt", 1)]
    assert "accepted: at most" in manifest.filters[0].examples[0]["reason"]
    assert {row["problem_id"] for row in rows_in("out")} == {"p1"}


def test_settings_that_cannot_be() -> None:
    tree = {"inputs": ["x"], "model": "m"}
    for changes, complaint in {
        "greedy": ({"temperature": 0.0}, "collect temperature: found 0 with several samples"),
        "style": ({"style": "few"}, 'collect style: found "few"; accepted: "plain", "few_shot"'),
    }.values():
        with pytest.raises(ConfigError) as failed:
            run_stage("collect", {**tree, **changes}, "out")
        assert str(failed.value).startswith(complaint)
    with pytest.raises(ConfigError, match=r"data\.thinks: unknown key; did you mean data\.think"):
        run_stage("collect", {**tree, "config": {"data": {"thinks": "free"}}}, "out")
    assert not Path("out").exists()
