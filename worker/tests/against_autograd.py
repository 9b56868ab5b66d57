"""Losses of a plain model with LoRA by torch's autograd, for the scripts that end-to-end tests compare the engine with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from peft import PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM


def answer(loss_of: Callable[[torch.nn.Module, dict, dict], Tensor]) -> None:
    """Reads a request from standard input: `base` and `before` are a model and its adapter, `rate` is the learning rate of plain
    descent, and each of `cases` names with `after` the adapter that the engine's step made. Prints for each case the loss, the
    norm of its gradient, and the largest error of a weight's step, relative to the largest step."""
    request = json.load(sys.stdin)
    base = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, request["before"], is_trainable=True).eval()
    before = get_peft_model_state_dict(model)
    answers = []
    for case in request["cases"]:
        model.zero_grad()
        loss = loss_of(model, request, case)
        loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
        norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
        named = get_peft_model_state_dict(model, state_dict=gradients)
        after = load_file(f"{case['after']}/adapter_model.safetensors")
        expected = {name: -request["rate"] * gradient for name, gradient in named.items()}
        largest = max(step.abs().max().item() for step in expected.values())
        error = max((after[name] - before[name] - step).abs().max().item() for name, step in expected.items())
        answers.append({"loss": loss.item(), "norm": norm, "error": error / largest})
    print(json.dumps(answers))
