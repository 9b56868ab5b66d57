"""AdamW whose moments have 8 bits (Dettmers et al., 2022), by bitsandbytes: each block of 256 values has its own scale."""

from functools import cached_property
from types import ModuleType

import torch
from torch import Tensor

from .adamw import AdamSettings, AdamW

_BLOCK = 256
_LEAST = 4096
"""Smaller parameters keep float32 moments, as in bitsandbytes' own optimizers."""


class AdamW8bit(AdamW):
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
