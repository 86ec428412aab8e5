"""Deduplicate: of equal and of similar texts the first stays, and the pair is shown."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from random import Random

import pytest
from stage_runs import run_on, took

from assay.curation.deduplicate import num_bands
from assay.errors import ConfigError, MissingExtra

TEXT = (
    "Betty saves money for a new wallet which costs a hundred dollars and has only half of it now"
)
rensa = pytest.mark.skipif(
    importlib.util.find_spec("rensa") is None, reason="needs the extra curation (rensa)"
)


def test_equal_texts_need_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    rows = [{"prompt": text} for text in (TEXT, "other", TEXT.upper() + ".", TEXT + " too")]
    kept, manifest = run_on(tmp_path, "deduplicate", rows, similarity=1.0)
    assert [row["prompt"] for row in kept] == [TEXT, "other", TEXT + " too"]
    assert took(manifest) == {"same text": 1}
    (example,) = manifest.filters[0].examples
    assert example["reason"] == "100% like input-0.jsonl:1"
    assert (example["row"]["text"], example["row"]["kept"]) == (TEXT.upper() + ".", TEXT)


def test_without_the_library_the_install_command_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(
        MissingExtra, match=r'rensa: install it with  pip install "assay-rl\[curation\]"'
    ):
        run_on(tmp_path, "deduplicate", [{"prompt": TEXT}])
    assert not (tmp_path / "deduplicate").exists()


@rensa
def test_similar_texts_go(tmp_path: Path) -> None:
    words = TEXT.split()
    other_end = " ".join([*words[:-1], "later"])
    rows = [{"prompt": text} for text in (TEXT, " ".join(reversed(words)), other_end)]
    kept, manifest = run_on(tmp_path, "deduplicate", rows, similarity=0.8)
    assert [row["prompt"] for row in kept] == [TEXT, rows[1]["prompt"]]
    assert took(manifest) == {"same text": 0, "similar text": 1}
    assert manifest.filters[1].examples[0]["reason"] == "89% like input-0.jsonl:1"


@rensa
def test_the_same_prompt_with_another_completion_stays_where_both_are_compared(
    tmp_path: Path,
) -> None:
    rows = [{"prompt": TEXT, "completion": text} for text in ("It is 5.", TEXT[::-1], "It is 5.")]
    assert len(run_on(tmp_path / "a", "deduplicate", rows)[0]) == 1
    assert len(run_on(tmp_path / "b", "deduplicate", rows, compare="all")[0]) == 2


@rensa
@pytest.mark.parametrize("limit", [0.4, 0.6, 0.8])
def test_few_pairs_are_missed_and_few_taken_wrongly(tmp_path: Path, limit: float) -> None:
    """Against the exact Jaccard index of pairs that differ in some words."""
    rng = Random(0)
    rows, likeness = [], []
    for number in range(300):
        words = [f"{rng.randrange(10**9)}" for _ in range(60)]
        changed = [
            f"{rng.randrange(10**9)}" if rng.random() < number / 2000 else one for one in words
        ]
        one, other = ({*zip(text, text[1:], text[2:], strict=False)} for text in (words, changed))
        likeness.append(len(one & other) / len(one | other))
        rows += [{"prompt": " ".join(text), "id": number} for text in (words, changed)]
    kept, _ = run_on(tmp_path, "deduplicate", rows, similarity=limit)
    alone = {row["id"] for row in kept if sum(one["id"] == row["id"] for one in kept) == 1}
    sure = [n for n, share in enumerate(likeness) if share >= limit + 0.1]
    far = [n for n, share in enumerate(likeness) if share < limit - 0.15]
    assert sure and far
    assert sum(n in alone for n in sure) >= 0.97 * len(sure)
    assert sum(n in alone for n in far) <= 0.03 * len(far)


def test_bands_find_most_pairs_at_the_limit() -> None:
    assert [num_bands(limit) for limit in (0.3, 0.5, 0.7, 0.8, 0.95)] == [64, 64, 32, 16, 8]


def test_a_limit_out_of_range_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"deduplicate similarity: found 2.0; accepted: a number"):
        run_on(tmp_path, "deduplicate", [{"prompt": TEXT}], similarity=2.0)
