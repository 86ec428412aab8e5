"""Stored replies give the same verdict again, without a network, whatever happened to the file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_server import JudgeServer, obedient

from assay.endpoint.costs import reset_judge_costs
from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.learned import store as judge_store
from assay.verify.learned.judge import JUDGE, close_judges, judge_costs
from assay.verify.learned.store import JudgeStore, reply_key

NOWHERE = "http://localhost:9/v1"  # the discard port: nobody answers
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    reset_judge_costs()
    yield
    close_judges()


def judged(path: Path, text: str = "Paris", **spec: Any) -> Part:
    spec = {"model": "m", "retries": 0, "answer": "Paris", "replies": str(path)} | spec
    part = JUDGE.judge(Problem("p", "France?", spec=spec), Completion.from_text(text))
    assert isinstance(part, Part)
    return part


def test_a_stored_reply_gives_the_same_verdict_without_the_network(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "replies.jsonl"
    with JudgeServer(obedient) as server:
        first = [judged(path, text, url=server.url, votes=2) for text in ("Paris", "Lyon")]
        assert len(server.asked) == 4
        again = [judged(path, text, url=server.url, votes=2) for text in ("Paris", "Lyon")]
        assert len(server.asked) == 4
    close_judges()
    reset_judge_costs()
    offline = [judged(path, t, url=NOWHERE, votes=2, offline=True) for t in ("Paris", "Lyon")]
    assert first == again == offline
    assert [part.passed for part in offline] == [True, False]
    assert judge_costs()["m"]["reused"] == 4 and judge_costs()["m"]["cost"] == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["vote"] for row in rows] == [0, 1, 0, 1]
    assert {(row["model"], row["rubric"]) for row in rows} == {("m", "equivalence@2")}
    assert "choices" in rows[0]["reply"], "the reply is kept raw"


def test_offline_without_the_reply_is_unavailable(tmp_path: Path) -> None:
    part = judged(tmp_path / "replies.jsonl", url=NOWHERE, offline=True)
    assert part.reason == "unavailable" and "no stored reply" in part.detail


def test_what_a_reply_depends_on_is_in_its_key() -> None:
    sampling = {"temperature": 0.0, "max_tokens": 10}
    base = reply_key("m", "r@1", MESSAGES, sampling, 0)
    assert base == reply_key("m", "r@1", MESSAGES, dict(reversed(sampling.items())), 0)
    others = [
        reply_key("n", "r@1", MESSAGES, sampling, 0),
        reply_key("m", "r@2", MESSAGES, sampling, 0),
        reply_key("m", "r@1", [{"role": "user", "content": "y"}], sampling, 0),
        reply_key("m", "r@1", MESSAGES, {**sampling, "temperature": 0.5}, 0),
        reply_key("m", "r@1", MESSAGES, sampling, 1),
    ]
    assert len({base, *others}) == 6 and len(base) == 64


def test_another_host_reuses_and_another_setting_does_not(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    with JudgeServer(obedient) as one, JudgeServer(obedient) as two:
        judged(path, url=one.url)
        judged(path, url=two.url)
        assert len(two.asked) == 0
        judged(path, url=two.url, temperature=0.3)
        judged(path, url=two.url, request={"seed": 1})
        judged(path, url=two.url, model="other")
        assert len(two.asked) == 3


@pytest.mark.parametrize(
    "tail", ['{"key": "abc", "rep', "\x00\x00", '{"key": 3, "reply": {}}\n', "[]\n"]
)
def test_a_line_that_cannot_be_read_is_passed_over(tmp_path: Path, tail: str) -> None:
    path = tmp_path / "replies.jsonl"
    store = JudgeStore(path)
    store.put("a", {"text": "1"})
    store.close()
    with path.open("a") as file:
        file.write(tail)
    for key, size in (("b", 2), ("c", 3)):  # the torn line swallows no later one
        store = JudgeStore(path)
        store.put(key, {"text": key})
        assert len(store) == size and store.num_unreadable == 1
        store.close()
    store = JudgeStore(path)
    assert [store.get(key) for key in "abc"] == [{"text": "1"}, {"text": "b"}, {"text": "c"}]
    store.close()


@given(st.binary(max_size=200))
def test_no_content_of_the_file_is_fatal(tmp_path_factory: Any, content: bytes) -> None:
    path = tmp_path_factory.mktemp("store") / "replies.jsonl"
    path.write_bytes(content)
    store = JudgeStore(path)
    store.put("k", {"é\ud800": "漢"})
    store.close()
    again = JudgeStore(path)
    assert again.get("k") == {"é\ud800": "漢"}
    again.close()


def test_an_edited_reply_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    with JudgeServer(obedient) as server:
        judged(path, url=server.url)
        close_judges()
        row = json.loads(path.read_text())
        row["reply"]["choices"] = []
        path.write_text(json.dumps(row) + "\n")
        assert judged(path, url=server.url).passed is True
        assert len(server.asked) == 2


def test_writers_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    stores = [JudgeStore(path), JudgeStore(path)]

    def work(index: int) -> None:
        for number in range(20):
            stores[index % 2].put(f"{index}-{number}", {"text": f"{index}" * 3000})

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, store in enumerate(stores):
        assert store.get(f"{index}-19") == {"text": f"{index}" * 3000}
        store.close()
    again = JudgeStore(path)
    assert len(again) == 120 and again.num_unreadable == 0
    again.close()


def test_waiting_for_an_equal_question_ends_at_the_deadline() -> None:
    store = JudgeStore()
    with store.asking("k", time.monotonic() + 5) as mine:
        assert mine
        with store.asking("k", time.monotonic() + 0.05) as second:
            assert not second
        with store.asking("other", time.monotonic()) as other:
            assert other
    with store.asking("k", time.monotonic()) as mine:
        assert mine, "it was given back"


def test_in_memory_and_after_closing() -> None:
    store = JudgeStore()
    store.put("k", {"a": 1}, model="m")
    store.close()
    assert store.get("k") == {"a": 1} and store.get("other") is None


def test_memory_keeps_the_last_replies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_store, "MAX_IN_MEMORY", 3)
    store = JudgeStore()
    for number in range(5):
        store.put(str(number), {"n": number})
    assert len(store) == 3
    assert [store.get(str(number)) for number in range(5)] == [
        None,
        None,
        {"n": 2},
        {"n": 3},
        {"n": 4},
    ]


def test_a_file_that_is_changed_under_a_store_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    store = JudgeStore(path)
    store.put("a", {"n": 1})
    store.put("b", {"n": 2})
    path.write_bytes(path.read_bytes().replace(b'"a"', b'"c"')[:-5])
    assert store.get("a") is None and store.get("b") is None
    store.close()


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "replies.jsonl"):
        with pytest.raises(VerifierError, match=r"judge\.replies: .* accepted"):
            judged(path, url=NOWHERE)
