"""A run read from its directory, and the table of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from run_fakes import FakeLearner, make_config, take_steps

import assay
from assay.errors import DataError, MissingExtra, RunError
from assay.report.loaded import READABLE, LoadedRun, load_run
from assay.report.table import Table
from assay.run.directory import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    return load_run(make_run(tmp_path_factory.mktemp("runs"), 3))


def make_run(parent: Path, num_steps: int) -> Path:
    with Run.create(make_config(parent), quiet=True) as run:
        learner = FakeLearner()
        run.attach(learner=learner)
        take_steps(run, learner, num_steps)
        return run.folder


def test_a_run_is_loaded_by_its_public_name(run: LoadedRun) -> None:
    again = assay.load_run(str(run.folder))
    assert again == run
    assert (run.num_steps, run.metrics["step"]) == (3, [1, 2, 3])
    assert run.events[0]["kind"] == "created"
    assert repr(run).endswith("ended after 3 steps: stopped early)")


def test_rollouts_are_rows_with_their_verdicts(run: LoadedRun) -> None:
    rows = run.rollouts(step=2)
    assert rows.columns == list(READABLE) and set(rows["step"]) == {2}
    every = run.rollouts()
    assert len(every) == 3 * len(rows)
    tokens = run.rollouts(columns=["tokens", "num_tokens", "advantages", "advantage"])
    for row in tokens:
        assert row["num_tokens"] == len(row["tokens"])
        mean = sum(row["advantages"]) / len(row["advantages"])
        assert row["advantage"] == pytest.approx(mean, abs=1e-6)
    assert all(isinstance(one, dict) for one in every["components"])


def test_rollouts_are_chosen_by_step_problem_status_and_reward(run: LoadedRun) -> None:
    every = run.rollouts()
    rewards = [one for one in every["reward"] if one is not None]
    assert len(rewards) < len(
        every
    )  # some were not judged: they are neither the worst nor the best
    assert run.rollouts(worst=4)["reward"] == sorted(rewards)[:4]
    assert run.rollouts(best=4)["reward"] == sorted(rewards, reverse=True)[:4]
    assert len(run.rollouts(worst=1000)) == len(rewards)
    assert run.rollouts(step="last") == run.rollouts(step=3)
    assert set(run.rollouts(problem="p1")["problem_id"]) == {"p1"}
    assert run.rollouts(status="not_judged")["reward"] == [None] * (len(every) - len(rewards))
    least = run.rollouts(status="failed", worst=2)
    assert set(least["status"]) == {"failed"} and len(least) == 2


def test_among_equal_rewards_the_newest_come_first(run: LoadedRun, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        "assay.report.loaded.read_columns",
        lambda path, names: [{"step": int(path.stem[-6:]), "reward": 1.0}],
    )
    assert run.rollouts(worst=2, columns=["step"])["step"] == [3, 2]
    assert run.rollouts(best=2, columns=["step"])["step"] == [3, 2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"step": 9}, "found 9; accepted: a step from 1 to 3"),
        ({"worst": 1, "best": 1}, "accepted: one of them"),
        ({"columns": ["rewards"]}, "found 'rewards'; accepted: step, group"),
    ],
)
def test_impossible_rollout_queries_are_refused(
    run: LoadedRun, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        run.rollouts(**asked)


def test_a_damaged_file_of_rollouts_is_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    (folder / "rollouts" / "step-000001.parquet").write_bytes(b"PAR1")
    loaded = load_run(folder)
    assert len(loaded.rollouts(step=2))
    with pytest.raises(RunError, match=r"step-000001\.parquet: found a damaged file"):
        loaded.rollouts()


def test_a_run_without_rollouts_has_an_empty_table(tmp_path: Path) -> None:
    loaded = load_run(make_run(tmp_path, 0))
    assert len(loaded.rollouts()) == 0 and loaded.num_steps == 0
    with pytest.raises(RunError, match="no step"):
        loaded.rollouts(step="last")


def test_no_run_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        load_run(tmp_path)


def test_a_table_has_the_columns_of_all_its_rows() -> None:
    table = Table([{"step": 1}, {"step": 2, "kl": 0.5}])
    assert table.columns == ["step", "kl"]
    assert table["kl"] == [None, 0.5]
    assert table[1] == {"step": 2, "kl": 0.5} and table[:1] == [{"step": 1}]
    assert repr(table) == "Table of 2 rows: step, kl"
    with pytest.raises(DataError, match="found no column 'k1'; accepted: step, kl"):
        table["k1"]
    with pytest.raises(DataError, match="accepted: step, kl; did you mean step"):
        table["stpe"]
    with pytest.raises(DataError, match="no column 'k1'"):
        table["k1"]


def test_a_notebook_shows_a_table_whose_text_can_do_nothing() -> None:
    evil = "<script>alert(1)</script>\x1b[2J"
    page = Table([{"text": evil, "components": {"math": 1.0}}] * 30)._repr_html_()
    assert "<script>" not in page and "\x1b" not in page
    assert "&lt;script&gt;" in page and "math 1" in page
    assert page.count("<tr>") == 21 and "and 10 more rows" in page


def test_a_printed_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [
        {"step": n, "text": f"第{n} line\n\x1b[2J {'x' * 90}", "reward": 0.5} for n in range(30)
    ]
    table = Table([*rows[:5], {"step": 5, "facts": {"kind": "tree"}}, *rows[5:]])
    lines = str(table).splitlines()
    assert lines[0].split() == ["step", "text", "reward"]
    assert lines[1].startswith("0     第0 line \\u001b[2J x") and lines[1].endswith("…  0.5")
    assert max(map(cell_len, lines[:-1])) == 40 and lines[6].strip() == "5"
    assert len(lines) == 22 and lines[-1] == "(20 of 31 rows; 1 more columns: facts)"
    monkeypatch.setenv("COLUMNS", "200")
    assert "kind tree" in str(table) and f"{'x' * 90}  0.5" in str(table)
    assert str(Table([])) == "(0 rows)" and "kind tree" in table._repr_html_()


def test_a_table_becomes_a_data_frame() -> None:
    table = Table([{"step": 1}, {"step": 2, "kl": 0.5}])
    try:
        import pandas  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError:
        with pytest.raises(MissingExtra, match="notebook"):
            table.to_pandas()
        return
    frame = table.to_pandas()
    assert list(frame.columns) == ["step", "kl"] and frame["kl"].isna().tolist() == [True, False]
