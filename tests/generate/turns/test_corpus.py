"""The tool search: passages by their words, cut as they should be, and ties in order."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.errors import DataError, MissingExtra
from assay.generate.turns.corpus import PASSAGE_WORDS, Corpus, passages_of, search_tool
from assay.generate.turns.tool import ToolError

PAGES = (
    "Rivers of Norway\n\nThe Glomma is the longest river of Norway. It flows to the sea.",
    "Mountains\n\nGaldhøpiggen is the highest mountain of Norway.",
    "The longest river of Sweden is the Göta älv with the Klarälven.",
)


@pytest.fixture
def pages(tmp_path: Path) -> list[str]:
    names: list[str] = []
    for number, text in enumerate(PAGES):
        (tmp_path / f"{number}.md").write_text(text)
        names.append(str(tmp_path / f"{number}.md"))
    return names


def test_without_the_library_the_install_command_is_told(
    monkeypatch: pytest.MonkeyPatch, pages: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r'search needs bm25s: .* "assay-rl\[search\]"'):
        Corpus(pages)


def test_passages_are_whole_paragraphs_and_long_ones_are_cut() -> None:
    long = " ".join(f"w{n}" for n in range(2 * PASSAGE_WORDS + 5))
    text = f"one two\n\nthree\n\n\n\n{long}\n\nlast"
    found = [*passages_of(text)]
    assert found[0] == "one two\n\nthree" and found[-1].endswith("w244\n\nlast")
    assert " ".join(found).split() == text.split()
    assert all(len(each.split()) <= PASSAGE_WORDS for each in found)
    assert [*passages_of("  \n\n ")] == []


def test_what_fits_best_stands_first(pages: list[str]) -> None:
    pytest.importorskip("bm25s", reason="needs the extra search")
    run = search_tool(pages, 2).open()
    told = run({"query": "longest river of Norway?"})
    assert told.startswith(f"[1] {PAGES[0]}") and f"[2] {PAGES[2]}" in told and "[3]" not in told
    assert run({"query": "mountain"}) == f"[1] {PAGES[1]}"
    assert "nothing was found" in run({"query": "quantum the of"})
    assert "nothing was found" in run({"query": ""})
    with pytest.raises(ToolError, match="query must be text"):
        run({"query": 3})
    with pytest.raises(DataError, match="no-such"):
        search_tool(["no-such.txt"], 2)


def test_equal_passages_stand_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the extra search")
    path = tmp_path / "same.jsonl"
    path.write_text("".join(f'{{"text": "river number x{n}"}}\n' for n in range(40)))
    found = Corpus([str(path)]).find("river", 5)
    assert found == [f"river number x{n}" for n in range(5)]
