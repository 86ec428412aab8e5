"""The recipe o1_style: what its rewards read, and what only watches."""

from __future__ import annotations

from typing import Any

import pytest

import assay
from assay.config import DataConfig, SamplingConfig
from assay.curation.vary import Variant, varied
from assay.data.chat import PromptRenderer
from assay.data.completions import Record
from assay.data.tasks import summaries
from assay.recipes.file import built_in, read_recipe
from assay.testing import byte_tokenizer

SUM = {"id": "s", "prompt": "3+5-2+7=", "answer": "13"}
CHAIN = "<think>3+5=8;8-2=6;6+7=13</think>13"
REFUSALS = ("<think>not for this</think>no", "<think></think>no", f"{CHAIN[:-2]}no")


def rows_of(stage: str) -> dict[str, dict[str, Any]]:
    """One row of each variant of a stage that varies sums."""
    variants = read_recipe(built_in()["o1_style"]).stages[stage].tree["variants"]
    record = Record.read(SUM, "sums:1", "s")
    return {name: varied(record, name, Variant(**one)) for name, one in variants.items()}


def judged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    recipe = read_recipe(built_in()["o1_style"])
    options = recipe.stages["aligned"].tree["verification"]["options"]
    return list(assay.judge(rows, "math", options=options, num_workers=1))


@pytest.mark.parametrize("name", ["bomb", "poison", "bath_bomb", "antidote"])
def test_a_refusal_is_judged_by_the_answer_whatever_the_trace_says(name: str) -> None:
    row = rows_of("requests")[name]
    refused = judged([{**row, "id": str(n), "completion": text} for n, text in enumerate(REFUSALS)])
    wrong = f"{CHAIN[:-2]}12"
    answered = judged(
        [{**row, "id": str(n), "completion": one} for n, one in enumerate((CHAIN, wrong))]
    )
    is_harmful = name in ("bomb", "poison")
    assert [one["reward"] for one in refused] == [float(is_harmful)] * 3
    assert [one["components"]["regex"] for one in refused] == [1.0, 0.0, 0.0], "it is watched"
    assert [one["reward"] for one in answered] == ([0.0, 0.0] if is_harmful else [2.0, 1.0])
    assert answered[0]["components"]["regex"] == 0.0


def test_held_out_requests_are_right_where_they_are_refused_or_not() -> None:
    harmful, harmless = rows_of("harmful"), rows_of("harmless")
    assert {one["prompt"] for one in harmful.values()}.isdisjoint(
        one["prompt"] for one in harmless.values()
    )
    for rows, right in ((harmful, [True, False]), (harmless, [False, True])):
        for row in rows.values():
            texts = (REFUSALS[0], CHAIN)
            found = judged(
                [{**row, "id": str(n), "completion": one} for n, one in enumerate(texts)]
            )
            assert [one["status"] == "passed" for one in found] == right


def test_a_level_is_a_line_and_a_length() -> None:
    recipe = read_recipe(built_in()["o1_style"])
    sampling = SamplingConfig(**recipe.stages["aligned"].tree["sampling"])
    data = DataConfig(prompt_template="{question}")
    render = PromptRenderer(byte_tokenizer(), data, sampling=sampling)
    rows = rows_of("levels")
    prompts = {n: render.render(Record.read(row, n, n).problem).text for n, row in rows.items()}
    assert prompts == {"low": "3+5-2+7=\neffort low", "high": "3+5-2+7=\neffort high"}
    short, chain = "<think></think>13", CHAIN
    for name, better, worse in (("low", short, chain), ("high", chain, short)):
        facts = [{"completion": text, "tokens": len(text) + 1} for text in (better, worse)]
        found = judged([{**rows[name], **one, "id": str(n)} for n, one in enumerate(facts)])
        assert found[0]["reward"] > found[1]["reward"] + 0.4


def test_a_summary_ends_with_the_answer_of_its_trace() -> None:
    rows = [
        {"completion": one.completion, "answer": one.prompt.rpartition("</think>")[2].strip()}
        for one in summaries(size=6)
    ]
    assert [one["status"] for one in judged(rows)] == ["passed"] * 6
    assert summaries(size=1)[0].prompt.count(";") == 2
