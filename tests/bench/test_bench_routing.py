"""The bench of routing: what its rows say of what was found."""

from typing import Any

import pytest

from bench.routing import RULES, draw, row_of


def row(right: bool, model: str, tokens: int) -> dict[str, Any]:
    return {"right": right, "model": model, "tokens": tokens}


SINGLE = {
    "cheap": [row(True, "cheap", 2), row(False, "cheap", 2), row(False, "cheap", 3)],
    "strong": [row(True, "strong", 10), row(True, "strong", 20), row(False, "strong", 30)],
}
ROUTED = [row(True, "cheap", 2), row(True, "strong", 22), row(False, "strong", 33)]


def test_a_row_compares_problem_by_problem() -> None:
    found = row_of("confidence 0.1", ROUTED, SINGLE)
    assert found["by_strong"] == pytest.approx(2 / 3)
    assert found["right"] == pytest.approx((2 / 3, 1 / 3))
    assert found["tokens"][0] == pytest.approx(19)
    assert found["right_over_strong"] == (0.0, 0.0), "each problem ended alike"
    assert found["right_over_cheap"] == pytest.approx((1 / 3, 1 / 3))
    assert found["tokens_over_strong"][0] == pytest.approx(-1.0)


def test_the_figure_names_each_rule(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    rows = [row_of(name, SINGLE[name], SINGLE) for name in SINGLE]
    rows += [row_of(f"{rule} 1", ROUTED, SINGLE) for rule in RULES]
    draw(rows, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert all(f">{name}<" in drawn for name in (*SINGLE, *RULES))
