"""Tiny random models of several architectures, as folders. Their weights are large enough that a wrong mask
or position shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from make_tiny_model import make_tokenizer

VOCABULARY = 259
_SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    initializer_range=0.4,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
_GROUPED = dict(_SIZES, num_key_value_heads=2)

CONFIGURATIONS: dict[str, Callable[[], hf.PreTrainedConfig]] = {
    "llama": lambda: hf.LlamaConfig(**_GROUPED),
    "qwen2-window": lambda: hf.Qwen2Config(
        **{**_GROUPED, "num_hidden_layers": 3}, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "gemma2": lambda: hf.Gemma2Config(
        **_GROUPED,
        head_dim=8,
        sliding_window=6,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=8.0,
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**_GROUPED, head_dim=8, sliding_window=6, query_pre_attn_scalar=8),
    "gpt-oss": lambda: hf.GptOssConfig(
        **_GROUPED,
        head_dim=8,
        sliding_window=6,
        num_local_experts=4,
        num_experts_per_tok=2,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**_SIZES),
    "deepseek-v3": lambda: hf.DeepseekV3Config(
        **_SIZES,
        num_key_value_heads=4,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=4,
        v_head_dim=6,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        moe_intermediate_size=16,
        n_shared_experts=1,
    ),
    "bloom": lambda: hf.BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.4, eos_token_id=2
    ),
    "mamba": lambda: hf.MambaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        initializer_range=0.4,
        eos_token_id=2,
        pad_token_id=0,
        bos_token_id=1,
    ),
}


def make_folder(directory: Path, name: str) -> Path:
    """A complete model folder with a byte-level tokenizer."""
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(CONFIGURATIONS[name](), dtype=torch.float32)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "sink" in parameter_name:
                parameter.normal_()
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory
