"""The file of human labels: append, undo, kills, damage, several writers, links."""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.errors import RunError
from assay.run.human_labels import HumanLabel, LabelFile, Shown, digest, new_id
from assay.run.label_decisions import agreement_of, labelled_items

ONE = {"id": "a", "text": "x"}
MARKED = {"kind": "steps", "choice": "marked", "shown": [ONE]}
GUIDE = "Prefer the right answer. é\ud800"


def label_of(by: str, choice: str = "left", number: int = 0, **other: Any) -> HumanLabel:
    """A label of the pair a, b of a group."""
    shown = (Shown("a", digest("one")), Shown("b", digest("other")))
    made = HumanLabel(
        new_id(),
        by,
        "2026-01-01T00:00:00+00:00",
        "compare",
        digest(GUIDE),
        number,
        "g",
        shown,
        choice,
    )
    return replace(made, **other)


def test_labels_are_read_as_written(tmp_path: Path) -> None:
    file = LabelFile(tmp_path)
    assert file.read() == []
    labels = [label_of("anna"), label_of("ben\n\ud800", "skip", comment="x" * 10_000)]
    for label in labels:
        file.append(label, GUIDE)
    assert file.read() == labels
    (kept,) = (tmp_path / "labels/guides").iterdir()
    assert kept.read_bytes() == GUIDE.encode("utf-8", "surrogatepass")


def test_undo_takes_back_only_the_persons_own_label(tmp_path: Path) -> None:
    file, label = LabelFile(tmp_path), label_of("anna")
    file.append(label, GUIDE)
    assert not file.undo(label.id, "ben") and not file.undo("other", "anna")
    assert file.read() == [label]
    assert file.undo(label.id, "anna") == label
    assert file.undo(label.id, "anna") is None
    assert file.read() == []
    assert len(file.path.read_bytes().splitlines()) == 2


def test_a_line_cut_off_by_a_kill_loses_no_whole_label(tmp_path: Path) -> None:
    file = LabelFile(tmp_path)
    first, second, third = (label_of(name) for name in ("anna", "ben", "cleo"))
    file.append(first, GUIDE)
    file.append(second, GUIDE)
    whole = file.path.read_bytes()
    for end in range(len(whole) // 2 + 1, len(whole)):
        file.path.write_bytes(whole[:end])
        assert file.read()[0] == first and len(file.read()) <= 2
        file.append(third, GUIDE)
        # All of the second line but its line break is a whole label.
        kept = [first, second] if end == len(whole) - 1 else [first]
        assert file.read() == [*kept, third]


def _write(folder: Path, by: str) -> None:
    for number in range(100):
        LabelFile(folder).append(label_of(by, number=number), GUIDE)


def test_two_writers_at_once_lose_no_label(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    names = ("anna", "ben")
    writers = [context.Process(target=_write, args=(tmp_path, by)) for by in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    found = LabelFile(tmp_path).read()
    for by in names:
        assert [one.step for one in found if one.by == by] == [*range(100)]


def test_threads_that_start_at_once_keep_the_guide_and_all_labels(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        at_once = threading.Barrier(4)

        def write(folder: Path = folder, at_once: threading.Barrier = at_once) -> None:
            at_once.wait()
            LabelFile(folder).append(label_of("anna"), GUIDE * 1000)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(write) for _ in range(4)]:
                done.result()
        assert len(LabelFile(folder).read()) == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"choice": "best"}, "choice: found 'best'; accepted: left, right, tie, skip"),
        ({"kind": "stars"}, "kind"),
        ({"shown": []}, "shown: found 0 completions; accepted: 2"),
        ({"step": "x"}, 'step: found "x"'),
        ({"by": None}, "by"),
        ({"marks": [{"end": 1, "mark": "good"}]}, "marks: found 'good'"),
        ({"marks": [{"end": 1, "mark": "right"}]}, "marks: found 1 marks"),
        (MARKED, "marks: found 0 marks"),
        ({**MARKED, "marks": [{"end": 3, "mark": "right"}] * 2}, "marks: found 2 marks"),
        ({**MARKED, "marks": [{"end": -1, "mark": "right"}]}, "marks: found 1 marks"),
    ],
)
def test_a_damaged_line_is_named_in_one_line(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    file = LabelFile(tmp_path)
    file.append(label_of("anna"), GUIDE)
    row = json.loads(file.path.read_text()) | change
    file.path.write_text(file.path.read_text() + json.dumps(row) + "\n")
    with pytest.raises(RunError) as error:
        file.read()
    assert f"{file.path}:2" in str(error.value) and words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    file = LabelFile(tmp_path)
    file.append(label_of("anna"), GUIDE)
    file.path.write_bytes(b"<<<<<<< HEAD\n" + file.path.read_bytes())
    with pytest.raises(RunError, match=":1: found a damaged line"):
        file.read()


@pytest.mark.parametrize("name", ["labels", "labels/labels.jsonl", "labels/guides"])
def test_links_in_a_foreign_run_are_not_followed(tmp_path: Path, name: str) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    outside.mkdir()
    target = outside / "profile" if name.endswith("jsonl") else outside
    if name.endswith("jsonl"):
        target.write_text("")
    (run / name).parent.mkdir(parents=True)
    (run / name).symlink_to(target)
    with pytest.raises(RunError, match="a link"):
        LabelFile(run).append(label_of("anna"), GUIDE)
    assert [path.read_text() for path in outside.glob("*")] in ([], [""])


def test_the_side_on_the_screen_does_not_change_the_vote() -> None:
    left = label_of("anna", "left")
    swapped = label_of("ben", "right", shown=left.shown[::-1])
    (item,) = labelled_items([left, swapped], "compare")
    assert item.votes == {"anna": "first", "ben": "first"} and item.decision == "first"


def test_a_disagreement_waits_for_an_adjudicator() -> None:
    labels = [label_of("anna", "left"), label_of("ben", "tie")]
    (item,) = labelled_items(labels, "compare")
    assert item.disputed and item.decision is None
    decided = [*labels, label_of("cleo", "right", adjudicates=True)]
    (item,) = labelled_items(decided, "compare")
    assert not item.disputed and item.decision == "second"
    assert [one.by for one in item.deciding] == ["cleo"]
    assert agreement_of([item])["observed agreement"] == 0.0


def test_a_later_skip_takes_the_place_of_a_label() -> None:
    assert labelled_items([label_of("anna", "left"), label_of("anna", "skip")], "compare") == []


def test_the_last_label_of_a_person_counts() -> None:
    labels = [label_of("anna", "left"), label_of("anna", "skip"), label_of("anna", "right")]
    (item,) = labelled_items(labels, "compare")
    assert item.votes == {"anna": "second"}
