"""Writes a tiny random model as a Hugging Face folder, with a byte-level tokenizer and a chat template.

    python make_tiny_model.py DIRECTORY [SEED] [HEAD_SIZE] [EXPERTS]

Inference servers require a head size of at least 32. With EXPERTS, it is a mixture of that many, of which each token uses two.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def make_tokenizer(special: list[str] = SPECIAL, alphabet: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, and the special ones before them: any text can be encoded. With `alphabet`, only these bytes."""
    alphabet = sorted(alphabet or pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(special + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=special[0], bos_token=special[1], eos_token=special[2])
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(vocabulary: int, seed: int, head_size: int = 8, experts: int = 0) -> PreTrainedModel:
    """Weights large enough that the distributions are far from uniform."""
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.3, tie_word_embeddings=False,
        head_dim=head_size, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    if experts == 0:
        return LlamaForCausalLM(LlamaConfig(**sizes))
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=16))


def main() -> None:
    directory = Path(sys.argv[1])
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    numbers = [int(argument) for argument in sys.argv[2:]]
    make_model(len(tokenizer), *(numbers or [0])).save_pretrained(directory)


if __name__ == "__main__":
    main()
