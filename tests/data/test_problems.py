"""Problem sets: lazy, complete, in order; each bad file or row ends in one line that says where."""

from __future__ import annotations

import json
import pickle
import resource
import threading
from pathlib import Path

import pytest
from data_files import complaint_about, problems_of, write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.data import rowset
from assay.data.problems import load_problems
from assay.errors import DataError, VerifierError
from assay.types import Problem


def test_gsm8k_loads_as_it_is(shared_data: Path) -> None:
    path = shared_data / "gsm8k" / "train.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    problems = load_problems([str(path)])
    assert len(problems) == len(rows) == 7473
    for problem, row in zip(problems, rows, strict=True):
        assert (problem.id, problem.prompt) == (row["id"], row["question"])
        assert problem.spec["answer"] == row["final"]
    assert problems[2].source == f"{path}:3"


def test_math_loads_as_it_is(shared_data: Path) -> None:
    path = shared_data / "math" / "train_2000.jsonl"
    problems = load_problems([str(path)])
    assert len(problems) == 2000
    assert problems[0].tags == ("Number Theory", "level-2")
    assert problems[0].spec == {"answer": "330"}
    assert sum("level-5" in problem.tags for problem in problems) == 609


@pytest.mark.parametrize("name", ["rg_countdown", "rg_knights_knaves", "rg_zebra_puzzles"])
def test_other_real_files_load(shared_data: Path, name: str) -> None:
    problems = load_problems([str(shared_data / "logic" / f"{name}.jsonl")])
    assert {"task", "answer", "metadata"} == set(problems[0].spec)


def test_sources_follow_one_another_and_slices_are_sets(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "a.jsonl", [{"prompt": f"a{n}"} for n in range(3)])
    second = write_rows(tmp_path / "b.jsonl", [{"prompt": f"b{n}"} for n in range(4)])
    problems = load_problems([first, second])
    texts = ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert [problem.prompt for problem in problems] == texts
    assert [problems[n].prompt for n in range(-7, 7)] == texts + texts
    assert [problem.prompt for problem in problems[1:6:2]] == texts[1:6:2]
    assert [problem.id for problem in problems[2:4]] == ["a.jsonl:3", "b.jsonl:1"]
    assert problems[::-1][0:2].select([1])[0].prompt == "b2"
    assert problems[2:4].describe() == f"2 problems: 1 from {first}, 1 from {second}"
    for index in (7, -8):
        with pytest.raises(IndexError):
            problems[index]


def test_blank_lines_and_odd_endings_keep_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one"}\r\n\r\n  \n{"prompt": "f\xc3\xbcnf"}\n{"prompt": "six"}\n\n{"prompt": "end"}'
    )
    problems = load_problems([str(path)])
    assert [(problem.prompt, problem.id) for problem in problems] == [
        ("one", "p.jsonl:1"),
        ("fünf", "p.jsonl:4"),
        ("six", "p.jsonl:5"),
        ("end", "p.jsonl:7"),
    ]


def test_a_line_longer_than_one_read_comes_whole(tmp_path: Path) -> None:
    rows = [{"prompt": "ä" * size} for size in (1, 8192, 50_000, 3)]
    problems = problems_of(tmp_path / "p.jsonl", rows)
    assert [problem.prompt for problem in problems] == [row["prompt"] for row in rows]


def test_names_that_two_files_share_do_not_clash(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
    sources = [write_rows(tmp_path / folder / "p.jsonl", [{"prompt": "q"}]) for folder in "xy"]
    assert [problem.id for problem in load_problems(sources)] == [f"{s}:1" for s in sources]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "p.jsonl: found no rows; accepted: at least one good row"),
        (b"\n \n", "p.jsonl: found no rows"),
        (b'{"prompt": "x"}\n{"prompt": "x",}\n', "p.jsonl:2: found broken JSON ("),
        (
            b'{"prompt": "x"}\n{"prompt": "caf\xe9"}\n',
            "p.jsonl:2: found byte 0xe9 at column 16, not",
        ),
        (b'{"prompt": "x", "answer": NaN}', "p.jsonl:1: found a value (NaN is not JSON)"),
        (b'{"prompt": "x", "n": ' + b"9" * 5000 + b"}", "p.jsonl:1: found a value (Exceeds"),
        (b'{"prompt": ' + b"[" * 200_000, "p.jsonl:1: found a value ("),
        (b'{"prompt": "x"\n', "p.jsonl:1: found broken JSON (Expecting ',' delimiter, column 15)"),
        (
            b'{"prompt": "x"} {"prompt": "y"}',
            "p.jsonl:1: found broken JSON (Extra data, column 17)",
        ),
        (b'"text"\n', "p.jsonl:1: found 'text'; accepted: a row of keys and values"),
        (b'[\n{"prompt": "x"}\n]', "p.jsonl: found a JSON array; accepted: JSON Lines"),
        (b"\x7fELF\0\0\1", "p.jsonl: found a binary or UTF-16 file; accepted: JSON Lines in UTF-8"),
        ('{"prompt": "x"}'.encode("utf-16"), "p.jsonl: found a binary or UTF-16 file"),
        (b"\x1f\x8b\x08rest", "p.jsonl: found a gzip file"),
        (b'{"prompt": "x"}\n{"question": ""}\n', "p.jsonl:2 question: found ''; accepted: text"),
        (
            b'{"id": "a", "prompt": "x"}\n\n{"id": "a", "prompt": "y"}\n',
            "p.jsonl:3 id: found 'a' again (first in ",
        ),
    ],
)
def test_a_bad_file_ends_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    assert expected in complaint_about(str(path))


def test_a_source_that_is_no_file_ends_in_one_line(tmp_path: Path) -> None:
    assert "found a folder" in complaint_about(str(tmp_path))
    assert "found no such file; accepted: a JSONL or" in complaint_about(str(tmp_path / "no.jsonl"))
    assert "found no such file" in complaint_about("")
    assert "found a pipe or a device" in complaint_about("/dev/null")
    assert "the same source twice" in complaint_about("a.jsonl", "a.jsonl")
    assert "at least one source" in complaint_about()
    path = write_rows(tmp_path / "p.jsonl", [{"prompt": "x"}])
    with pytest.raises(DataError, match="accepted: a list of at least one source"):
        load_problems(path)


def test_skipping_keeps_the_good_rows_and_counts_the_bad(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(
        b'{"id": "a", "prompt": "1"}\nbroken\n{"id": "b", "prompt": ""}\n{"id": "c", "prompt": "4"}\n'
        b'{"id": "a", "prompt": "5"}\n\xff\n{"prompt": "7"}\n'
    )
    problems = load_problems([str(path)], on_bad_row="skip")
    assert [(problem.id, problem.prompt) for problem in problems] == [
        ("a", "1"),
        ("c", "4"),
        ("p.jsonl:7", "7"),
    ]
    assert problems.num_skipped == len(problems.skipped) == 4
    places = [text.split(":")[1].split(" ")[0] for text in problems.skipped]
    assert sorted(places) == ["2", "3", "5", "6"]
    assert problems.describe().endswith("; 4 bad rows skipped")


def test_skipping_everything_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("a\nb\n")
    text = complaint_about(str(path), on_bad_row="skip")
    assert "found 2 bad rows and no good one" in text
    assert "p.jsonl:1: found broken JSON" in text


def test_the_number_of_stored_errors_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("x\n" * 3000 + '{"prompt": "x"}\n')
    problems = load_problems([str(path)], on_bad_row="skip")
    assert (len(problems), problems.num_skipped) == (1, 3000)
    assert len(problems.skipped) == rowset.MAX_KEPT_COMPLAINTS


def test_a_limit_leaves_the_rest_unread(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1"}\n{"prompt": "2"}\nbroken\n')
    assert len(load_problems([str(path)], limit=2)) == 2
    assert len(load_problems([str(path), str(tmp_path / "absent.jsonl")], limit=2)) == 2
    with pytest.raises(DataError):
        load_problems([str(path)], limit=3)


def test_equal_hashes_of_different_ids_are_no_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowset, "hash", lambda key: 1, raising=False)
    rows = [{"id": name, "prompt": "x"} for name in "abcd"]
    assert len(problems_of(tmp_path / "p.jsonl", rows)) == 4
    with pytest.raises(DataError, match=r"p\.jsonl:5 id: found 'b' again"):
        problems_of(tmp_path / "p.jsonl", [*rows, {"id": "b", "prompt": "x"}])


def test_a_file_that_changes_underneath_is_an_error_not_a_wrong_row(tmp_path: Path) -> None:
    problems = problems_of(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    (tmp_path / "p.jsonl").write_text('{"prompt": "a different first row"}\n')
    with pytest.raises(DataError, match=r"p\.jsonl:2"):
        problems[1]


def test_a_set_can_be_pickled_and_read_from_threads(tmp_path: Path) -> None:
    rows = [{"prompt": f"row {n} " * (n % 50 + 1)} for n in range(2000)]
    problems = problems_of(tmp_path / "p.jsonl", rows)
    again = pickle.loads(pickle.dumps(problems))
    wrong: list[int] = []

    def reader(start: int) -> None:
        wrong.extend(n for n in range(start, 2000, 4) if again[n].prompt != rows[n]["prompt"])

    threads = [threading.Thread(target=reader, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


LINES = st.lists(
    st.one_of(
        st.text(min_size=1).map(lambda text: json.dumps({"prompt": f"q {text}"}).encode()),
        st.text(min_size=1).map(
            lambda text: json.dumps({"prompt": f"q {text}"}, ensure_ascii=False).encode()
        ),
        st.just(b""),
        st.just(b"{"),
        st.just(b"\xff\xfe"),
    ),
    max_size=30,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, ending=st.sampled_from([b"\n", b"\r\n"]))
def test_any_mixture_of_lines_gives_the_rows_that_a_plain_reader_gives(
    tmp_path: Path, lines: list[bytes], ending: bytes
) -> None:
    path = tmp_path / "mixed.jsonl"
    path.write_bytes(ending.join([b'{"prompt": "first"}', *lines]))
    expected, num_bad = [("first", "mixed.jsonl:1")], 0
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        try:
            expected.append((json.loads(line.decode())["prompt"], f"mixed.jsonl:{number}"))
        except ValueError:
            num_bad += 1
    problems = load_problems([str(path)], on_bad_row="skip")
    assert [(problem.prompt, problem.id) for problem in problems] == expected
    assert problems.num_skipped == num_bad


@pytest.mark.slow
def test_a_million_rows_stream(tmp_path: Path) -> None:
    path = tmp_path / "million.jsonl"
    with path.open("w") as file:
        for n in range(1_000_000):
            file.write(
                f'{{"id": "p{n}", "prompt": "{"How much is it? " * 15} {n}", "answer": "{n}"}}\n'
            )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problems = load_problems([str(path)])
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert problems[777_777].spec == {"answer": "777777"}
    assert grown_mib < 100


def test_a_spec_that_the_verifier_cannot_use_is_a_bad_row(tmp_path: Path) -> None:
    checked: list[str] = []

    def needs_answer(problem: Problem) -> None:
        checked.append(problem.id)
        if "answer" not in problem.spec:
            raise VerifierError(f"{problem.source} answer: found no such key; accepted: text")

    path = tmp_path / "rows.jsonl"
    rows = [{"id": "a", "prompt": "q", "answer": "1"}, {"id": "b", "prompt": "q", "anser": "1"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"rows.jsonl:2 answer: found no such key; accepted: text"):
        load_problems([str(path)], check=needs_answer)
    checked.clear()
    problems = load_problems([str(path)], check=needs_answer, on_bad_row="skip")
    assert (len(problems), problems.num_skipped) == (1, 1) and checked == ["a", "b"]
    assert problems[0].id == "a" and checked == ["a", "b"]  # checked once, read as often as asked
    assert len(pickle.loads(pickle.dumps(problems))) == 1
