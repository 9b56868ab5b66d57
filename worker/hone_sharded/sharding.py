"""How one model's weights, gradients and optimizer state are divided over the ranks."""

import os
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from hone_worker.policies.adamw import AdamSettings
from torch import Tensor

from .model import TokenOutputs

Kind = Literal["weight", "mean", "square"]
MOMENTS: tuple[Kind, Kind] = ("mean", "square")


@dataclass(frozen=True)
class ShardingOptions:
    kind: str
    device: torch.device
    """Of this rank."""
    dtype: torch.dtype
    """That the model computes in; trained weights are fp32."""
    offload_parameters: bool
    offload_optimizer: bool


class Sharding(Protocol):
    """All ranks call the same methods in the same order."""

    trained: dict[str, torch.Size]
    """The whole shapes of the trained weights, by their names in checkpoints."""
    steps: int
    """Optimizer steps; 0: there are no moments."""

    def run(self, *inputs) -> Tensor:
        """The module's forward."""

    def backward(self, outputs: Tensor, gradient: Tensor) -> None:
        """Adds the sum over all ranks to the gradient."""

    def abandon(self) -> None:
        """Frees what a forward without backward has gathered."""

    def zero_grad(self) -> None: ...

    def gradient_norm(self) -> float:
        """Of the whole gradient, equal on all ranks; not finite if one of its entries is not."""

    def step(self, settings: AdamSettings, norm: float) -> None: ...

    def reset(self) -> None:
        """Forgets the moments."""

    def gather(self, name: str, kind: Kind = "weight") -> Tensor:
        """The whole tensor, on the CPU of rank 0; elsewhere it may be empty."""

    def scatter(self, name: str, whole: Tensor, kind: Kind = "weight") -> None:
        """Replaces a trained weight, or a moment, by the ranks' parts of `whole`."""


def make_sharding(module: TokenOutputs, options: ShardingOptions) -> Sharding:
    """ZeRO shards what an optimizer trains; a frozen model is sharded by FSDP."""
    if options.kind.startswith("zero") and any(weight.requires_grad for weight in module.parameters()):
        # DeepSpeed reads them when it is imported, and when it starts.
        rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
        os.environ |= {"DS_ACCELERATOR": options.device.type, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
        from .zero import Zero

        return Zero(module, options)
    from .fsdp import Fsdp

    return Fsdp(module, options)
