"""Measure verifiers on their labelled sets: ``assay verifier self-test``, or before training.

A set is ``labelled/NAME.jsonl``: rows as ``assay verify`` reads them, with ``expected`` (``passed``
or ``failed``) and ``kind`` (``ordinary``, ``odd_style``, ``hack``). Before training, the self-test
detects a verifier that behaves differently on this machine, for example because of another library
version.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from assay.errors import VerifierError, message
from assay.types import Completion, Problem, ThinkFormat
from assay.verify.base import resolve
from assay.verify.expression import BUILT_IN, parse_expression
from assay.verify.service import Options, VerifierService

LABEL_KEYS = ("id", "prompt", "completion", "think", "expected", "kind", "note", "spec")
"""Keys that describe a labelled row. All other keys belong to the row's problem."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Result of a verifier's self-test on its labelled set.

    false_accepts, false_rejects, not_judged: ids of the rows with an unexpected verdict, by kind of
        error.
    median, p99: seconds per row.
    fallible: the verifier is a detector with a known error rate, so wrong verdicts are expected.
    skipped: reason why the verifier could not be called, or "".
    """

    verifier: str
    rows: int = 0
    false_accepts: tuple[str, ...] = ()
    false_rejects: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    median: float = 0.0
    p99: float = 0.0
    skipped: str = ""
    fallible: bool = False

    @property
    def wrong(self) -> tuple[str, ...]:
        """Ids of all labelled rows with an unexpected verdict."""
        return (*self.false_accepts, *self.false_rejects, *self.not_judged)

    @property
    def accuracy(self) -> float | None:
        """Share of labelled rows with the expected verdict. None without rows."""
        return 1.0 - len(self.wrong) / self.rows if self.rows else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "accuracy": self.accuracy}

    def __str__(self) -> str:
        if self.skipped:
            return f"{self.verifier}: skipped: {self.skipped}"
        assert self.accuracy is not None
        counts = {
            "false accepts": self.false_accepts,
            "false rejects": self.false_rejects,
            "not judged": self.not_judged,
        }
        faults = [
            f"{len(ids)} {what} ({', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''})"
            for what, ids in counts.items()
            if ids
        ]
        said = ", ".join(faults) or "no false accept, no false reject"
        times = f"median {1000 * self.median:.2f} ms, p99 {1000 * self.p99:.1f} ms"
        return f"{self.verifier}: {self.accuracy:.1%} of {self.rows} rows; {said}; {times}"


@lru_cache
def labelled_names() -> tuple[str, ...]:
    """Return the names of the built-in verifiers that have a labelled set."""
    folder = files("assay.verify") / "labelled"
    return tuple(name for name in BUILT_IN if (folder / f"{name}.jsonl").is_file())


def labelled_rows(name: str) -> Iterator[dict[str, Any]]:
    """Yield the labelled rows of a built-in verifier that has a labelled set."""
    file = files("assay.verify") / "labelled" / f"{name}.jsonl"
    if file.is_file():
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def self_test(
    names: Sequence[str] | None = None,
    *,
    service: VerifierService | None = None,
    num_workers: int | None = None,
    deadline: float = 10.0,
    options: Options | None = None,
) -> Iterator[SelfTest]:
    """Measure each named verifier (None: all verifiers) on its whole labelled set.

    options: options by verifier, as in `VerifierService`. The labels assume the default options of
        the verifier.

    Raises VerifierError for a verifier without a labelled set.
    """
    for name in names or ():
        if name not in labelled_names():
            raise VerifierError(
                f"assay verifier self-test: found {name!r}; accepted: {', '.join(labelled_names())}"
            )
    with ExitStack() as stack:
        if service is None:
            service = stack.enter_context(
                VerifierService(num_workers=num_workers, deadline=deadline, options=options)
            )
        for name in names or labelled_names():
            yield measure(service, name, list(labelled_rows(name)))


def self_test_on(path: Path, verifier: str, **settings: Any) -> SelfTest:
    """Measure a verifier on a user's labelled file, such as a file from ``assay run audit``.

    settings: parameters of `VerifierService`.

    Raises VerifierError for a row without id, completion or label.
    """
    rows: list[dict[str, Any]] = []
    # str.splitlines would also split at U+2028 and form feeds, which a completion can contain.
    text = path.read_text("utf-8")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        row: Any = None
        with suppress(ValueError):
            row = json.loads(line)
        if not _is_labelled(row):
            accepted = "a JSON object with id, completion and expected (passed or failed)"
            raise VerifierError(message(f"{path}:{number}", line[:60], accepted))
        rows.append(row)
    if not rows:
        raise VerifierError(message(str(path), "no rows", "labelled rows"))
    with VerifierService(verifier, **settings) as service:
        service.check([verifier])
        return measure(service, verifier, rows)


def _is_labelled(row: Any) -> bool:
    texts = isinstance(row, dict) and (row.get("id"), row.get("completion"), row.get("expected"))
    return bool(texts and all(isinstance(one, str) for one in texts)) and (
        row["expected"] in ("passed", "failed")
    )


def sampled_self_test(
    service: VerifierService, expressions: Iterable[str | None], num_rows: int, seed: int
) -> list[SelfTest]:
    """Measure the built-in verifiers of these expressions on a seeded sample of labelled rows."""
    terms = (
        term
        for expression in dict.fromkeys(expressions)
        for term in parse_expression(expression or service.default_expression)
    )
    names = (one for term in terms for one in term.names)
    found: list[SelfTest] = []
    for name in sorted({name.partition("@")[0] for name in names} & {*labelled_names()}):
        rows = list(labelled_rows(name))
        # The seed has the verifier's name, so that a sample does not depend on other verifiers.
        chosen = random.Random(f"{seed} {name}").sample(rows, min(num_rows, len(rows)))
        found.append(measure(service, name, chosen))
    return found


def measure(service: VerifierService, name: str, rows: Sequence[Mapping[str, Any]]) -> SelfTest:
    """Judge labelled rows and compare the verdicts with the labels."""
    try:
        service.check([name])
    except VerifierError as error:
        return SelfTest(name, skipped=str(error))
    verdicts = list(service.judge_text(labelled_pair(name, row) for row in rows))
    wrong: dict[str, list[str]] = {"passed": [], "failed": [], "not_judged": []}
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.status != row["expected"]:
            wrong[verdict.status].append(row["id"])
    seconds = sorted(verdict.seconds for verdict in verdicts)
    bare = name.partition("@")[0]
    return SelfTest(
        fallible=bare in BUILT_IN and resolve(bare).fallible,
        verifier=verdicts[0].verifier if verdicts else name,
        rows=len(rows),
        false_accepts=tuple(wrong["passed"]),
        false_rejects=tuple(wrong["failed"]),
        not_judged=tuple(wrong["not_judged"]),
        median=median(seconds) if seconds else 0.0,
        p99=seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))] if seconds else 0.0,
    )


def labelled_row(about: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a labelled row: facts about a completion, and the keys of its problem.

    about: values of `LABEL_KEYS`. Keys of the problem that have a name in `LABEL_KEYS` are stored
        under the key ``spec``.
    """
    plain = {key: value for key, value in spec.items() if key not in LABEL_KEYS}
    hidden = {key: value for key, value in spec.items() if key in LABEL_KEYS}
    return {**about, **plain, **({"spec": hidden} if hidden else {})}


def labelled_pair(name: str, row: Mapping[str, Any]) -> tuple[Problem, Completion]:
    """Return (problem, completion) of a labelled row, to be judged by a built-in verifier."""
    spec = {key: value for key, value in row.items() if key not in LABEL_KEYS}
    if isinstance(hidden := row.get("spec", {}), dict):
        spec |= hidden
    id, text, think = row["id"], row["completion"], ThinkFormat(row.get("think", "free"))
    prompt = row.get("prompt", "(not given)")
    problem = Problem(id, prompt, spec, name, source=f"labelled/{name}.jsonl")
    return problem, Completion.from_text(text, id, think)
