"""Process reward models: exact step scores, where steps end in the completion's own tokens, refusals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import reward_model_fakes as fakes
import torch
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import VerifierError
from assay.reward_models.learned import close_reward_models, sigmoid
from assay.reward_models.process import ProcessRewardModel
from assay.reward_models.steps import Places, split_steps
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import Part
from assay.verify.learned.reward_verifiers import (
    check_process_reward_model,
    judge_process_reward_model,
)

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "First, 2 + 3 = 5.\n\nThen 5 * 2 = 10.\nSo: 10"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    close_reward_models()


@pytest.fixture
def causal(tmp_path: Path) -> str:
    return fakes.save(tmp_path / "prm", fakes.model("causal"), chat=False)


def completion_of(text: str, mode: Any = "free", tokens: list[int] | None = None) -> Completion:
    made = Completion.from_text(text, think=ThinkFormat(mode))
    return made if tokens is None else replace(made, tokens=np.array(tokens, np.int32))


def judge(*completions: Completion | str, spec: Any = None, **options: Any) -> list[Part]:
    problem = Problem("p", "What is (2 + 3) * 2?", {"device": "cpu", **options, **(spec or {})})
    made = [completion_of(each) if isinstance(each, str) else each for each in completions]
    return judge_process_reward_model([(problem, each) for each in made])


def steps_of(part: Part) -> list[float]:
    assert part.value is not None, part.detail
    return [step.score for step in part.step_scores]


def test_causal_scores_against_prefixes_computed_alone(causal: str) -> None:
    made = fakes.model("causal")
    (part,) = judge(TEXT, path=causal, step_tag="*")
    context = list(b"What is (2 + 3) * 2?\n")
    expected: list[float] = []
    for index, step in enumerate([b"First, 2 + 3 = 5.", b"Then 5 * 2 = 10.", b"So: 10"]):
        context += [*(b"\n" if index else b""), *step, ord("*")]
        with torch.no_grad():
            logits = made(input_ids=torch.tensor([context])).logits[0, -1]
        expected.append(float(logits[[ord("+"), ord("-")]].softmax(0)[0]))
    assert steps_of(part) == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01
    assert part.value == pytest.approx(min(expected), abs=1e-5)
    assert part.components["steps"] == 3


def test_known_scores_of_a_head_over_tokens(tmp_path: Path) -> None:
    """Each step is scored at the tag, whose logits are set by hand."""
    made = fakes.looks_at_one_token(fakes.model("token", labels=2))
    with torch.no_grad():
        hidden = fakes.hidden_of(made, ord("\n"))
        made.score.weight[0].zero_()
        made.score.weight[1] = 2.0 * hidden / (hidden @ hidden)
        made.score.bias.zero_()
    path = fakes.save(tmp_path / "prm", made, chat=False)
    options = {"path": path, "style": "classifier", "step_tag": "\n", "step_join": ""}
    (part,) = judge(TEXT, **options)
    assert steps_of(part) == pytest.approx([sigmoid(2.0)] * 3, abs=1e-5)
    (other,) = judge(TEXT, **options, positive=0)
    assert steps_of(other) == pytest.approx([sigmoid(-2.0)] * 3, abs=1e-5)


def test_a_one_label_classifier_scores_by_sigmoid(tmp_path: Path) -> None:
    made = fakes.model("token", labels=1)
    path = fakes.save(tmp_path / "prm", made, chat=False)
    (part,) = judge("ab", path=path, style="classifier", step_tag="*")
    with torch.no_grad():
        ids = torch.tensor([list(b"What is (2 + 3) * 2?\nab*")])
        expected = float(made(input_ids=ids).logits[0, -1, 0].sigmoid())
    assert steps_of(part) == pytest.approx([expected], abs=1e-5)


@pytest.mark.parametrize("kind", ["causal", "token"])
def test_one_by_one_equals_batched(tmp_path: Path, kind: str) -> None:
    path = fakes.save(tmp_path / "prm", fakes.model(kind, labels=2), chat=False)
    style = "causal" if kind == "causal" else "classifier"
    texts = [TEXT, "a", "b\nc\nd\ne", "x" * 60, "\n", "long " * 20 + "\nend"]
    together = judge(*texts, path=path, style=style)
    for text, part in zip(texts, together, strict=True):
        (alone,) = judge(text, path=path, style=style)
        assert steps_of(alone) == pytest.approx(steps_of(part), abs=1e-5)
    small = judge(*texts, path=path, style=style, batch_tokens=100)
    assert [part.value for part in small] == pytest.approx([p.value for p in together], abs=1e-5)


@pytest.mark.parametrize(
    ("reduce", "function"),
    [
        ("min", min),
        ("product", math.prod),
        ("last", lambda scores: scores[-1]),
        ("mean", lambda scores: sum(scores) / len(scores)),
    ],
)
def test_reductions(causal: str, reduce: str, function: Any) -> None:
    (part,) = judge(TEXT, path=causal, reduce=reduce)
    assert part.value == pytest.approx(function(steps_of(part)))
    assert part.passed is (part.value >= 0.5)


def test_a_completion_without_steps_fails(causal: str) -> None:
    parts = judge("", " \n ", "<think></think>", path=causal)
    assert [(part.value, part.passed, part.detail) for part in parts] == [
        (0.0, False, "no steps")
    ] * 3


def test_step_tags_and_control_tokens_in_a_text_are_letters(tmp_path: Path) -> None:
    made = fakes.tokenizer(chat=False)
    made.add_special_tokens({"additional_special_tokens": [*fakes.CONTROL, "<extra>"]})
    model = fakes.model("causal", vocab_size=263)
    model.save_pretrained(tmp_path / "prm")
    made.save_pretrained(tmp_path / "prm")
    prm = ProcessRewardModel.of(
        {"path": str(tmp_path / "prm"), "device": "cpu", "step_tag": "<extra>"}
    )
    (tag,) = prm.tag_ids
    row = prm._row(Problem("p", "q<extra>"), completion_of("good<extra><|end|>\nwell<extra>"))
    assert not isinstance(row, Part)
    assert row.tokens.count(tag) == 2
    assert [row.tokens[position] for position in row.positions] == [tag, tag]
    assert not {259, 260, 261} & set(row.tokens)
    assert bytes(token for token in row.tokens if token < 256) == (
        b"q<extra>\ngood<extra><|end|>\nwell<extra>"
    )


def test_ends_are_the_completions_own_tokens(causal: str) -> None:
    text = "Größe é\nzwei 中文\n\ndrei"
    tokens = [*text.encode(), 257]
    (part,) = judge(completion_of(text, tokens=tokens), path=causal)
    ends = [step.end for step in part.step_scores]
    pieces = [bytes(tokens[: end + 1]).decode() for end in ends]
    assert pieces == ["Größe é", "Größe é\nzwei 中文", text]
    (chars,) = judge(completion_of(text), path=causal)
    assert [text[: step.end + 1] for step in chars.step_scores] == pieces


def test_ends_in_another_tokenizer(causal: str, tmp_path: Path) -> None:
    policy = word_tokenizer(tmp_path / "policy")
    text = "add two and three\nso it is five"
    tokens = policy(text, add_special_tokens=False)["input_ids"]
    (unknown,) = judge(completion_of(text, tokens=tokens), path=causal)
    assert (unknown.value, unknown.reason) == (None, "unavailable")
    assert "policy_tokenizer" in unknown.detail
    options = {"path": causal, "policy_tokenizer": str(tmp_path / "policy")}
    (part,) = judge(completion_of(text, tokens=tokens), **options)
    decoded = [policy.decode(tokens[: step.end + 1]) for step in part.step_scores]
    assert decoded == ["add two and three", text]


def word_tokenizer(folder: Path) -> Any:
    """A tokenizer of a small vocabulary of words, a few letters each, over bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["add two and three so it is five, ünd 中文 " * 9], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|e|>")
    fast.save_pretrained(folder)
    return fast


@given(st.text(alphabet="ab \nü中😀", min_size=1, max_size=30), st.booleans(), st.data())
def test_the_token_of_a_character_is_the_first_that_holds_it(
    text: str, canonical: bool, data: st.DataObject
) -> None:
    """A character's token is the first whose prefix holds it whole, however the text was cut."""
    policy = words()
    if canonical:
        tokens = policy(text, add_special_tokens=False)["input_ids"]
    else:  # sampled token by token, not as the tokenizer would have cut it
        tokens = one_token_a_byte(policy, text)
    places = Places(completion_of(text, tokens=tokens), policy)
    assert places.known
    for character in range(len(text)):
        end = places.token_at(character)
        wanted = text[: character + 1]
        assert policy.decode(tokens[: end + 1]).startswith(wanted)
        assert not end or not policy.decode(tokens[:end]).startswith(wanted)
        assert places.character_after(end) >= character + 1


@lru_cache(maxsize=1)
def words() -> Any:
    with TemporaryDirectory() as folder:
        return word_tokenizer(Path(folder))


def one_token_a_byte(policy: Any, text: str) -> list[int]:
    """One token a byte."""
    from assay.testing import _byte_letters

    letters = _byte_letters()
    return [policy.convert_tokens_to_ids(letters[byte]) for byte in text.encode()]


def test_steps_by_every_separator() -> None:
    def texts(text: str, split: str, mode: Any = "free", reads: str = "all") -> list[str]:
        made = completion_of(text, mode)
        found = split_steps(Problem("p", "q"), made, Places(made, None), split, reads)
        assert all(text[: step.end].endswith(step.text) for step in found)
        return [step.text for step in found]

    assert texts("a\nb\n\n c \n", "newline") == ["a", "b", "c"]
    assert texts("a\nb\n \nc", "blank_line") == ["a\nb", "c"]
    assert texts("a ки b ки c", "ки") == ["a", "b", "c"]
    assert texts("<think>a\nb</think>c", "newline") == ["a", "b", "c"]
    assert texts("<think>a\nb</think>c\nd", "newline", reads="answer") == ["c", "d"]
    assert texts("<think>a\nb", "newline", reads="answer") == []
    assert texts("a\nb", "newline", "opened", reads="answer") == []
    assert texts("a\nb", "newline", "empty", reads="answer") == ["a", "b"]
    assert texts("<THINK>a\nb</THINK>c\nd", "newline", reads="answer") == ["c", "d"]
    assert texts("<think>a</think>c\nd\n<think>e\nf", "newline", reads="answer") == ["c", "d"]
    assert texts("<think>a</think>c", "newline", "empty", reads="answer") == ["c"]
    assert texts("a.b", ".") == ["a", "b"]


def test_steps_at_given_tokens(causal: str) -> None:
    text = "one two three"
    made = completion_of(text, tokens=[*text.encode(), 257])
    (part,) = judge(made, spec={"step_ends": [2, 6, 12]}, path=causal)
    assert [step.end for step in part.step_scores] == [2, 6, 12]
    (rest,) = judge(made, spec={"step_ends": [2]}, path=causal)
    assert [step.end for step in rest.step_scores] == [2, 12]
    for ends in ([3, 2], [99], "5", [], [-1], [1.5]):
        wrong, right = judge_process_reward_model(
            [
                (Problem("p", "q", {"path": causal, "device": "cpu", "step_ends": ends}), made),
                (Problem("p", "q", {"path": causal, "device": "cpu"}), made),
            ]
        )
        assert (wrong.value, wrong.reason) == (None, "error")
        assert "step_ends" in wrong.detail
        assert right.value is not None


def test_long_prompts_are_cut_or_not_judged(causal: str) -> None:
    (cut,) = judge("x" * 240, path=causal)
    assert "tokens of the prompt were cut" in cut.detail
    (refused,) = judge("x" * 300, path=causal)
    assert (refused.value, refused.reason) == (None, "unavailable")
    (strict,) = judge("x" * 240, path=causal, too_long="not_judged")
    assert strict.reason == "unavailable"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "path"),
        ({"good_token": "good"}, "good_token"),
        ({"style": "other"}, "style"),
        ({"reduce": "max"}, "reduce"),
        ({"style": "classifier"}, "without score"),
        ({"policy_tokenizer": "nowhere/at/all"}, "policy_tokenizer"),
        ({"path": ["a", "b"]}, "ensembles"),
        ({"format": "chat"}, "chat template"),
    ],
)
def test_refusals_are_one_line(causal: str, options: dict[str, Any], match: str) -> None:
    given_options = {"device": "cpu", "path": causal, **options} if options else {}
    with pytest.raises(VerifierError, match=match) as caught:
        check_process_reward_model(given_options)
    assert "\n" not in str(caught.value)


def test_through_a_chat_template(tmp_path: Path) -> None:
    path = fakes.save(tmp_path / "prm", fakes.model("causal"))
    made = fakes.model("causal")
    (part,) = judge("ab", path=path, step_tag="*")
    rendered = fakes.tokenizer()("<|user|>What is (2 + 3) * 2?<|end|><|assistant|>")["input_ids"]
    with torch.no_grad():
        logits = made(input_ids=torch.tensor([[*rendered, *b"ab*"]])).logits[0, -1]
    assert steps_of(part) == pytest.approx(
        [float(logits[[ord("+"), ord("-")]].softmax(0)[0])], abs=1e-5
    )


def test_half_a_surrogate_pair_is_judged(causal: str) -> None:
    (part,) = judge("one \ud800\ntwo", path=causal)
    assert len(part.step_scores) == 2


def test_a_tokenizer_that_marks_words(tmp_path: Path) -> None:
    """As Llama 2's: a mark stands before each word, and the step tag is one token with its mark."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [
        "\u2581",
        "\u2581\u043a\u0438",
        "\u2581+",
        "\u2581-",
        "\n",
        *"abcd?q",
        "\u043a",
        "\u0438",
    ]
    merges = [("\u043a", "\u0438"), ("\u2581", "\u043a\u0438"), ("\u2581", "+"), ("\u2581", "-")]
    vocabulary = {
        word: id for id, word in enumerate(["<s>", *words, "\u043a\u0438", "+", "-", "<u>"])
    }
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<u>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    fakes.model("causal").save_pretrained(tmp_path / "prm")
    fast.save_pretrained(tmp_path / "prm")
    prm = ProcessRewardModel.of(
        {"path": str(tmp_path / "prm"), "device": "cpu", "plain_template": "{prompt} {completion}"}
    )
    assert prm.tag_ids == [vocabulary["\u2581\u043a\u0438"]]
    assert prm.columns == (vocabulary["\u2581+"], vocabulary["\u2581-"])
    row = prm._row(Problem("p", "q?"), completion_of("ab c\nd a"))
    assert not isinstance(row, Part)
    expected = fast("q? ab c \u043a\u0438\nd a \u043a\u0438", add_special_tokens=False)["input_ids"]
    assert row.tokens == expected
    assert [row.tokens[position] for position in row.positions] == prm.tag_ids * 2
    row = prm._row(Problem("p", "q?"), completion_of("ab \u043a\u0438 c\nd"))
    assert not isinstance(row, Part)
    assert row.tokens.count(prm.tag_ids[0]) == 2
