"""A teacher with another tokenizer: spans against a slow aligner, their gradient against
enumeration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_learners import a_learner
from tiny_policy import (
    COMPLETIONS,
    World,
    batches,
    gradient,
    loss_of,
    make_batch_of,
    probabilities,
    random_tables,
    token_logprobs,
)
from tiny_policy import assert_same as assert_same_gradient
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from assay.config import DataConfig
from assay.data.chat import PromptRenderer
from assay.learn.algorithms import algorithm
from assay.learn.losses import kl_estimate
from assay.learn.spans import GOES_ON, NO_SAY, SpanTeacher, common_ends, text_ends
from assay.learn.teacher import TeacherModel
from assay.model.divergence import Divergence
from assay.model.packing import Batch, pack
from assay.testing import byte_tokenizer, tiny_model
from assay.types import Completion, Group, Problem, Verdict

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [
    "What is 12 + 30? The answer is 42, and that is all.",
    "the quick brown fox: naïve café, 数学の問題, 😀😀 and so on; the rest of the answer",
    "  two spaces,\n\nlines\tand 1234567890 numbers. The the the answer answer.",
]


def bpe(size: int, texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that was trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    special = ["<end>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=sorted(letters),
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>")


def metaspace(normalizes: bool = False) -> PreTrainedTokenizerFast:
    """One of the other kind: it writes spaces as a letter, and leaves the first one out."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalizes:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=150, special_tokens=["<unk>", "<end>"], show_progress=False
    )
    tokenizer.train_from_iterator([text.replace("数", "") for text in TEXTS], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>")


KINDS: dict[str, PreTrainedTokenizerFast] = {
    "bytes": byte_tokenizer(),
    "small": bpe(290, TEXTS[:1]),
    "large": bpe(330, TEXTS[1:]),
    "metaspace": metaspace(),
}


def encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def slow_ends(tokenizer: Any, before: list[int], tokens: list[int], text: str) -> list[int | None]:
    """Every prefix decoded whole, from the first token of the prompt on."""
    known = tokenizer.decode(before, clean_up_tokenization_spaces=False)
    ends: list[int | None] = []
    for count in range(1, len(tokens) + 1):
        every = tokenizer.decode(before + tokens[:count], clean_up_tokenization_spaces=False)
        piece = every[len(known) :]
        fits = not piece.endswith("\ufffd") and text.startswith(piece)
        ends.append(len(piece) if fits else None)
    return ends


def slow_common(ours: list[int | None], theirs: list[int | None]) -> list[tuple[int, int]]:
    """Each pair of prefixes is looked at, and the longest of those with one end is taken."""
    found: list[tuple[int, int]] = []
    for one, mine in enumerate(ours, 1):
        for other, its in enumerate(theirs, 1):
            is_last = mine not in ours[one:] and its not in theirs[other:]
            if mine and mine == its and is_last:
                found.append((one, other))
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(text=st.text(alphabet="ab e12\n.naïé数学😀", min_size=1, max_size=20))
def test_ends_are_those_of_every_prefix(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    before, tokens = encoded(tokenizer, "the answer:"), encoded(tokenizer, "x" + text)[1:]
    text = tokenizer.decode(encoded(tokenizer, "the answer:") + tokens)[len("the answer:") :]
    if "\ufffd" in text or (kind == "metaspace" and text.startswith(" ")):
        return
    assert text_ends(tokenizer, before, tokens, text) == slow_ends(tokenizer, before, tokens, text)


@pytest.mark.parametrize("pair", [("bytes", "small"), ("small", "large"), ("large", "bytes")])
@pytest.mark.parametrize("text", TEXTS)
def test_spans_are_those_of_a_slow_aligner(pair: tuple[str, str], text: str) -> None:
    ends = []
    for kind in pair:
        tokenizer = KINDS[kind]
        tokens = encoded(tokenizer, text)
        ends.append(text_ends(tokenizer, encoded(tokenizer, "Q: "), tokens, text))
    cuts = common_ends(*ends)
    assert cuts == slow_common(*ends)
    assert cuts[-1] == (len(ends[0]), len(ends[1]))
    assert len(cuts) > 5


def test_a_token_of_one_is_many_of_the_other() -> None:
    """With bytes on one side, a span is what the other's token is."""
    text = "The answer is 42"
    small, raw = KINDS["small"], KINDS["bytes"]
    ours, theirs = encoded(raw, text), encoded(small, text)
    cuts = common_ends(text_ends(raw, [], ours, text), text_ends(small, [], theirs, text))
    assert [count for _, count in cuts] == list(range(1, len(theirs) + 1))


# A teacher's scores -------------------------------------------------------------------------------


def a_teacher(kind: str, context_length: int | None = None, student: str = "bytes") -> SpanTeacher:
    tokenizer = KINDS[kind]
    model = tiny_model(seed=5, vocab_size=len(tokenizer), num_layers=1, eos_token_id=0)
    teacher = TeacherModel(model, Divergence(), torch.device("cpu"), context_length)
    renderer = PromptRenderer(tokenizer, DataConfig(template="base"))
    return SpanTeacher(teacher, renderer, KINDS[student], [KINDS[student].eos_token_id])


def a_batch(texts: list[str | list[int]], student: str = "bytes", given: Any = ()) -> Batch:
    """One group; ``given``: places of tokens that were not chosen, in each completion."""
    tokenizer = KINDS[student]
    prompt = PromptRenderer(tokenizer, DataConfig(template="base")).render(Problem("p", "Why?"))
    rows: list[Completion] = []
    for n, text in enumerate(texts):
        tokens = (
            text if isinstance(text, list) else [*encoded(tokenizer, text), tokenizer.eos_token_id]
        )
        one = Completion.from_tokens(f"p#0/{n}", np.array(tokens, np.int32))
        one.sampled[[place for place in given if place < len(tokens)]] = False
        rows.append(one)
    group = Group(Problem("p", "Why?"), prompt, tuple(rows))
    return pack([group], [[Verdict.of_score(1.0, "t@1")] * len(rows)])


def scores(teacher: SpanTeacher, batch: Batch) -> Tensor:
    passes = a_learner(algorithm("on_policy_distillation")).passes
    return teacher.logprobs(batch, passes)


def by_hand(teacher: SpanTeacher, kind: str, text: str) -> list[float]:
    """The teacher's log-probability of each of its tokens, by plain Transformers."""
    tokenizer = KINDS[kind]
    prompt = teacher.renderer.render(Problem("p", "Why?")).tokens.tolist()
    tokens = [*encoded(tokenizer, text), tokenizer.eos_token_id]
    with torch.no_grad():
        logits = teacher.model(input_ids=torch.tensor([prompt + tokens])).logits[0]
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0].tolist()


def test_a_span_has_the_sum_of_the_teachers_tokens() -> None:
    teacher, texts = a_teacher("small"), ["The answer is 42", "café 数 the"]
    batch = a_batch(list(texts))
    found = scores(teacher, batch)
    assert not (found == NO_SAY).any()
    for row, text in enumerate(texts):
        mine = found[batch.row_T == row]
        want = by_hand(teacher, "small", text)
        assert mine.nansum().item() == pytest.approx(sum(want), rel=1e-5)
        tokens = encoded(KINDS["small"], text)
        ends = text_ends(KINDS["small"], [], tokens, text)
        sizes = [len(text[:end].encode()) for end in ends if end]
        assert mine.isfinite().nonzero()[:, 0].tolist() == [*(n - 1 for n in sizes), len(mine) - 1]
    first = found[batch.row_T == 0]
    numbers = first[first.isfinite()]
    torch.testing.assert_close(numbers, torch.tensor(by_hand(teacher, "small", texts[0])))


def test_with_one_tokenizer_it_is_what_a_teacher_of_tokens_says() -> None:
    """Each token is a span, and bits are equal."""
    teacher = a_teacher("small", student="small")
    batch = a_batch(["The answer is 42", "the rest"], "small")
    found = scores(teacher, batch)
    passes = a_learner(algorithm("on_policy_distillation")).passes
    assert torch.equal(found, passes.logprobs(batch, teacher.model))


def test_tokens_the_teacher_cannot_score_are_marked() -> None:
    raw = KINDS["bytes"]
    cut = [*encoded(raw, "the 数"), *encoded(raw, "学")[:2]]
    broken = [*encoded(raw, "the "), 0xFF, *encoded(raw, "answer"), raw.eos_token_id]
    batch = a_batch([cut, broken, [raw.eos_token_id], "the answer"])
    found = [scores(a_teacher("small"), batch)[batch.row_T == row] for row in range(4)]
    unheard = [(one == NO_SAY).tolist() for one in found]
    assert unheard[0] == [False] * (len(cut) - 2) + [True] * 2
    assert unheard[1] == [False] * 4 + [True] * (len(broken) - 4)
    assert unheard[2] == [False] and not any(unheard[3])
    short = scores(a_teacher("small", context_length=12), batch)
    assert (short[batch.row_T == 1] == NO_SAY).all() or not (short == NO_SAY).all()
    assert (scores(a_teacher("small", context_length=4), batch) == NO_SAY).all()


def test_what_was_given_and_what_it_does_not_know_is_not_scored() -> None:
    text = "the answer is 42"
    given = scores(a_teacher("small"), a_batch([text], given=[5]))
    assert (given == NO_SAY).any() and given[-1].isfinite()
    assert given[5] == NO_SAY and given[0] != NO_SAY
    unknown = scores(a_teacher("metaspace"), a_batch(["the 数 answer"])) == NO_SAY
    assert not unknown[:3].any() and unknown[4:].all()


def test_a_teacher_that_reads_another_text_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer writes small letters: it never scores what the policy has not said."""
    monkeypatch.setitem(KINDS, "lower", metaspace(normalizes=True))
    found = scores(a_teacher("lower"), a_batch(["The the The the"]))
    assert found[0] == NO_SAY
    text = "the answer"
    assert not (scores(a_teacher("lower"), a_batch([text])) == NO_SAY).any()


# The loss -----------------------------------------------------------------------------------------


def test_estimates_of_spans_are_those_of_their_sums() -> None:
    logprobs_T = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1, -0.2]).double().requires_grad_()
    reference_T = torch.tensor([GOES_ON, -2.5, NO_SAY, -1.0, GOES_ON, -0.7]).double()
    weights_T = torch.arange(1.0, 7.0).double()
    d = {1: -3.0 + 2.5, 3: -3.0 + 1.0, 5: -0.3 + 0.7}
    for estimator, of in (
        ("k1", lambda x: x),
        ("k2", lambda x: x * x / 2),
        ("k3", lambda x: np.exp(-x) - 1 + x),
    ):
        found = kl_estimate(logprobs_T, reference_T, estimator)
        want = [of(d[n]) if n in d else 0.0 for n in range(6)]
        torch.testing.assert_close(found, torch.tensor(want).double())
    (found_T,) = torch.autograd.grad(
        (weights_T * kl_estimate(logprobs_T, reference_T, "k2")).sum(), logprobs_T
    )
    want = torch.tensor([2 * d[1], 2 * d[1], 0, 4 * d[3], 6 * d[5], 6 * d[5]]).double()
    torch.testing.assert_close(found_T, want)


def test_what_a_teacher_would_never_say_still_has_a_gradient() -> None:
    logprobs_T = torch.tensor([-1.0]).requires_grad_()
    kl_estimate(logprobs_T, torch.tensor([-90.0]), "k2").sum().backward()
    assert logprobs_T.grad is not None and logprobs_T.grad.item() == 20.0


def joined(teacher: Tensor, completion: int) -> list[float]:
    """The teacher's score of a completion's spans: token 1 is never an end, but at the last
    place."""
    tokens, scores = COMPLETIONS[completion], token_logprobs(teacher, [completion]).tolist()
    if tokens[0] == 1:
        return [GOES_ON, sum(scores) - 0.3]  # as a tokenizer with one token for both would have it
    return scores


def test_its_expected_gradient_is_that_of_the_reverse_kl_over_spans() -> None:
    """At each state where a span begins, sum_s q(s) log(q(s) / p(s)) over the spans that may
    follow; no state counts for where it leads to."""
    tables, teacher = random_tables(), random_tables(1).detach()
    row = algorithm("on_policy_distillation", aggregation="constant_length", length_divisor=1.0)
    total = torch.zeros((), dtype=torch.float64)
    chance = probabilities(tables).detach()
    for groups in batches(2):
        (rows,) = groups
        batch = make_batch_of(groups, World(rewards=(0.0,) * 7))
        said = [score for n in rows for score in joined(teacher, n)]
        own = token_logprobs(tables, rows)
        batch = replace(
            batch, old_logprobs_T=own.detach(), ref_logprobs_T=torch.tensor(said).double()
        )
        total = total + chance[[*rows]].prod() * loss_of(batch, row, own)
    first, second = tables.log_softmax(-1), teacher.log_softmax(-1)
    spans = {(0,): second[0, 0], (2,): second[0, 2]}
    spans |= {(1, k): second[0, 1] + second[1, k] - 0.3 for k in range(3)}
    kl = torch.zeros((), dtype=torch.float64)
    for span, score in spans.items():
        own = first[0, span[0]] + (first[1, span[1]] if len(span) == 2 else 0.0)
        kl = kl + own.exp() * (own - score)
    after_two = first[0, 2].exp().detach()
    kl = kl + after_two * (first[2].exp() * (first[2] - second[2])).sum()
    assert_same_gradient(-gradient(total, tables), -gradient(kl, tables))
