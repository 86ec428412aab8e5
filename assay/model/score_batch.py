"""Packed batches of texts for a reward model, which compute common prefixes once.

A *place* is a token at which a reward model's score is read. The layouts return the hidden state
that predicts a token, which is the state at the previous token. A dummy token, which is never an
input of the model, is therefore appended to each text. With the dummy token, the layouts also
return the state of the last real token of a text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from assay.model.layouts import Layout, ModelInputs, fill
from assay.model.packing import Batch, MicroBatch, pack
from assay.model.transfer import on_device
from assay.types import Completion, Floats, Group, Problem, Prompt, Tokens, Verdict

_LABELLED = Verdict.of_score(1.0, "label@1")


@dataclass(frozen=True, eq=False)
class ScoredText:
    """A text to score. places: indices of the scored tokens, in ascending order. labels: one per
    place.

    Raises ValueError if tokens, places and labels are inconsistent.
    """

    tokens: Tokens
    places: Tokens
    labels: Floats

    def __post_init__(self) -> None:
        places = self.places.tolist()
        if not places or not places[0] >= 0 or places[-1] >= len(self.tokens):
            raise ValueError(f"places {places[:5]} of a text of {len(self.tokens)} tokens")
        if any(second <= first for first, second in pairwise(places)):
            raise ValueError(f"places {places[:5]} do not rise")
        if len(self.labels) != len(places):
            raise ValueError(f"{len(self.labels)} labels of {len(places)} places")


@dataclass(frozen=True, eq=False)
class ScoredGroup:
    """Texts with a common prefix, which are computed together: a pair with the chosen text first,
    or a single text.

    margin: required difference of the two scores of a pair. source: name of the data row from which
    the texts come.
    """

    texts: tuple[ScoredText, ...]
    margin: float = 0.0
    source: str = ""

    @property
    def num_shared(self) -> int:
        """Length of the common prefix in tokens; the prefix is computed once.

        The first scored token is the last token of the prefix or a later token.
        """
        most = min(int(text.places[0]) + 1 for text in self.texts)
        first = self.texts[0].tokens[:most]
        for text in self.texts[1:]:
            same = first == text.tokens[: len(first)]
            first = first[: len(first) if same.all() else int(np.argmin(same))]
        return len(first)

    def num_tokens(self, layout: Layout) -> int:
        """Return the number of tokens of this group that the model computes."""
        total = sum(len(text.tokens) for text in self.texts)
        return total - (len(self.texts) - 1) * self.num_shared if layout == "tree" else total


@dataclass(frozen=True, eq=False)
class ScoreBatch:
    """Groups of texts that one pass of the model scores.

    The axis M counts the scored tokens (places) of all texts, in order. place_M: index of each
    scored token among the tokens of the batch. row_M: index of the text to which each scored token
    belongs. labels_M: label of each place. margins_P: margin of each group.
    """

    batch: Batch
    place_M: Tensor
    row_M: Tensor
    labels_M: Tensor
    margins_P: Tensor

    def inputs(self, layout: Layout) -> ModelInputs:
        """Return the inputs of the model, in which only the M scored positions predict a token."""
        batch = self.batch
        everything = MicroBatch(
            batch,
            torch.arange(batch.num_tokens, device=batch.device),
            torch.arange(batch.num_rows, device=batch.device),
        )
        inputs = everything.inputs(layout)
        return replace(inputs, predict_T=inputs.predict_T[self.place_M])


def pack_scores(groups: Sequence[ScoredGroup], device: torch.device | str = "cpu") -> ScoreBatch:
    """Pack groups into a batch."""
    packed: list[Group] = []
    places: list[np.ndarray] = []
    first = 0
    for number, group in enumerate(groups):
        # A packed group needs a prompt of at least one token, which is the common prefix here.
        together = [group] if group.num_shared else [ScoredGroup((one,)) for one in group.texts]
        for part in together:
            shared = part.num_shared
            rows: list[Completion] = []
            for text in part.texts:
                # The last token of a text predicts nothing, so the dummy token is never an input.
                own = np.append(text.tokens[shared:], 0)
                places.append(first + text.places - (shared - 1))
                first += len(own)
                rows.append(Completion.from_tokens(f"{number}/{len(rows)}", own.astype(np.int32)))
            prompt = Prompt("", part.texts[0].tokens[:shared].astype(np.int32))
            packed.append(Group(Problem(str(number), ""), prompt, tuple(rows)))
    texts = [text for group in groups for text in group.texts]
    arrays = {
        "place_M": np.concatenate(places).astype(np.int64),
        "row_M": np.repeat(np.arange(len(texts)), [len(text.places) for text in texts]),
        "labels_M": np.concatenate([text.labels for text in texts]).astype(np.float32),
        "margins_P": np.array([group.margin for group in groups], np.float32),
    }
    tensors = {name: on_device(array, device) for name, array in arrays.items()}
    verdicts = [[_LABELLED] * len(group.completions) for group in packed]
    return ScoreBatch(pack(packed, verdicts, device), **tensors)


def micro_batches(
    groups: Sequence[ScoredGroup], max_tokens: int, layout: Layout
) -> Iterator[Sequence[ScoredGroup]]:
    """Yield parts of consecutive groups with at most ``max_tokens`` tokens; no group is divided.

    A group with more than ``max_tokens`` tokens is yielded alone.
    """
    sizes = np.array([group.num_tokens(layout) for group in groups], np.int64)
    for first, last in fill(sizes, max_tokens):
        yield groups[first:last]
