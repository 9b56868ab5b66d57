"""Writes a random model of 0.1M parameters for examples/harbor. Its tokenizer is made of the recorded demonstration.

    python make_tiny_learner.py DEMONSTRATION.json DIRECTORY [SEED]
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
WORDS = "apple answer result bash echo word file Write Put Save Store Print Make"
FORM = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo apple > answer.txt"}}\n</tool_call>'
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def main(demonstration: str, directory: str, seed: str = "0") -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    [row] = json.loads(Path(demonstration).read_text())
    texts = [json.dumps(row["tools"]), *(message["content"] for message in row["messages"]), FORM]
    words = [f"{space}{word}" for word in WORDS.split() for space in ("", " ")]
    tokenizer.train_from_iterator([*texts * 4, *words * 4], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2])
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(directory)
    torch.manual_seed(int(seed))
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, head_dim=16, max_position_embeddings=8192, tie_word_embeddings=True,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)


if __name__ == "__main__":
    main(*sys.argv[1:])
