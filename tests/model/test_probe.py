import copy
from typing import Any

import pytest
import torch

import assay.model.decoder as decoder
import assay.model.operations as operations
from assay.config import LoraConfig
from assay.errors import ModelError
from assay.model.load import add_adapter
from assay.model.probe import Probe, measure_difference, probe_layouts, prove_lean
from assay.model.widened import in_float32
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


def test_the_probe_accepts_the_tree_layout_under_adapters() -> None:
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
    assert not choice.lean and "the lean path is off by" in choice.reason
    assert choice.layout == "tree" and choice.max_difference < 1e-5  # through the modules


def test_rounding_that_the_modules_share_is_no_reason_against_the_lean_way() -> None:
    """On noise large logits move by more than a quarter nat where they are rounded."""
    model = a_model(num_layers=8).bfloat16()
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    assert prove_lean(model) == (True, "")


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_lean_way_that_is_less_exact_is_not_taken_in_bfloat16(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = a_model(family=family).bfloat16()
    assert prove_lean(model) == (True, "")

    def off(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        return attend(q, k, v, *rest) * 0.7

    attend = operations.attend
    monkeypatch.setattr(operations, "attend", off)
    lean, note = prove_lean(model)
    assert not lean and "the lean path is off by" in note
    assert "KiB of activations a token and layer, not" in note


def test_a_narrow_type_is_probed_on_text_that_the_model_finds_likely() -> None:
    model = a_model().bfloat16()
    prompts = [[5, 6, 7, 8, 9], [11, 12, 13, 14, 15, 16]]
    batch = Probe(model, prompts).batch
    assert [one.tolist() for one in batch.prompts] == [[5, 6, 7, 8, 9], [14, 15]]
    row = torch.tensor([prompts[0] + batch.tokens_T[:9].tolist()])
    assert row[0, 5:].tolist() == model(input_ids=row).logits[0, 4:-1].argmax(-1).tolist()


def test_a_model_computes_in_float32_and_is_as_it_was() -> None:
    model = a_model().bfloat16()
    before = {name: (one, one.data) for name, one in model.named_parameters()}
    wide = copy.deepcopy(model).float()
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        want = wide(input_ids=tokens).logits
        with in_float32(model):
            got = model(input_ids=tokens).logits
        with pytest.raises(IndexError), in_float32(model):
            model(input_ids=tokens + 10**6)
    assert torch.equal(got, want)
    for name, one in model.named_parameters():
        assert one is before[name][0] and one.data_ptr() == before[name][1].data_ptr()
    assert model(input_ids=tokens).logits.dtype == torch.bfloat16


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

    Probe(model).check_head()
    model.forward = scaled
    with pytest.raises(ModelError, match="nats from its own logits"):
        probe_layouts(model, 60, 40, 8)
