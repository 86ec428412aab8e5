"""Sources besides JSONL: Parquet, the hub, reasoning-gym, Python objects; and their settings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_files import complaint_about

from assay.data import parquet
from assay.data.gym import GymRows
from assay.data.problems import load_problems
from assay.data.source import split_settings
from assay.data.sources import ACCEPTED, open_source, python_name
from assay.errors import DataError, MissingExtra
from assay.types import Problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m:f", ("m:f", {})),
        ("m:f?", ("m:f", None)),
        ("m:f?n=4&x=0.5&s=ab&t=true", ("m:f", {"n": 4, "x": 0.5, "s": "ab", "t": True})),
        ("m:f?a=[1,2]&b=&c=null", ("m:f", {"a": [1, 2], "b": "", "c": None})),
        ("m:f?t=False&u=True", ("m:f", {"t": False, "u": True})),
        ("m:f?operators=+-&and=%26%3D", ("m:f", {"operators": "+-", "and": "&="})),
        ("m:f?a", ("m:f", None)),
        ("m:f?a=1&a=2", ("m:f", None)),
        ("m:f?=1", ("m:f", None)),
    ],
)
def test_settings_are_read_as_json_or_else_text(text: str, expected: tuple[str, Any]) -> None:
    if expected[1] is None:
        with pytest.raises(DataError, match="accepted: name"):
            split_settings(text)
    else:
        assert split_settings(text) == expected


# ---- Parquet


def write_parquet(path: Path, rows: list[dict[str, Any]], row_group_size: int = 3) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return str(path)


def test_parquet_rows_equal_jsonl_rows(tmp_path: Path, shared_data: Path) -> None:
    source = shared_data / "gsm8k" / "test_200.jsonl"
    rows = [json.loads(line) for line in source.read_bytes().split(b"\n") if line]
    path = write_parquet(tmp_path / "p.parquet", rows, row_group_size=64)
    ours, plain = load_problems([path]), load_problems([str(source)])
    assert len(ours) == 200
    for one, other in zip(ours, plain, strict=True):
        assert (one.id, one.prompt, one.spec) == (other.id, other.prompt, other.spec)


def test_parquet_nulls_are_absent_and_chats_are_messages(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": [{"role": "user", "content": "a"}], "answer": "1", "tags": ["t"]},
        {"prompt": [{"role": "user", "content": "b"}], "answer": None, "tags": None},
    ]
    first, second = load_problems([write_parquet(tmp_path / "p.parquet", rows)])
    assert (first.question, first.spec, first.tags) == ("a", {"answer": "1"}, ("t",))
    assert (second.question, second.spec, second.id) == ("b", {}, "p.parquet:2")


def test_parquet_row_groups_are_cached_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "CACHE_BYTES", 100)
    rows = [{"prompt": f"row {n} {'x' * 40}"} for n in range(20)]
    problems = load_problems([write_parquet(tmp_path / "p.parquet", rows)])
    order = [19, 0, 7, 7, 3, 18, 1, 12]
    assert [problems[n].prompt for n in order] == [rows[n]["prompt"] for n in order]
    source = problems._shelves[0].source
    assert isinstance(source, parquet.ParquetRows)
    assert len(source._cache) == 1


def test_bad_parquet_ends_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1 and then nothing of the kind")
    assert "p.parquet: not a Parquet file that can be read" in complaint_about(str(path))
    write_parquet(path, [{"prompt": "x"}, {"prompt": ""}])
    assert "p.parquet:2 prompt: found ''" in complaint_about(str(path))
    write_parquet(path, [{"answer": 1}])
    assert "p.parquet:1 prompt: found none among: answer" in complaint_about(str(path))
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), path)
    assert "p.parquet: found no rows" in complaint_about(str(path))


# ---- the hub


class FakeHub(SimpleNamespace):
    """Stands for the module `datasets`: records the call, returns rows."""

    def __init__(self, configs: list[str]) -> None:
        super().__init__(configs=configs, calls=[])

    def get_dataset_config_names(self, path: str, revision: str | None = None) -> list[str]:
        return self.configs

    def load_dataset(self, path: str, config: str | None, **options: Any) -> list[Any]:
        self.calls.append((path, config, options))
        if path == "no/where":
            raise ConnectionError("Couldn't reach the hub\nmore lines")
        return [{"question": "q?", "answer": "so\n#### 1,000"}, {"question": "r?", "answer": "2"}]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(["main", "socratic"])
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


def test_the_hub_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r'pip install "assay-rl\[hub\]"'):
        load_problems(["hf:openai/gsm8k"])


@pytest.mark.parametrize(
    ("source", "configs", "call"),
    [
        ("hf:openai/gsm8k", ["main", "socratic"], ("openai/gsm8k", "main", "train", None)),
        ("hf:o/n", ["default", "x"], ("o/n", None, "train", None)),
        ("hf:o/n", ["only"], ("o/n", "only", "train", None)),
        ("hf:o/n/c?split=test[:5]", ["x", "y"], ("o/n", "c", "test[:5]", None)),
        ("hf:squad?revision=v1", ["default"], ("squad", None, "train", "v1")),
    ],
)
def test_hub_names_choose_dataset_configuration_and_split(
    hub: FakeHub, source: str, configs: list[str], call: tuple[Any, ...]
) -> None:
    hub.configs = configs
    problems = load_problems([source])
    path, config, split, revision = call
    assert hub.calls == [(path, config, {"split": split, "revision": revision})]
    assert [problem.spec["answer"] for problem in problems] == ["1000", "2"]
    assert problems[1].id == f"{source.partition('?')[0]}:1"


def test_hub_complaints_are_one_line(hub: FakeHub) -> None:
    assert "hf:no/where: cannot be loaded (ConnectionError: Couldn't reach the hub); the hub" in (
        complaint_about("hf:no/where")
    )
    assert "found 'a/b/c/d'" in complaint_about("hf:a/b/c/d")
    assert "found ''" in complaint_about("hf:")
    assert "found setting 'splt'" in complaint_about("hf:a/b?splt=test")
    hub.configs = ["x", "y"]
    assert "accepted: one of hf:a/b/x, hf:a/b/y" in complaint_about("hf:a/b")


class FakeRows(list[dict[str, Any]]):
    """Rows with the one method of a dataset that is called."""

    def rename_columns(self, names: dict[str, str]) -> FakeRows:
        if missing := names.keys() - self[0].keys():
            raise ValueError(f"Original column names {missing} not in the dataset")
        return FakeRows(
            [{names.get(key, key): value for key, value in row.items()} for row in self]
        )


def test_columns_of_the_hub_are_renamed(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FakeRows([{"input": "3+5=", "target": "8"}])
    monkeypatch.setattr(hub, "load_dataset", lambda *_, **__: rows, raising=False)
    (problem,) = load_problems(["hf:o/n/main?split=test&rename=input:prompt,target:answer"])
    assert problem.prompt == "3+5=" and problem.spec["answer"] == "8"
    assert "Original column names {'inptu'} not in the dataset" in (
        complaint_about("hf:o/n/main?rename=inptu:prompt")
    )
    assert "found 'input'; accepted: COLUMN:KEY,COLUMN:KEY" in (
        complaint_about("hf:o/n/main?rename=input")
    )


def test_the_hub_offline_or_without_a_token_says_what_to_do(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> str:
        def load(*_: Any, **__: Any) -> None:
            raise ValueError("no data files") from error

        monkeypatch.setattr(hub, "load_dataset", load, raising=False)
        text = complaint_about("hf:o/n/main")
        assert "\n" not in text
        return text

    class GatedRepoError(Exception):
        pass

    class OfflineModeIsEnabled(ConnectionError):
        pass

    refused = PermissionError("401")
    refused.response = SimpleNamespace(status_code=401)  # pyright: ignore[reportAttributeAccessIssue]
    assert fail(GatedRepoError()).endswith("accept its terms on its page, then run: hf auth login")
    assert fail(OfflineModeIsEnabled()).endswith("HF_HUB_OFFLINE is set: unset it")
    assert fail(refused).endswith("private data sets need a token: hf auth login, or HF_TOKEN")
    assert fail(ConnectionError()).endswith("check the network, and HF_ENDPOINT")
    assert "accepted: hf:OWNER/NAME" in fail(RuntimeError())


# ---- reasoning-gym


def test_gym_problems_are_those_of_the_library() -> None:
    import reasoning_gym

    source = "gym:chain_sum?max_terms=4&size=20&seed=7"
    problems = load_problems([source])
    theirs = reasoning_gym.create_dataset("chain_sum", max_terms=4, size=20, seed=7)
    assert len(problems) == 20
    for index, (ours, other) in enumerate(zip(problems, theirs, strict=True)):
        assert ours.prompt == other["question"]
        assert ours.spec["answer"] == other["answer"]
        assert ours.spec["task"] == "chain_sum"
        assert ours.spec["metadata"]["source_index"] == index
        assert (ours.id, ours.tags) == (f"gym:chain_sum:{index}", ("chain_sum",))
        assert (ours.verifier, ours.source) == (None, f"{source}:{index}")


def test_gym_problems_are_repeatable_without_a_seed_and_made_when_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    plain = GymRows.fetch
    monkeypatch.setattr(
        GymRows, "fetch", lambda self, position: (made.append(position), plain(self, position))[1]
    )
    problems = load_problems(["gym:chain_sum"])
    assert (len(problems), made) == (1000, [0])
    assert problems[500] == load_problems(["gym:chain_sum"])[500]
    assert len(load_problems(["gym:chain_sum"], limit=3)) == 3


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "gym:chain_sums",
            "found no task 'chain_sums'; accepted: a reasoning-gym task, as chain_sum",
        ),
        ("gym:", "found no task ''"),
        ("gym:chain_sum?max_termz=4", "max_termz: found an unknown setting; accepted: min_terms,"),
        ("gym:chain_sum?max_terms=0", "settings refused (AssertionError:"),
        ("gym:chain_sum?max_terms=four", "settings refused (TypeError:"),
        ("gym:chain_sum?size=0", "settings refused (AssertionError:"),
    ],
)
def test_gym_complaints_are_one_line(source: str, expected: str) -> None:
    assert expected in complaint_about(source)


# ---- Python objects

MODULE = """
from assay import source
from assay.types import Problem

ROWS = [{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2}]
NUMBER = 5
TEXT = "abc"

class Maker:
    @staticmethod
    @source
    def rows(count=2):
        return [{"prompt": f"m{n}"} for n in range(count)]

@source
def endless(start=0):
    n = start
    while True:
        yield Problem(f"id-{n}", f"q{n}")
        n += 1

@source
def failing(after: int):
    for n in range(after):
        yield {"prompt": f"q{n}"}
    raise RuntimeError("the well is dry")

@source
def broken():
    raise KeyError("x")

@source
def bad_row():
    return [{"prompt": "a"}, {"prompt": ""}]

def undeclared(file):
    open(file, "w").close()
    return [{"prompt": "a"}]

class Lazy(list):
    def __getitem__(self, index):
        raise RuntimeError("no such page\\nsecond line")

LAZY = Lazy([1])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_rows.py").write_text(MODULE)
    (tmp_path / "half_rows.py").write_text("import nothing_of_this_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.delitem(sys.modules, "my_rows", raising=False)
    yield "my_rows"
    sys.modules.pop("my_rows", None)


def test_an_object_beside_the_configuration_is_found(module: str) -> None:
    first, second = load_problems([f"{module}:ROWS"])
    assert (first.prompt, first.id, first.source) == ("a", "my_rows:ROWS:0", "my_rows:ROWS:0")
    assert second.spec == {"answer": 2}
    assert len(load_problems([f"{module}:Maker.rows?count=5"])) == 5


def test_an_endless_generator_needs_a_limit_and_rows_can_be_read_again(module: str) -> None:
    problems = load_problems([f"{module}:endless?start=3"], limit=4)
    assert [problem.prompt for problem in problems] == ["q3", "q4", "q5", "q6"]
    assert [problem.prompt for problem in problems] == ["q3", "q4", "q5", "q6"]
    assert isinstance(problems[0], Problem)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("my_rows:NUMBER", "found 5; accepted: an iterable of rows"),
        ("my_rows:TEXT", "found 'abc'; accepted: an iterable of rows"),
        ("my_rows:ROWS?size=3", "found settings for a list; accepted: a callable"),
        ("my_rows:absent", "found no 'absent' in my_rows; accepted: package.module:object"),
        ("my_rows:Maker.absent", "found no 'absent' in my_rows"),
        ("absent_module:f", "found no module 'absent_module'; accepted: package.module:object"),
        (
            "half_rows:f",
            "found an import that fails (ModuleNotFoundError: No module named 'nothing_of",
        ),
        ("my_rows:endless?stop=3", "found settings that do not fit (got an unexpected keyword"),
        (
            "my_rows:failing",
            "found settings that do not fit (missing a required argument: 'after')",
        ),
        (
            "my_rows:failing?after=2",
            "my_rows:failing?after=2: raised RuntimeError: the well is dry",
        ),
        ("my_rows:broken", "my_rows:broken: raised KeyError: 'x'"),
        ("my_rows:bad_row", "my_rows:bad_row:1 prompt: found ''"),
        ("my_rows:LAZY", "my_rows:LAZY: raised RuntimeError: no such page"),
        (
            "itertools:count",
            "found an object that is not declared as a source; accepted: rows, or a function",
        ),
    ],
)
def test_complaints_about_objects_are_one_line(module: str, source: str, expected: str) -> None:
    assert expected in complaint_about(source)


@pytest.mark.parametrize(
    "source",
    [
        "subprocess:getoutput?cmd=touch here",
        "my_rows:undeclared?file=here",
        "examples.reward_model.equivalence:scalar_rows?pairs=subprocess:getoutput",
        "assay.data.sources:os.mkdir?path=here",
    ],
)
def test_only_a_function_that_is_declared_as_a_source_is_called(
    module: str, tmp_path: Path, source: str
) -> None:
    assert "accepted: " in complaint_about(source)
    assert not (tmp_path / "here").exists()


def test_what_a_source_imports_is_known_without_importing_it() -> None:
    assert python_name("rows.of.mine:pairs?size=4") == "rows.of.mine:pairs"
    for other in ("hf:squad", "gym:chain_sum?size=4", "rows.jsonl", "a/rows:1"):
        assert python_name(other) is None


def test_a_file_that_is_not_there_has_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text("{}\n")
    wanted = re.escape(
        f"found no such file; accepted: {ACCEPTED}; did you mean {tmp_path}/problems.jsonl?"
    )
    with pytest.raises(DataError, match=wanted):
        open_source(str(tmp_path / "problem.jsonl"))
    for text in (tmp_path / "other.csv", tmp_path / "absent" / "problems.jsonl", "\x00"):
        with pytest.raises(DataError, match="found no such file") as caught:
            open_source(str(text))
        assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_the_folder_of_a_data_transform_is_a_source(tmp_path: Path, name: str) -> None:
    row = {"id": "a", "prompt": "1+1=", "answer": "2"}
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / name)
    else:
        (tmp_path / name).write_text(json.dumps(row) + "\n", encoding="utf-8")
    (problem,) = load_problems([str(tmp_path)])
    assert (problem.id, problem.prompt) == ("a", "1+1=")
    assert problem.source.startswith(str(tmp_path / name))


def test_the_folder_of_an_unfinished_transform_is_refused_with_its_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl.part").write_text('{"prompt": "q", "answer": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"an unfinished data transform; .*rows\.jsonl\.part"):
        open_source(str(tmp_path))


def test_another_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "q", "answer": "a"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"found a folder; accepted: .*; name the files in it"):
        open_source(str(tmp_path))
