"""Spans are those of TRL's GOLD, which aligns by bytes, on text whose characters are not cut."""

from __future__ import annotations

from typing import Any

import pytest
from test_teacher_spans import KINDS, TEXTS, encoded

from assay.learn.spans import common_ends, text_ends

pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore")]


def byte_offsets(tokenizer: Any, tokens: list[int]) -> list[tuple[int, int]]:
    from trl.experimental.gold.gold_trainer import piece_byte_len

    ends, behind = list[tuple[int, int]](), 0
    for piece in tokenizer.convert_ids_to_tokens(tokens):
        ends.append((behind, behind + piece_byte_len(piece)))
        behind = ends[-1][1]
    return ends


def theirs(pair: tuple[str, str], text: str) -> list[tuple[int, int]]:
    from trl.experimental.gold.gold_trainer import ULDLoss

    offsets = [byte_offsets(KINDS[kind], encoded(KINDS[kind], text)) for kind in pair]
    groups = ULDLoss._align_by_byte_offsets(*offsets)
    return [(own[-1] + 1, other[-1] + 1) for own, other in zip(*groups, strict=True)]


def ours(pair: tuple[str, str], text: str) -> list[tuple[int, int]]:
    tokens = [encoded(KINDS[kind], text) for kind in pair]
    return common_ends(
        *(text_ends(KINDS[kind], [], own, text) for kind, own in zip(pair, tokens, strict=True))
    )


@pytest.mark.parametrize("pair", [("bytes", "small"), ("small", "large"), ("large", "bytes")])
@pytest.mark.parametrize("text", TEXTS)
def test_spans_equal_golds_on_ascii_text(pair: tuple[str, str], text: str) -> None:
    """Where both tokenizers cut a character into the same pieces, GOLD's spans are finer."""
    found, want = ours(pair, text), theirs(pair, text)
    assert set(found) <= set(want)
    if text.isascii():
        assert found == want
