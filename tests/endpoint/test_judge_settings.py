"""Options of judges: what is accepted, what is told at once, and what no message ever shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from assay.endpoint.settings import read_settings
from assay.errors import VerifierError
from assay.verify.learned.judge import JUDGE, check_judge

GOOD: dict[str, Any] = {"url": "http://localhost:8000/v1", "model": "m"}
SECRET = "sk-0123456789abcdef"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"ASSAY_JUDGE_{name}", raising=False)
    yield


def complaint(**options: Any) -> str:
    with pytest.raises(VerifierError) as caught:
        check_judge(options)
    text = str(caught.value)
    assert "\n" not in text and text.startswith(("verification.options.judge", "environment"))
    return text


def test_defaults_are_those_of_the_fields() -> None:
    settings = read_settings(GOOD)
    for field in JUDGE.fields:
        if hasattr(settings, field.name) and field.name not in ("judges", "replies"):
            assert getattr(settings, field.name) == field.default, field.name
    (judge,) = settings.judges
    assert (judge.temperature, judge.max_tokens, judge.api_key_env) == (
        0.0,
        2048,
        "ASSAY_JUDGE_KEY",
    )
    assert JUDGE.limits.seconds is not None and JUDGE.limits.seconds > settings.patience


def test_without_an_endpoint_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ASSAY_JUDGE_URL" in complaint()
    assert "ASSAY_JUDGE_MODEL" in complaint(url=GOOD["url"])
    monkeypatch.setenv("ASSAY_JUDGE_URL", GOOD["url"])
    monkeypatch.setenv("ASSAY_JUDGE_MODEL", "from-the-environment")
    check_judge({})
    assert read_settings({}).judges[0].model == "from-the-environment"
    assert read_settings({"model": "m"}).judges[0].model == "m"
    monkeypatch.setenv("ASSAY_JUDGE_URL", "ftp://x")
    assert complaint().startswith("environment ASSAY_JUDGE_URL")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "localhost:8000"), ("url", "ftp://x"), ("url", 3), ("url", "http://"),
        ("model", " "), ("model", 3), ("temperature", -1), ("temperature", "0"), ("max_tokens", 0),
        ("max_tokens", 1.5), ("timeout", 0), ("timeout", float("nan")), ("retries", -1), ("retries", True),
        ("concurrency", 0), ("votes", 0), ("price_input", -1), ("budget", -1), ("judges", {}),
        ("judges", ["m"]), ("request", []), ("request", {"stream": True}), ("patience", 1e6), ("offline", "yes"), ("replies", ""), ("max_chars", 10),
    ],
)  # fmt: skip
def test_what_is_not_accepted_is_told(name: str, value: Any) -> None:
    with pytest.raises(VerifierError, match=r"verification\.options\.judge") as caught:
        check_judge(GOOD | {name: value})
    assert name in str(caught.value) or name == "timeout"
    check = next(field for field in JUDGE.fields if field.name == name).check
    assert check is None or not check(value)


def test_no_complaint_shows_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        complaint(**GOOD | {"url": f"http://user:{SECRET}@localhost/v1"}),
        complaint(**GOOD | {"url": f"http://localhost/v1?key={SECRET}"}),
        complaint(**GOOD | {"api_key_env": SECRET}),
        complaint(**GOOD | {"judges": [{"api_key": SECRET}]}),
        complaint(**GOOD | {"api_key_env": "ASSAY_TEST_ABSENT"}),
    ]
    monkeypatch.setenv("ASSAY_JUDGE_KEY", f"{SECRET} {SECRET}")
    found.append(complaint(**GOOD))
    monkeypatch.setenv("ASSAY_JUDGE_URL", f"http://{SECRET}@x")
    found.append(complaint(model="m"))
    assert not any(SECRET in text for text in found)
    assert "ASSAY_TEST_ABSENT is not set" in found[4]


def test_a_list_of_judges_inherits_what_is_said_once() -> None:
    options = GOOD | {
        "temperature": 0.2, "price_input": 1.0,
        "judges": [{"model": "a"}, {"model": "b", "url": "https://other.example", "temperature": 0}],
    }  # fmt: skip
    first, second = read_settings(options).judges
    assert (first.model, first.url) == ("a", "http://localhost:8000/v1/chat/completions")
    assert (second.model, second.url) == ("b", "https://other.example/v1/chat/completions")
    assert (first.temperature, second.temperature) == (0.2, 0.0)
    assert first.prices == second.prices
    assert "judges[1].model" in complaint(url=GOOD["url"], judges=[{"model": "a"}, {}])
    assert "judges[0]" in complaint(**GOOD | {"judges": [{"modle": "a"}]})


def test_options_that_do_not_go_together() -> None:
    assert "price_input" in complaint(**GOOD | {"budget": 1.0})
    check_judge(GOOD | {"budget": 1.0, "price_input": 0.1})
    assert "replies" in complaint(**GOOD | {"offline": True})


def test_a_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.endpoint.settings.find_spec", lambda name: None)
    with pytest.raises(VerifierError, match=r"pip install 'assay-rl\[judge\]'"):
        check_judge(GOOD)
    check_judge(GOOD | {"offline": True, "replies": "replies.jsonl"})
