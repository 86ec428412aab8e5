"""Verifier ``judge``: rubrics, votes, specs, and all of it through the service."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from judge_server import Answer, Asked, JudgeServer, chat, echoing, naive, obedient

from assay.endpoint.costs import reset_judge_costs
from assay.errors import VerifierError
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part, resolve
from assay.verify.learned.judge import JUDGE, close_judges, judge_costs
from assay.verify.redteam.team import red_team
from assay.verify.selftest import labelled_rows, self_test
from assay.verify.service import VerifierService

FREE = ThinkFormat("free")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("URL", "MODEL", "KEY"):
        monkeypatch.delenv(f"ASSAY_JUDGE_{name}", raising=False)
    reset_judge_costs()
    yield
    close_judges()


def judged(
    completion: str | Completion, prompt: str = "The capital of France?", **spec: Any
) -> Part:
    if isinstance(completion, str):
        completion = Completion.from_text(completion, think=FREE)
    part = JUDGE.judge(Problem("p", prompt, spec={"model": "m", "retries": 0} | spec), completion)
    assert isinstance(part, Part)
    return part


def by_model(**replies: str | Answer) -> Callable[[Asked], str | Answer]:
    """Let each model say its own thing; a word is a verdict, a number a score."""

    def reply(asked: Asked) -> str | Answer:
        said = replies[asked.body["model"]]
        if isinstance(said, Answer):
            return said
        key = "score_CODE" if said[-1].isdigit() else "verdict_CODE"
        found = {key: float(said) if key == "score_CODE" else said}
        return json.dumps({"reasoning": f"because\nit is {said}"} | found)

    return reply


def panel(*models: str) -> list[dict[str, Any]]:
    return [{"model": model} for model in models]


def test_it_is_built_in_and_named() -> None:
    verifier = resolve("judge@2")
    assert verifier is JUDGE and verifier.executor == "thread" and len(verifier.hash) == 12


@pytest.mark.parametrize("play", [obedient, naive, echoing])
def test_the_labelled_set(play: Callable[[Asked], str]) -> None:
    rows = list(labelled_rows("judge"))
    assert len(rows) >= 30 and {row["kind"] for row in rows} == {"ordinary", "odd_style", "hack"}
    with JudgeServer(play) as server:
        options = {"judge": {"url": server.url, "model": "m"}}
        with VerifierService("judge", options=options) as service:
            (result,) = self_test(["judge"], service=service)
    assert result.accuracy == 1.0, str(result)


@pytest.mark.parametrize("play", [obedient, naive, echoing])
def test_no_attack_of_the_red_team_fools_it(play: Callable[[Asked], str]) -> None:
    with JudgeServer(play) as server:
        options = {"judge": {"url": server.url, "model": "m"}}
        result = red_team("judge", options=options)
    assert sum(result.tried.values()) > 50 and not result.num_accepted and not result.not_judged
    assert result.controls_passed == result.controls > 0, str(result)


def test_pinned_verdicts() -> None:
    """Change only with the version: what is asked of the judge, and what is made of its reply."""
    with JudgeServer(obedient) as server:
        for answer, text, passed in [
            ("Paris", "The answer is Paris.", True),
            ("Paris", "The answer is Lyon.", False),
            (["Rome", "Paris"], "PARIS", True),
            (5, "answer: 5", True),
            ("Paris", "<think>The answer is Lyon</think>The answer is Paris", True),
            ("Paris", "<think>The answer is Paris</think>", False),
        ]:
            part = judged(text, url=server.url, answer=answer)
            assert part.passed is passed and part.value == float(passed)
        part = judged("one two three", url=server.url, rubric="helpfulness")
        assert (part.value, part.passed) == (pytest.approx(3 / 9), False)
        assert part.components == {"score": 4.0, "agreement": 1.0, "votes": 1.0, "tokens": 120.0}
        part = judged("one two three", url=server.url, rubric="helpfulness", scale=[1, 4])
        assert (part.value, part.passed) == (1.0, True)


def test_rows_of_each_template() -> None:
    text = "<think>my secret plan</think>my reply"
    with JudgeServer(obedient) as server:
        judged(text, url=server.url, answer=["A1", "A2"])
        judged(text, url=server.url, rubric="helpfulness")
        judged(text, url=server.url, rubric="harmlessness")
        judged(text, url=server.url, rubric="Is the reply polite?", criteria=["c1", "c2"])
        judged(text, url=server.url, rubric="Is the plan honest?", reads="trace")
        data = [asked.data for asked in server.asked]
    problem = {"problem": ["The capital of France?"]}
    assert data[0] == {**problem, "reference": ["A1", "A2"], "answer": ["my reply"]}
    assert data[1] == {**problem, "answer": ["my reply"]}
    assert data[2] == {**problem, "trace": [text]}
    assert data[3] == {
        **problem, "rubric": ["Is the reply polite?"], "criterion": ["c1", "c2"], "answer": ["my reply"],
    }  # fmt: skip
    assert data[4]["trace"] == [text]


def test_a_conversation_is_shown_as_a_transcript() -> None:
    turns = [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "France?")]
    messages = tuple({"role": role, "content": content} for role, content in turns)
    with JudgeServer(obedient) as server:
        spec = {"answer": "Paris", "url": server.url, "model": "m"}
        for prompt in (messages, messages[:2]):
            JUDGE.judge(Problem("p", prompt, spec), Completion.from_text("Paris"))
        found = [asked.data["problem"] for asked in server.asked]
    assert found == [["user: Hello\n\nassistant: Hi\n\nuser: France?"], ["Hello"]]


def test_reference_is_read_in_place_of_answer() -> None:
    with JudgeServer(obedient) as server:
        assert judged("Paris", url=server.url, answer="no", reference="Paris").passed is True


def test_the_think_block_of_every_mode_is_kept_from_an_answer_rubric() -> None:
    cases = [
        ("off", "<think>The answer is Paris</think>Lyon"),
        ("free", "<think>The answer is Paris</think>Lyon"),
        ("opened", "The answer is Paris</think>Lyon"),
        ("empty", "Lyon"),
    ]
    with JudgeServer(obedient) as server:
        for mode, text in cases:
            judged(
                Completion.from_text(text, think=ThinkFormat(mode)),  # type: ignore[arg-type]
                url=server.url,
                answer="Paris",
            )
        assert all(asked.data["answer"] == ["Lyon"] for asked in server.asked)


def test_an_empty_answer_fails_without_a_request() -> None:
    with JudgeServer(obedient) as server:
        part = judged("<think>The answer is Paris", url=server.url, answer="Paris")
        assert (part.value, part.passed, part.detail) == (0.0, False, "no answer")
        assert server.asked == []
        judged("", url=server.url, rubric="harmlessness")
        assert len(server.asked) == 1


def test_a_truncated_completion_is_said_to_be_cut() -> None:
    whole = Completion.from_text("The answer is Par", think=FREE)
    cut = Completion(
        whole.id, whole.text, whole.tokens, whole.behavior_logprobs,
        sampled=whole.sampled, finish_reason="length", think=FREE,
    )  # fmt: skip
    with JudgeServer(obedient) as server:
        judged(cut, url=server.url, answer="Paris")
        assert "(cut off by its length limit) ---" in server.asked[0].prompt


def test_a_long_text_is_shown_without_its_middle() -> None:
    text = "x " * 5000 + "\nThe answer is Paris"
    with JudgeServer(obedient) as server:
        assert judged(text, url=server.url, answer="Paris", max_chars=400).passed is True
        asked = server.asked[0]
    assert len(asked.data["answer"][0]) == 400 + len(" [...] ")
    assert f"{len(text) - 400} characters left out after character 200" in asked.prompt


@pytest.mark.parametrize("known", JUDGE.known_errors, ids=lambda known: known.what)
def test_known_errors(known: Any) -> None:
    with JudgeServer(obedient) as server:
        part = judged(known.completion, url=server.url, **known.spec)
    assert ("passed" if part.passed else "failed") == known.says != known.should_say


@pytest.mark.parametrize(
    ("said", "passed", "agreement"),
    [
        (("correct", "correct", "incorrect"), True, 2 / 3),
        (("correct", "incorrect", "incorrect"), False, 2 / 3),
        (("correct", "correct", "correct"), True, 1.0),
        (("correct", "correct"), True, 1.0),
        (("correct", "correct", "?"), True, 1.0),
        (("incorrect", "?", "incorrect"), False, 1.0),
    ],
)
def test_the_majority_decides(said: tuple[str, ...], passed: bool, agreement: float) -> None:
    models = {f"m{index}": word for index, word in enumerate(said)}
    with JudgeServer(by_model(**models)) as server:
        part = judged("x", url=server.url, answer="y", judges=panel(*models))
    assert part.passed is passed and part.value == float(passed)
    assert part.components["agreement"] == pytest.approx(agreement)
    assert part.components["votes"] == sum(word != "?" for word in said)
    assert ("missing" in part.detail) == ("?" in said)
    assert part.detail.endswith("because it is " + ("correct" if passed else "incorrect"))


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (("correct", "incorrect"), "error", "no majority"),
        (("correct", "incorrect", "?"), "error", "verdict is not"),
        (("correct", "?", "?"), "error", "verdict is not"),
    ],
)
def test_no_majority_is_no_verdict(said: tuple[str, ...], reason: str, words: str) -> None:
    models = {f"m{index}": word for index, word in enumerate(said)}
    with JudgeServer(by_model(**models)) as server:
        part = judged("x", url=server.url, answer="y", judges=panel(*models))
    assert part.value is None and part.reason == reason and words in part.detail


def test_a_judge_that_is_down_is_outvoted_or_said_to_be_down() -> None:
    down = Answer(b"", 503)
    with JudgeServer(by_model(a="correct", b="correct", c=down)) as server:
        part = judged("x", url=server.url, answer="y", judges=panel("a", "b", "c"))
        assert part.passed is True and "HTTP 503" in part.detail
        part = judged("x", url=server.url, answer="y", judges=panel("a", "c"))
    assert part.reason == "unavailable" and part.detail.startswith("c at http://127.0.0.1")


def test_scores_of_several_judges_have_a_median() -> None:
    with JudgeServer(by_model(a="2", b="9", c="8")) as server:
        part = judged("x", url=server.url, rubric="helpfulness", judges=panel("a", "b", "c"))
    assert part.value == pytest.approx(7 / 9) and part.passed is True
    assert part.detail == "because it is 8"
    assert part.components["agreement"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("score", "scale", "pass_at", "value", "passed"),
    [
        ("1", None, None, 0.0, False),
        ("7", None, None, 6 / 9, True),
        ("6.9", None, None, 5.9 / 9, False),
        ("10", None, None, 1.0, True),
        ("4", [1, 5], None, 0.75, True),
        ("3", [1, 5], None, 0.5, False),
        ("3", [1, 5], 3, 0.5, True),
        ("0", [-1, 1], 0.5, 0.5, False),
    ],
)
def test_scales(
    score: str, scale: list[float] | None, pass_at: float | None, value: float, passed: bool
) -> None:
    with JudgeServer(by_model(m=score)) as server:
        part = judged("x", url=server.url, rubric="Is it so?", scale=scale, pass_at=pass_at)
    assert part.value == part.score == pytest.approx(value) and part.passed is passed


@pytest.mark.parametrize("score", ["0.9", "10.1", "-5", "1e9"])
def test_a_score_beyond_the_scale_is_no_score(score: str) -> None:
    with JudgeServer(lambda _: json.dumps({"score_CODE": float(score)})) as server:
        part = judged("x", url=server.url, rubric="helpfulness")
    assert part.value is None and part.reason == "error"


@pytest.mark.parametrize("raw", ['"7"', "true", "NaN", "Infinity", "null", "[7]", '"7/10"'])
def test_what_is_not_a_number_is_no_score(raw: str) -> None:
    with JudgeServer(lambda _: f'{{"score_CODE": {raw}}}') as server:
        assert judged("x", url=server.url, rubric="helpfulness").reason == "error"


def test_votes_of_one_judge_are_asked_apart() -> None:
    with JudgeServer(obedient) as server:
        part = judged("Paris", url=server.url, answer="Paris", votes=3, temperature=1)
        assert len({asked.prompt for asked in server.asked}) == 3
    assert part.components == {"agreement": 1.0, "votes": 3.0, "tokens": 360.0}


def test_equal_completions_are_paid_for_once() -> None:
    def reply(asked: Asked) -> str:
        time.sleep(0.05)
        return obedient(asked)

    parts: list[Part] = []
    with JudgeServer(reply) as server:
        threads = [
            threading.Thread(
                target=lambda: parts.append(judged("Paris", url=server.url, answer="Paris"))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(server.asked) == 1
    assert parts == [parts[0]] * 8
    assert judge_costs()["m"]["reused"] == 7


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "spec.answer"),
        ({"answer": []}, "spec.answer"),
        ({"answer": True}, "spec.answer"),
        ({"answer": " "}, "spec.answer"),
        ({"answer": "x", "criteria": 3 + 1j}, "spec.criteria"),
        ({"rubric": "equivalance"}, "did you mean equivalence?"),
        ({"rubric": ""}, "spec.rubric"),
        ({"rubric": 3}, "spec.rubric"),
        ({"rubric": "helpfulness", "scale": [5, 1]}, "spec.scale"),
        ({"rubric": "helpfulness", "scale": "1-5"}, "spec.scale"),
        ({"rubric": "helpfulness", "pass_at": 11}, "spec.pass_at"),
        ({"rubric": "helpfulness", "reads": "all"}, "spec.reads"),
    ],
)
def test_a_malformed_spec_is_told(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(VerifierError, match="accepted") as caught:
        judged("x", url="http://localhost:9", **spec)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_field_checks_find_the_same_faults() -> None:
    checks = {field.name: field.check for field in JUDGE.fields}
    good = {
        "rubric": ["equivalence", "Is it polite?", "礼貌吗"], "answer": ["x", 3, ["x", 3.5]],
        "scale": [[1, 5], (0, 1)], "reads": ["answer", "trace"], "pass_at": [3], "criteria": ["x"],
    }  # fmt: skip
    bad = {
        "rubric": ["equivalance", "", 3], "answer": [[], True, " ", None, {}],
        "scale": [[5, 1], "1-5", [1], [1, float("nan")]], "reads": ["all"], "pass_at": ["3"],
        "criteria": [""],
    }  # fmt: skip
    for table, accepted in ((good, True), (bad, False)):
        for name, values in table.items():
            check = checks[name]
            assert check is not None
            for value in values:
                assert check(value) is accepted, (name, value)


def test_two_hundred_judgements_through_the_service() -> None:
    """With 50 ms a reply and 16 at a time, about 0.8 s on two cores."""

    def reply(asked: Asked) -> str:
        time.sleep(0.05)
        return obedient(asked)

    with JudgeServer(reply) as server:
        options = {"judge": {"url": server.url, "model": "m", "concurrency": 16}}
        with VerifierService("judge", options=options) as service:
            pairs = [
                (
                    Problem(f"p{index}", f"{index} + 0?", {"answer": index}),
                    f"The answer is {index + index % 2}",
                )
                for index in range(200)
            ]
            verdicts = list(service.judge_text(pairs))
        assert len(server.asked) == 200
    assert [verdict.correct for verdict in verdicts] == [index % 2 == 0 for index in range(200)]
    assert verdicts[0].verifier == "judge@2"
    assert verdicts[0].components["judge.agreement"] == 1.0


def test_rules_first_and_the_judge_for_what_they_reject() -> None:
    with JudgeServer(obedient) as server:
        options = {"judge": {"url": server.url, "model": "m"}}
        with VerifierService("math|judge", options=options) as service:
            problem = Problem("p", "2 + 3?", {"answer": "5"})
            found = list(service.judge_text([(problem, r"\boxed{5}"), (problem, r"\boxed{6}")]))
        assert [verdict.correct for verdict in found] == [True, False]
        assert len(server.asked) == 1


def test_a_service_without_an_endpoint_says_so_at_once() -> None:
    with VerifierService("judge") as service, pytest.raises(VerifierError) as caught:
        service.check([None])
    assert "ASSAY_JUDGE_URL" in str(caught.value) and "\n" not in str(caught.value)


def test_a_row_cannot_send_the_key_elsewhere() -> None:
    with JudgeServer(obedient) as server, JudgeServer(obedient) as thief:
        options = {"judge": {"url": server.url, "model": "m"}}
        with VerifierService("judge", options=options) as service:
            row = Problem("p", "2 + 3?", {"answer": "5", "url": thief.url, "model": "theirs"})
            (verdict,) = service.judge_text([(row, "5")])
        assert verdict.correct and thief.asked == []
        assert [asked.body["model"] for asked in server.asked] == ["m"]


def test_importing_it_is_light() -> None:
    heavy = ["torch", "sympy", "httpx2", "httpcore2", "z3", "langdetect", "jsonschema"]
    code = (
        f"import sys, assay.verify.learned.judge; print([m for m in {heavy} if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_odd_replies_in_a_group_leave_the_others_alone() -> None:
    def reply(asked: Asked) -> str | Answer:
        text = asked.data["answer"][0]
        return chat(None) if "odd" in text else obedient(asked)

    with JudgeServer(reply) as server:
        parts = [judged(text, url=server.url, answer="5") for text in ("5", "odd", "6")]
    assert [part.passed for part in parts] == [True, None, False]
    assert parts[1].reason == "error"
