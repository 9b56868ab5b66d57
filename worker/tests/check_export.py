"""Log-probabilities of plain transformers, and of PEFT for an adapter, to compare an export with.

    python check_export.py < {"models": [{"base", "adapter"?}], "sequences": [[ids]]}

prints, for each model, [[log-probability of each token but the first]].
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def logprobs(base: str, sequences: list[list[int]], adapter: str | None = None) -> list[list[float]]:
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).eval()
    found = []
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        with torch.no_grad():
            outputs = model(tokens).logits.log_softmax(-1)
        found.append(outputs[0, :-1].gather(1, tokens[0, 1:, None])[:, 0].tolist())
    return found


def main() -> None:
    request = json.load(sys.stdin)
    print(json.dumps([logprobs(sequences=request["sequences"], **model) for model in request["models"]]))


if __name__ == "__main__":
    main()
