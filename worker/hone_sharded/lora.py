"""Low-rank adapters as plain modules: each adapted layer gets the children `lora_A` and `lora_B`, so that its parameters
have the names that they have in checkpoints."""

from dataclasses import dataclass
from functools import partial

import torch
from hone_worker.errors import UserMistake
from hone_worker.models.linears import Member, find_members
from hone_worker.models.plain_model import PlainModel
from hone_worker.policies.lora import initial_a
from torch import Tensor, nn


@dataclass
class Adapter:
    """The adapted layers of one model."""

    members: list[Member]
    scale: float
    on: bool = True
    """Off: the base model."""


def add_lora(model: PlainModel, spec: dict) -> Adapter:
    """`spec`: `{"kind": "lora", "rank", "alpha", "targets", "seed"}`."""
    rank, targets = spec["rank"], set(spec["targets"])
    members = [member for member in linear_members(model) if member.kind in targets]
    if rank < 1 or not members:
        raise UserMistake(
            f"{type(model.module).__name__} has no adapter of rank {rank} for {', '.join(sorted(targets))}",
            "use rank >= 1 and other targets, or full fine-tuning",
        )
    adapter = Adapter(members, spec["alpha"] / rank)
    for member in members:
        layer, (outputs, inputs) = member.module, member.weight.shape
        device = member.weight.device
        forward = layer.forward
        layer.lora_A = nn.Linear(inputs, rank, bias=False, device=device, dtype=torch.float32)
        layer.lora_B = nn.Linear(rank, outputs, bias=False, device=device, dtype=torch.float32)
        with torch.no_grad():
            layer.lora_A.weight.copy_(initial_a(spec["seed"], member.name, rank, inputs))
            layer.lora_B.weight.zero_()
        layer.forward = partial(_forward, adapter, layer, forward)
    return adapter


def linear_members(model: PlainModel) -> list[Member]:
    """The layers that an adapter can have."""

    @torch.no_grad()
    def run() -> None:
        model.base(input_ids=torch.arange(3, device=model.head.weight.device)[None], use_cache=False)

    groups = find_members(model.base, f"{model.base_name}.", run)
    return [member for group in groups for member in group] + [Member(model.head_name, model.head, "unembed")]


def _forward(adapter: Adapter, layer: nn.Module, forward, x: Tensor) -> Tensor:
    y = forward(x)
    return y + adapter.scale * layer.lora_B(layer.lora_A(x)) if adapter.on else y
