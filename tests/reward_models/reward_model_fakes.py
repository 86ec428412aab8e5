"""Tiny reward models: random ones, and ones whose scores are known exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from assay.testing import CHAT_TEMPLATE, byte_tokenizer

CONTROL = ["<|user|>", "<|assistant|>", "<|end|>"]
VOCAB = 262


def tokenizer(chat: bool = True) -> Any:
    """Bytes, and a chat template whose marks are special tokens."""
    made = byte_tokenizer(CHAT_TEMPLATE if chat else None)
    made.add_special_tokens({"additional_special_tokens": CONTROL})
    return made


def model(kind: str, seed: int = 0, labels: int = 1, **settings: Any) -> Any:
    """A random decoder with a head: ``sequence``, ``token`` or ``causal``."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        num_labels=labels,
        bos_token_id=None,
        eos_token_id=257,
        **{"vocab_size": VOCAB, "pad_token_id": None, **settings},
    )
    family = {
        "sequence": transformers.LlamaForSequenceClassification,
        "token": transformers.LlamaForTokenClassification,
        "causal": transformers.LlamaForCausalLM,
    }[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = family(config)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0.0, 0.3)
    return made.eval()


def looks_at_one_token(made: Any) -> Any:
    """Silence the layers, so that each position's logits depend on its own token alone."""
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return made


def hidden_of(made: Any, token: int) -> torch.Tensor:
    """What the head of such a model sees at a token."""
    with torch.no_grad():
        return made.model.norm(made.model.embed_tokens.weight[token])


def save(folder: Path, made: Any, chat: bool = True) -> str:
    made.save_pretrained(folder)
    tokenizer(chat).save_pretrained(folder)
    return str(folder)
