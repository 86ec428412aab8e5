"""Next-token training on plain text: every token once, no document sees another, held-out perplexity."""

from __future__ import annotations

import json
import math
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from train_worlds import World, rows_of
from transformers import AutoModelForCausalLM

from assay.config import DataConfig, EvaluationConfig, parse
from assay.data.chat import PromptRenderer
from assay.data.documents import Document, load_documents
from assay.errors import AssayError, ModelError
from assay.plan.measured.seconds import mean_lengths, time_given
from assay.run.evaluations import best_step, why_settled
from assay.run.metrics import is_timing
from assay.session.assemble import open_session
from assay.session.consent import powers_of
from assay.testing import byte_tokenizer
from assay.training.api import dry_run, train
from assay.training.pretrain import Pieces
from assay.types import Problem
from assay.verify.service import VerifierService

EOS = 257
TEXTS = [f"{n} and {n + 1}" * (1 + 2 * (n % 3)) for n in range(12)]
HELDOUT = ["7 and 9", "20 and 21", "no such thing at all " * 4]


def tree_of(world: World, **sections: Any) -> dict[str, Any]:
    """A pretraining run of a few steps; some documents are longer than a piece."""
    tree = world.tree(data={"heldout": []}, **sections)
    del tree["rl"]
    texts = world.write_rows("texts.jsonl", [{"text": text} for text in TEXTS])
    heldout = world.write_rows("held.jsonl", [{"text": text} for text in HELDOUT])
    given = {"texts": [str(texts)], "heldout": [str(heldout)], "tokens_per_step": 60}
    return tree | {"pretrain": {**given, "max_tokens": 24, **sections.get("pretrain", {})}}


def pieces_of(texts: list[str], most: int) -> Pieces:
    renderer = PromptRenderer(byte_tokenizer(), DataConfig())
    return Pieces([Document(text, "t.jsonl:1") for text in texts], renderer, most)


@given(st.lists(st.text(min_size=1, max_size=40), min_size=1, max_size=6), st.integers(1, 12))
def test_every_token_of_a_document_is_learned_once(texts: list[str], most: int) -> None:
    pieces = pieces_of(texts, most)
    assert pieces.lengths.max() <= most and pieces.num_tokens == pieces.lengths.sum()
    assert pieces.num_bytes == sum(len(text.encode()) for text in texts)
    numbers = zip(pieces.document.tolist(), pieces, strict=True)
    for (number, group), text in zip(groupby(numbers, lambda one: one[0]), texts, strict=True):
        before, learned = text.encode()[0], list[int]()
        for _, piece in group:
            (completion,) = piece.completions
            assert piece.prompt.tokens.tolist() == [before], number
            assert len(completion.tokens) > 0 and completion.sampled.all()
            learned += completion.tokens.tolist()
            before = learned[-1]
        assert learned == [*text.encode()[1:], EOS]


def test_the_name_of_a_special_token_is_plain_text_in_a_document() -> None:
    (piece,) = pieces_of(["a<|eos|>b"], 50)
    assert piece.completions[0].tokens.tolist() == [*b"<|eos|>b", EOS]


def test_a_document_begins_as_a_prompt_does() -> None:
    """What is learned at the begin of a text serves where a prompt begins."""
    tokenizer = byte_tokenizer()
    tokenizer._tokenizer.post_processor = TemplateProcessing("<|bos|> $A", None, [("<|bos|>", 256)])
    renderer = PromptRenderer(tokenizer, DataConfig(prompt_template="{question}"))
    assert renderer.render_document("ab").tolist() == [256, *b"ab", EOS]
    assert renderer.render(Problem("p", "ab")).tokens.tolist() == [256, *b"ab"]


def test_a_tokenizer_without_an_end_token_is_told() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match="end token of a document: found none"):
        PromptRenderer(tokenizer, DataConfig()).render_document("x")


@torch.no_grad()
def slow_nll(model: Any, tokens: list[int]) -> list[float]:
    """The surprise of each token but the first, one forward pass a token."""
    found: list[float] = []
    for n in range(1, len(tokens)):
        logits = model(torch.tensor([tokens[:n]])).logits[0, -1].double()
        found.append(-float(torch.log_softmax(logits, -1)[tokens[n]]))
    return found


def slow_pieces(model: Any, text: str, most: int) -> list[float]:
    tokens = [*text.encode(), EOS]
    count = -(-(len(tokens) - 1) // most)
    ends = [n * (len(tokens) - 1) // count for n in range(count + 1)]
    return [
        nll for first, last in pairwise(ends) for nll in slow_nll(model, tokens[first : last + 1])
    ]


def test_loss_and_perplexity_against_a_loop_over_tokens(world: World) -> None:
    """Packed or not, a token is predicted from the tokens of its own piece alone."""
    tree = tree_of(world, pretrain={"tokens_per_step": 100_000})
    run = Path(train(tree, quiet=True).run)
    model = AutoModelForCausalLM.from_pretrained(world.folder / "model")
    losses = [nll for text in TEXTS for nll in slow_pieces(model, text, 24)]
    (row,) = rows_of(run, "metrics")
    assert row["loss/nll"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert row["tokens/trained"] == len(losses)
    before = rows_of(run, "evaluations")[0]
    by_text = [slow_pieces(model, text, 24) for text in HELDOUT]
    total, count = sum(map(sum, by_text)), sum(map(len, by_text))
    mean, size = total / count, sum(len(text) for text in HELDOUT)
    assert before["eval/nll"] == pytest.approx(mean, rel=1e-4)
    assert before["eval/perplexity"] == pytest.approx(math.exp(mean), rel=1e-3)
    assert before["eval/bits_per_byte"] == pytest.approx(total / math.log(2) / size, rel=1e-4)
    squares = sum((sum(one) - mean * len(one)) ** 2 for one in by_text)
    assert before["eval/stderr"] == pytest.approx(math.sqrt(squares * 3 / 2) / count, rel=1e-3)
    assert (before["eval/num_documents"], before["eval/num_tokens"]) == (3, count)


def test_held_out_perplexity_falls_and_is_reported_everywhere(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tree_of(world, pretrain={"epochs": 6}, evaluation={"every": 3})
    result = train(tree)
    run = Path(result.run)
    rows = rows_of(run, "evaluations")
    assert rows[-1]["eval/perplexity"] < rows[0]["eval/perplexity"]
    first, last = (f"{row['eval/perplexity']:.4g} ± " for row in (rows[0], rows[-1]))
    assert first in str(result) and last in str(result) and "bits a byte" in str(result)
    assert f"step 0: held-out perplexity {first}" in capsys.readouterr().err
    page, decision = (run / "report.html").read_text(), (run / "decision.md").read_text()
    assert "Held-out perplexity" in page and first in page and last in page
    assert "`pretrain`, as recommended" in decision and first in decision and last in decision


def test_the_best_checkpoint_has_the_lowest_perplexity() -> None:
    rows = [
        {"step": step, "eval/kind": "texts", "eval/nll": nll, "eval/stderr": 0.01}
        for step, nll in [(0, 3.0), (2, 2.0), (4, 2.5), (6, 2.005)]
    ]
    assert best_step(rows) == 2
    said = why_settled(rows, EvaluationConfig(every=2, patience=2))
    assert said is not None and "log-likelihood of a token has settled: 2" in said
    assert why_settled(rows, EvaluationConfig(every=2, patience=3)) is None


def plain(run: Path, name: str) -> list[str]:
    kept = [{k: v for k, v in row.items() if not is_timing(k)} for row in rows_of(run, name)]
    return [json.dumps(row, sort_keys=True) for row in kept]


def test_stopped_and_resumed_is_bitwise_the_same(world: World) -> None:
    whole = train(tree_of(world, run={"name": "whole"}), quiet=True)
    part = train(tree_of(world, run={"name": "part"}), overrides=["run.max_minutes=1e-9"])
    assert (part.steps, part.ended) == (1, "max_minutes") and whole.steps > 3
    again = train(resume=part.run, overrides=["run.max_minutes="], quiet=True)
    assert again.steps == whole.steps and whole.checkpoint and again.checkpoint
    assert plain(Path(whole.run), "metrics") == plain(Path(again.run), "metrics")
    one, two = (
        load_file(Path(end.checkpoint or "") / "model.safetensors") for end in (whole, again)
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_dry_run_says_how_much_there_is(world: World) -> None:
    found = dry_run(tree_of(world))
    assert found.expected is not None and found.expected.num_steps > 0
    notes = found.notes
    assert notes[0].startswith("12 documents in ") and notes[1] == "3 documents held out"
    tree = tree_of(world)
    tree["pretrain"]["heldout"] = tree["pretrain"]["texts"]
    assert any(
        "warning: 12 documents are both held out and trained on" in one
        for one in dry_run(tree).notes
    )


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    for name, text in (("a.txt", "Once\n\nupon a time.\n"), ("b.md", "# b\n[1]")):
        (tmp_path / name).write_text(text)
    (tmp_path / "rows.txt").write_text('{"text": "a row"}\n')
    names = [str(tmp_path / name) for name in ("a.txt", "b.md", "rows.txt")]
    found = load_documents(names)
    assert [one.text for one in found] == ["Once\n\nupon a time.\n", "# b\n[1]", "a row"]
    assert found[0].source == f"{names[0]}:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"question": "1+1="}\n',
            r"bad\.jsonl:1 text: found none among: question; accepted: a doc",
        ),
        ('{"text": "a"}\n{"text": " "}\n', r"bad\.jsonl:2 text: found ' '; accepted: text that is"),
        ('{"text": ["a"]}\n', r"bad\.jsonl:1 text: found \['a'\]; accepted: text"),
        ("", r"bad\.jsonl: found no rows; accepted: at least one good row"),
    ],
)
def test_bad_documents_are_told_in_one_line(world: World, text: str, said: str) -> None:
    (world.folder / "bad.jsonl").write_text(text)
    tree = tree_of(world, pretrain={"texts": [str(world.folder / "bad.jsonl")]})
    with pytest.raises(AssayError, match=said) as error:
        train(tree)
    assert error.value.exit_code == 2 and len(str(error.value).splitlines()) == 1
    assert not (world.folder / "runs").exists()


def test_a_piece_longer_than_the_context_is_refused(world: World) -> None:
    with pytest.raises(AssayError, match=r"pretrain\.max_tokens: found 65; accepted: at most 64"):
        train(tree_of(world, pretrain={"max_tokens": 65}), quiet=True)


def test_a_run_from_elsewhere_may_not_import_its_texts() -> None:
    found = {"texts": ["strange:rows", "assay.data.tasks:chain_sums"], "heldout": ["other:rows"]}
    config = parse({"model": {"path": "m"}, "pretrain": found})
    assert [*powers_of(config)] == [
        ("pretrain.texts", "strange:rows"),
        ("pretrain.heldout", "other:rows"),
    ]


def test_a_step_is_timed(world: World) -> None:
    """`assay plan` times a step on made-up rows of the pieces' mean length."""
    config = parse(tree_of(world))
    with VerifierService("math", num_workers=1) as verifiers:
        session = open_session(config, verifiers)
        seconds = time_given(session, *mean_lengths(session))
    assert seconds.update > 0 == seconds.generation
