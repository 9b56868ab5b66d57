"""Log-probabilities of plain transformers, and of PEFT for an adapter, to compare an export with.

    python check_export.py < {"base", "adapter"?, "sequences": [[ids]]}   prints [[log-probability of each token but the first]]
"""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    request = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32, attn_implementation="eager").eval()
    if request.get("adapter"):
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, request["adapter"]).eval()
    answer = []
    for sequence in request["sequences"]:
        tokens = torch.tensor([sequence])
        with torch.no_grad():
            logprobs = model(tokens).logits.log_softmax(-1)
        answer.append(logprobs[0, :-1].gather(1, tokens[0, 1:, None])[:, 0].tolist())
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
