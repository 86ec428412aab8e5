"""The isolated process that runs one query on every database of a row.

The process reads ``request.json`` and writes one JSON line per database. It gets no expected rows.
The sandbox runs this file without the package, so it imports the standard library only.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import time
from typing import Any

# Number of SQLite virtual-machine instructions between two checks of the clock.
STEPS = 2000
# The authorizer allows a query to read tables and call functions.
# Every other action is denied, including ATTACH and PRAGMA.
READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
# Set-up statements may write, but may not open other files or load code.
NO_SETUP = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_CREATE_VTABLE,
}
NO_FUNCTIONS = {
    "load_extension",
    "fts3_tokenizer",
    # Two runs of the same query must return the same rows.
    "random",
    "randomblob",
    "current_date",
    "current_time",
    "current_timestamp",
}
_NOW = re.compile(
    r"\b(?:date|time|datetime|julianday|unixepoch|strftime)\s*\((?:\s*\)|[^()]*'now')",
    re.IGNORECASE,
)


class TooMuch(Exception):
    """Raised for a query that exceeds a limit."""


class QueryClock:
    """CPU seconds that remain for set-up statements and for queries, each over all databases
    together.

    A query must not use up the time of the next database's set-up, because a failed set-up is the
    row's fault.
    """

    def __init__(self, left: dict[str, float]) -> None:
        self.left, self.part, self.since = left, "setup", time.process_time()

    def turn(self, part: str) -> None:
        """Charge the time until now to the current part, and the time from now on to another
        part."""
        now = time.process_time()
        self.left[self.part] -= now - self.since
        self.part, self.since = part, now

    def late(self) -> bool:
        """Whether the current part, set-up or queries, has used up its time."""
        return time.process_time() - self.since > self.left[self.part]


def main() -> None:
    """Run the query of the request on each database, and print each result."""
    with open("request.json", encoding="utf-8") as file:
        request = json.load(file)
    clock = QueryClock({"setup": request["setup_seconds"], "query": request["seconds"]})
    room = request["characters"]
    query = request["query"]
    with open(1, "w", encoding="utf-8", closefd=False) as output:
        for database in request["databases"]:
            result = run(request["schema"], database, query, clock, request["rows"], room)
            line = json.dumps(result)
            room -= len(line)
            output.write(f"{line}\n")
            # Each result is flushed at once, so a process that is stopped has reported the
            # databases before.
            output.flush()


def run(
    schema: str, database: str, query: str, clock: QueryClock, most_rows: int, room: int
) -> dict[str, Any]:
    """Return ``{"rows", "width"}``, or ``{"stage", "error"}`` with setup, parse, run or limit."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    # Damaged bytes in a text must not raise an error that other texts of the same query do not
    # raise.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    for limit, value in (
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        (sqlite3.SQLITE_LIMIT_LENGTH, 10_000_000),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, 4_000_000),
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
    ):
        connection.setlimit(limit, value)
    clock.turn("setup")
    connection.set_progress_handler(clock.late, STEPS)
    stage = "setup"
    try:
        connection.set_authorizer(_allows_setup)
        connection.executescript(schema)
        connection.executescript(database)
        clock.turn("query")
        connection.set_authorizer(_allows_reading)
        stage = "parse"
        if _NOW.search(query):
            return {"stage": "parse", "error": "a query that depends on the time at which it runs"}
        # EXPLAIN compiles the query without running it.
        connection.execute(f"EXPLAIN {query}").close()
        stage = "run"
        cursor = connection.execute(query)
        if cursor.description is None:
            return {"stage": "parse", "error": "no query"}
        return {"rows": _rows(cursor, most_rows, room), "width": len(cursor.description)}
    except TooMuch as error:
        return {"stage": "limit", "error": str(error)}
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        late = clock.late() and stage != "setup"
        return {"stage": "limit" if late else stage, "error": str(error)}
    except MemoryError:
        return {"stage": "limit" if stage == "run" else stage, "error": "too much memory"}
    finally:
        connection.close()


def _rows(cursor: sqlite3.Cursor, most_rows: int, room: int) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for row in cursor:
        if len(rows) == most_rows:
            raise TooMuch(f"more than {most_rows} rows")
        rows.append([_plain(value) for value in row])
        # Blobs and escaped characters are longer in JSON than in the row of the database.
        room -= len(json.dumps(rows[-1]))
        if room < 0:
            raise TooMuch("rows with too many characters")
    return rows


def _plain(value: Any) -> Any:
    """Return a SQLite value as a value that JSON can represent.

    Bytes and infinity are converted, because JSON has neither.
    """
    if isinstance(value, float):
        return {"real": repr(value)}
    return {"blob": value.hex()} if isinstance(value, bytes) else value


def _allows_reading(action: int, one: str | None, two: str | None, *_: Any) -> int:
    denied = action not in READS
    if action == sqlite3.SQLITE_FUNCTION:
        denied = str(two).lower() in NO_FUNCTIONS
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _allows_setup(action: int, one: str | None, two: str | None, *_: Any) -> int:
    denied = action in NO_SETUP
    if action == sqlite3.SQLITE_FUNCTION:
        denied = str(two).lower() in ("load_extension", "fts3_tokenizer")
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main()
