"""`assay data deduplicate`: keep the first of several rows with equal or similar texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from assay.config.section import Natural
from assay.curation.base import DataStage, StageSettings
from assay.curation.output import Output
from assay.data.completions import TextPart
from assay.data.overlap import words_in
from assay.errors import MissingExtra

HASHES = 128
"""Number of hashes in a MinHash. They estimate a similarity to about 0.04."""
SEED = 0
FOUND = 0.94
"""Recall of the index for pairs exactly at the limit. Recall is higher for more similar pairs."""
Similarity = Annotated[float, Field(ge=0.3, le=1.0)]


class DeduplicateSettings(StageSettings):
    """Remove rows whose text repeats an earlier one, exactly or nearly.

    Texts are compared as words and punctuation, ignoring case. Near duplicates are found by MinHash
    (Broder 1997), with the library rensa. Memory grows with the kept rows: about 2 KB per row, or
    0.1 KB per row if only equal texts are removed.
    """

    similarity: Similarity = 0.8
    """A row is removed if its similarity to an earlier kept row is at least this value. The
    similarity is the Jaccard index of the n-grams, estimated to about 0.04. 1: only rows with equal
    words are removed, without the library."""

    n: Natural = 3
    """Number of words in an n-gram. Use more for documents (5), and for problems generated from one
    template. Otherwise each problem is compared with all others, which is slow."""

    compare: TextPart = "prompt"
    """Compared part of a row: its ``prompt``, its ``completion``, or ``all``."""


def deduplicate(settings: DeduplicateSettings, out: Output) -> None:
    """Write the first row of each set of duplicates. For the first removed rows, the earlier text
    is recorded too."""
    near = None if settings.similarity == 1 else _NearTexts(settings.similarity)
    out.add_filters("same text", *(["similar text"] if near else []))
    rows = out.open(settings.inputs, lambda row: row.text(settings.compare))
    first: dict[int, int] = {}
    for index, row in enumerate(rows):
        text = row.text(settings.compare)
        words = words_in(text)
        # Equal texts are found by hash, without MinHash: they are the bulk of duplicates, and this
        # needs no extra.
        name, earlier = "same text", first.setdefault(hash(words), index)
        if near and earlier == index:
            name, earlier = "similar text", near.find(index, words, settings.n)
        if earlier == index:
            out.write(row.keys)
            continue
        kept = rows[earlier]
        other = kept.text(settings.compare)
        share = likeness(shingles(words, settings.n), shingles(words_in(other), settings.n))
        shown = {"id": row.keys["id"], "text": text, "kept_id": kept.keys["id"], "kept": other}
        out.take(name, shown, f"{share:.0%} like {kept.id}")


class _NearTexts:
    """An index of texts by MinHash."""

    def __init__(self, similarity: float) -> None:
        try:
            import rensa  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            purpose = "deduplicate with similarity below 1"
            raise MissingExtra.of("rensa", "curation", purpose) from error
        # The compiled library has no type annotations.
        library: Any = rensa
        self._sketch = library.RMinHash
        self._index = library.RMinHashDeduplicator(
            threshold=similarity,
            num_perm=HASHES,
            use_lsh=True,
            num_bands=num_bands(similarity),
            seed=SEED,
        )

    def find(self, index: int, words: tuple[str, ...], n: int) -> int:
        """Return the index of a similar earlier text. Adds the text under its index if none is."""
        sketch = self._sketch(num_perm=HASHES, seed=SEED)
        sketch.update([" ".join(ngram) for ngram in shingles(words, n)])
        # The earliest similar row is named, so that a report is reproducible.
        if found := self._index.get_duplicates(sketch):
            return min(map(int, found))
        self._index.add(str(index), sketch)
        return index


def num_bands(similarity: float) -> int:
    """Choose the smallest number of index bands with recall `FOUND` at the similarity limit."""
    for bands in (8, 16, 32, 64):
        if 1 - (1 - similarity ** (HASHES // bands)) ** bands >= FOUND:
            return bands
    return HASHES


def shingles(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """Return the n-grams of a text. A text of fewer than n words is one n-gram."""
    size = min(n, len(words))
    return set(zip(*(words[start:] for start in range(size)), strict=False))


def likeness(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    """Compute the Jaccard index of two sets."""
    return len(one & other) / len(one | other) if one or other else 1.0


STAGE = DataStage(DeduplicateSettings, deduplicate)
