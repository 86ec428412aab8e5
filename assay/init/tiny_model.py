"""The tiny model of `assay init` and the recipes, which trains on a CPU within minutes."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from assay.model.load import silence_transformers


def make_model(
    folder: Path, seed: int, max_positions: int = 128, hidden_size: int = 128, num_layers: int = 4
) -> Path:
    """Save a new Llama, by default of 0.7M parameters, with a byte tokenizer; return the folder."""

    from assay.testing import byte_tokenizer

    config = LlamaConfig(
        # The vocabulary has 256 bytes and 3 special tokens.
        vocab_size=259,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        max_position_embeddings=max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=257,
    )
    torch.manual_seed(seed)
    silence_transformers()
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
