"""Steps of supervised fine-tuning on rows with one image each, by transformers' own forward, autograd and AdamW.

    python check_image_sft.py < {"base", "rate", "betas", "eps", "steps": [[{"tokens", "trained", "image"}]]}

`image` is base64. Prints the loss of each step, a mean over its trained tokens, and the norm of its gradient.
"""

from __future__ import annotations

import base64
import inspect
import json
import sys
from pathlib import Path

import torch
from hone_worker.images.vision import vision_of
from transformers import AutoModelForImageTextToText


def main() -> None:
    request = json.load(sys.stdin)
    folder = Path(request["base"])
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    # The processor of some families needs torchvision; this one makes the same inputs without it.
    vision = vision_of(model.base_model, folder)
    adam = torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=request["rate"],
        betas=tuple(request["betas"]),
        eps=request["eps"],
        weight_decay=0,
    )
    for rows in request["steps"]:
        count = sum(sum(row["trained"]) for row in rows)
        total = 0.0
        for row in rows:
            tokens = torch.tensor([row["tokens"]])
            inputs = vision.inputs(vision.read("image", base64.b64decode(row["image"])))
            if "mm_token_type_ids" in inspect.signature(model.base_model.forward).parameters:
                inputs["mm_token_type_ids"] = (tokens == vision.processor.token_id).int()
            logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **inputs).logits
            logprobs = logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
            loss = -(logprobs * torch.tensor(row["trained"])).sum() / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad()
        print(json.dumps({"loss": total, "norm": norm.item()}))


if __name__ == "__main__":
    main()
