"""Write docs/verifiers.md from the verifiers' declarations: ``python tools/verifier_reference.py``.

The introduction of the page is tools/verifiers_head.md. A test fails if the page is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from assay.verify.base import KnownError, Limits, Verifier, resolve
from assay.verify.expression import BUILT_IN
from assay.verify.selftest import labelled_rows

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "verifiers.md"
HEAD = Path(__file__).resolve().parent / "verifiers_head.md"

EXECUTORS = {
    "worker": "in a worker process, which is killed at its deadline",
    "thread": "in threads of the trainer's process, because it waits for a network",
    "device": "in one thread of the trainer's process, in batches, on the learner's device",
    "inline": "in the trainer's process, because it is quick",
}
UNITS = {
    "seconds": "{:g} s of wall time",
    "cpu_seconds": "{:g} s of CPU time for each test",
    "memory_mib": "{} MiB of memory",
    "output_kib": "{} KiB of output",
    "processes": "{} processes",
}


def reference() -> str:
    """Return the complete text of the page."""
    verifiers = [resolve(name) for name in BUILT_IN]
    lines = [HEAD.read_text(encoding="utf-8").rstrip(), "", "## The verifiers", ""]
    lines += ["| name | judges | default weight | needs |", "|---|---|---|---|"]
    for each in verifiers:
        needs = f'`pip install "assay-rl[{each.extra}]"`' if each.extra else ""
        cells = (f"[{each.name}](#{each.name})", each.domain, f"{each.weight:g}", needs)
        lines.append("| " + " | ".join(map(cell, cells)) + " |")
    for each in verifiers:
        lines += ["", *section(each)]
    return "\n".join(lines) + "\n"


def section(verifier: Verifier) -> Iterator[str]:
    """Yield the lines of a verifier's section."""
    yield f"### {verifier.name}"
    yield ""
    yield f"`{verifier.label}` judges {verifier.domain}."
    yield f"The verifier runs {EXECUTORS[verifier.executor]}."
    yield ""
    if verifier.accepts:
        yield f"- Accepts: {verifier.accepts}."
    yield f"- Partial credit: {verifier.partial_credit}."
    bounds = (
        "not bounded" if verifier.bounds is None else "from {:g} to {:g}".format(*verifier.bounds)
    )
    yield f"- Value: {bounds}. Default weight in a sum: {verifier.weight:g}."
    if limits := list(limit_words(verifier.limits)):
        yield f"- Limits: {', '.join(limits)}."
    if count := sum(1 for _ in labelled_rows(verifier.name)):
        command = f"assay verifier self-test --verifier {verifier.name}"
        yield f"- Labelled set: {count} rows (`{command}`)."
    if verifier.fields:
        yield ""
        yield "| key | accepts | default | set by |"
        yield "|---|---|---|---|"
        for field in verifier.fields:
            default = "needed" if field.needed else f"`{json.dumps(field.default)}`"
            by = "row or configuration" if field.from_row else "configuration only"
            yield (
                "| " + " | ".join(map(cell, (f"`{field.name}`", field.accepts, default, by))) + " |"
            )
    if verifier.known_errors:
        yield ""
        yield "Known errors, each with an example that is also a test:"
        yield ""
        yield "| error | row | completion | verdict |"
        yield "|---|---|---|---|"
        yield from map(known, verifier.known_errors)


def limit_words(limits: Limits) -> Iterator[str]:
    """Yield each limit of a verifier as text."""
    for name, words in UNITS.items():
        if (value := getattr(limits, name)) is not None:
            yield words.format(value)


def known(error: KnownError) -> str:
    """Return a known error and its example as a list item."""
    spec = json.dumps(dict(error.spec), ensure_ascii=False)
    shown = error.completion if len(error.completion) <= 200 else f"{error.completion[:200]}..."
    cells = (error.what, code(spec), code(shown), f"wrongly {error.says}")
    return "| " + " | ".join(map(cell, cells)) + " |"


def code(text: str) -> str:
    """Format text as inline code on one line. The text may contain backticks."""
    text = text.replace("\n", "⏎")
    fence = "`" * (max((len(run) for run in runs(text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def runs(text: str) -> list[str]:
    """Return the sequences of consecutive backticks in a text."""
    return [part for part in "".join(c if c == "`" else " " for c in text).split() if part]


def cell(text: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ").strip()


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE}")
