"""Tiny random models in the forms that the worker meets, and transformers' own answers to compare with."""

import os
from pathlib import Path

import numpy as np
import torch
from hone_worker.models.model import LanguageModel, load_model
from hone_worker.training.sequences import Sequences
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)  # at these sizes threads only wait for each other

DEVICE = os.environ.get("HONE_TEST_DEVICE", "cpu")
# Worker processes do not have the simulated device.
WORKER_DEVICE = "cpu" if DEVICE == "simulated" else DEVICE
VOCABULARY = 96
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,
}
CONFIGS: dict[str, dict] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "qwen3": {"head_dim": 16},
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 6,
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 6,
        "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gpt_neox": {},
    "phi3": {"sliding_window": 6},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 6},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba": {"state_size": 8, "time_step_rank": 4},
}


def build(kind: str, directory: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Saves a tiny random model of the kind and gives its folder."""
    torch.manual_seed(sum(map(ord, kind)))
    settings = {**_SMALL, **CONFIGS[kind]}
    if kind == "mamba":  # its rest cannot do without these as they are
        settings = {k: v for k, v in settings.items() if k != "initializer_range"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=dtype)
    for name, weight in model.named_parameters():
        if "sinks" in name or name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.5)
    folder = directory / kind
    model.save_pretrained(folder)
    return folder


def load(folder: Path, **options) -> LanguageModel:
    return load_model(
        str(folder), "tiny", cache_dir=folder.parent, device=DEVICE, **{"dtype": "float32", **options}
    )


def reference(folder: Path):
    """The same model, by transformers alone."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=_eager(folder)
    ).eval()


def _eager(folder: Path) -> str | None:
    return None if folder.name == "mamba" else "eager"


def reference_outputs(model, sequences: Sequences) -> dict[str, Tensor]:
    """Log-probabilities, entropies and concentrations `[N]`, sequence by sequence, with autograd's graph."""
    logprobs, entropies, concentrations = [], [], []
    for s in range(len(sequences)):
        ids = torch.from_numpy(sequences.ids(s).astype(np.int64))
        places = torch.from_numpy(sequences.places(s))
        log_p = model(input_ids=ids[None], use_cache=False).logits[0].float().log_softmax(-1)[places]
        logprobs.append(log_p.gather(1, ids[places + 1, None])[:, 0])
        entropies.append(-(log_p.exp() * log_p).sum(-1))
        concentrations.append(log_p.exp().square().sum(-1))
    return {
        "logprobs": torch.cat(logprobs),
        "entropy": torch.cat(entropies),
        "concentration": torch.cat(concentrations),
    }


def sequences_of(items: list[tuple[list[int], list[int]]]) -> Sequences:
    """(tokens, flags) of each sequence; a sequence of L tokens has L - 1 flags."""
    offsets = np.cumsum([0, *(len(tokens) for tokens, _ in items)])
    tokens = np.array([t for tokens, _ in items for t in tokens], np.int32)
    return Sequences(tokens, offsets, np.array([f for _, flags in items for f in flags], np.uint8))


def sample_sequences(seed: int = 0) -> Sequences:
    """Shared prompts, a lone one, gaps in the flags, an answer of one token, and a sequence without
    outputs."""
    g = np.random.default_rng(seed)

    def draw(n: int) -> list[int]:
        return g.integers(3, VOCABULARY, n).tolist()

    first, second = draw(7), draw(4)
    items = [(first + draw(n), [0] * 6 + [1] * n) for n in (5, 1, 8)]
    items += [(second + draw(9), [0] * 3 + [1, 1, 0, 0, 0, 1, 1, 0, 0])]
    items += [(draw(6), [0] * 5)]
    items += [
        (first + draw(3), [0] * 6 + [1] * 3),
        (second + draw(3), [0] * 3 + [1, 0, 1]),
        (draw(5), [1] * 4),
    ]
    return sequences_of(items)


def weighing(sequences: Sequences, weights: dict[str, Tensor]):
    """An exchange that answers with given dL/doutput `[N]`, sequence by sequence, regardless of the micro-batches
    are."""

    def exchange(indices: list[int], outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        where = sequences.outputs(indices)
        assert all(len(values) == len(where) for values in outputs.values())
        return {name: weights[name][where] for name in outputs}

    return exchange
