"""Writes a tiny reward model (sequence classification with one label) as a Hugging Face folder. Its byte-level
tokenizer has other ids than the tiny language model's, and another chat template; with `--language-model` it is that
model's own.

    python make_tiny_reward_model.py [--language-model] DIRECTORY [SEED] [PREFERRED]

Its weights are random, or such that the score grows with the share of the characters PREFERRED in a
conversation."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from make_tiny_model import SPECIAL, make_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|end|>' }}{% endfor %}"


def make_reward_tokenizer() -> PreTrainedTokenizerFast:
    """Padding and the end of a conversation are the same token."""
    tokenizer = make_tokenizer([*SPECIAL, "<|end|>"])
    tokenizer.pad_token = tokenizer.eos_token = "<|end|>"
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_reward_model(tokenizer: PreTrainedTokenizerFast, seed: int, layers: int = 2) -> LlamaForSequenceClassification:
    """Random weights."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.3, num_labels=1,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=1, eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForSequenceClassification(config).eval()


@torch.no_grad()
def plant_preference(model: LlamaForSequenceClassification, tokens: list[int]) -> None:
    """Attention averages dimension 0, which only these tokens have, into dimension 1, which the head reads. Dimension 2
    keeps the norms apart from zero."""
    embedding, layer = model.model.embed_tokens.weight, model.model.layers[0]
    for parameter in (embedding, *layer.self_attn.parameters(), *layer.mlp.parameters(), model.score.weight):
        parameter.zero_()
    embedding[:, 2] = 1
    embedding[tokens, 0] = 1
    layer.self_attn.v_proj.weight[0, 0] = 1
    layer.self_attn.o_proj.weight[1, 0] = 1
    model.score.weight[0, 1] = 1


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--language-model"]
    tokenizer = make_reward_tokenizer() if len(arguments) == len(sys.argv) - 1 else make_tokenizer()
    directory, seed = Path(arguments[0]), int(arguments[1]) if len(arguments) > 1 else 0
    preferred = arguments[2] if len(arguments) > 2 else None
    model = make_reward_model(tokenizer, seed, layers=1 if preferred else 2)
    if preferred:
        plant_preference(model, tokenizer.convert_tokens_to_ids(list(preferred)))
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


if __name__ == "__main__":
    main()
