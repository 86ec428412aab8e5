"""The files of changes/: `towncrier` reads each, so that no line of the next release is lost."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]


def test_fragments_have_a_name_that_towncrier_reads() -> None:
    kinds = "|".join(kind["directory"] for kind in SETTINGS["type"])
    named = re.compile(rf"(\d+|\+[\w-]+)\.({kinds})\.md")
    files = {path.name for path in (ROOT / SETTINGS["directory"]).iterdir()}
    assert {name for name in files - {*SETTINGS["ignore"]} if not named.fullmatch(name)} == set()
    assert named.fullmatch("31.added.md") and not named.fullmatch("31.improved.md")


def test_the_changelog_has_the_place_where_towncrier_writes() -> None:
    text = (ROOT / SETTINGS["filename"]).read_text(encoding="utf-8")
    assert text.count("<!-- towncrier release notes start -->\n") == 1
