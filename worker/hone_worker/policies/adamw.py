"""AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) and clipping of the global norm. Its moments are in fp32, or have
8 bits."""

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

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
    """The fp32 moments of a list of fp32 parameters, whose gradients are in `.grad`."""

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


_BLOCK = 256
_LEAST = 4096
"""Smaller parameters keep float32 moments, as in bitsandbytes' own optimizers."""


class AdamW8bit(AdamW):
    """Moments of 8 bits (Dettmers et al., 2022), by bitsandbytes: each block of 256 values has its own scale."""

    def __init__(self, parameters: list[Tensor]):
        super().__init__([p for p in parameters if p.numel() < _LEAST])
        self._all = parameters
        self._large = [p for p in parameters if p.numel() >= _LEAST]
        self._states: list[tuple[Tensor, Tensor]] = []
        """The codes of both moments of each large parameter, as one tensor, and the scales of their blocks."""

    @cached_property
    def _bits(self) -> ModuleType:
        import bitsandbytes.functional  # an optional package, which a plan of memory does not need

        return bitsandbytes.functional

    @cached_property
    def _codes(self) -> list[Tensor]:
        """The 256 values of both moments, relative to their block's scale."""
        return [self._bits.create_dynamic_map(signed).to(self._all[0].device) for signed in (True, False)]

    @property
    def begun(self) -> bool:
        return bool(self._states) or super().begun

    def begin(self) -> None:
        if not self.begun:
            super().begin()
            for p in self._large:
                codes = torch.zeros(2, p.numel(), dtype=torch.uint8, device=p.device)
                self._states.append((codes, torch.zeros(2, -(-p.numel() // _BLOCK), device=p.device)))

    def reset(self) -> None:
        super().reset()
        self._states = []

    def gradient_norm(self) -> float:
        return self.norm_of(self._all)

    @torch.no_grad()
    def step(self, settings: AdamSettings, norm: float) -> None:
        if self.parameters:
            super().step(settings, norm)
        else:
            self.begin()
            self.steps += 1
        for p, (codes, scales) in zip(self._large, self._states, strict=True):
            self._bits.optimizer_update_8bit_blockwise(
                "adam",
                p.grad,
                p,
                *codes,
                settings.beta1,
                settings.beta2,
                0.0,
                0.0,
                settings.eps,
                self.steps,
                settings.learning_rate,
                *self._codes,
                *scales,
                weight_decay=settings.weight_decay,
                gnorm_scale=settings.clipped(norm),
            )

    def moments(self) -> tuple[list[Tensor], list[Tensor]]:
        """In float32, so that a state does not depend on the optimizer. Quantizing them again can change codes: the own moments are
        changed in the same way, so that a run that continues from these equals this one."""
        small = zip(*super().moments())
        large = iter(self._states)
        pairs = [next(small) if p.numel() < _LEAST else self._decoded(p, *next(large)) for p in self._all]
        found = [mean for mean, _ in pairs], [square for _, square in pairs]
        self.set_moments(*found)
        return found

    def set_moments(self, mean: list[Tensor], square: list[Tensor]) -> None:
        small = [each for each in zip(self._all, mean, square) if each[0].numel() < _LEAST]
        super().set_moments([each for _, each, _ in small], [each for _, _, each in small])
        large = [each for each in zip(self._all, mean, square) if each[0].numel() >= _LEAST]
        for (_, *given), (codes, scales) in zip(large, self._states, strict=True):
            for values, kept, scale, code in zip(given, codes, scales, self._codes):
                found, state = self._bits.quantize_blockwise(values.flatten(), code, blocksize=_BLOCK)
                kept.copy_(found)
                scale.copy_(state.absmax)

    def _decoded(self, like: Tensor, codes: Tensor, scales: Tensor) -> tuple[Tensor, ...]:
        return tuple(
            self._bits.dequantize_blockwise(kept, absmax=scale, code=code, blocksize=_BLOCK).view(like.shape)
            for kept, scale, code in zip(codes, scales, self._codes)
        )


def make_optimizer(name: str, parameters: list[Tensor]) -> AdamW:
    """`adamw`, or `adamw_8bit`, whose moments have 8 bits."""
    return AdamW(parameters) if name == "adamw" else AdamW8bit(parameters)
