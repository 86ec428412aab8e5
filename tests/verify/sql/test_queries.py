"""Queries run in the real sandbox, on several databases, and are judged by their rows."""

from __future__ import annotations

from typing import Any

import pytest

from assay.errors import VerifierError
from assay.types import Completion, Problem
from assay.verify.base import Part
from assay.verify.redteam.suite import shipped_suites
from assay.verify.selftest import labelled_pair, labelled_rows
from assay.verify.service import VerifierService
from assay.verify.sql.queries import SQL, BadQuery, find_query, judge_sql

TABLE = "CREATE TABLE t(n INTEGER, word TEXT);"
SPEC: dict[str, Any] = {
    "schema": TABLE,
    "databases": ["INSERT INTO t VALUES (1, 'a'), (2, 'b')"],
    "hidden_databases": ["INSERT INTO t VALUES (5, NULL), (5, NULL)", ""],
    "reference": "SELECT word, n FROM t",
}


def judge(query: str, **changed: Any) -> Part:
    problem = Problem("p", "Which?", {**SPEC, **changed})
    return judge_sql(problem, Completion.from_text(f"```sql\n{query}\n```"))


def test_labelled_rows_have_the_expected_verdicts() -> None:
    rows = list(labelled_rows("sql"))
    with VerifierService("sql", num_workers=1, deadline=60.0) as service:
        verdicts = list(service.judge_text(labelled_pair("sql", row) for row in rows))
    wrong = [
        (row["id"], verdict)
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.status != row["expected"]
    ]
    assert not wrong and len(rows) >= 40 and SQL.name == "sql"


@pytest.mark.parametrize("error", SQL.known_errors, ids=lambda error: error.what[:40])
def test_known_errors_are_as_described(error: Any) -> None:
    part = judge_sql(Problem("p", "q", error.spec), Completion.from_text(error.completion))
    assert ("passed" if part.passed else "failed") == error.says


def test_components_say_how_far_a_query_came() -> None:
    found = {
        query: judge(query).components
        for query in ("SELECT word, n FROM t", "SELECT word FRO t", "SELECT abs(-9223372036854775808), n FROM t", "SELECT 'a', 1")
    }  # fmt: skip
    said = [
        (c["parses"], c["runs"], c["rows_match"], c["public"], c["hidden"]) for c in found.values()
    ]
    assert said[0] == (1, 1, 1, 1, 1)
    assert said[1] == (0, 0, 0, 0, 0)
    # The empty database runs nothing, so the query is right there.
    assert said[2] == (1, 0, 1 / 3, 0, 0.5)
    assert said[3] == (1, 1, 0, 0, 0)


def test_written_in_rows_fail_on_a_hidden_database() -> None:
    constants = "VALUES ('a', 1), ('b', 2)"
    part = judge(constants)
    assert (part.value, part.components["public"], part.components["hidden"]) == (0.0, 1.0, 0.0)
    assert "5" not in part.detail, "the detail shows no hidden value"
    assert judge(constants, hidden_databases=None).value == 1.0
    assert judge(constants, credit="fraction").value == pytest.approx(1 / 3)


def test_a_result_without_rows_has_the_columns_of_the_reference() -> None:
    none = {"reference": "SELECT word FROM t WHERE 0"}
    assert judge("SELECT n FROM t WHERE n > 9", **none).value == 1.0
    assert judge("SELECT 1, 2, 3 WHERE 0", **none).value == 0.0


def test_order_counts_only_if_the_row_says_so() -> None:
    backwards = "SELECT word, n FROM t ORDER BY n DESC"
    assert judge(backwards).value == 1.0
    assert judge(backwards, ordered=True).value == 0.0
    assert judge("SELECT word, n FROM t ORDER BY rowid", ordered=True).value == 1.0


def test_expected_rows_may_replace_the_reference() -> None:
    rows = [[["a", 1], ["b", 2]], [[None, 5.0], [None, 5]], []]
    assert judge("SELECT word, n FROM t", reference=None, expected=rows).value == 1.0
    rows[1] = [[None, 5]]
    assert judge("SELECT word, n FROM t", reference=None, expected=rows).value == 0.0


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n FROM r) SELECT COUNT(*) FROM r", "interrupted"),
        ("WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n FROM r) SELECT n, n FROM r", "more than 50 rows"),
        ("SELECT hex(zeroblob(4000000)), 1", "too many characters"),
        ("SELECT zeroblob(9999999), 1", "too many characters"),
        ("SELECT replace(hex(zeroblob(500000)), '0', 'é'), 1", "too many characters"),
    ],
)  # fmt: skip
def test_a_query_above_a_limit_is_stopped(query: str, why: str) -> None:
    part = judge(query, max_rows=50, time_limit=0.2)
    assert (part.value, part.components["limit"], part.components["runs"]) == (0.0, 1.0, 0.0)
    assert why in part.detail


def test_a_slow_query_does_not_stop_the_set_up_of_the_next_database() -> None:
    endless = "WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n FROM r) SELECT count(*) FROM r"
    many = f"INSERT INTO t VALUES {', '.join(f'({n}, 0)' for n in range(400))}"
    part = judge(endless, hidden_databases=[many], time_limit=0.2)
    assert (part.value, part.components["limit"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1; DROP TABLE t",
        "WITH x AS (SELECT 1) DELETE FROM t",
        "SELECT load_extension('x')",
        "SELECT random(), n FROM t",
        "SELECT CURRENT_TIMESTAMP, n FROM t",
        "SELECT datetime('now'), n FROM t",
        "SELECT * FROM pragma_table_list",
    ],
)
def test_whatever_does_not_only_read_is_denied(query: str) -> None:
    part = judge(query)
    assert (part.value, part.components["parses"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schema": "CREATE TABLE ("}, "spec.schema, with database 1: found near"),
        ({"schema": "ATTACH 'x.db' AS x"}, "spec.schema, with database 1: found not authorized"),
        ({"databases": ["INSERT INTO u VALUES (1)"]}, "spec.schema, with database 1: found no such table: u"),
        ({"reference": "SELECT x FROM t"}, "spec.reference (parse): found database 1: no such column"),
        ({"reference": "SELECT 1; SELECT 2"}, "spec.reference (parse): found database 1"),
    ],
)  # fmt: skip
def test_a_row_that_fails_is_not_a_failed_completion(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(VerifierError) as caught:
        judge("SELECT word, n FROM t", **changed)
    assert why in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"reference": None, "expected": [[[10**400]], [], []]}, "spec.expected"),
        ({"schema": 5}, "spec.schema: found 5; accepted: statements"),
        ({"reference": None}, "spec.reference: found neither of the two"),
        ({"expected": [[], [], []]}, "spec.reference: found both of the two"),
        ({"reference": "DROP TABLE t"}, "spec.reference: found 'DROP TABLE t'; accepted: SELECT"),
        ({"reference": None, "expected": [[]]}, "spec.expected: found 1 results; accepted: 3"),
        ({"hidden_databases": [5]}, "spec.hidden_databases: found [5]"),
        ({"time_limit": 0}, "spec.time_limit: found 0"),
        ({"databases": ["x" * 2_000_001]}, "found too many statements"),
    ],
)
def test_a_malformed_row_names_its_key(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(VerifierError) as caught:
        judge("SELECT 1", **changed)
    assert why in str(caught.value)


def test_the_last_block_of_sql_is_the_query() -> None:
    text = "```sql\nSELECT 1\n```\nor\n```SQLite\n-- two\nSELECT 2;\n```\n```text\n2\n```"
    assert find_query(text) == "-- two\nSELECT 2;"
    assert find_query("select 3") == "select 3"
    for bad in ("The rows are 3.", "```python\nselect 1\n```", "```sql\nDROP TABLE t\n```", ""):
        with pytest.raises(BadQuery):
            find_query(bad)


def test_the_attacks_fit_the_rows_of_users() -> None:
    suite = shipped_suites()["sql"]
    assert suite.fits(Problem("mine", "Which?", SPEC))
    assert not suite.fits(Problem("other", "Which?", {"schema": {"type": "object"}}))
