"""`assay data deduplicate`: remove rows whose text equals or resembles an earlier row's text."""

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
"""Number of hashes per MinHash. The standard error of an estimated similarity is about 0.04."""
SEED = 0
FOUND = 0.94
"""Minimum recall of the index for pairs exactly at the similarity limit. Recall is higher for more
similar pairs."""
Similarity = Annotated[float, Field(ge=0.3, le=1.0)]


class DeduplicateSettings(StageSettings):
    """Remove rows whose text repeats the text of an earlier row, exactly or nearly.

    Texts are compared as words and punctuation, ignoring case. Near duplicates are found by MinHash
    (Broder 1997), with the library rensa. Memory grows with the number of kept rows: about 2 KB per
    row, or 0.1 KB per row if only equal texts are removed.
    """

    similarity: Similarity = 0.8
    """A row is removed if its similarity to an earlier kept row is at least this value. The
    similarity is the Jaccard index of the n-grams, estimated with a standard error of about 0.04.
    1: only rows with equal words are removed, and the library rensa is not needed."""

    n: Natural = 3
    """Number of words in an n-gram. Use a larger number for documents, such as 5, and for problems
    that were generated from one template. With short n-grams, all problems of a template have
    n-grams in common, and comparing them is slow."""

    compare: TextPart = "prompt"
    """Compared text of a row: ``prompt``, ``completion``, or ``all``."""


def deduplicate(settings: DeduplicateSettings, out: Output) -> None:
    """Write the first row of each set of duplicates.

    The manifest records the texts of the first removed rows and of the rows that they repeat.
    """
    near = None if settings.similarity == 1 else _NearTexts(settings.similarity)
    out.add_filters("same text", *(["similar text"] if near else []))
    rows = out.open(settings.inputs, lambda row: row.text(settings.compare))
    first: dict[int, int] = {}
    for index, row in enumerate(rows):
        text = row.text(settings.compare)
        words = words_in(text)
        # Equal texts are found by hash instead of MinHash.
        # Most duplicates are equal texts, and hashing needs no extra package.
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
    """Index of texts by MinHash, with banded locality-sensitive hashing."""

    def __init__(self, similarity: float) -> None:
        try:
            import rensa  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            purpose = "deduplicate with similarity below 1"
            raise MissingExtra.of("rensa", "curation", purpose) from error
        # The compiled library rensa has no type annotations.
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
        """Return the index of a similar earlier text.

        If no earlier text is similar, the text is added, and ``index`` is returned.
        """
        sketch = self._sketch(num_perm=HASHES, seed=SEED)
        sketch.update([" ".join(ngram) for ngram in shingles(words, n)])
        # If several earlier texts are similar, the earliest is returned, for reproducible reports.
        if found := self._index.get_duplicates(sketch):
            return min(map(int, found))
        self._index.add(str(index), sketch)
        return index


def num_bands(similarity: float) -> int:
    """Return the smallest number of index bands with recall `FOUND` at the similarity limit."""
    # With b bands of r hashes, P(a pair of similarity s shares a band) = 1 - (1 - s^r)^b.
    # More bands find more similar pairs, but yield more dissimilar pairs to compare.
    for bands in (8, 16, 32, 64):
        if 1 - (1 - similarity ** (HASHES // bands)) ** bands >= FOUND:
            return bands
    return HASHES


def shingles(words: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """Return the set of a text's n-grams; a text of fewer than n words is a single n-gram."""
    size = min(n, len(words))
    return set(zip(*(words[start:] for start in range(size)), strict=False))


def likeness(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    """Return the Jaccard index of two sets of n-grams; 1.0 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 1.0


STAGE = DataStage(DeduplicateSettings, deduplicate)
