"""What is made of the figures of two sides."""

from __future__ import annotations

from typing import Any

import pytest

from bench.flops import ModelShape, Work, forward_flops, generation_bytes, update_flops
from bench.generation import as_text as generation_text
from bench.processes import Finished
from bench.side import Side, Spread, check_same_prompts, comparison_table, ratios, table
from bench.vs_trl import as_text

SHAPE = ModelShape(1, 4, 8, 2, 1, 2, 10)


def written(step: float, generation: float) -> dict[str, Any]:
    """A step of four tokens as a side writes it."""
    return {
        "step_seconds": step,
        "generation_seconds": generation,
        "prompts": [3],
        "completions": [[1, 3]],
    }


def side(name: str, *seconds: tuple[float, float], peak: float = 100.0) -> Side:
    """A side whose first step, the warm-up, took very long."""
    one = Side(name)
    steps = [written(1000.0, 900.0), *(written(*pair) for pair in seconds)]
    facts = {"parameters": "bfloat16", "optimizer": "float32", "master": "float32"}
    one.add(
        {"steps": steps, "dtypes": facts, "versions": {"torch": "2.0"}}, Finished(9.0, peak, 28.0)
    )
    return one


def test_the_first_step_is_left_out() -> None:
    one = side("Assay", (4.0, 1.0), (8.0, 2.0), (5.0, 1.5))
    assert one.seconds("step") == Spread(5.0, 4.0, 8.0)
    assert one.seconds("generation") == Spread(1.5, 1.0, 2.0)
    assert one.seconds("update") == Spread(3.5, 3.0, 6.0)
    assert one.tokens_per_second("step").median == 4 / 5.0
    assert one.mean_length == 2.0


def test_the_peak_is_the_worst_run_with_all_of_its_processes() -> None:
    one = side("Assay", (4.0, 1.0), peak=100.0)
    one.add({"steps": [written(1.0, 0.5)] * 2, "dtypes": {}, "versions": {}}, Finished(1, 50, 0))
    assert one.peak_mib == 128.0


def test_ratios_are_of_tokens_a_second() -> None:
    ours, theirs = side("Assay", (2.0, 1.0), peak=72.0), side("TRL", (10.0, 4.0), peak=172.0)
    found = ratios(ours, theirs)
    assert found == pytest.approx({"generation": 4.0, "update": 6.0, "step": 5.0, "memory": 0.5})


def test_shares_of_the_limits() -> None:
    one = side("Assay", (3.0, 1.0))
    work = Work.of([3], [[1, 3]])
    assert one.update_share(SHAPE, 1e6) == pytest.approx(update_flops(SHAPE, work) / 2.0 / 1e6)
    shares = one.generation_shares(SHAPE, 1e6, 1e5, "float32")
    moved = generation_bytes(SHAPE, work, "float32")
    assert shares["generation_of_bandwidth"] == pytest.approx(moved / 1.0 / 1e5)
    assert shares["generation_of_products"] == pytest.approx(forward_flops(SHAPE, work) / 1e6)


def test_prompts_must_be_the_same() -> None:
    ours, theirs = side("Assay", (2.0, 1.0)), side("TRL", (2.0, 1.0))
    check_same_prompts([ours, theirs])
    other = Side("TRL")
    steps = [written(1.0, 0.5) | {"prompts": [4]}] * 2
    other.add({"steps": steps, "dtypes": {}, "versions": {}}, Finished(1.0, 1.0, 0.0))
    with pytest.raises(RuntimeError, match=r"different prompts.*'Assay': \[3\].*'TRL': \[4\]"):
        check_same_prompts([ours, other])


def test_the_table_shows_every_side_and_compares_with_the_faster() -> None:
    ours = side("Assay", (2.0, 1.0), peak=72.0)
    slow, fast = side("TRL 8", (20.0, 4.0)), side("TRL 16", (10.0, 4.0), peak=172.0)
    lines = comparison_table(ours, [slow, fast], fast).splitlines()
    assert lines[0].split("  ")[-1] == "vs TRL 16"
    rows = {line[:20].strip(): line[20:].split() for line in lines[1:]}
    assert rows["step, s"] == [
        "2.00",
        "(2.00-2.00)",
        "20.00",
        "(20.00-20.00)",
        "10.00",
        "(10.00-10.00)",
    ]
    assert rows["step, tokens/s"] == ["2", "0", "0", "5.00x"]
    assert rows["peak resident, MiB"] == ["100", "128", "200", "0.50x"]


def test_a_table_is_lined_up() -> None:
    assert table([["", "a"], ["name", "10"]]) == "       a\nname  10"


def report(**more: Any) -> dict[str, Any]:
    """What both reports hold beside their own."""
    return {
        "workload": "gsm8k: model in bfloat16",
        "table": "THE TABLE",
        "machine": {"threads": 2, "product_flops": {"bfloat16": 8e11}, "bandwidth": 4.3e10},
        "hardware": "a processor",
        "date": "2026-11-21T16:00+00:00",
        "code": "0123abc",
        "load_before": 0.1,
        "load_after": 2.0,
        **more,
    }


def test_the_report_names_types_versions_limits_and_load() -> None:
    one = side("Assay", (2.0, 1.0))
    shares = {"update_of_products": 0.5, "generation_of_products": 0.25}
    shares["generation_of_bandwidth"] = 0.125
    text = as_text(report(sides=[one.as_dict()], shares_of_limits={"Assay": shares}))
    assert "THE TABLE" in text
    held = "parameters bfloat16, master weights float32, optimizer state float32; torch 2.0"
    assert f"Assay: {held}" in text
    assert "update 50.0% of the product rate" in text
    assert "12.5% of the memory bandwidth" in text
    assert "with 2 threads: matrix products bfloat16 800 GFLOP/s; memory 43.0 GB/s" in text
    assert "load 0.1 before, 2.0 after" in text


def test_the_report_on_generation_says_how_lengths_came_about() -> None:
    one = side("Assay", (2.0, 2.0)).as_dict(("generation",))
    shares = {"generation_of_products": 0.25, "generation_of_bandwidth": 0.125}
    text = generation_text(
        report(sides=[one], shares_of_limits={"Assay": shares}, lengths="all forced to the limit")
    )
    assert "lengths all forced to the limit" in text
    assert "Assay (torch 2.0): 25.0% of the product rate, 12.5% of the memory bandwidth" in text
