"""Plain-text documents for next-token training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.data.completions import DOCUMENT
from assay.data.rows import check_completion, copy_row, key_among
from assay.data.rowset import load_rows


@dataclass(frozen=True, slots=True)
class Document:
    """A plain text. source: ``file.jsonl:12``."""

    text: str
    source: str = ""


def read_document(row: Any, where: str, default_id: str) -> Document:
    """Return the document of a row, which has its text under the key ``text``."""
    keys = copy_row(row, where)
    key_among([DOCUMENT], keys, where, "a document: a row with its text")
    return Document(check_completion(keys[DOCUMENT], where, DOCUMENT), where)


load_documents = partial(load_rows, "documents", read_document)
