"""The clipped value loss by autograd on a plain padded model, to compare the engine's step with.

    python check_value_loss.py < {"base", "before", "after", "sequences", "trained", "returns", "old", "clip", "scale",
                                  "rate"}

`before` and `after` are a critic's states as the engine saved them around a step of plain descent; `scale` is alpha /
rank where they are of an adapter. Prints the loss, the gradient's norm, and how far the engine's step is from
`-rate * gradient`, relative to the largest entry.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM


def adapted(model: torch.nn.Module, weights: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The model's weights under the state's, as autograd follows them."""
    plain = dict(model.named_parameters())
    found = {name: value for name, value in weights.items() if name in plain}
    for name, a in weights.items():
        if name.endswith(".lora_A.weight"):
            target = name.replace(".lora_A", "")
            found[target] = plain[target] + scale * weights[name.replace("lora_A", "lora_B")] @ a
    return found


def values_of(model: torch.nn.Module, weights: dict[str, Tensor], request: dict) -> Tensor:
    """`[N]` at the positions before the trained tokens."""
    longest = max(map(len, request["sequences"]))
    tokens = torch.zeros(len(request["sequences"]), longest, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    flags = torch.zeros(len(tokens), longest, dtype=torch.bool)
    for row, (sequence, trained) in enumerate(zip(request["sequences"], request["trained"], strict=True)):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
        flags[row, : len(trained)] = torch.tensor(trained, dtype=torch.bool)
    options = {"attention_mask": mask, "output_hidden_states": True}
    own = adapted(model, weights, request["scale"])
    hidden = torch.func.functional_call(model, own, (tokens,), options).hidden_states[-1]
    return (hidden @ weights["value_head.weight"].T + weights["value_head.bias"])[..., 0][flags]


def main() -> None:
    request = json.load(sys.stdin)
    model = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32, attn_implementation="eager")
    model.requires_grad_(False)
    before = {name: value.requires_grad_() for name, value in load_file(f"{request['before']}/weights.safetensors").items()}
    values = values_of(model, before, request)
    returns, old, clip = torch.tensor(request["returns"]), torch.tensor(request["old"]), request["clip"]
    held = old + (values - old).clamp(-clip, clip)
    loss = torch.maximum((values - returns).square(), (held - returns).square()).mean() / 2
    gradients = dict(zip(before, torch.autograd.grad(loss, before.values(), allow_unused=True), strict=True))
    gradients = {name: torch.zeros_like(before[name]) if g is None else g for name, g in gradients.items()}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    after = load_file(f"{request['after']}/weights.safetensors")
    steps = {name: -request["rate"] * gradient for name, gradient in gradients.items()}
    largest = max(step.abs().max().item() for step in steps.values())
    error = max((after[name] - before[name] - step).abs().max().item() for name, step in steps.items())
    clipped = ((held - returns).square() > (values - returns).square()).float().mean().item()
    print(json.dumps({"loss": loss.item(), "norm": norm, "error": error / largest, "clipped": clipped}))


if __name__ == "__main__":
    main()
