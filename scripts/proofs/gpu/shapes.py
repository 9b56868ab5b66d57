"""Randomly initialized models in the shape of real ones, made on the device without files."""

import os
from pathlib import Path
from tempfile import mkdtemp

import torch
from hone_worker.models import plain_model
from hone_worker.models.model import LanguageModel
from hone_worker.models.plain_model import find_source
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

_COMMON = dict(vocab_size=151936, head_dim=128, num_key_value_heads=8, max_position_embeddings=131072, rope_theta=1e6)
_SHAPES = {
    "Qwen3-0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    "Qwen3-4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
    "tiny": dict(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=512,
    ),
}


def config_of(name: str) -> PreTrainedConfig:
    return AutoConfig.for_model("qwen3", **{**_COMMON, **_SHAPES[name]}, tie_word_embeddings=True, eos_token_id=2)


def load_random(name: str, device: str, dtype: str, **options) -> LanguageModel:
    """A model with random weights. Its folder has only a configuration."""
    config, folder = config_of(name), Path(mkdtemp())
    config.save_pretrained(folder)

    def make(_directory, where, kind, **_):
        torch.manual_seed(0)
        inside = torch.device("cpu") if where.type == "simulated" else where
        with inside:
            model = AutoModelForCausalLM.from_config(config, dtype=kind)
        return model.to(where).eval().requires_grad_(False)

    plain_model.load_pretrained = make
    return LanguageModel(find_source(str(folder), name, cache_dir=folder, device=device, dtype=dtype, **options))


def device_name(small: bool) -> str:
    """Where the proof runs. The simulated device is installed first."""
    if not small:
        return "cuda"
    if os.environ.get("HONE_TEST_DEVICE") == "simulated":
        import simulated_device

        simulated_device.install()
        return "simulated"
    return "cpu"
