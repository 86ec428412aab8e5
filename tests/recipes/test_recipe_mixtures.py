"""The mixtures of the recipes: parts with verifiers of their own, and sets of known form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from assay.data.forms import FORMS
from assay.recipes.file import built_in, read_recipe

MIXED = ("r1", "qwen3", "kimi_k15", "tulu3")


def mixtures(name: str) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield (scale, stage, data table, parts) for each RL stage of a recipe, at every scale."""
    for scale in read_recipe(built_in()[name]).scales:
        for stage in read_recipe(built_in()[name], scale).stages.values():
            if stage.kind == "training" and "rl" in stage.tree:
                data = stage.tree["data"]
                yield scale, stage.name, data, data["mixture"]


@pytest.mark.parametrize("name", MIXED)
def test_every_rl_stage_trains_on_a_mixture_judged_by_several_verifiers(name: str) -> None:
    found = list(mixtures(name))
    assert found
    for scale, stage, data, parts in found:
        trained = {key: part for key, part in parts.items() if part.get("weight", 1.0)}
        assert len(trained) >= 2 and all(part["train"] for part in trained.values()), (scale, stage)
        assert all(part["heldout"] for key, part in parts.items() if key != "general"), (
            scale,
            stage,
        )
        if scale == "tiny":
            names = {part.get("verifier", data["verifier"]) for part in trained.values()}
            assert len(names) >= 2


@pytest.mark.parametrize("name", ["r1", "kimi_k15", "tulu3"])
def test_the_unseen_part_is_never_trained_on(name: str) -> None:
    for scale, stage, _, parts in mixtures(name):
        unseen = parts["unseen"]
        assert unseen["weight"] == 0.0 and not unseen.get("train"), (scale, stage)
        trained = {source for part in parts.values() for source in part.get("train", ())}
        assert not trained & {*unseen["heldout"]}


@pytest.mark.parametrize("name", MIXED)
def test_hub_sets_of_a_mixture_have_a_published_form(name: str) -> None:
    """A reader of the set's form then checks the fields of each row."""
    listed = [
        name for form in FORMS for text, _ in form.sets for name in re.split(", | and ", text)
    ]
    known = {name.rpartition("/")[2].casefold() for name in listed}
    for scale, stage, _, parts in mixtures(name):
        for part in parts.values():
            for source in (*part.get("train", ()), *part.get("heldout", ())):
                if source.startswith("hf:"):
                    title = source.removeprefix("hf:").partition("?")[0].partition("/")[2]
                    own = ALIASES.get(title) or title
                    assert own.casefold() in known, (scale, stage, source)


ALIASES = {
    "ai2_arc/ARC-Challenge": "ARC",
    "ai2_arc/ARC-Easy": "ARC",
    "gsm8k/main": "GSM8K",
    "gpqa/gpqa_diamond": "GPQA",
    "mbpp/sanitized": "MBPP sanitized",
    "mbppplus": "MBPP+",
}
"""Names of the table of forms for sets whose hub name is another."""
