"""Judge the completions in a file of any size: rows are read and judged one after another."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from assay.errors import DataError
from assay.host.files import open_output
from assay.host.terminal import escaped
from assay.session.judging import judged_rows
from assay.verify.service import Options, VerifierService


def verify_file(
    path: Path | str,
    *,
    verifier: str = "math",
    out: Path | str | None = None,
    num_workers: int | None = None,
    deadline: float = 5.0,
    options: Options | None = None,
    allow: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Judge the completions in a file, and write their verdicts to ``out`` or to standard output.

    Return a summary: number of rows by status, pass rate, and seconds.
    """
    started = said = time.monotonic()
    path, out = Path(path), None if out is None else Path(out)
    # If the output file were also the input, opening the output would empty it before it is read.
    if out is not None and out.exists() and path.exists() and out.samefile(path):
        raise DataError(f"{out}: is the file that is read; choose another --out")
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    with ExitStack() as stack:
        file = sys.stdout if out is None else stack.enter_context(open_output(out))
        settings = {"num_workers": num_workers, "deadline": deadline}
        service = VerifierService(verifier, options=options, allow=allow, **settings)
        stack.enter_context(service)
        if warn is not None:
            for text in service.warnings(verifier):
                warn(text)
        # JSON does not escape C1 control characters, which can control a terminal.
        for row in judged_rows(path, verifier, service):
            file.write(escaped(json.dumps(row, ensure_ascii=False)) + "\n")
            counts[row["status"]] += 1
            if row["reason"]:
                reasons[row["reason"]] += 1
            if say is not None and time.monotonic() - said > 1.0:
                said = time.monotonic()
                say(f"{counts.total()} rows judged")
        # A full disk or a closed pipe must fail here, where the command reports the error.
        file.flush()
    judged = counts["passed"] + counts["failed"]
    return {
        "rows": counts.total(),
        "passed": counts["passed"],
        "failed": counts["failed"],
        "not_judged": counts["not_judged"],
        "not_judged_by_reason": dict(reasons),
        # Unjudged rows are neither passed nor failed, so the pass rate leaves them out.
        "pass_rate": round(counts["passed"] / judged, 6) if judged else None,
        "seconds": round(time.monotonic() - started, 3),
        "out": None if out is None else str(out),
    }
