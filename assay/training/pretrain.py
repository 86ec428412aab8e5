"""Pretraining: next-token training on plain text, with long documents split into pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from assay.config import TrainConfig
from assay.data.chat import PromptRenderer
from assay.data.documents import Document, load_documents
from assay.errors import ConfigError, message
from assay.learn.sft_update import SFTLearner
from assay.model.layouts import micro_batch_tokens
from assay.model.probe import prove_lean
from assay.run.evaluations import TEXTS
from assay.session.assemble import Session
from assay.session.heldout_rows import read_canaries, read_heldout
from assay.session.stage import FirstLook, Kind, Stage
from assay.training.heldout_loss import measure_loss, recorded
from assay.training.sft import LOOKED_AT, RenderedRows, given_work, learn_given
from assay.types import Completion, Group, Problem, Prompt, Tokens
from assay.verify.service import VerifierService

# Number of characters of the first document that serve as the prompt of a dry run.
SHOWN = 80


@dataclass(frozen=True)
class Texts:
    """Training and held-out documents, and the rows that evaluations sample."""

    train: Sequence[Document]
    heldout: Sequence[Document]
    problems: Sequence[Problem] = ()
    canaries: Sequence[Problem] = ()


def run_pretrain(stage: Stage) -> Path:
    """Run the pretraining stage; return the run's folder. Raises RunStopped, by a guard."""
    assert stage.config.pretrain is not None
    return learn_given(stage, stage.config.pretrain, read_texts, lay_out_texts)


def read_texts(config: TrainConfig, verifiers: VerifierService) -> Texts:
    """Open the documents; a bad row raises DataError or is skipped (data.on_bad_row)."""
    settings, on_bad_row = config.pretrain, config.data.on_bad_row
    assert settings is not None
    heldout: Sequence[Document] = ()
    if settings.heldout:
        most = config.evaluation.max_problems
        heldout = load_documents(settings.heldout, on_bad_row=on_bad_row, limit=most)
    texts = load_documents(settings.texts, on_bad_row=on_bad_row)
    problems, canaries = read_heldout(config, verifiers), read_canaries(config, verifiers)
    return Texts(texts, heldout, problems, canaries)


def lay_out_texts(session: Session, texts: Texts) -> RenderedRows:
    """Split the documents into pieces and prepare the held-out evaluation."""
    longest = longest_piece(session)
    learned = Pieces(texts.train, session.renderer, longest)
    what = f"{len(texts.train)} documents in {len(learned)} pieces, {learned.num_tokens} tokens"
    if not texts.heldout:
        return RenderedRows(learned, learned.lengths.tolist(), what)
    heldout = Pieces(texts.heldout, session.renderer, longest)
    notes = [f"{len(texts.heldout)} documents held out"]
    # This check finds only equal documents; `assay data deduplicate` also finds near duplicates.
    known = {document.text for document in texts.heldout}
    both = [one.source for one in texts.train if one.text in known]
    if both:
        found = f"warning: {len(both)} documents are both held out and trained on"
        notes.append(f"{found}, the first: {both[0]}")

    measure = recorded(TEXTS, lambda learner: evaluate_texts(learner, heldout))
    return RenderedRows(learned, learned.lengths.tolist(), what, notes, measure)


def first_look(config: TrainConfig, session: Session, texts: Texts) -> FirstLook:
    """Preview the stage with these documents; the problem is the start of the first document."""
    rendered = lay_out_texts(session, texts)
    lean, note = prove_lean(session.loaded.model)
    notes = [rendered.what, *rendered.notes, *filter(None, [note])]
    assert config.pretrain is not None
    groups = [rendered.groups[n] for n in range(min(LOOKED_AT, len(rendered.groups)))]
    work = given_work(groups, len(rendered.groups), config.pretrain)
    problem = Problem("document", texts.train[0].text[:SHOWN])
    return FirstLook(problem, notes, lean=lean, work=work)


KIND = Kind(read_texts, first_look, run_pretrain)


def longest_piece(session: Session) -> int:
    """Return the maximum piece length in tokens; raises ConfigError if it exceeds the context."""
    settings, most = session.config.pretrain, session.loaded.context_length
    assert settings is not None
    wanted = settings.max_tokens
    # By default, a piece has at most the tokens of a micro-batch,
    # because a longer piece would not fit.
    if wanted is None:
        kind = session.loaded.device.type
        wanted = micro_batch_tokens(settings.max_tokens_per_micro_batch, kind)
        return min(wanted, most or wanted)
    if most is not None and wanted > most:
        raise ConfigError(message("pretrain.max_tokens", wanted, f"at most {most}, the context"))
    return wanted


class Pieces(Sequence[Group]):
    """Documents that are split into pieces of at most ``max_tokens`` tokens; a piece's tensors are
    built on demand.

    The prompt of a piece is the single token before the piece: the first token of the document, or
    the last token of the previous piece. Every token of a document except the first is trained on
    exactly once, including the end token. lengths, document: number of tokens and document index of
    each piece.
    """

    def __init__(
        self, documents: Sequence[Document], renderer: PromptRenderer, max_tokens: int
    ) -> None:
        tokens: list[Tokens] = []
        pieces: list[tuple[int, int, int]] = []
        self.num_bytes, end = 0, 0
        for number, document in enumerate(documents):
            found = renderer.render_document(document.text, document.source)
            pieces += [(number, end + at, size) for at, size in _cut(len(found) - 1, max_tokens)]
            tokens.append(found)
            end += len(found)
            self.num_bytes += len(document.text.encode())
        # One array contains all tokens, because one Python object per piece would need more memory
        # than the tokens.
        self._tokens = np.concatenate(tokens)
        self.document, self._first, self.lengths = np.array(pieces, np.int64).T
        self.num_tokens = int(self.lengths.sum())

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Group: ...
    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...
    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        if isinstance(index, slice):
            return [self[n] for n in range(len(self))[index]]
        first, length = int(self._first[index]), int(self.lengths[index])
        tokens = self._tokens[first : first + 1 + length]
        learned = Completion.from_tokens(f"piece-{index}/0", tokens[1:])
        return Group(Problem(f"piece-{index}", ""), Prompt("", tokens[:1]), (learned,))


def _cut(length: int, most: int) -> Iterator[tuple[int, int]]:
    """Split a document into the smallest number of pieces, with lengths that differ by at most one
    token; yield (start, size)."""
    # Pieces have nearly equal lengths, because the tokens of a short last piece would have little
    # context.
    count = -(-length // most)
    for n in range(count):
        start = n * length // count
        yield start, (n + 1) * length // count - start


def evaluate_texts(learner: SFTLearner, pieces: Pieces) -> dict[str, Any]:
    """Return the evaluation row of held-out documents; see `measure_loss`.

    The first token of a document has no context, and is excluded.
    """
    found = measure_loss(learner, pieces, pieces.document, pieces.num_bytes)
    return {"eval/kind": TEXTS, "eval/num_documents": int(pieces.document[-1]) + 1, **found}
