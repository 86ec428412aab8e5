"""A policy file is read whole or refused with one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.errors import VerifierError
from assay.verify.safety.policy import SHIPPED, TREATMENTS, read_policy

VALID = """
version = 1
[categories.weapons]
about = "Weapons."
offers = ["police"]
allowed.A1 = "Answer."
refused.R1 = "Refuse."
safe_completed.S1 = "Answer in general terms."
"""


def test_the_shipped_policy_has_twelve_categories_with_unique_clauses() -> None:
    policy = read_policy()
    assert len(policy.categories) == 12
    ids = [
        id
        for one in policy.categories.values()
        for treatment in TREATMENTS
        for id in one.clauses[treatment]
    ]
    assert len(ids) == len({*ids}) >= 36
    shown = str(policy)
    assert all(id in shown for id in ids)


def test_a_policy_of_the_user_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(VALID, encoding="utf-8")
    (one,) = read_policy(str(path)).categories.values()
    assert str(one) == ("weapons: Weapons.\nA1: Answer.\nR1: Refuse.\nS1: Answer in general terms.")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('refused.R1 = "Refuse."', "", r"weapons.refused: found missing; .*add the missing clause"),
        ('refused.R1 = "Refuse."', "refused = {}", r"weapons.refused: found \{\}; .*clause"),
        ('"Refuse."', '" "', r"weapons.refused.R1: found ' '; accepted: the text of a clause"),
        ("refused.R1", "refused.A1", r"weapons.refused: found A1, .*weapons.allowed; .*once"),
        ("refused.R1", "refuse.R1", r"weapons.refuse: found an unknown key; .*refused"),
        ("refused.R1", 'refused."R 1"', r"weapons.refused: found the id 'R 1'"),
        ('offers = ["police"]', "offers = []", r"weapons.offers: found \[\]; accepted: a list"),
        ('["police"]', '["!!!"]', r"weapons.offers: found '!!!'; accepted: words of letters"),
        ("version = 1", "version = " + "1" * 5001, r"mine.toml: found no TOML"),
        ("version = 1", "version = " + "[" * 5000, r"mine.toml: found nested too deeply"),
        ('about = "Weapons."', "", r"weapons.about: found missing; accepted: a text"),
        ("version = 1", "", r"version: found missing; accepted: a whole number"),
        ("version = 1", "version = 1\nnote = 2", r"note: found an unknown key"),
        ("version = 1", "version =", r"mine.toml: found no TOML"),
    ],
)
def test_an_invalid_policy_is_one_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "mine.toml"
    assert old in VALID
    path.write_text(VALID.replace(old, new), encoding="utf-8")
    with pytest.raises(VerifierError, match=expected) as caught:
        read_policy(str(path))
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


def test_a_missing_policy_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(VerifierError, match=r"none.toml: found .*No such file"):
        read_policy(str(tmp_path / "none.toml"))
    with pytest.raises(VerifierError, match=r"null"):
        read_policy("a\0b")
    assert SHIPPED.is_file()


def test_an_edited_policy_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(VALID, encoding="utf-8")
    read_policy(str(path))
    path.write_text(VALID.replace("version = 1", "version = 2"), encoding="utf-8")
    assert read_policy(str(path)).version == 2
