"""Mixtures of experts: the experts' weights, one parameter `[experts, ...]` for each of their matrices, and which experts a mixture
chooses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from ..errors import UserMistake


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


# The choice of experts: in float32, recorded and replayed, and balanced by transformers' auxiliary loss.

_ROUTERS = ("gate", "router", "wg")


class Mixtures:
    """The mixtures of experts of a model, in order."""

    def __init__(self, module: nn.Module, body: nn.Module):
        self._module = module
        named = dict(body.named_modules())
        parents = {name.rpartition(".")[0]: len(getattr(part, keys[0])) for name, (part, keys) in find_stacked(body).items()}
        self._layers = [_Mixture(named[name], experts) for name, experts in parents.items()]
        self._numbers = [int(next(part for part in name.split(".") if part.isdigit())) for name in parents]
        """The number of each one's layer in the model."""
        self._last: list[Tensor | None] = []
        for layer in self._layers:
            for name in _ROUTERS:
                router = getattr(layer.module, name, None)
                if isinstance(router, nn.Module):
                    _compute_in_float32(router)

    def __len__(self) -> int:
        return len(self._layers)

    def require_replay(self, name: str) -> None:
        """Raises UserMistake for a model without experts."""
        if not self._layers:
            raise UserMistake(f"{name} has no experts whose choice could be replayed", "set router_replay=disabled")

    def require_loss(self, name: str) -> None:
        """Raises UserMistake if transformers has no auxiliary loss for the model."""
        if self._loss is None or not hasattr(self._module, "num_experts"):
            raise UserMistake(
                f"transformers has no auxiliary loss for {type(self._module).__name__} ({name})", "set router_aux_loss to 0"
            )

    def loss(self, logits: tuple[Tensor, ...], mask: Tensor | None) -> Tensor:
        """transformers' auxiliary loss of the routers' logits of all layers; `mask` is 0 for padding."""
        return self._loss(logits, self._module.num_experts, self._module.num_experts_per_tok, mask)

    @property
    def _loss(self) -> Any:
        return getattr(sys.modules[type(self._module).__module__], "load_balancing_loss_func", None)

    @contextmanager
    def routed(self, known: Tensor | None) -> Iterator[list[Tensor | None]]:
        """Layers choose `known` `[tokens, layers, experts of a token]` where it is not negative. Yields what each layer chose,
        `[tokens, experts of a token]`."""
        chosen: list[Tensor | None] = [None] * len(self._layers)
        self._last = chosen
        try:
            for i, layer in enumerate(self._layers):
                layer.mode = _Choose(chosen, i, None if known is None else known[:, i], layer.experts)
            yield chosen
        finally:
            for layer in self._layers:
                layer.mode = None

    def select(self, experts: np.ndarray) -> np.ndarray:
        """Of `[tokens, layers of the model, experts of a token]` those of the mixtures. Raises UserMistake for another model's."""
        mixtures = experts[:, self._numbers] if experts.shape[1] > max(self._numbers) else None
        if mixtures is None or mixtures.max(initial=-1) >= self._layers[0].experts:
            raise UserMistake("the sampler has other layers or experts than the model", "sample with the model of the run")
        return mixtures

    @contextmanager
    def again(self) -> Iterator[None]:
        """Layers that are computed again for a backward choose as in the last `routed`, if there was one."""
        if not self._last or any(layer is None for layer in self._last):
            yield
            return
        last = self._last
        with self.routed(torch.stack(last, 1)):
            yield
        self._last = []


class _Mixture:
    def __init__(self, module: nn.Module, experts: int):
        self.module, self.experts = module, experts
        self.mode: _Choose | None = None
        self._forward = module.forward
        module.forward = self._routed

    def _routed(self, *inputs: Any, **arguments: Any) -> Any:
        if self.mode is None:
            return self._forward(*inputs, **arguments)
        with self.mode:
            return self._forward(*inputs, **arguments)


class _Choose(TorchFunctionMode):
    """Replaces and records the result of `topk` over the experts."""

    def __init__(self, chosen: list[Tensor | None], place: int, known: Tensor | None, experts: int):
        super().__init__()
        self._chosen, self._place, self._known, self._experts = chosen, place, known, experts

    def __torch_function__(self, function, types, inputs=(), arguments=None):
        result = function(*inputs, **(arguments or {}))
        if function not in (torch.topk, Tensor.topk) or inputs[0].shape[-1] != self._experts:
            return result
        own = result.indices
        if self._known is not None and self._known.shape[-1] == own.shape[-1]:
            known = self._known.view(own.shape)
            own = torch.where(known >= 0, known, own)
            result = torch.return_types.topk((inputs[0].gather(-1, own), own))
        self._chosen[self._place] = own.detach().flatten(0, -2)
        return result


def _compute_in_float32(router: nn.Module) -> None:
    """Near-ties between experts must not depend on the shape of a batch."""
    if next(router.parameters()).dtype == torch.float32:
        return
    router.float()
    forward = router.forward

    def exact(hidden: Tensor, *inputs: Any, **arguments: Any) -> Any:
        return forward(hidden.float(), *inputs, **arguments)

    router.forward = exact
