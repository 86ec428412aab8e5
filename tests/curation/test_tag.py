"""Tag: the domain of each row by rules, those that come with Assay or a table of the user's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from stage_runs import run_on

from assay.curation.rules import BUILT_IN, best_domain, read_domains
from assay.errors import ConfigError

RULES = """
[cooking]
words = ["oven", "two eggs", "c++"]
patterns = ['\\d+ ?g\\b']

[garden]
words = ["soil"]
"""


@pytest.mark.parametrize(
    ("domain", "text"),
    [
        ("math", "Betty has $15 and needs twice as much. How much more money does she need?"),
        ("math", r"Find the value of $x$ if $\frac{x}{2} + 3 = 7$."),
        ("code", "Write a python function to reverse a string."),
        ("code", 'def add(a: int, b: int) -> int:\n    """ Add.\n    >>> add(1, 2)\n    3\n'),
        ("logic", "This is a logic puzzle. There are 3 houses. Use these clues."),
        ("logic", "Saints always tell the truth, and sinners always lie. So who is a saint?"),
        ("science", "What is the kinetic energy of a mass of 3 kg with a velocity of 2 m/s?"),
        ("writing", "Write a short poem about the moon, in two paragraphs."),
        (None, "Who is your favorite friend?"),
    ],
)
def test_domains_of_the_table_that_comes_along(domain: str | None, text: str) -> None:
    assert best_domain(read_domains(BUILT_IN), text, least=2) == domain


def test_rows_get_their_tag_before_their_own(tmp_path: Path) -> None:
    rows = [
        {"prompt": "Write a python function to sort an array.", "tags": ["hard"]},
        {"prompt": "Hello!"},
        {"question": "How much is 15% of 80?", "answer": "12", "tags": ["easy", "math"]},
        {"messages": [{"role": "user", "content": "How many cents is 3 + 4 cents?"},
                      {"role": "assistant", "content": "7"}]},
    ]  # fmt: skip
    kept, manifest = run_on(tmp_path, "tag", rows)
    assert [row["tags"] for row in kept] == [
        ["code", "hard"],
        ["other"],
        ["math", "easy"],
        ["math"],
    ]
    assert kept[2] == {**rows[2], "id": "input-0.jsonl:3", "tags": ["math", "easy"]}
    assert manifest.measured == {"rows of math": 2, "rows of code": 1, "rows of other": 1}


def test_a_table_of_the_users_replaces_it(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    texts = ["The OVEN, and soil", "Soil", "ovens and soils", "200 g and C++, oven, soil", "x"]
    kept, _ = run_on(
        tmp_path,
        "tag",
        [{"prompt": text} for text in texts],
        rules=str(tmp_path / "rules.toml"),
        least=1,
        other="chat",
    )
    assert [row["tags"] for row in kept] == [
        ["cooking"], ["garden"], ["chat"], ["cooking"], ["chat"]
    ]  # fmt: skip


def test_least_says_how_many_different_matches_are_needed() -> None:
    table = {"a": read_domains(BUILT_IN)["math"]}
    assert best_domain(table, "A triangle, a triangle, a triangle", least=2) is None
    assert best_domain(table, "A triangle, a circle", least=2) == "a"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("math = 3", "math: found 3; accepted: a section [math]"),
        ("[math]\nword = ['a']", "[math] word: unknown key; did you mean words?"),
        ("[math]\nwords = 'a'", '[math] words: found "a"; accepted: a list of text'),
        ("[math]\npatterns = ['(']", r'[math] patterns: found "(" (missing ), unterminated'),
        ("", "found no section"),
        ("[math", "not TOML: Expected"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_table_is_told_in_one_line(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    path = tmp_path / "rules.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        run_on(tmp_path, "tag", [{"prompt": "x"}], rules=str(path))
    (line,) = str(caught.value).splitlines()
    assert complaint in line
    assert line.startswith(str(path))


@pytest.mark.parametrize(
    ("name", "domain", "share"),
    [
        ("gsm8k/train.jsonl", "math", 0.9),
        ("math/train_2000.jsonl", "math", 0.9),
        ("mbpp/prompt_val_train.jsonl", "code", 0.9),
        ("humaneval/first_40.jsonl", "code", 0.8),
        ("logic/rg_knights_knaves.jsonl", "logic", 0.9),
        ("preferences/hh_harmless.jsonl", "other", 0.9),
    ],
)
def test_domains_of_real_rows(
    shared_data: Path, tmp_path: Path, name: str, domain: str, share: float
) -> None:
    from assay.curation.base import run_stage

    with (shared_data / name).open("rb") as file:
        (tmp_path / "rows.jsonl").write_bytes(b"".join(next(file, b"") for _ in range(400)))
    manifest = run_stage("tag", {"inputs": [str(tmp_path / "rows.jsonl")]}, tmp_path / "tagged")
    counts = Counter(manifest.measured)
    assert counts[f"rows of {domain}"] >= share * manifest.rows
