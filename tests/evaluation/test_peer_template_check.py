"""Chat templates of real models, where TRL is installed: what `assay model check-template` finds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from assay.evaluation.template_check.command import check_template
from assay.testing import byte_tokenizer

pytestmark = pytest.mark.peer

SPECIAL = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>"]
SPECIAL += ["<|END_OF_TURN_TOKEN|>", "<|END_RESPONSE|>", "<｜end▁of▁sentence｜>", "<|return|>"]
FOUND: dict[str, set[str]] = {
    "qwen2_5": set(),
    "qwen3": set(),
    "qwen3_instruct_2507": set(),
    "qwen3_5_think": set(),
    "llama3": set(),
    "llama3_1": set(),
    "gemma": set(),
    "gemma3": set(),
    "gemma4": set(),
    "phi3": set(),
    "cohere2": set(),
    "lfm2": set(),
    "nemotron_3_nano": set(),
    "deepseek_r1_distill": set(),
    # Replies that do not reason get a block in earlier turns that no policy has written.
    "glm4moe": {"prefix"},
    "gptoss": set(),
    "smolvlm": {"messages"},
}
"""The checks that fail for each template."""


@pytest.mark.parametrize("name", FOUND)
def test_templates_of_real_models(tmp_path: Path, name: str) -> None:
    spec = importlib.util.find_spec("trl")  # it is not imported
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("TRL is not installed")
    path = Path(spec.submodule_search_locations[0]) / "chat_templates" / f"{name}.jinja"
    tokenizer = byte_tokenizer(path.read_text(encoding="utf-8"))
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.save_pretrained(tmp_path)
    result = check_template(str(tmp_path))
    assert {one.name for one in result.checks if one.status == "failed"} == FOUND[name]
