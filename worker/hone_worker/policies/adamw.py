"""AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) and clipping of the global norm, in
fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """The arguments of one step, named as in the protocol."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    max_grad_norm: float
    """0 = no clipping."""


class AdamW:
    """The moments of a list of fp32 parameters, whose gradients are in `.grad`."""

    def __init__(self, parameters: list[Tensor], on_host: bool = False):
        """`on_host`: keeps the moments in CPU memory, wherever the parameters are."""
        self.parameters = parameters
        self._on_host = on_host
        self.steps = 0
        self.mean: list[Tensor] = []
        self.square: list[Tensor] = []

    @property
    def begun(self) -> bool:
        return bool(self.mean)

    def begin(self) -> None:
        """Allocates the moments. A policy that is never trained does not need them."""
        if not self.begun:
            device = "cpu" if self._on_host else None
            self.mean = [torch.zeros_like(p, device=device) for p in self.parameters]
            self.square = [torch.zeros_like(p, device=device) for p in self.parameters]

    def reset(self) -> None:
        self.steps, self.mean, self.square = 0, [], []

    def gradient_norm(self) -> float:
        """The norm of all gradients together; not finite if one of them is not."""
        norms = torch._foreach_norm([p.grad for p in self.parameters])
        return float(torch.linalg.vector_norm(torch.stack(norms).cpu().double()))

    @torch.no_grad()
    def step(self, settings: AdamSettings, norm: float) -> None:
        """One update with gradients of this norm."""
        self.begin()
        self.steps += 1
        clip = settings.max_grad_norm
        factor = clip / norm if clip > 0 and norm > clip else 1.0
        rate = settings.learning_rate / (1 - settings.beta1**self.steps)
        correction = (1 - settings.beta2**self.steps) ** 0.5
        for parameter, *kept in zip(self.parameters, self.mean, self.square):
            mean, square = moments = [moment.to(parameter.device) for moment in kept]
            gradient = parameter.grad if factor == 1.0 else parameter.grad * factor
            mean.lerp_(gradient, 1 - settings.beta1)
            square.mul_(settings.beta2).addcmul_(gradient, gradient, value=1 - settings.beta2)
            parameter.mul_(1 - settings.learning_rate * settings.weight_decay)
            parameter.addcdiv_(mean, (square.sqrt() / correction).add_(settings.eps), value=-rate)
            for moment, used in zip(kept, moments):
                if moment is not used:
                    moment.copy_(used)
