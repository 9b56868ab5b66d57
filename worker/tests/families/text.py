"""Tiny random language models of each family, from transformers' own configuration classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import logging

VOCABULARY = 96
_SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    sliding_window=6,
    moe_intermediate_size=32,
    num_experts=4,
    num_local_experts=4,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_group=1,
    topk_group=1,
    n_shared_experts=1,
    first_k_dense_replace=1,
    kv_lora_rank=16,
    q_lora_rank=24,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    shared_expert_intermediate_size=32,
)
"""A configuration takes those of these that its class has."""

_NO_HEAD_DIM = ("head_dim",)
_SLIDING = ["sliding_attention", "full_attention"]
_LINEAR = ["linear_attention", "full_attention"]
_DELTA = dict(
    layer_types=["linear_attention", "linear_attention", "full_attention"],
    num_hidden_layers=3,
    linear_num_value_heads=4,
    linear_num_key_heads=2,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
)
_MAMBA2 = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=2, mamba_chunk_size=16)


@dataclass(frozen=True)
class Family:
    """One row of the table."""

    title: str
    """How people call the models."""
    kind: str
    """`model_type` in config.json."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Beyond the common sizes."""
    without: tuple[str, ...] = ()
    """Common sizes that the configuration does not accept."""


TEXT: tuple[Family, ...] = (
    Family("Llama 2 and 3", "llama"),
    Family("Llama 4", "llama4_text", dict(
        num_hidden_layers=4, intermediate_size_mlp=96, attention_chunk_size=256, num_experts_per_tok=1,
        layer_types=["chunked_attention"] * 3 + ["full_attention"], interleave_moe_layer_step=2)),
    Family("Qwen2 and Qwen2.5", "qwen2", dict(use_sliding_window=True, max_window_layers=1, tie_word_embeddings=True)),
    Family("Qwen2-MoE", "qwen2_moe"),
    Family("Qwen3", "qwen3"),
    Family("Qwen3-MoE and Qwen3-Coder", "qwen3_moe"),
    Family("Qwen3-Next", "qwen3_next", _DELTA),
    Family("Qwen3.5 to 3.8", "qwen3_5_text", _DELTA),
    Family("Qwen3.5-MoE to 3.8-MoE", "qwen3_5_moe_text", _DELTA),
    Family("Gemma", "gemma"),
    Family("Gemma 2", "gemma2", dict(query_pre_attn_scalar=16, attn_logit_softcapping=3.0, final_logit_softcapping=8.0)),
    Family("Gemma 3 (text)", "gemma3_text", dict(query_pre_attn_scalar=16, layer_types=_SLIDING)),
    Family("Gemma 3n (text)", "gemma3n_text", dict(
        layer_types=["sliding_attention", "full_attention"] * 2, num_hidden_layers=4, num_kv_shared_layers=2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, laurel_rank=8, intermediate_size=[96] * 4,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0], altup_num_inputs=2)),
    Family("Gemma 4 (text)", "gemma4_text", dict(
        layer_types=["sliding_attention", "full_attention"] * 2, num_hidden_layers=4, num_kv_shared_layers=2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, global_head_dim=32), _NO_HEAD_DIM),
    Family("VaultGemma", "vaultgemma", dict(query_pre_attn_scalar=16)),
    Family("gpt-oss", "gpt_oss"),
    Family("GLM-4 (9B)", "glm"),
    Family("GLM-4-0414", "glm4"),
    Family("GLM-4.5 to 4.7", "glm4_moe"),
    Family("GLM-4.7-Flash", "glm4_moe_lite", dict(num_key_value_heads=4)),
    Family("GLM-5", "glm_moe_dsa", dict(num_key_value_heads=4, index_topk=256, index_head_dim=16, index_n_heads=2)),
    Family("DeepSeek-V2", "deepseek_v2", dict(num_key_value_heads=4)),
    Family("DeepSeek-V3 and R1", "deepseek_v3", dict(num_key_value_heads=4), _NO_HEAD_DIM),
    Family("DeepSeek-V3.2", "deepseek_v32", dict(num_key_value_heads=4, index_topk=256, index_head_dim=16, index_n_heads=2)),
    Family("DeepSeek-V4", "deepseek_v4"),
    Family("Mistral", "mistral"),
    Family("Ministral", "ministral", dict(layer_types=_SLIDING)),
    Family("Ministral 3", "ministral3"),
    Family("Mixtral", "mixtral"),
    Family("Phi-1 and Phi-2", "phi"),
    Family("Phi-3 and Phi-4", "phi3"),
    Family("Phi-3.5-MoE", "phimoe", dict(sliding_window=256)),
    Family("OLMo", "olmo"),
    Family("OLMo 2", "olmo2"),
    Family("OLMo 3", "olmo3", dict(layer_types=_SLIDING)),
    Family("OLMo Hybrid", "olmo_hybrid", dict(_DELTA)),
    Family("OLMoE", "olmoe"),
    Family("FlexOlmo", "flex_olmo"),
    Family("Granite 3", "granite", dict(logits_scaling=4.0, residual_multiplier=0.5, embedding_multiplier=2.0)),
    Family("Granite 3 MoE", "granitemoe"),
    Family("Granite 4 (hybrid, MoE)", "granitemoehybrid", dict(
        _MAMBA2, layer_types=_LINEAR, shared_intermediate_size=32)),
    Family("LFM2", "lfm2", dict(layer_types=["conv", "full_attention"], block_ff_dim=96, block_multiple_of=8)),
    Family("LFM2-MoE", "lfm2_moe", dict(
        layer_types=["conv", "full_attention"], num_dense_layers=1)),
    Family("LFM3", "lfm3", dict(layer_types=["conv", "full_attention"])),
    Family("Nemotron", "nemotron"),
    Family("Nemotron-H, Nemotron 3", "nemotron_h", dict(
        num_hidden_layers=4, layers_block_type=["linear_attention", "mlp", "full_attention", "moe"],
        mamba_num_heads=8, mamba_head_dim=16, ssm_state_size=8, n_groups=2, chunk_size=16,
        moe_shared_expert_intermediate_size=32, moe_latent_size=None)),
    Family("SmolLM3", "smollm3", dict(num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0], layer_types=["full_attention"] * 4)),
    Family("Mamba", "mamba", dict(state_size=8, time_step_rank=4)),
    Family("Mamba 2 and Codestral Mamba", "mamba2", dict(num_heads=8, head_dim=16, state_size=8, n_groups=2, chunk_size=16)),
    Family("Falcon-Mamba", "falcon_mamba", dict(state_size=8, time_step_rank=4)),
    Family("Falcon", "falcon", dict(ffn_hidden_size=96, new_decoder_architecture=True, num_kv_heads=2), _NO_HEAD_DIM),
    Family("Falcon-H1", "falcon_h1", dict(_MAMBA2, mamba_d_ssm=128)),
    Family("Bamba", "bamba", dict(_MAMBA2, attn_layer_indices=[1])),
    Family("Jamba", "jamba", dict(
        attn_layer_offset=1, attn_layer_period=2, mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False)),
    Family("Zamba 2", "zamba2", dict(
        num_hidden_layers=3, layers_block_type=["linear_attention", "hybrid", "linear_attention"], attention_head_dim=32,
        mamba_d_state=8, mamba_headdim=16, n_mamba_heads=8, mamba_ngroups=1, chunk_size=16, num_mem_blocks=1)),
    Family("RecurrentGemma", "recurrent_gemma", dict(
        num_hidden_layers=3, lru_width=64, attention_window_size=6, block_types=["recurrent", "recurrent", "attention"])),
    Family("Cohere Command R", "cohere", dict(logit_scale=0.25)),
    Family("Cohere Command A, R7B", "cohere2", dict(logit_scale=0.25, layer_types=_SLIDING)),
    Family("StarCoder2", "starcoder2"),
    Family("ERNIE 4.5", "ernie4_5"),
    Family("ERNIE 4.5 MoE", "ernie4_5_moe"),
    Family("Hunyuan (dense)", "hunyuan_v1_dense"),
    Family("Hunyuan (MoE)", "hunyuan_v1_moe"),
    Family("Hunyuan 3", "hy_v3"),
    Family("MiniMax-Text-01, M1", "minimax", dict(layer_types=_LINEAR, block_size=16)),
    Family("MiniMax-M2", "minimax_m2"),
    Family("Kimi Linear", "kimi_linear", dict(
        num_hidden_layers=3, layer_types=["linear_attention", "linear_attention", "full_attention"], num_key_value_heads=4,
        linear_head_dim=16, linear_num_heads=4)),
    Family("Ling 2.5, Ring 2.5 (hybrid)", "bailing_hybrid", dict(num_key_value_heads=4, layer_types=_LINEAR)),
    Family("Seed-OSS", "seed_oss"),
    Family("MiMo-V2-Flash", "mimo_v2_flash"),
    Family("LongCat-Flash", "longcat_flash", dict(
        num_layers=1, ffn_hidden_size=96, expert_ffn_hidden_size=32, moe_topk=2, zero_expert_num=1, num_key_value_heads=4, head_dim=8), _NO_HEAD_DIM),
    Family("EXAONE 4", "exaone4", dict(layer_types=_SLIDING)),
    Family("Arcee", "arcee"),
    Family("AFMoE (Trinity)", "afmoe", dict(layer_types=_SLIDING)),
    Family("Apertus", "apertus"),
    Family("Helium", "helium"),
    Family("nanochat", "nanochat"),
    Family("Solar Open", "solar_open"),
    Family("dots.llm1", "dots1", dict(layer_types=_SLIDING)),
    Family("Code World Model", "cwm", dict(layer_types=_SLIDING)),
    Family("MiniCPM 3", "minicpm3", dict(num_key_value_heads=4, dim_model_base=16), _NO_HEAD_DIM),
    Family("StableLM", "stablelm"),
    Family("GPT-2", "gpt2"),
    Family("GPT-NeoX, Pythia", "gpt_neox"),
    Family("OPT", "opt", dict(ffn_dim=96, word_embed_proj_dim=64)),
    Family("BLOOM", "bloom"),
    Family("RWKV", "rwkv", dict(attention_hidden_size=64, context_length=256)),
)


def configuration(family: Family) -> hf.PreTrainedConfig:
    cls = CONFIG_MAPPING[family.kind]
    known = cls()
    sizes = {name: value for name, value in _SIZES.items() if name not in family.without and _has(known, name)}
    return cls(**{**sizes, **family.settings})


def _has(config: hf.PreTrainedConfig, name: str) -> bool:
    try:
        return hasattr(config, name)
    except Exception:  # noqa: BLE001 - attributes that differ by layer raise their own error
        return True


def build(family: Family, directory: Path, embedding: float = 1.0) -> Path:
    """A model folder with random weights that are large enough for a wrong mask, position or state to show.
    `embedding`: the standard deviation of embeddings. With 1, a model whose head is its embedding nearly always repeats tokens."""
    torch.manual_seed(sum(map(ord, family.kind)))
    model = hf.AutoModelForCausalLM.from_config(configuration(family), dtype=torch.float32)
    spread(model, embedding)
    folder = directory / family.kind
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def spread(model: torch.nn.Module, embedding: float = 1.0) -> None:
    """Gives matrices unit gain, and moves all vectors away from their defaults."""
    for name, weight in model.named_parameters():
        if name.endswith("dt_bias"):  # as in trained models: long steps lose precision in sums over a chunk
            weight.normal_(mean=-4, std=0.5)
        elif weight.ndim >= 2:
            weight.normal_(std=weight.shape[-1] ** -0.5 if "embed" not in name else embedding)
        else:
            weight.add_(torch.randn_like(weight) * 0.1)


def quiet() -> None:
    """Tiny models gain nothing from threads, and warnings are not about them."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
