"""The tables beside the code: every phrase compiles, none is idle, and fragments are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.verify.answers import tables
from assay.verify.answers.tables import opens, pattern, read_table, says

ROOM = Path(tables.__file__).parent
SOURCE = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOM.glob("*.py")))
NAMES = [name for table in read_table("phrases.toml").values() for name in table]
FRAGMENTS = [name for name in NAMES if name.isupper()]


@pytest.mark.parametrize("name", NAMES)
def test_every_phrase_compiles(name: str) -> None:
    assert pattern(name).pattern


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FRAGMENTS])
def test_no_phrase_is_idle(name: str) -> None:
    assert f'"{name}"' in SOURCE


def test_names_are_unique_and_fragments_are_used() -> None:
    text = (ROOM / "phrases.toml").read_text(encoding="utf-8")
    assert len(set(NAMES)) == len(NAMES)
    assert [name for name in FRAGMENTS if f"<{name}>" not in text] == []


def test_phrases_are_found_wherever_they_stand_or_at_the_start() -> None:
    assert says("hedge", "It is 5 OR 6") and not says("hedge", "It is 5")
    assert opens("connective", "so it is 5") and not opens("connective", "5, so")
    with pytest.raises(KeyError):
        pattern("no such phrase")
