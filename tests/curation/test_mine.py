"""Mining: documents like the seeds come out of a pool, and sites of which many came are taken whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stage_runs import rows_file, run_on, took

from assay.curation.base import run_stage
from assay.curation.output import Manifest
from assay.errors import DataError

PAGES = "assay.data.pages:web"
SEEDS = [f"{PAGES}?size=60&seed=1&only=steps"]


def mined(tmp_path: Path, **settings: Any) -> Manifest:
    given = {"inputs": [f"{PAGES}?size=1200&seed=2"], "seeds": SEEDS, "tag": "math", **settings}
    return run_stage("mine", given, tmp_path / f"mined-{len([*tmp_path.iterdir()])}")


def test_pages_like_the_seeds_are_found_among_many(tmp_path: Path) -> None:
    manifest = mined(tmp_path, keep=0.06, site_share=1.0)
    found = manifest.measured
    assert manifest.rows == found["by their score"] == 72 and found["sections"] == "none"
    assert found["precision by score"] > 0.95 and 0.2 < found["recall by score"] < 0.6
    assert took(manifest) == {"score": 1200 - 72}
    again = mined(tmp_path, keep=0.06, site_share=1.0)
    rows = [(Path(one.out) / "rows.jsonl").read_bytes() for one in (manifest, again)]
    assert rows[0] == rows[1], "nothing is left to chance"


def test_the_rule_of_domains_and_a_second_round_find_what_the_seeds_do_not_show(
    tmp_path: Path,
) -> None:
    first = mined(tmp_path, keep=0.08, section_share=0.15)
    found = first.measured
    assert found["by their section"] > 20 and "tutor.example/lessons" in found["sections"]
    assert found["recall of all"] > found["recall by score"] + 0.1
    assert "garden" not in found["sections"], "of forum.example only the section of mathematics"
    second = mined(tmp_path, keep=0.15, seeds=[*SEEDS, first.out])
    assert second.measured["recall by score"] > found["recall of all"]
    assert second.measured["precision of all"] > 0.9


def test_a_score_does_not_know_the_tags(tmp_path: Path) -> None:
    """Rows without tags and addresses get the same scores; then nothing is measured of them."""
    texts = [f"{n}+{n}=? {2 * n}" for n in range(9)] + [f"fry {n} eggs in oil" for n in range(31)]
    pool = [{"id": f"p{n}", "text": text, "tags": ["x"]} for n, text in enumerate(texts)]
    seeds = [{"text": f"{n}+1=? {n + 1}"} for n in range(12)]
    sources = [rows_file(tmp_path / "seeds.jsonl", seeds)]
    how: dict[str, Any] = {"seeds": sources, "keep": 9 / 40, "n": 2}
    kept, manifest = run_on(tmp_path / "a", "mine", pool, tag="x", **how)
    assert [row["id"] for row in kept] == [f"p{n}" for n in range(9)]
    assert manifest.measured["recall of all"] == 9 / 40 and kept[0]["mined"]["by"] == "score"
    bare, manifest = run_on(tmp_path / "b", "mine", [{**r, "tags": None} for r in pool], **how)
    assert [row["mined"] for row in bare] == [row["mined"] for row in kept]
    assert not any("precision" in name for name in manifest.measured)


def test_bad_pages_are_told_in_one_line(tmp_path: Path) -> None:
    for row, said in (({"url": "x"}, r"1 text: found none among"), ({"text": " "}, "found ' '")):
        with pytest.raises(DataError, match=said) as error:
            run_on(tmp_path / said[:1], "mine", [row], seeds=SEEDS)
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(DataError, match=r"only: found 'maths'; accepted: steps, words"):
        mined(tmp_path, seeds=[f"{PAGES}?only=maths"])
