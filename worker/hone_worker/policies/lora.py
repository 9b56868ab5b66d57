"""Low-rank adapters. The forward multiplies with the merged weight W + s B A, or with its parts, as sampling does; the backward
computes the gradients of A, B and the input.

With y = x (W + s B A)': dx = dy W + s (dy B) A, dA = s (dy B)' x, dB = s dy' (x A').
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.linears import LinearGroup
from ..models.weights import Weight
from .rounding import Probe, Thresholds, seed_of


class LoraOverlay:
    """One policy's adapters of one group of linear layers."""

    def __init__(self, group: LinearGroup, rank: int, alpha: float, seed: int, merges: bool = True):
        """`merges`: multiplies with the merged weight; else with W, then with A and B."""
        self.group, self.rank, self.scale, self.merges = group, rank, alpha / rank, merges
        device, inputs = group.weight.device, group.weight.shape[1]
        self.a = torch.cat([initial_a(seed, member.name, rank, inputs) for member in group.members]).to(
            device
        )
        """`[members * rank, in]`, fp32."""
        self.b = [torch.zeros(size, rank, device=device) for size in group.sizes]
        """`[out, rank]` for each member, fp32."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        columns = group.weight.shape[1]
        self._thresholds = [
            Thresholds(member.name, (size, columns), device)
            for member, size in zip(group.members, group.sizes)
        ]
        self.merged: Weight | None = None
        self.low: tuple[Tensor, list[Tensor]] | None = None
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.a, *self.b]

    def named(self, values: list[Tensor]) -> dict[str, Tensor]:
        """Tensors in the shapes of `parameters`, as views with PEFT's names."""
        a, b, found = values[0], values[1:], {}
        for i, member in enumerate(self.group.members):
            found[f"{member.name}.lora_A.weight"] = a[i * self.rank : (i + 1) * self.rank]
            found[f"{member.name}.lora_B.weight"] = b[i]
        return found

    def merge(self, values: list[Tensor]) -> None:
        """The forward now uses these values of A and B (in the shapes of `parameters`)."""
        self.merged = None  # frees its memory first
        self.merged = Weight(self.merged_weight(values), pack=True) if self.merges else None
        dtype, apart = self.group.weight.dtype, not self.merges  # a step changes the values in place
        self.low = (values[0].to(dtype, copy=apart), [b.to(dtype, copy=apart) for b in values[1:]])
        self.group.overlay = self

    def merged_weight(self, values: list[Tensor]) -> Tensor:
        """`[sum of out, in]` in the model's dtype, computed in fp32."""
        a, b, group = values[0], values[1:], self.group
        merged = torch.empty_like(group.weight, memory_format=torch.contiguous_format)
        for i, (start, size) in enumerate(zip(group.starts, group.sizes)):
            rows = slice(start, start + size)
            base = group.weight[rows].float()
            exact = torch.addmm(base, b[i], a[i * self.rank : (i + 1) * self.rank], alpha=self.scale)
            self._thresholds[i].round(exact, merged[rows])
        return merged

    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        """Adds the first rows of the first member to a Probe: s B A, and the merged weight, if there is one."""
        if not self.merges:
            return
        base = self.group.weight[: self.group.sizes[0]][Probe.rows]
        update = self.scale * (self.b[0][Probe.rows] @ self.a[: self.rank])
        merged = torch.empty_like(base, memory_format=torch.contiguous_format)
        self._thresholds[0].round(base + update, merged)
        add(update, merged.float())

    def remove(self) -> None:
        """Restores the base weight and frees the merged one."""
        self.merged = self.low = None
        if self.group.overlay is self:
            self.group.overlay = None

    def linear(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return _LoraProduct.apply(x, self._anchor, self)
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """`linear` without a gradient."""
        if self.merged is not None:
            return self.merged.linear(x, self.group.bias)
        y = F.linear(x, self.group.weight, self.group.bias)
        rows, (a, bs) = y.view(-1, y.shape[-1]), self.low
        xa = x.reshape(-1, x.shape[-1]) @ a.t()
        for i, (start, size, b) in enumerate(zip(self.group.starts, self.group.sizes, bs)):
            part = xa[:, i * self.rank : (i + 1) * self.rank]
            rows[:, start : start + size].addmm_(part, b.t(), alpha=self.scale)
        return y


class _LoraProduct(torch.autograd.Function):
    """The anchor makes the output require a gradient even if the input, such as the first layer's, does
    not."""

    @staticmethod
    def forward(ctx, x: Tensor, anchor: Tensor, overlay: LoraOverlay) -> Tensor:
        ctx.save_for_backward(x)
        ctx.overlay, ctx.low = overlay, overlay.low
        return overlay.product(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        overlay, (a, bs) = ctx.overlay, ctx.low
        group, rank, scale = overlay.group, overlay.rank, overlay.scale
        (x,) = ctx.saved_tensors
        rows = x.reshape(-1, x.shape[-1])
        dy = gradient.reshape(-1, gradient.shape[-1])
        xa = rows @ a.t()
        dyb = torch.empty_like(xa)
        for i, (start, size, b) in enumerate(zip(group.starts, group.sizes, bs)):
            mine, columns = dy[:, start : start + size], slice(i * rank, (i + 1) * rank)
            dyb[:, columns] = mine @ b
            overlay.b[i].grad.add_((xa[:, columns].t() @ mine).t(), alpha=scale)
        overlay.a.grad.add_(dyb.t() @ rows, alpha=scale)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (dy @ group.weight).addmm_(dyb, a, alpha=scale).view(x.shape)
        return dx, None, None


def initial_a(seed: int, name: str, rank: int, inputs: int) -> Tensor:
    """Uniform within 1 / sqrt(in), PEFT's default. Depends only on (seed, name), not on the order of
    layers."""
    generator = torch.Generator().manual_seed(seed_of(f"{seed}/{name}"))
    return (torch.rand(rank, inputs, generator=generator) * 2 - 1) / math.sqrt(inputs)
