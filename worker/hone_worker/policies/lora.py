"""Low-rank adapters of linear layers and of experts, and the policies that consist of them."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UserMistake
from ..models.experts import ExpertGroup
from ..models.linears import LinearGroup, Weight
from ..models.model import LanguageModel
from .files import export_adapter, export_merged
from .policy import TrainedPolicy, ValueHead, trains_vision
from .rounding import Probe, Thresholds, seed_of

# Linear layers. The forward multiplies with the merged weight W + s B A, or with its parts, as sampling does; the
# backward computes the gradients of A, B and the input. With y = x (W + s B A)':
# dx = dy W + s (dy B) A, dA = s (dy B)' x, dB = s dy' (x A').


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


# Experts: A and B for each expert's matrix, in the layout of PEFT's `target_parameters`. The forward uses the merged
# weight. Its gradient is computed for all experts of a layer at once, and then projected on A and B, so a backward
# needs memory for one layer's experts.


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


_TARGETS = ("attn", "mlp", "experts", "unembed")


class LoraPolicy(TrainedPolicy):
    """`adapter`: `{"kind": "lora", "rank", "alpha", "targets", "seed"}`. Several can share one base model, which has the merged weights
    of one policy at one revision at a time."""

    def __init__(self, model: LanguageModel, adapter: dict, value_head: ValueHead | None = None):
        rank, targets = adapter["rank"], set(adapter["targets"])
        if rank < 1 or not targets or not targets <= set(_TARGETS):
            raise UserMistake(
                f"an adapter cannot have rank {rank} and targets {sorted(targets)}",
                f"use rank >= 1 and targets from {', '.join(_TARGETS)}",
            )
        if "experts" in targets and not model.expert_groups:
            raise UserMistake(
                f"{model.source.name} has no experts that LoRA could adapt", "set model.train_experts=false"
            )
        vision = model.vision_groups if trains_vision(model, adapter) else []
        layers = [*model.groups, *vision, *model.expert_groups, model.head_group]
        groups = [group for group in layers if group.members[0].kind in targets]
        if not groups:
            raise UserMistake(
                f"{type(model.module).__name__} has no linear layers among {', '.join(sorted(targets))}",
                "choose other targets, or full fine-tuning",
            )
        self.overlays = [
            ExpertOverlay(group, rank, adapter["alpha"], adapter["seed"])
            if isinstance(group, ExpertGroup)
            else LoraOverlay(group, rank, adapter["alpha"], adapter["seed"], model.source.merges_adapters)
            for group in groups
        ]
        weights = [p for overlay in self.overlays for p in overlay.parameters]
        super().__init__(model, adapter, weights, value_head)
        self.trains_head = any(overlay.group is model.head_group for overlay in self.overlays)
        self._kept: list[Tensor] | None = None
        """The published parameters, while they differ from the current ones."""

    def use_published(self) -> LanguageModel:
        return self._install(self.published_revision, self._kept or self.parameters)

    def use_current(self) -> LanguageModel:
        return self._install(self.revision, self.parameters)

    def named_weights(self, values: list[Tensor]) -> dict[str, Tensor]:
        return {
            name: view
            for overlay, part in self._by_overlay(values)
            for name, view in overlay.named(part).items()
        }

    def before_change(self) -> None:
        if self._kept is None:
            self._kept = [parameter.detach().clone() for parameter in self.parameters]

    def sample(self, add: Callable[[Tensor, Tensor], None]) -> None:
        for overlay in self.overlays:
            overlay.sample(add)

    def mark_published(self) -> None:
        super().mark_published()
        self._kept = None

    def write_export(self, directory: Path, form: str) -> None:
        if form == "adapter":
            members = [member for overlay in self.overlays for member in overlay.group.members]
            export_adapter(self.model, self.adapter, members, self.named(self.parameters), directory)
        else:
            merged: dict[str, Tensor] = {}
            for overlay, part in self._by_overlay(self.parameters):
                merged |= overlay.group.by_member(overlay.merged_weight(part))
            export_merged(self.model, merged, directory)

    def close(self) -> None:
        if self.model.installed is not None and self.model.installed[0] is self:
            self.uninstall()

    def uninstall(self) -> None:
        """Restores the model's base weights."""
        for overlay in self.overlays:
            overlay.remove()
        self.model.installed = None
        self.model.use_vision(None)

    def _install(self, revision: int, values: list[Tensor]) -> LanguageModel:
        """Merges a revision into the model, unless it is the one merged last."""
        installed = self.model.installed
        if installed == (self, revision):
            return self.model
        with torch.inference_mode(False), torch.no_grad():
            if installed is not None and installed[0] is not self:
                installed[0].uninstall()
            self.model.installed = None  # correct even if merging fails half-way
            for overlay, part in self._by_overlay(values):
                overlay.merge(part)
            self.model.installed = (self, revision)
            self.model.use_vision(self.vision_version(revision))
        return self.model

    def _by_overlay(self, values: list[Tensor]) -> Iterator[tuple[LoraOverlay, list[Tensor]]]:
        start = 0
        for overlay in self.overlays:
            stop = start + len(overlay.parameters)
            yield overlay, values[start:stop]
            start = stop
