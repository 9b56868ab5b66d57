"""The interface that divides a model's weights, gradients and optimizer state over the ranks."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from hone_worker.policies.adamw import AdamSettings
from torch import Tensor

Kind = Literal["weight", "mean", "square"]
MOMENTS: tuple[Kind, Kind] = ("mean", "square")


@dataclass(frozen=True)
class ShardingOptions:
    kind: str
    device: torch.device
    """The device of this rank."""
    dtype: torch.dtype
    """The dtype of the model's computation; trained weights are fp32."""
    offload_parameters: bool
    offload_optimizer: bool


class Sharding(Protocol):
    """All ranks call the same methods in the same order."""

    trained: dict[str, torch.Size]
    """The full shapes of the trained weights, by their names in checkpoints."""
    steps: int
    """Number of optimizer steps; with 0 there are no moments."""

    def run(self, *inputs) -> Tensor:
        """The module's forward."""

    def backward(self, outputs: Tensor, gradient: Tensor) -> None:
        """Back-propagates, and adds the sum over all ranks to the gradient."""

    def abandon(self) -> None:
        """Frees the weights that a forward without backward has gathered."""

    def zero_grad(self) -> None: ...

    def gradient_norm(self) -> float:
        """The norm of the whole gradient, equal on all ranks; not finite if any entry is not finite."""

    def step(self, settings: AdamSettings, norm: float) -> None: ...

    def reset(self) -> None:
        """Resets the moments."""

    def gather(self, name: str, kind: Kind = "weight") -> Tensor:
        """The full tensor on the CPU of rank 0; on other ranks it may be empty."""

    def scatter(self, name: str, whole: Tensor, kind: Kind = "weight") -> None:
        """Sets a trained weight or a moment to the full tensor `whole`; each rank keeps its part."""
