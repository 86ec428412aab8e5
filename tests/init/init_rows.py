"""Files of rows for the tests of `assay init`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_rows(*rows: dict[str, Any], name: str = "mine.jsonl") -> list[str]:
    """Write rows to a file of the working directory; returns its name, as ``data`` takes it."""
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [name]
