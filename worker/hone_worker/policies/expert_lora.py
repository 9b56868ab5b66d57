"""Low-rank adapters of experts: A and B for each expert's matrix, in the layout of PEFT's `target_parameters`.

The forward uses the merged weight W + s B A. Its gradient is computed for all experts of a layer at once, and then projected
on A and B, so a backward needs memory for one layer's experts."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..models.experts import ExpertGroup
from .lora import initial_a
from .rounding import Probe, Thresholds


class ExpertOverlay:
    """Has the methods of LoraOverlay."""

    def __init__(self, group: ExpertGroup, rank: int, alpha: float, seed: int):
        self.group, self.rank, self.scale = group, rank, alpha / rank
        self.experts, *sizes = group.weight.shape
        inputs, outputs = sizes if group.transposed else reversed(sizes)
        device, member = group.weight.device, group.members[0]
        self.a = initial_a(seed, member.name, self.experts * rank, inputs).to(device)
        """`[experts * rank, in]`, fp32."""
        self.b = torch.zeros(outputs, rank * self.experts, device=device)
        """`[out, rank * experts]`, fp32."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._thresholds = Thresholds(member.name, tuple(group.weight.shape), device)
        self._merged: Tensor | None = None
        self._factors: tuple[Tensor, Tensor] | None = None
        self._anchor = torch.zeros((), device=device, requires_grad=True)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.a, self.b]

    def named(self, values: list[Tensor]) -> dict[str, Tensor]:
        name = self.group.members[0].peft_name
        return {f"{name}.lora_A.weight": values[0], f"{name}.lora_B.weight": values[1]}

    def merge(self, values: list[Tensor]) -> None:
        self._merged = None  # frees its memory first
        self._merged = self.merged_weight(values)
        self._factors = self._matrices(values)
        self.group.overlay = self

    def merged_weight(self, values: list[Tensor]) -> Tensor:
        """In the model's dtype, computed in fp32."""
        a, b = self._matrices(values)
        left, right = (a.mT, b.mT) if self.group.transposed else (b, a)
        exact = torch.baddbmm(self.group.weight.float(), left, right, alpha=self.scale)
        merged = torch.empty_like(self.group.weight, memory_format=torch.contiguous_format)
        self._thresholds.round(exact, merged)
        return merged

    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        """Adds the first rows of the first expert to a Probe."""
        a, b = self._matrices(self.parameters)
        left, right = (a[0].mT, b[0].mT) if self.group.transposed else (b[0], a[0])
        update = self.scale * (left[Probe.rows] @ right)
        base = self.group.weight[0][Probe.rows]
        merged = torch.empty_like(base, memory_format=torch.contiguous_format)
        self._thresholds.round(base + update, merged)
        add(update, merged.float())

    def remove(self) -> None:
        self._merged = self._factors = None
        if self.group.overlay is self:
            self.group.overlay = None

    def weight(self) -> Tensor:
        return _MergedWeight.apply(self._anchor, self) if torch.is_grad_enabled() else self._merged

    def add_gradient(self, gradient: Tensor) -> None:
        """`gradient`: of the merged weight."""
        a, b = self._factors
        dw = gradient.float()
        dw = dw.mT if self.group.transposed else dw  # [experts, out, in]
        self.a.grad.add_((b.mT @ dw).flatten(0, 1), alpha=self.scale)
        self.b.grad.add_((dw @ a.mT).permute(1, 2, 0).flatten(1), alpha=self.scale)

    def _matrices(self, values: list[Tensor]) -> tuple[Tensor, Tensor]:
        """A `[experts, rank, in]` and B `[experts, out, rank]`."""
        a, b = values
        return a.view(self.experts, self.rank, -1).clone(), b.view(-1, self.rank, self.experts).permute(2, 0, 1).clone()


class _MergedWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, overlay: ExpertOverlay) -> Tensor:
        ctx.overlay = overlay
        return overlay._merged.view_as(overlay._merged)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.overlay.add_gradient(gradient)
        return None, None
