"""How a model's weights, gradients and optimizer state are divided over the ranks: the interface, and FSDP2, with which each rank has a
part of every weight, and gathers a layer's weights while it computes the layer."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist
from hone_worker.policies.adamw import AdamSettings, AdamW
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from .model import TokenOutputs

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


class Fsdp:
    """Implements Sharding."""

    def __init__(self, module: TokenOutputs, options: ShardingOptions):
        self._module, self._device = module, options.device
        mesh = init_device_mesh(options.device.type, (dist.get_world_size(),))
        exact = MixedPrecisionPolicy(cast_forward_inputs=False)
        low = MixedPrecisionPolicy(options.dtype, torch.float32, cast_forward_inputs=False)
        offload = OffloadPolicy()
        if options.offload_parameters:
            # Pinned memory needs the driver of a GPU.
            offload = CPUOffloadPolicy(pin_memory=options.device.type == "cuda")
        common = {"mesh": mesh, "offload_policy": offload}
        compute = exact if options.dtype == torch.float32 else low
        for layer in module.layers:
            fully_shard(layer, mp_policy=compute, **common)
        if module.value_head is not None:
            fully_shard(module.value_head, mp_policy=exact, **common)
        fully_shard(module, mp_policy=compute, **common)
        for each in module.modules():
            if hasattr(each, "set_gradient_divide_factor"):  # the default is the average
                each.set_gradient_divide_factor(1.0)
                each.set_force_sum_reduction_for_comms(True)
        self._weights = module.named()
        self._trained = {name: weight for name, weight in self._weights.items() if weight.requires_grad}
        self.trained = {name: weight.shape for name, weight in self._trained.items()}
        self._adam = AdamW([], options.offload_optimizer)

    @property
    def steps(self) -> int:
        return self._adam.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._adam.steps = steps

    def run(self, *inputs) -> Tensor:
        return self._module(*inputs)

    def backward(self, outputs: Tensor, gradient: Tensor) -> None:
        outputs.backward(gradient)

    def abandon(self) -> None:
        gradients = [weight.grad for weight in self._trained.values()]
        self._module.reset_iter_state()  # also drops the gradient
        for weight, gradient in zip(self._trained.values(), gradients):
            weight.grad = gradient

    def zero_grad(self) -> None:
        for weight in self._trained.values():
            weight.grad = None

    def gradient_norm(self) -> float:
        parts = [weight.grad.to_local() for weight in self._trained.values() if weight.grad is not None]
        squares = [part.double().square().sum().to(self._device) for part in parts]
        total = torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.double, device=self._device)
        dist.all_reduce(total)
        return math.sqrt(float(total)) if total >= 0 else math.nan

    @torch.no_grad()
    def step(self, settings: AdamSettings, norm: float) -> None:
        self._use_parts()
        for part, weight in zip(self._adam.parameters, self._trained.values()):
            part.grad = torch.zeros_like(part) if weight.grad is None else weight.grad.to_local()
        self._adam.step(settings, norm)
        self._adam.parameters = []

    def reset(self) -> None:
        self._adam.reset()

    @torch.no_grad()
    def gather(self, name: str, kind: Kind = "weight") -> Tensor:
        weight, part = self._weights[name], self._part(name, kind)
        whole = DTensor.from_local(
            part.to(self._device), weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride()
        ).full_tensor()
        return whole.cpu() if dist.get_rank() == 0 else torch.empty(0)

    @torch.no_grad()
    def scatter(self, name: str, whole: Tensor, kind: Kind = "weight") -> None:
        if kind != "weight" and not self._adam.begun:
            self._use_parts()
            self._adam.begin()
            self._adam.parameters = []
        parts, rank = whole.chunk(dist.get_world_size()), dist.get_rank()
        if rank < len(parts):
            self._part(name, kind).copy_(parts[rank])

    def _part(self, name: str, kind: Kind) -> Tensor:
        """This rank's part, not a copy."""
        if kind == "weight":
            return self._weights[name].detach().to_local()
        return getattr(self._adam, kind)[list(self._trained).index(name)]

    def _use_parts(self) -> None:
        """FSDP may replace the parts, so they are not kept."""
        self._adam.parameters = [self._part(name, "weight") for name in self._trained]
