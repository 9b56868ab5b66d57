"""Writes docs/guide/memory.json: what training real models needs, by the arithmetic of worker/hone_worker/memory_plan.py. `npm run docs
-- --memory` runs it. `npm run docs` makes the table of docs/guide/one-gpu.md of it."""

import json
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "worker")]

from hone_worker.memory_plan import Training, measure  # noqa: E402
from transformers import AutoConfig, PreTrainedConfig  # noqa: E402

FILE = ROOT / "docs" / "guide" / "memory.json"
QWEN2 = dict(vocab_size=151936, max_position_embeddings=32768)
QWEN3 = dict(vocab_size=151936, max_position_embeddings=40960, head_dim=128, num_key_value_heads=8)
MODELS: dict[str, tuple[str, dict]] = {
    "Qwen2.5-1.5B": (
        "qwen2",
        QWEN2
        | dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12)
        | dict(num_key_value_heads=2, tie_word_embeddings=True),
    ),
    "Qwen3-4B": (
        "qwen3",
        QWEN3
        | dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32)
        | dict(tie_word_embeddings=True),
    ),
    "Qwen2.5-7B": (
        "qwen2",
        QWEN2
        | dict(vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28)
        | dict(num_attention_heads=28, num_key_value_heads=4, tie_word_embeddings=False),
    ),
}
LORA = {"kind": "lora", "rank": 16, "alpha": 32, "targets": ["attn", "mlp"], "seed": 1}
FULL = {"kind": "full"}
CASES = [(LORA, "adamw", 4096), (LORA, "adamw", 16384), (FULL, "adamw", 4096), (FULL, "adamw_8bit", 4096)]


def config_of(name: str) -> PreTrainedConfig:
    kind, sizes = MODELS[name]
    return AutoConfig.for_model(kind, **sizes)


def row(name: str, adapter: dict, optimizer: str, tokens: int) -> dict:
    """The bytes of each way to train it on an NVIDIA GPU in bfloat16, from fast to lean."""
    ways = []
    for checkpointing in (False, True):
        for merged in (True, False) if adapter is LORA else (True,):
            training = Training(adapter, tokens, torch.bfloat16, "cuda", checkpointing, merged, optimizer=optimizer)
            needed = measure(config_of(name), training).needed
            ways.append({"recomputes": checkpointing, "merged": merged, "needed": needed})
    return {"model": name, "trains": adapter["kind"], "optimizer": optimizer, "tokens": tokens, "ways": ways}


if __name__ == "__main__":
    rows = [row(name, *case) for name in MODELS for case in CASES]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
