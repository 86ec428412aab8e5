"""A model read from a folder computes what its configuration says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2PreTrainedModel

from assay.model.sources import ModelSource, read_model

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_bound_on_attention_scores_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "head_dim": 8}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Gemma2Config(**sizes, **heads, query_pre_attn_scalar=8, attn_logit_softcapping=1e-3)
    # Transformers 5.17 says that SDPA supports it; later releases do not.
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    model.save_pretrained(tmp_path)
    loaded = read_model(ModelSource.find(str(tmp_path)), torch.float32)
    tokens = torch.arange(24)[None]
    with torch.no_grad():
        expected, found = model(tokens).logits, loaded(tokens).logits
    assert torch.allclose(found, expected, atol=1e-5)
