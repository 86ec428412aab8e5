"""Families of causal models in Transformers, with the sizes of a tiny random model of each.

Every family trains: it is sampled by a verified path, and its learner's log-probabilities are its own.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

EOS = 257
SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SLIDING = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}

# The changes to `SIZES`, and the path that samples.
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "llama": ({}, "lean"),
    "mistral": ({"sliding_window": None}, "lean"),
    "qwen2": ({}, "lean"),
    "qwen3": ({}, "lean"),
    "qwen3_moe": (EXPERTS, "module"),
    "qwen2_moe": ({**EXPERTS, "shared_expert_intermediate_size": 16}, "module"),
    "mixtral": ({"num_local_experts": 4, "num_experts_per_tok": 2}, "module"),
    "gemma": ({}, "module"),
    "gemma2": ({"query_pre_attn_scalar": 8, **SLIDING}, "module"),
    "gemma3_text": ({"query_pre_attn_scalar": 8, **SLIDING}, "module"),
    "phi3": ({}, "module"),
    "olmo2": ({}, "module"),
    "smollm3": ({}, "module"),
    "granite": ({}, "module"),
    "gpt_neox": ({}, "module"),
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}, "module"),
    "glm4": ({}, "module"),
    "glm4_moe": (
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
        "module",
    ),
    "deepseek_v3": (
        {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        "module with its own attention",
    ),
    "cohere2": (SLIDING, "module"),
    "nemotron": ({}, "module"),
    "lfm2": ({"layer_types": ["conv", "full_attention"], "block_ff_dim": 64}, "any"),
    "hunyuan_v1_dense": ({}, "module"),
    "ernie4_5": ({}, "module"),
    "opt": ({"ffn_dim": 64, "word_embed_proj_dim": 32}, "module"),
    "gpt_oss": ({"num_local_experts": 4, "num_experts_per_tok": 2, **SLIDING}, "module"),
    "qwen3_next": (
        {
            **EXPERTS,
            "num_hidden_layers": 4,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 16,
        },
        "the model's own cache",
    ),
    "falcon_h1": (
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_d_state": 8,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 16,
        },
        "the model's own cache",
    ),
    "mamba": ({"state_size": 8, "expand": 2}, "the model's own cache"),
    "mamba2": (
        {
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "expand": 2,
            "n_groups": 1,
            "chunk_size": 16,
        },
        "the model's own cache",
    ),
    "llama4_text": (
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 24,
        },
        "the model's own cache",
    ),
    "bloom": ({"n_layer": 2, "n_head": 4}, "the model's own cache"),
}


def family_model(name: str) -> Any:
    """Return a tiny random float32 model of a family, in eval mode."""
    changes, _ = FAMILIES[name]
    sizes = {**SIZES, **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(name, **sizes)
        # what `read_model` chooses for Gemma 2 with every release of Transformers
        eager = {"attn_implementation": "eager"} if name == "gemma2" else {}
        model = AutoModelForCausalLM.from_config(config, **eager).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:  # so that next-token distributions differ
                    parameter.normal_(0.0, 0.2)
    return model
