"""One PPO step by autograd on a plain padded model with PEFT, to compare the engine's step with.

    python check_gradient.py < {"base", "before", "after", "sequences", "trained", "advantages", "old", "clip", "entropy_weight", "rate"}

`before` and `after` are the adapter as the engine exported it around a step of plain descent. Prints the loss, the
gradient's norm, and how far the engine's step is from `-rate * gradient`, relative to the largest entry.
"""

from __future__ import annotations

import json
import sys

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def ppo_loss(model: torch.nn.Module, request: dict) -> torch.Tensor:
    """Sum over the trained tokens of the clipped objective, less the weighted entropy."""
    longest = max(map(len, request["sequences"]))
    tokens = torch.zeros(len(request["sequences"]), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, sequence in enumerate(request["sequences"]):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    distribution = model(tokens, attention_mask=mask).logits.log_softmax(-1)
    flags = torch.zeros(len(tokens), longest - 1, dtype=torch.bool)
    for row, trained in enumerate(request["trained"]):
        flags[row, : len(trained)] = torch.tensor(trained, dtype=torch.bool)
    at_tokens = distribution[:, :-1].gather(2, tokens[:, 1:, None])[..., 0][flags]
    entropy = -(distribution.exp() * distribution).sum(-1)[:, :-1][flags]
    ratio = (at_tokens - torch.tensor(request["old"])).exp()
    advantages = torch.tensor(request["advantages"])
    clipped = ratio.clamp(1 - request["clip"], 1 + request["clip"])
    return -torch.minimum(ratio * advantages, clipped * advantages).sum() - request["entropy_weight"] * entropy.sum()


def main() -> None:
    request = json.load(sys.stdin)
    base = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, request["before"], is_trainable=True).eval()
    loss = ppo_loss(model, request)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()

    before = get_peft_model_state_dict(model)
    named = get_peft_model_state_dict(model, state_dict=gradients)
    after = load_file(f"{request['after']}/adapter_model.safetensors")
    if set(after) != set(before) or set(named) != set(before):
        raise SystemExit(f"the adapters hold other tensors: {sorted(set(after) ^ set(before))[:4]}")
    expected = {name: -request["rate"] * gradient for name, gradient in named.items()}
    largest = max(step.abs().max().item() for step in expected.values())
    error = max((after[name].float() - before[name] - step).abs().max().item() for name, step in expected.items())
    print(json.dumps({"loss": loss.item(), "norm": norm, "error": error / largest}))


if __name__ == "__main__":
    main()
