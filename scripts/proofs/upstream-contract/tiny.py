"""The model of the upstream contract: tiny, random, and of a shape that inference servers take.

    python tiny.py make DIRECTORY
    python tiny.py score DIRECTORY    # sequences as JSON on its input; their log-probabilities as JSON on its output
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parents[3] / "worker" / "tests"))
from make_tiny_model import make_tokenizer  # noqa: E402

# What a model's own folder may ask of a server, and what must have no bearing on a call that says everything itself.
OWN_SAMPLING = {"bos_token_id": 1, "eos_token_id": 2, "repetition_penalty": 1.5, "do_sample": True, "temperature": 0.3, "top_k": 7}


def make(directory: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.08, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    (directory / "generation_config.json").write_text(json.dumps(OWN_SAMPLING))


def score(directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    scores = []
    for prompt, tokens in json.load(sys.stdin):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, -1)[range(len(tokens)), tokens]
        scores.append([round(value, 4) for value in logprobs.tolist()])
    print(json.dumps(scores))


if __name__ == "__main__":
    {"make": make, "score": score}[sys.argv[1]](Path(sys.argv[2]))
