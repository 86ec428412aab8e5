"""The tool ``search``: passages of a local corpus ranked by BM25."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from assay.data.documents import load_documents
from assay.errors import MissingExtra
from assay.generate.turns.tool import Tool, ToolError

PASSAGE_WORDS = 120


class Corpus:
    """Passages and their word index.

    Documents are split into passages of whole paragraphs with at most `PASSAGE_WORDS` words; longer
    paragraphs are split. The index is the library bm25s with Lucene's settings. Raises
    MissingExtra.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        try:
            import bm25s  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError as error:
            raise MissingExtra.of("bm25s", "search", "the tool search") from error
        self.passages = [
            each for one in load_documents(list(sources)) for each in passages_of(one.text)
        ]
        self._tokenize: Any = bm25s.tokenize
        self._index: Any = bm25s.BM25()
        words = self._tokenize(self.passages, return_ids=False, show_progress=False)
        self._index.index(words, show_progress=False)

    def find(self, query: str, most: int) -> list[str]:
        """Return at most ``most`` best passages, each with at least one word of the query."""
        words = self._tokenize([query], return_ids=False, show_progress=False)[0]
        known = [word for word in words if word in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        # A stable sort keeps passages with equal scores in the order of the corpus.
        order = np.argsort(-scores, kind="stable")[:most]
        return [self.passages[place] for place in order if scores[place] > 0]


def passages_of(text: str) -> Iterator[str]:
    """Yield the passages into which a document is split."""
    parts: list[str] = []
    size = 0
    for paragraph in text.split("\n\n"):
        words = paragraph.split()
        if parts and size + len(words) > PASSAGE_WORDS:
            yield "\n\n".join(parts)
            parts, size = [], 0
        while len(words) > PASSAGE_WORDS:
            yield " ".join(words[:PASSAGE_WORDS])
            words = words[PASSAGE_WORDS:]
            paragraph = " ".join(words)
        if words:
            parts.append(paragraph.strip())
            size += len(words)
    if parts:
        yield "\n\n".join(parts)


def search_tool(sources: Sequence[str], most: int) -> Tool:
    """Create the search tool over documents: text files, or rows with ``text``."""
    corpus = Corpus(sources)

    def run(arguments: Mapping[str, Any]) -> str:
        query = arguments["query"]
        if not isinstance(query, str):
            raise ToolError("query must be text")
        found = corpus.find(query, most)
        if not found:
            return "nothing was found: no passage has a word of the query"
        return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(found, 1))

    return Tool(
        name="search",
        description="Searches a collection of texts for words, and returns the best passages.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "Words to look for."}},
            "required": ["query"],
        },
        open=lambda: run,
    )
