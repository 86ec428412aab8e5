"""Labelling in the viewer: who may write, what a person sees, what is written."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_fakes import FakeLearner, make_config, make_rollouts
from test_view_server import Tags
from viewing import HOSTILE, TOKEN, Form, Reply, form_of, get, make_labelled_run, post

from assay.errors import UserError
from assay.report.loaded import load_run
from assay.report.viewer.labelling import Labelling
from assay.report.viewer.view_server import ViewServer
from assay.run.human_labels import LabelFile, digest

GUIDE = "Prefer the completion that is right.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_labelled_run(tmp_path / "runs")


@pytest.fixture
def guide(tmp_path: Path) -> Path:
    path = tmp_path / "guide.md"
    path.write_text(GUIDE)
    return path


@pytest.fixture
def serve(folder: Path, guide: Path) -> Iterator:
    made: list[ViewServer] = []

    def start(by: str = "anna", **settings: object) -> ViewServer:
        labelling = Labelling(guide, by, **settings)
        labelling.check()
        made.append(ViewServer([folder], TOKEN, labelling))
        return made[-1]

    yield start
    for app in made:
        app._closing.set()
        app._threads.shutdown(wait=True)


def page_of(app: ViewServer, folder: Path, **asked: object) -> Reply:
    return get(app, f"label?{urlencode({'run': folder, **asked})}")


def next_form(app: ViewServer, folder: Path, **asked: object) -> Form:
    form = form_of(page_of(app, folder, **asked).text)
    assert form is not None
    return form


def answer(app: ViewServer, form: Form, choice: str, **headers: str) -> Reply:
    return post(app, form.action, {**form.fields, "choice": choice}, **headers)


def test_a_choice_is_appended_at_once_with_all_that_identifies_it(serve, folder: Path) -> None:
    app = serve()
    form = next_form(app, folder)
    reply = answer(app, form, "left")
    assert reply.status == 303 and reply.headers["location"].startswith(f"/{TOKEN}/label?run=")
    (row,) = map(json.loads, (folder / "labels/labels.jsonl").read_text().splitlines())
    assert row["by"] == "anna" and row["choice"] == "left" and row["kind"] == "compare"
    assert row["guide"] == digest(GUIDE) and row["time"].endswith("+00:00")
    texts = {one["completion_id"]: one["text"] for one in load_run(folder).rollouts()}
    for shown in row["shown"]:
        assert shown["text"] == digest(texts[shown["id"]])
    left, right = (shown["id"] for shown in row["shown"])
    assert left.partition("/")[0] == right.partition("/")[0] == row["group"] and left != right
    assert (folder / f"labels/guides/{row['guide']}.txt").read_text() == GUIDE


def test_the_page_is_blind(serve, folder: Path) -> None:
    text = page_of(serve(), folder).text
    main = text[text.index("<main") : text.index("</main>")]
    assert html.escape(GUIDE.strip()) in main
    assert main.count('class="turn ') == 2 and "So it is" in main
    for word in ("badge", "reward", "advantage", "passed", "failed", "/rollout?", "verdict"):
        assert word not in main, word


def test_sides_are_drawn_by_seed_and_person(serve, folder: Path) -> None:
    def sides(**settings: object) -> list[bool]:
        app, found = serve(overlap=1.0, **settings), []
        for group in ("p0#1", "p1#1", "p2#1"):
            for step in (1, 2):
                asked = {"step": step, "group": group.replace("#1", f"#{step}")}
                fields = next_form(app, folder, **asked).fields
                found.append(int(fields["left"]) < int(fields["right"]))
        return found

    assert sides() == sides()
    assert len({tuple(sides(seed=n)) for n in range(4)} | {tuple(sides(by="ben"))}) > 2


def test_undo_offers_the_pair_again(serve, folder: Path) -> None:
    app = serve()
    first = next_form(app, folder)
    answer(app, first, "tie")
    text = page_of(app, folder).text
    undo = form_of(text, "undo")
    assert undo is not None and "<b>tie</b>" in text
    assert form_of(text).fields != first.fields
    assert post(app, undo.action, undo.fields).status == 303
    assert LabelFile(folder).read() == []
    assert next_form(app, folder).fields == first.fields
    again = post(app, undo.action, undo.fields)
    assert again.status == 409 and "taken back before" in again.text


def test_a_skipped_pair_is_not_offered_again(serve, folder: Path) -> None:
    app, seen = serve(), set()
    for _ in range(5):
        form = next_form(app, folder)
        seen.add((form.fields["step"], form.fields["left_text"], form.fields["right_text"]))
        answer(app, form, "skip")
    assert len(seen) == 5
    assert [one.choice for one in LabelFile(folder).read()] == ["skip"] * 5


def test_all_pairs_of_a_group_are_labelled_on_its_page(serve, folder: Path) -> None:
    app = serve()
    step = get(app, f"step?{urlencode({'run': folder, 'step': 1})}").text
    (link,) = re.findall(r'href="([^"]*label\?[^"]*kind=compare[^"]*group=p1%231[^"]*)"', step)
    place = html.unescape(link).removeprefix(f"/{TOKEN}/")
    pairs = set()
    while (form := form_of(get(app, place).text)) is not None:
        pairs.add(frozenset((form.fields["left"], form.fields["right"])))
        reply = answer(app, form, "right")
        assert reply.headers["location"] == f"/{TOKEN}/{place}"
    assert len(pairs) == 6
    assert "labelled all of this group" in get(app, place).text


def test_everyone_meets_the_overlap_and_no_other_pair_twice(serve, folder: Path) -> None:
    def label_all(by: str, overlap: float) -> set:
        app, keys = serve(by=by, overlap=overlap), set()
        while (form := form_of(page_of(app, folder).text)) is not None:
            fields = form.fields
            keys.add((fields["step"], *sorted((fields["left_text"], fields["right_text"]))))
            answer(app, form, "left")
        return keys

    anna, ben = label_all("anna", 0.4), label_all("ben", 0.4)
    # 2 steps of 3 groups, with 6 pairs each.
    assert len(anna) == 36 and ben < anna and 5 <= len(ben) <= 25


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:8001"}, 403),
        ({"host_": "x"}, 303),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "application/json"}, 415),
        ({"content_type": "multipart/form-data; boundary=x"}, 415),
    ],
)
def test_only_forms_of_the_viewer_write(
    serve, folder: Path, headers: dict[str, str], status: int
) -> None:
    app = serve()
    form = next_form(app, folder)
    assert answer(app, form, "left", **headers).status == status
    assert len(LabelFile(folder).read()) == (status == 303)


def test_a_write_needs_the_token(serve, folder: Path) -> None:
    app = serve()
    form = next_form(app, folder)
    for action in ("/label", f"/{TOKEN}x/label", "/undo", f"/x{TOKEN}/undo"):
        assert post(app, action, {**form.fields, "choice": "left"}).status == 404
    assert LabelFile(folder).read() == []


def test_a_viewer_without_a_guide_takes_no_answers(folder: Path, serve) -> None:
    form = next_form(serve(), folder)
    app = ViewServer([folder], TOKEN)
    assert page_of(app, folder).status == 404
    assert answer(app, form, "left").status == 404
    assert "label?" not in get(app, f"step?{urlencode({'run': folder, 'step': 1})}").text
    assert not (folder / "labels").exists()


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"choice": "best"}, 400),
        ({"kind": "stars"}, 400),
        ({"step": "99"}, 409),
        ({"step": "-1"}, 400),
        ({"left": "9" * 12}, 400),
        ({"left": "99999"}, 409),
        ({"left": "²"}, 400),
        ({"left_text": digest("other")}, 409),
        ({"guide": digest("other")}, 409),
        ({"run": "/etc"}, 404),
        ({"run": ""}, 404),
    ],
)
def test_a_form_that_does_not_match_the_run_is_refused(
    serve, folder: Path, change: dict[str, str], status: int
) -> None:
    app = serve()
    form = next_form(app, folder)
    reply = post(app, form.action, {**form.fields, "choice": "left", **change})
    assert reply.status == status
    assert not LabelFile(folder).path.exists()


def test_two_completions_of_different_groups_are_refused(serve, folder: Path) -> None:
    app = serve()
    one = next_form(app, folder, step=1, group="p0#1").fields
    other = next_form(app, folder, step=1, group="p1#1").fields
    mixed = {**one, "right": other["right"], "right_text": other["right_text"]}
    same = {**one, "right": one["left"], "right_text": one["left_text"]}
    for fields in (mixed, same):
        assert post(app, f"/{TOKEN}/label", {**fields, "choice": "left"}).status == 400


def test_too_large_a_form_is_refused(serve, folder: Path) -> None:
    app = serve()
    assert post(app, f"/{TOKEN}/label", {"x": "x" * 2**18}).status == 413
    many = {f"x{n}": "1" for n in range(3000)}
    assert post(app, f"/{TOKEN}/label", many).status == 400


def test_a_guide_that_changes_is_recorded_with_each_label(serve, folder: Path, guide: Path) -> None:
    app = serve()
    before = next_form(app, folder)
    guide.write_text("Prefer the shorter one.")
    # The person answered by the guide on the page, not by the newer one.
    answer(app, before, "left")
    answer(app, next_form(app, folder), "left")
    found = [one.guide for one in LabelFile(folder).read()]
    assert found == [digest(GUIDE), digest("Prefer the shorter one.")]
    kept = {path.stem for path in (folder / "labels/guides").iterdir()}
    assert kept == {*found}
    guide.unlink()
    reply = page_of(app, folder)
    assert reply.status == 409 and "--guide" in reply.text


def test_a_damaged_labels_file_is_shown_in_one_line(serve, folder: Path) -> None:
    app = serve()
    answer(app, next_form(app, folder), "left")
    path = LabelFile(folder).path
    path.write_text("broken\n" + path.read_text())
    reply = page_of(app, folder)
    assert reply.status == 409
    assert "labels.jsonl:1: found a damaged line" in reply.text
    assert get(app, f"step?{urlencode({'run': folder, 'step': 1})}").status == 200


def test_an_adjudicator_meets_the_disagreements_alone(serve, folder: Path) -> None:
    group = {"step": 1, "group": "p1#1"}
    for by in ("anna", "ben"):
        app = serve(by=by)
        for number in range(3):
            form = next_form(app, folder, **group)
            lower = "left" if int(form.fields["left"]) < int(form.fields["right"]) else "right"
            other = "left" if lower == "right" else "right"
            # They agree on the first pair, and disagree on two.
            answer(app, form, lower if number == 0 or by == "anna" else other)
    app = serve(by="cleo", adjudicate=True)
    text = page_of(app, folder).text
    assert "disagreements: 2" in text and "Cohen" in text
    answer(app, next_form(app, folder), "left")
    answer(app, next_form(app, folder), "skip")
    assert "No disagreement waits" in page_of(app, folder).text
    found = LabelFile(folder).read()
    assert [(one.by, one.adjudicates) for one in found[-2:]] == [("cleo", True)] * 2
    assert "disagreements: 1" in page_of(app, folder).text


def test_hostile_text_stays_text(tmp_path: Path, guide: Path) -> None:
    from dataclasses import replace

    from assay.run.directory import Run

    guide.write_text(HOSTILE)
    with Run.create(make_config(tmp_path, run={"name": "a <b>"}), quiet=True) as run:
        run.attach(learner=(learner := FakeLearner()))
        groups, verdicts = make_rollouts(1)
        for n, group in enumerate(groups):
            members = [
                replace(one, id=f"{HOSTILE}\ud800{k}", text=f"{HOSTILE}\ud800{k}")
                for k, one in enumerate(group.completions)
            ]
            problem = replace(group.problem, id=HOSTILE, draw=n)
            prompt = replace(group.prompt, text=HOSTILE)
            groups[n] = replace(group, problem=problem, prompt=prompt, completions=tuple(members))
        run.record(groups, verdicts)
        run.finish_step(learner.learn(groups, verdicts))
    labelling = Labelling(guide, "<script>anna</script>")
    labelling.check()
    app = ViewServer([run.folder], TOKEN, labelling)
    asked = {"step": 1, "group": f"{HOSTILE}#0"}
    for _ in range(2):
        text = page_of(app, run.folder, **asked).text
        Tags().feed(text)
        assert not {"\u202e", "\x1b"} & {*text}
        assert "&lt;script&gt;alert(1)" in text and "<script>a" not in text
        assert answer(app, form_of(text), "left").status == 303
    for label in LabelFile(run.folder).read():
        assert label.by == "<script>anna</script>" and label.group == f"{HOSTILE}#0"


@pytest.mark.parametrize("by", ["", "  ", "x" * 101, "a\nb", "\x1b[31m"])
def test_a_name_that_is_no_line_is_refused(guide: Path, by: str) -> None:
    with pytest.raises(UserError, match="--by"):
        Labelling(guide, by).check()


def test_an_empty_or_missing_guide_is_refused(tmp_path: Path) -> None:
    for content in (None, b"", b" \n", b"x" * (2**20 + 1)):
        path = tmp_path / "guide.md"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match="--guide"):
            Labelling(path, "anna").check()


def test_a_grade_is_recorded_with_its_comment(serve, folder: Path) -> None:
    app = serve()
    form = next_form(app, folder, kind="grade")
    assert [value for _, value in form.buttons] == ["passed", "failed", "unsure", "skip"]
    fields = {**form.fields, "choice": "failed", "comment": f" {HOSTILE} "}
    reply = post(app, form.action, fields)
    assert reply.headers["location"].endswith("kind=grade")
    (label,) = LabelFile(folder).read()
    assert (label.kind, label.choice, label.comment) == ("grade", "failed", HOSTILE)
    assert len(label.shown) == 1 and not label.marks
    long = {**fields, "comment": "x" * 2001}
    assert post(app, form.action, long).status == 400
    assert next_form(app, folder, kind="grade").fields != form.fields
    assert page_of(app, folder, kind="stars").status == 400


def test_the_queue_of_the_audit_is_graded_first(serve, folder: Path) -> None:
    rows = load_run(folder).rollouts()
    queue = [
        {"id": row["completion_id"], "step": row["step"], "label": label, "spec": spec, **other}
        for row, label, spec, other in (
            (rows[0], None, {"answer": "<b>17</b>"}, {}),
            (rows[5], "passed", {"answer": "1"}, {}),
            (rows[7], None, {"answer": "1"}, {"step_scores": [0.1]}),
        )
    ]
    (folder / "audit").mkdir()
    path = folder / "audit/queue.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in queue))
    for by in ("anna", "ben"):
        app = serve(by=by)
        text = page_of(app, folder, kind="grade").text
        assert "answer: &lt;b&gt;17&lt;/b&gt;" in text and html.escape(rows[0]["text"]) in text
        answer(app, form_of(text), "passed")
        assert "answer:" not in page_of(app, folder, kind="grade").text
    path.write_text("broken\n" + path.read_text())
    assert page_of(app, folder, kind="grade").status == 409


def test_a_truncated_completion_is_told(folder: Path, serve) -> None:
    app = serve(overlap=1.0)
    assert "truncated:" not in page_of(app, folder).text
    for path in (folder / "rollouts").glob("*.parquet"):
        table = pq.read_table(path)
        at, field = (
            table.schema.get_field_index("finish_reason"),
            table.schema.field("finish_reason"),
        )
        cut = pa.array(["length"] * len(table), field.type)
        pq.write_table(table.set_column(at, field, cut), path, write_page_checksum=True)
    assert page_of(app, folder).text.count("truncated:") == 2


def with_texts(folder: Path, text_of) -> None:
    """Replace the texts of the log, as a rollback and new sampling do. text_of: function from the
    completion id and the text."""
    for path in (folder / "rollouts").glob("*.parquet"):
        table = pq.read_table(path)
        at, field = table.schema.get_field_index("text"), table.schema.field("text")
        pairs = zip(
            *(table.column(name).to_pylist() for name in ("completion_id", "text")), strict=True
        )
        new = pa.array([text_of(*pair) for pair in pairs], field.type)
        pq.write_table(table.set_column(at, field, new), path, write_page_checksum=True)


def test_replaced_completions_are_unlabelled_and_not_adjudicated(serve, folder: Path) -> None:
    group = {"step": 1, "group": "p1#1"}
    for by in ("anna", "ben"):
        app = serve(by=by)
        form = next_form(app, folder, **group)
        lower = int(form.fields["left"]) < int(form.fields["right"])
        answer(app, form, "left" if lower == (by == "anna") else "right")
    assert form_of(page_of(serve(by="cleo", adjudicate=True), folder).text)
    with_texts(folder, lambda id, text: f"{text} again")
    assert "No disagreement waits" in page_of(serve(by="cleo", adjudicate=True), folder).text
    app, count = serve(by="anna"), 0
    while (form := form_of(page_of(app, folder, **group).text)) is not None:
        answer(app, form, "left")
        count += 1
    assert count == 6


def test_equal_texts_never_end_the_queue(serve, folder: Path, monkeypatch) -> None:
    with_texts(folder, lambda id, text: text if id.startswith("p2#2") else "same")
    monkeypatch.setattr("assay.report.viewer.labelling._MOST_READ", 1)
    app, count, looked = serve(overlap=1.0), 0, 0
    while "Nothing is left" not in (text := page_of(app, folder).text):
        if (form := form_of(text)) is None:
            assert "look further" in text
            looked += 1
        else:
            answer(app, form, "left")
            count += 1
    assert count == 6 and looked <= 2


def test_completions_with_more_steps_than_a_form_takes_are_not_offered(serve, folder: Path) -> None:
    with_texts(folder, lambda id, text: text if id == "p0#1/0" else f"{text}\n" * 1000)
    app = serve(overlap=1.0)
    form = next_form(app, folder, kind="steps")
    answer(app, form, "skip")
    assert form_of(page_of(app, folder, kind="steps").text) is None
    assert LabelFile(folder).read()[0].shown[0].id == "p0#1/0"


def test_a_form_that_was_sent_twice_is_one_label(serve, folder: Path) -> None:
    app = serve()
    form = next_form(app, folder)
    answer(app, form, "left")
    answer(app, form, "left")
    text = page_of(app, folder).text
    assert "anna: 1 labels, 0 skipped" in text
    undo = form_of(text, "undo")
    post(app, undo.action, undo.fields)
    assert LabelFile(folder).read() == []


def test_each_step_needs_a_mark(serve, folder: Path) -> None:
    app = serve()
    text = page_of(app, folder, kind="steps").text
    form = form_of(text)
    assert text.count('<fieldset class="step">') == 2 and text.count('type="radio"') == 6
    marks = {"mark_0": "right", "mark_1": "wrong"}
    for wrong in ({}, {"mark_0": "right"}, {**marks, "mark_1": "good"}):
        reply = post(app, form.action, {**form.fields, "choice": "marked", **wrong})
        assert reply.status == 400 and "for each of 2 steps" in reply.text
    fields = {**form.fields, "choice": "marked", **marks}
    assert post(app, form.action, fields).status == 303
    assert post(app, form.action, {**form.fields, "choice": "skip"}).status == 303
    marked, skipped = LabelFile(folder).read()
    rows = {row["completion_id"]: row["text"] for row in load_run(folder).rollouts()}
    steps = rows[marked.shown[0].id]
    assert [(one.end, one.mark) for one in marked.marks] == [
        (steps.index("\n") - 1, "right"),
        (len(steps) - 1, "wrong"),
    ]
    assert skipped.choice == "skip" and not skipped.marks
