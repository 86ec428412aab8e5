from typing import Any

import pytest
import torch

import assay.model.decoder as decoder
import assay.model.operations as operations
from assay.config import LoraConfig
from assay.errors import ModelError
from assay.model.load import add_adapter
from assay.model.probe import check_head, measure_difference, probe_layouts
from assay.testing import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")


def a_model(**sizes: Any) -> Any:
    return tiny_model(**{"hidden_size": 16, **sizes})


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_long_prompt_is_shared(family: str, dtype: torch.dtype) -> None:
    model = a_model(family=family).to(dtype)
    choice = probe_layouts(model, prompt_length=60, completion_length=40, group_size=8)
    assert choice.layout == "tree"
    assert choice.max_difference < (1e-5 if dtype == torch.float32 else 0.25)
    assert (choice.tree_tokens, choice.plain_tokens) == (60 + 8 * 40, 8 * 100)
    assert choice.seconds > 0


def test_the_choice_depends_on_the_shape() -> None:
    model = a_model()
    assert probe_layouts(model, 60, 40, group_size=1).layout == "plain"
    assert probe_layouts(model, 2, 400, group_size=8).layout == "plain"
    assert probe_layouts(model, 12, 35, group_size=8).layout == "tree"


def test_a_layout_can_be_forced() -> None:
    for layout in ("tree", "plain"):
        choice = probe_layouts(a_model(), 60, 40, 8, layout=layout)
        assert choice.layout == layout and choice.reason == f"{layout}, chosen beforehand"


def test_adapters_are_no_obstacle() -> None:
    model = add_adapter(a_model(), LoraConfig(rank=2), seed=0)
    assert probe_layouts(model, 60, 40, 8).layout == "tree"


def test_a_model_that_ignores_positions_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = decoder._options

    def without_positions(*arguments: Any) -> dict[str, Any]:
        options = original(*arguments)
        if "position_ids" in options:
            options["position_ids"] = torch.zeros_like(options["position_ids"])
        return options

    monkeypatch.setattr(decoder, "_options", without_positions)
    choice = probe_layouts(a_model(family="gpt2"), 60, 40, 8)
    assert choice.layout == "plain"
    assert "differ from plain ones" in choice.reason and choice.max_difference > 1e-2


def test_a_model_that_knows_no_cache_falls_back() -> None:
    model = a_model()
    original = model.model.forward

    def without_cache(past_key_values: Any = None, **inputs: Any) -> Any:
        if past_key_values is not None:
            raise TypeError("unexpected keyword argument")
        return original(**inputs)

    model.model.forward = without_cache
    assert measure_difference(model) == float("inf")
    choice = probe_layouts(model, 60, 40, 8)
    assert choice.layout == "plain" and "cannot be computed" in choice.reason


def test_not_a_number_is_no_proof() -> None:
    model = a_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    assert measure_difference(model) == float("inf")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"sliding_window": 64}, "a window of 64 tokens"),
    ],
)
def test_a_window_that_a_short_text_would_not_show(settings: Any, reason: str) -> None:
    model = a_model()
    for key, value in settings.items():
        setattr(model.config, key, value)
    choice = probe_layouts(model, 60, 40, 8)
    assert choice.layout == "plain" and reason in choice.reason


def test_a_lean_way_that_is_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    assert probe_layouts(model, 60, 40, 8).lean

    def half(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return attend(q, k, v, *rest) / 2

    attend = operations.attend
    monkeypatch.setattr(operations, "attend", half)
    choice = probe_layouts(model, 60, 40, 8)
    assert not choice.lean and "the lean way differs by" in choice.reason
    assert choice.layout == "tree" and choice.max_difference < 1e-5  # through the modules


def test_an_unused_window_is_none() -> None:
    model = a_model(family="qwen2")  # states a window, and that it is not used
    model.config.sliding_window = 64
    assert model.config.use_sliding_window is False
    assert probe_layouts(model, 60, 40, 8).layout == "tree"


def test_logits_that_are_not_the_heads_are_refused() -> None:
    model = a_model()
    original = model.forward

    def scaled(**inputs: Any) -> Any:
        output = original(**inputs)
        output.logits = 2 * output.logits
        return output

    check_head(model)
    model.forward = scaled
    with pytest.raises(ModelError, match="nats from its own logits"):
        probe_layouts(model, 60, 40, 8)
