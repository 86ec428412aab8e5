"""What data transforms share: settings, input rows, output, manifest."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from assay.curation import base
from assay.curation.base import DataStage, StageSettings, run_stage
from assay.curation.output import MAX_EXAMPLES, Output, content_hash, read_manifest
from assay.data.completions import Record
from assay.data.sources import source
from assay.errors import ConfigError, DataError, DiskFull, RunError


class EvenSettings(StageSettings):
    """Keep even numbers.

    Of the rows' ``n``.
    """

    stop_at: int | None = None
    """Fail there."""


def keep_even(settings: EvenSettings, out: Output) -> None:
    def fault_of(row: Record) -> str:
        if row.keys["n"] == settings.stop_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return f"{row.keys['n']} is odd" if row.keys["n"] % 2 else ""

    for _, row in out.sift(out.open(settings.inputs), {"odd": fault_of, "never": lambda row: ""}):
        out.write(row.keys)


@source
def many(size: int) -> Any:
    return ({"n": n} for n in range(size))


STAGE = DataStage(EvenSettings, keep_even)


@pytest.fixture(autouse=True)
def even(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(base.STAGES, "even", __name__)
    monkeypatch.chdir(tmp_path)


def write(name: str, rows: list[Any]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def numbers(*found: int) -> str:
    return write("numbers.jsonl", [{"id": str(n), "n": n} for n in found])


def rows_in(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "rows.jsonl").read_text().splitlines()]


def test_a_stage_writes_rows_and_a_manifest_whose_counts_add_up() -> None:
    first = numbers(*range(9))
    second = write("more.jsonl", [{"n": 11}, {"n": 12, "nothing": None, "text": "ä\ud800"}])
    manifest = run_stage("even", {"inputs": [first, second]}, "out")
    rows = rows_in("out")
    assert [row["n"] for row in rows] == [0, 2, 4, 6, 8, 12]
    assert rows[-1] == {"id": "more.jsonl:2", "n": 12, "text": "ä\ud800"}
    assert read_manifest(Path("out/manifest.json")).as_dict() == manifest.as_dict()
    assert [one["rows"] for one in manifest.inputs] == [9, 2]
    assert manifest.rows_read == manifest.rows + sum(each.took for each in manifest.filters)
    odd, never = manifest.filters
    assert (odd.took, never.took, len(odd.examples)) == (5, 0, MAX_EXAMPLES)
    assert odd.examples[0] == {"reason": "1 is odd", "row": {"id": "1", "n": 1}}
    assert manifest.settings["inputs"] == [first, second]
    assert "even: 6 rows in out" in str(manifest) and "odd took 5" in str(manifest)
    assert sorted(path.name for path in Path("out").iterdir()) == ["manifest.json", "rows.jsonl"]


def test_an_input_is_known_by_its_content() -> None:
    name = numbers(2)
    hashes = [run_stage("even", {"inputs": [name]}, f"out{n}").inputs[0]["sha256"] for n in (1, 2)]
    numbers(2, 4)
    changed = run_stage("even", {"inputs": [name]}, "out3").inputs[0]["sha256"]
    assert hashes[0] == hashes[1] != changed
    sources = [f"{__name__}:many?size={size}" for size in (2, 2, 3)]
    assert len({*map(content_hash, sources)}) == 2


def test_the_folder_of_a_stage_is_an_input() -> None:
    run_stage("even", {"inputs": [numbers(2, 3)]}, "out")
    manifest = run_stage("even", {"inputs": ["out"]}, "again")
    assert manifest.inputs[0]["source"] == "out/rows.jsonl" and manifest.rows == 1
    Path("out/rows.jsonl").rename("out/rows.jsonl.part")
    with pytest.raises(
        DataError, match=r"unfinished data transform; .*or name out/rows\.jsonl\.part"
    ):
        run_stage("even", {"inputs": ["out"]}, "third")


def test_an_existing_folder_is_unchanged() -> None:
    name = numbers(2)
    Path("out").mkdir()
    with pytest.raises(RunError, match="--out out: found a folder that exists; accepted: a new"):
        run_stage("even", {"inputs": [name]}, "out")
    with pytest.raises(RunError, match=r"--out numbers\.jsonl: found a file"):
        run_stage("even", {"inputs": [name]}, name)
    Path("out/rows.jsonl.part").touch()
    with pytest.raises(
        RunError, match=r"unfinished data transform; its rows are in rows\.jsonl\.part"
    ):
        run_stage("even", {"inputs": [name]}, "out")
    with pytest.raises(RunError, match="a folder that can be written"):
        run_stage("even", {"inputs": [name]}, f"{name}/out")


def test_an_empty_result_names_the_transform_that_removed_the_rows() -> None:
    with pytest.raises(DataError) as failed:
        run_stage("even", {"inputs": [numbers(1, 3)]}, "out")
    assert str(failed.value) == (
        "even out: found no row left of 2; accepted: at least one row; odd took 2 (the first: 1 is "
        "odd)"
    )
    assert not Path("out").exists()


def test_bad_rows_leave_no_folder_behind() -> None:
    Path("bad.jsonl").write_text('{"n": 2}\n{"n": \n')
    with pytest.raises(DataError, match=r"bad\.jsonl:2: found broken JSON"):
        run_stage("even", {"inputs": ["bad.jsonl"]}, "deep/out")
    assert not Path("deep/out").exists()
    with pytest.raises(DataError, match=r"none\.jsonl: found no such file"):
        run_stage("even", {"inputs": ["none.jsonl"]}, "out")


def test_rows_that_were_written_outlive_a_full_disk() -> None:
    with pytest.raises(DiskFull, match=r"the disk is full; 2 rows are in out/rows\.jsonl\.part"):
        run_stage("even", {"inputs": [numbers(2, 4, 5, 6)], "stop_at": 6}, "out")
    assert Path("out/rows.jsonl.part").read_text().count("\n") == 2
    assert [path.name for path in Path("out").iterdir()] == ["rows.jsonl.part"]


def test_a_disk_that_is_full_when_parquet_is_written_keeps_the_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fill(rows: Any, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("assay.data.parquet.write_parquet", fill)
    with pytest.raises(DiskFull, match=r"the disk is full; 2 rows are in out/rows\.jsonl\.part"):
        run_stage("even", {"inputs": [numbers(2, 4, 5)], "output": "parquet"}, "out")
    assert [path.name for path in Path("out").iterdir()] == ["rows.jsonl.part"]


def test_rows_may_be_written_as_parquet() -> None:
    tree = {"inputs": [numbers(2, 3, 4)], "output": "parquet"}
    manifest = run_stage("even", tree, "out")
    assert sorted(path.name for path in Path("out").iterdir()) == ["manifest.json", "rows.parquet"]
    assert manifest.rows == 2 and manifest.settings["output"] == "parquet"
    again = run_stage("even", {"inputs": ["out"]}, "again")
    assert again.inputs[0]["source"] == "out/rows.parquet"
    assert rows_in("again") == [{"id": "2", "n": 2}, {"id": "4", "n": 4}]


def test_rows_that_parquet_cannot_represent_become_json_lines() -> None:
    name = write("mixed.jsonl", [{"n": 2, "answer": "x"}, {"n": 4, "answer": ["x", "y"]}])
    with pytest.raises(DataError) as failed:
        run_stage("even", {"inputs": [name], "output": "parquet"}, "out")
    (line,) = str(failed.value).splitlines()
    assert line.startswith("even out key answer: found ArrowTypeError")
    assert line.endswith('remove output = "parquet"; the rows are in out/rows.jsonl.part')
    assert [path.name for path in Path("out").iterdir()] == ["rows.jsonl.part"]
    again = run_stage("even", {"inputs": ["out/rows.jsonl.part"]}, "again")
    assert again.rows == 2


def test_settings_have_the_complaints_of_a_configuration() -> None:
    cases = {
        "even stop: unknown key; did you mean stop_at?": {"inputs": ["x"], "stop": 1},
        "even inputs: missing; add inputs = ...": {},
        "even inputs: found []; accepted: a list of text": {"inputs": []},
        'even stop_at: found "3"; accepted: a whole number': {"inputs": ["x"], "stop_at": "3"},
    }
    for complaint, tree in cases.items():
        with pytest.raises(ConfigError) as failed:
            base.read_settings("even", tree)
        assert str(failed.value).startswith(complaint), failed.value
    with pytest.raises(ConfigError, match=r'found "evn"; .*did you mean even'):
        base.find_stage("evn")
    with pytest.raises(ConfigError, match=r"^--set stop_at: found"):
        base.settings_of("even", ["x"], ["stop_at=x"])
    assert base.settings_of("even", ["x"], ["stop_at=4"]).stop_at == 4


@pytest.mark.parametrize("name", sorted(base.STAGES))
def test_every_stage_is_described(name: str) -> None:
    stage = base.find_stage(name)
    assert stage.about.endswith(".")
    undocumented = [key for key, _, _, text in base.field_help(stage.settings) if not text]
    assert not undocumented
    assert f"{name:<18}{stage.about}" in base.describe_stages()
    assert "inputs: a list of text" in base.describe_settings(name)


def test_a_manifest_that_is_none() -> None:
    lacking = {"stage": "select", "settings": {}, "inputs": [{"source": "x"}]}
    texts = ("", "[]", '{"stage": 1}', '{"filters": [], "what": 1}', "[" * 100_000)
    for text in (*texts, json.dumps(lacking)):
        Path("manifest.json").write_text(text)
        with pytest.raises(RunError, match=r"manifest\.json.*: found .*; accepted: ") as error:
            read_manifest(Path("manifest.json"))
        assert "\n" not in str(error.value)
