"""AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) and clipping of the global norm, in
fp32."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adamw import adamw


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

    def clipped(self, norm: float) -> float:
        """The factor for gradients of this norm."""
        return self.max_grad_norm / norm if 0 < self.max_grad_norm < norm else 1.0


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
        return self.norm_of(self.parameters)

    @staticmethod
    def norm_of(parameters: list[Tensor]) -> float:
        norms = torch._foreach_norm([p.grad for p in parameters])
        return float(torch.linalg.vector_norm(torch.stack(norms).cpu().double()))

    def moments(self) -> tuple[list[Tensor], list[Tensor]]:
        """Mean and square of each parameter."""
        return self.mean, self.square

    def set_moments(self, mean: list[Tensor], square: list[Tensor]) -> None:
        """Replaces moments that have begun."""
        for kept, given in zip([*self.mean, *self.square], [*mean, *square], strict=True):
            kept.copy_(given)

    @torch.no_grad()
    def step(self, settings: AdamSettings, norm: float) -> None:
        """One update with gradients of this norm."""
        self.begin()
        self.steps += 1
        factor = settings.clipped(norm)
        if self.parameters[0].is_cuda and not self._on_host:
            self.fused_step(settings, factor)
            return
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

    def fused_step(self, settings: AdamSettings, factor: float) -> None:
        """The same update by one of torch's kernels, of gradients times `factor`."""
        device = self.parameters[0].device
        adamw(
            self.parameters,
            [parameter.grad for parameter in self.parameters],
            self.mean,
            self.square,
            [],
            list(torch.full((len(self.parameters),), self.steps - 1.0, device=device).unbind()),
            fused=True,
            grad_scale=None if factor == 1.0 else torch.tensor(1 / factor, device=device),
            amsgrad=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            maximize=False,
        )
