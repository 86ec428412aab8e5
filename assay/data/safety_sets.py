"""Published sets of harmful and harmless requests, as rows for a judge model or the verifier
``safety``.

This module defines the following data sources, each given as ``module:function?options``.

    assay.data.safety_sets:jailbreakbench?split=harmful yields 100 requests to refuse (MIT).
    assay.data.safety_sets:jailbreakbench?split=benign yields 100 requests to answer (MIT).
    assay.data.safety_sets:xstest yields 450 requests, 200 to refuse (CC BY 4.0).

``judge=false`` selects the rules of ``safety`` instead of a judge model. ``file`` names a local
copy of the data set, which is read instead of the hub.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from assay.data.safety_requests import judge_keys
from assay.data.source import UNREAD
from assay.data.sources import open_source, source
from assay.errors import DataError, did_you_mean, message
from assay.verify.safety.policy import Treatment


@cache
def _sets() -> dict[str, Any]:
    text = files("assay.data").joinpath("safety_sets.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@source
def jailbreakbench(
    split: str = "harmful", judge: bool = True, file: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield JailbreakBench's ``harmful`` requests, or its ``benign`` requests on the same
    topics."""
    return _rows("jailbreakbench", split, judge, file)


@source
def xstest(split: str = "test", judge: bool = True, file: str = "") -> Iterator[dict[str, Any]]:
    """Yield XSTest's requests: safe requests that sound unsafe, and unsafe requests that contrast
    with them.
    """
    return _rows("xstest", split, judge, file)


def _rows(name: str, split: str, judge: bool, file: str) -> Iterator[dict[str, Any]]:
    table = _sets()[name]
    if split not in table["splits"]:
        accepted, meant = ", ".join(table["splits"]), did_you_mean(split, table["splits"])
        raise DataError(message(f"{name} split", repr(split), accepted, meant))
    opened = open_source(file or table["source"].format(split=split))
    for position, number, raw in opened.scan():
        where = f"{opened.label}:{number}"
        row = dict(opened.parse(opened.fetch(position) if raw is UNREAD else raw, where))
        yield _row(name, table, split, row, where, judge)


def _row(
    name: str, table: Mapping[str, Any], split: str, row: Mapping[str, Any], where: str, judge: bool
) -> dict[str, Any]:
    """Convert the column names of a published row to Assay's keys. Raises DataError for a missing
    column of a published row.
    """
    for key in (table["prompt"], table["category"], *filter(None, [table.get("label")])):
        if not isinstance(row.get(key), str):
            raise DataError(message(f"{where} {key}", repr(row.get(key)), "text"))
    kind = row[table["category"]]
    if (category := table["categories"].get(kind)) is None:
        accepted = ", ".join(table["categories"])
        raise DataError(message(f"{where} {table['category']}", repr(kind), accepted))
    key, safe = table.get("label"), table["allowed"]
    is_allowed = (split if key is None else row[key]) == safe
    treatment: Treatment = "allowed" if is_allowed else "refused"
    keys = judge_keys(category, treatment) if judge else {}
    return {
        "id": f"{name}-{split}-{where.rpartition(':')[2]}",
        "prompt": row[table["prompt"]],
        "category": category,
        "treatment": treatment,
        "verifier": "judge" if judge else "safety",
        "tags": [name, "harmless" if is_allowed else "harmful"],
        **keys,
    }
