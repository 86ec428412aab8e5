"""Verifier ``sql``: run a completion's query on several databases and compare the rows.

A row has a schema, databases and a reference query. The reference query runs in a process of its
own, so no expected row is in the process that runs the completion's query. Several databases, some
of them hidden, expose a query that only contains the expected values as constants.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, cast

from assay.errors import VerifierError, message
from assay.host.fields import Field, flag, list_of, number, one_of, whole
from assay.types import Completion, Problem
from assay.verify.base import Limits, Part, Verifier, spec_check
from assay.verify.programs.compare import FLOAT_TOLERANCE
from assay.verify.programs.fences import fenced_blocks, normalized
from assay.verify.programs.spec import CREDITS
from assay.verify.sandbox import SandboxUnavailable
from assay.verify.sandbox.own_sandbox import OwnSandbox, interpreter_folders
from assay.verify.sandbox.toolchain import Command, execute
from assay.verify.sql.results import Row, decoded, same_rows

MAX_QUERY = 20_000
MAX_STATEMENTS = 2_000_000
MAX_DATABASES = 50
# Maximum number of characters in the rows of all databases together.
MAX_RESULT = 4_000_000
MEMORY_MIB = 512
# CPU seconds that are available to fill all databases of a row.
SETUP_SECONDS = 5.0
LABELS = ("sql", "sqlite", "sqlite3")
SHOWN = 200
# Words with which a query begins.
# A text without a fenced block must begin with one of these query keywords.
_QUERY = re.compile(r"\s*(?:(?:--[^\n]*\n|/\*.*?\*/)\s*)*(?:SELECT|WITH|VALUES)\b", re.I | re.S)

_own = OwnSandbox(interpreter_folders)


@dataclass(frozen=True, slots=True)
class SqlSpec:
    """The parsed spec of a row with SQL queries. `FIELDS` describes the attributes."""

    schema: str
    databases: tuple[str, ...]
    num_public: int
    reference: str
    expected: tuple[tuple[Row, ...], ...]
    ordered: bool
    tolerance: float
    time_limit: float
    max_rows: int
    credit: str


class BadQuery(ValueError):
    """Raised for a completion that contains no query."""


def judge_sql(problem: Problem, completion: Completion) -> Part:
    """Score 1 if the query returns the expected rows on every database.

    Raises VerifierError for a malformed spec, and SandboxTrouble if the sandbox fails.
    """
    spec = read_sql_spec(problem)
    try:
        query = find_query(completion.answer_text)
    except BadQuery as error:
        return _part(spec, None, ["parse"] * len(spec.databases), str(error))
    with _own.lock:
        try:
            _own.open()
        except SandboxUnavailable as error:
            return Part.not_judged("unavailable", str(error))
        try:
            expected = [(None, rows) for rows in spec.expected] or _reference_rows(spec)
            results = _run(spec, query)
        except VerifierError:
            raise
        except BaseException:  # After any exception, the state of the sandbox is unknown.
            _own.close()
            raise
    faults: list[str] = []
    details: list[str] = []
    for index, (result, (width, rows)) in enumerate(zip(results, expected, strict=True), 1):
        fault = why = ""
        if "error" in result:
            if result["stage"] == "setup":
                raise VerifierError(_setup_fault(index, result))
            fault, why = result["stage"], result["error"]
        elif width not in (None, result["width"]):
            # Even a result without rows has columns.
            fault, why = "rows", f"{result['width']} columns, not {width}"
        elif not same_rows(decoded(result["rows"]), rows, spec.ordered, spec.tolerance):
            # The message does not show the rows, because hidden databases would become known.
            fault, why = "rows", f"{len(result['rows'])} rows that differ from the expected ones"
        faults.append(fault)
        details += [f"database {index}: {fault}: {why}"[:SHOWN]] if fault else []
    said = f"right on {faults.count('')} of {len(faults)} databases"
    return _part(spec, query, faults, "; ".join([said, *details[:3]]))


def find_query(text: str) -> str:
    """Return the last fenced block that is labeled as SQL or unlabeled, or a text that is a query.

    Raises BadQuery if the completion has no query, or if the query is too long.
    """
    found: str | None = None
    seen = False
    for label, content in fenced_blocks(text):
        seen = True
        if label in ("", *LABELS) and content.strip():
            found = content
    if found is None and not seen and _QUERY.match(text):
        found = normalized(text)
    if found is None:
        raise BadQuery("no query")
    if len(found) > MAX_QUERY:
        raise BadQuery(f"a query of more than {MAX_QUERY} characters")
    if not _QUERY.match(found):
        raise BadQuery("no query: it does not begin with SELECT, WITH or VALUES")
    if "\0" in found:
        raise BadQuery("a query with a NUL character")
    return found.strip()


def _run(spec: SqlSpec, query: str) -> list[dict[str, Any]]:
    """Run a query on every database in a fresh process. Raises SandboxTrouble."""
    request = {
        "schema": spec.schema,
        "databases": spec.databases,
        "query": query,
        "seconds": spec.time_limit,
        "setup_seconds": SETUP_SECONDS,
        "rows": spec.max_rows,
        "characters": MAX_RESULT,
    }
    sources = {
        "query_process.py": _source(),
        "request.json": json.dumps(request).encode("utf-8", "replace"),
    }
    python = os.path.realpath(sys.executable)
    command = Command((python, "-I", "-S", "query_process.py"), sources)
    limits = Limits(
        # A SQL function on a long text runs without a step at which the process could stop itself.
        cpu_seconds=spec.time_limit + SETUP_SECONDS + 2.0,
        seconds=spec.time_limit + SETUP_SECONDS + 2.0,
        memory_mib=MEMORY_MIB,
        output_kib=MAX_RESULT // 128,
        processes=16,
    )
    ran = execute(_own.open(), command, "", limits)
    results: list[dict[str, Any]] = []
    for line in ran.stdout.splitlines()[: len(spec.databases)]:
        try:
            results.append(json.loads(line))
        except ValueError:  # The output was cut off within this line.
            break
    # A process that was stopped prints no line for the databases it did not finish.
    stage = "limit" if ran.status in ("timeout", "memory", "output") else "run"
    stopped = {"stage": stage, "error": f"{ran.status}: {ran.error} {ran.stderr[-SHOWN:]}".strip()}
    return [*results, *[stopped] * (len(spec.databases) - len(results))]


@lru_cache(maxsize=1)
def _source() -> bytes:
    return (files("assay.verify.sql") / "query_process.py").read_bytes()


@lru_cache(maxsize=256)
def _reference_rows(spec: SqlSpec) -> list[tuple[int | None, tuple[Row, ...]]]:
    """Return the number of columns and the rows that the reference query gives on every database.

    Raises VerifierError if it fails.
    """
    found: list[tuple[int | None, tuple[Row, ...]]] = []
    for index, result in enumerate(_run(spec, spec.reference), 1):
        if result.get("stage") == "setup":
            raise VerifierError(_setup_fault(index, result))
        if "error" in result:
            fault = f"database {index}: {result['error']}"[:SHOWN]
            accepted = "one query that SQLite runs within the limits"
            raise VerifierError(message(f"spec.reference ({result['stage']})", fault, accepted))
        found.append((result["width"], tuple(decoded(result["rows"]))))
    return found


def _setup_fault(index: int, result: Mapping[str, Any]) -> str:
    place = f"spec.schema, with database {index}"
    return message(place, f"{result['error']}"[:SHOWN], "statements that SQLite runs")


def _part(spec: SqlSpec, query: str | None, faults: Sequence[str], detail: str) -> Part:
    right = [not fault for fault in faults]
    share = sum(right) / len(right)
    components = {
        "parses": float("parse" not in faults),
        "runs": float(not {"parse", "run", "limit"} & {*faults}),
        "rows_match": share,
        "limit": float("limit" in faults),
    }
    for name, part in (("public", right[: spec.num_public]), ("hidden", right[spec.num_public :])):
        if part:
            components[name] = sum(part) / len(part)
    return Part(
        share if spec.credit == "fraction" else float(all(right)),
        passed=all(right),
        extracted=query,
        detail=detail,
        components=components,
    )


def read_sql_spec(problem: Problem) -> SqlSpec:
    """Parse the spec of a problem. Raises VerifierError for a malformed spec."""
    where = f"problem {problem.id}: spec"
    read = {each.name: each.read(problem) for each in FIELDS}
    # Without the keys ``databases`` and ``hidden_databases``, the schema's statements alone make
    # one database.
    public = read["databases"] or ([] if read["hidden_databases"] else [""])
    databases = tuple(map(_statements, [*public, *(read["hidden_databases"] or [])]))
    schema = _statements(read["schema"])
    if len(schema) + sum(map(len, databases)) > MAX_STATEMENTS:
        found, accepted = "too many statements", f"at most {MAX_STATEMENTS:,} characters in all"
        raise VerifierError(message(f"{where}.databases", found, accepted))
    reference, expected = read["reference"] or "", read["expected"] or ()
    if bool(reference) == bool(expected):
        found = "both" if reference else "neither"
        accepted = "a query, or else expected rows"
        raise VerifierError(message(f"{where}.reference", f"{found} of the two", accepted))
    if reference and not _QUERY.match(reference):
        found = repr(reference)[:80]
        raise VerifierError(message(f"{where}.reference", found, "SELECT, WITH or VALUES"))
    if expected and len(expected) != len(databases):
        accepted = f"{len(databases)}, one for each database"
        raise VerifierError(message(f"{where}.expected", f"{len(expected)} results", accepted))
    return SqlSpec(
        schema=schema,
        databases=databases,
        num_public=len(public),
        reference=reference,
        expected=tuple(tuple(decoded(rows)) for rows in expected),
        ordered=read["ordered"],
        tolerance=read["float_tolerance"],
        time_limit=read["time_limit"],
        max_rows=read["max_rows"],
        credit=read["credit"],
    )


def _statements(value: str | Sequence[str]) -> str:
    texts = [value] if isinstance(value, str) else value
    return "\n".join(text if text.rstrip().endswith(";") else f"{text};" for text in texts if text)


def _are_statements(value: Any) -> bool:
    texts = cast("list[Any]", value if isinstance(value, list) else [value])
    return all(isinstance(text, str) and "\0" not in text for text in texts)


def _is_value(value: Any) -> bool:
    # SQLite has no whole numbers above this value.
    fits = not isinstance(value, int) or -(2**63) <= value < 2**63
    return fits and isinstance(value, str | int | float | None)


def _is_result(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(map(_is_value, cast("list[Any]", row)))
        for row in cast("list[Any]", value)
    )


def _evidence(_: Mapping[str, Any]) -> dict[str, Any]:
    import sqlite3

    # A run records the version, because another version can change verdicts.
    return {"sqlite": sqlite3.sqlite_version}


FIELDS: tuple[Field, ...] = (
    Field("schema", "statements, as text or a list of texts", needed=True, check=_are_statements),
    Field(
        "databases",
        "a list of databases, each the statements that fill it after the schema; none: one "
        "database of the schema alone",
        check=list_of(_are_statements, MAX_DATABASES),
    ),
    Field(
        "hidden_databases",
        "as databases; no prompt shows these databases",
        check=list_of(_are_statements, MAX_DATABASES),
    ),
    Field(
        "reference",
        "a right query, whose rows are the expected ones",
        check=lambda value: isinstance(value, str) and len(value) <= MAX_QUERY,
    ),
    Field(
        "expected",
        "instead of reference: for each database a list of rows, each a list of values",
        check=list_of(_is_result, 2 * MAX_DATABASES),
    ),
    flag("ordered", "true: the order of the rows counts, or false", False),
    Field(
        "float_tolerance",
        "relative tolerance between two numbers, 0 to 0.1",
        default=FLOAT_TOLERANCE,
        check=number(0, 0.1),
    ),
    Field(
        "time_limit",
        "CPU seconds of a query on all databases, up to 60",
        default=2.0,
        check=number(0.01, 60),
    ),
    Field("max_rows", "rows of a result, up to 100000", default=10_000, check=whole(1, 100_000)),
    Field("credit", ", ".join(CREDITS), default="all_or_nothing", check=one_of(*CREDITS)),
)

SQL = Verifier(
    name="sql",
    version=1,
    judge=judge_sql,
    domain="SQL queries, which run in SQLite on several databases and are judged by their rows",
    fields=FIELDS,
    accepts="the last fenced block that is labeled sql or sqlite or unlabeled, or a text that "
    "begins with SELECT, WITH or VALUES: one query that only reads. Columns count by position and "
    "not by name, repeated rows count, NULL equals only NULL, a number never equals a text, and "
    "1 equals 1.0",
    partial_credit="with spec.credit = fraction, the fraction of databases with the expected rows. "
    "The components parses, runs and rows_match are separate",
    limits=Limits(seconds=60.0, cpu_seconds=2.0, memory_mib=MEMORY_MIB, processes=16),
    text_only=True,
    cached=True,
    modules=("assay.verify.sandbox", "assay.verify.programs"),
    check_spec=spec_check(read_sql_spec),
    evidence=_evidence,
)
