"""Experts whose weights are one parameter `[experts, ...]` for each of their matrices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd


class WeightOverlay(Protocol):
    """An adapter's replacement of a weight."""

    def weight(self) -> Tensor:
        """The replacement, with the weight's shape."""


@dataclass(eq=False)
class ExpertMember:
    """One parameter of a module of experts."""

    name: str
    module: nn.Module
    parameter: str
    peft_name: str
    """PEFT's name of the module that adapts it: it wraps a module once for each parameter, the last one outermost."""
    kind: str = "experts"


class ExpertGroup:
    """One such parameter, which an adapter can replace during the module's forward."""

    def __init__(self, member: ExpertMember):
        self.members = [member]
        self.weight: Tensor = getattr(member.module, member.parameter).detach()
        self.transposed = bool(getattr(member.module, "is_transposed", False))
        """`[experts, in, out]` instead of `[experts, out, in]`."""
        self.overlay: WeightOverlay | None = None
        self._forward = member.module.forward
        member.module.forward = self._with_overlay

    def by_member(self, merged: Tensor) -> dict[str, Tensor]:
        return {self.members[0].name: merged}

    def _with_overlay(self, *inputs: Any, **arguments: Any) -> Any:
        if self.overlay is None:
            return self._forward(*inputs, **arguments)
        member = self.members[0]
        parameters = member.module._parameters
        own = parameters[member.parameter]
        parameters[member.parameter] = self.overlay.weight()
        try:
            return self._forward(*inputs, **arguments)
        finally:
            parameters[member.parameter] = own


def find_experts(body: nn.Module, prefix: str) -> list[ExpertGroup]:
    """All such parameters of the body, whose names begin with `prefix`."""
    groups = []
    for name, (module, stacked) in find_stacked(body).items():
        for depth, key in enumerate(reversed(stacked)):
            wrapped = f"{prefix}{name}{'.base_layer' * depth}"
            groups.append(ExpertGroup(ExpertMember(f"{prefix}{name}.{key}", module, key, wrapped)))
    return groups


def find_stacked(body: nn.Module) -> dict[str, tuple[nn.Module, list[str]]]:
    """Modules with such parameters, and the parameters' names."""
    found = {}
    for name, module in body.named_modules():
        if isinstance(module, _ConvNd) or "expert" not in f"{name} {type(module).__name__}".lower():
            continue
        if stacked := [key for key, weight in module.named_parameters(recurse=False) if weight.ndim == 3]:
            found[name] = module, stacked
    return found
