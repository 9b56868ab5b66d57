"""The model's linear layers. Layers that read the same tensor are one matrix product, which an adapter can
replace."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_TYPICAL_ROWS = 256
"""The number of rows that the packed layout is for: between a decode step's and a training row's."""


class Weight:
    """A frozen weight `[out, in]` in the layout that this machine multiplies fastest. Packed by oneDNN for bfloat16 on CPUs (20%
    faster at 128 rows, 35% at 16), which needs no more memory; plain otherwise."""

    def __init__(self, weight: Tensor, pack: bool):
        self.packed = pack and can_pack(weight.dtype, weight.device.type)
        self._stored = (
            torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TYPICAL_ROWS)
            if self.packed
            else weight
        )

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x `[..., in]` -> `[..., out]`, without a gradient."""
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._stored, bias, "none", [], "")
        return F.linear(x, self._stored, bias)


@cache
def can_pack(dtype: torch.dtype, device: str) -> bool:
    """Whether this build of torch can pack weights of this kind. Tries it."""
    if device != "cpu" or dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    try:
        weight, x = torch.ones(32, 16, dtype=dtype), torch.ones(2, 16, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 2)
        return bool((torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "") == 16).all())
    except (RuntimeError, AttributeError):
        return False


_FEED_FORWARD = frozenset("mlp feed_forward ffn moe experts fc1 fc2 dense_h_to_4h dense_4h_to_h".split())


class Overlay(Protocol):
    """An adapter's replacement of a group's product."""

    def linear(self, x: Tensor) -> Tensor:
        """x `[..., in]` -> the outputs of all members of the group, side by side."""


@dataclass(eq=False)
class Member:
    """One linear layer of the model."""

    name: str
    module: nn.Module
    kind: str
    """`attn`, `mlp` or `unembed`."""

    @property
    def weight(self) -> Tensor:
        """`[out, in]`; a Conv1D stores its transpose."""
        return self.module.weight.t() if isinstance(self.module, Conv1D) else self.module.weight


class LinearGroup:
    """Linear layers that read the same tensor, computed by one matrix product. The modules' weights become
    views of the joined weight."""

    def __init__(self, members: list[Member], pack: bool = False):
        self.members = members
        self.sizes = [member.weight.shape[0] for member in members]
        biases = [member.module.bias for member in members]
        self.bias = None if biases[0] is None else biases[0] if len(members) == 1 else torch.cat(biases)
        self.weight = self._joined_weight()
        """`[sum of out, in]`, of the base model."""
        self.overlay: Overlay | None = None
        self.trained_in_place = False
        self._packed = Weight(self.weight, pack=True) if pack else None
        self._input: Tensor | None = None
        self._outputs: tuple[Tensor, ...] = ()
        self._taken: set[int] = set()
        for position, member in enumerate(members):
            member.module.forward = partial(self._output, position)

    @property
    def starts(self) -> list[int]:
        """First row of each member in the joined weight."""
        return [sum(self.sizes[:i]) for i in range(len(self.sizes))]

    def by_member(self, joined: Tensor) -> dict[str, Tensor]:
        """Each member's part of a joined weight, by its name and in its shape in the model."""
        parts = joined.split(self.sizes)
        return {
            f"{member.name}.weight": part.t() if isinstance(member.module, Conv1D) else part
            for member, part in zip(self.members, parts)
        }

    def forget(self) -> None:
        """Drops what an interrupted forward left behind."""
        self._input, self._outputs, self._taken = None, (), set()

    def train_in_place(self) -> None:
        """Makes each member a plain layer for autograd, without copies of its weight."""
        self.trained_in_place = True
        self._packed = None

    def _output(self, position: int, x: Tensor) -> Tensor:
        """The output of one member. The first member that is called with a tensor computes all."""
        if self.trained_in_place:
            member = self.members[position]
            return F.linear(x, member.weight, member.module.bias)
        if len(self.members) == 1:
            return self._product(x)
        if x is not self._input or position in self._taken:
            joined = self._product(x)
            # Not split(): autograd refuses models that change its results in place.
            self._outputs = tuple(joined.narrow(-1, start, size) for start, size in zip(self.starts, self.sizes))
            self._input, self._taken = x, set()
        output = self._outputs[position]
        self._taken.add(position)
        if len(self._taken) == len(self.members):
            self.forget()
        return output

    def _product(self, x: Tensor) -> Tensor:
        if self.overlay is not None:
            return self.overlay.linear(x)
        if self._packed is not None and not torch.is_grad_enabled():
            return self._packed.linear(x, self.bias)
        return F.linear(x, self.weight, self.bias)

    def _joined_weight(self) -> Tensor:
        if len(self.members) == 1:
            return self.members[0].weight.detach()
        joined = torch.cat([member.weight.detach() for member in self.members])
        for member, start, size in zip(self.members, self.starts, self.sizes):
            member.module.weight = nn.Parameter(joined[start : start + size], requires_grad=False)
        return joined


def find_members(body: nn.Module, prefix: str, run: Callable[[], object]) -> list[list[Member]]:
    """The linear layers of the body (whose names begin with `prefix`), grouped by the tensor that they read
    in the forward `run()`. A layer that is called several times has a group of its own. A layer that is never
    called cannot be adapted and is left out, unless it is an expert."""
    named = {
        module: prefix + name
        for name, module in body.named_modules()
        if _is_linear(module) and not _is_router(name)
    }
    seen: list[tuple[Tensor, nn.Module]] = []  # keeps the tensors alive, so that ids stay unique
    hooks = [m.register_forward_pre_hook(lambda m, inputs: seen.append((inputs[0], m))) for m in named]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    calls: dict[nn.Module, int] = {}
    readers: dict[tuple, list[nn.Module]] = {}
    for tensor, module in seen:
        calls[module] = calls.get(module, 0) + 1
        together = (id(tensor), _kind(named[module]), module.bias is None, type(module))
        readers.setdefault(together, []).append(module)
    groups: list[list[nn.Module]] = []
    for modules in readers.values():
        once = [m for m in modules if calls[m] == 1]
        if len(once) == len(modules) and all(type(m) is nn.Linear for m in modules):
            groups.append(modules)
        else:
            groups += [[m] for m in dict.fromkeys(modules) if not any(m in group for group in groups)]
    groups += [[m] for m, name in named.items() if m not in calls and "experts" in name]
    return [[Member(named[m], m, _kind(named[m])) for m in group] for group in groups]


@torch.no_grad()
def _is_linear(module: nn.Module) -> bool:
    """Also a subclass that computes the same, such as Falcon's."""
    if type(module) in (nn.Linear, Conv1D) or not isinstance(module, nn.Linear):
        return type(module) in (nn.Linear, Conv1D)
    try:
        module = _small(module) if module.weight.is_meta else module
        probe = torch.linspace(-1, 1, module.in_features).to(module.weight)[None]
        return torch.allclose(module(probe), F.linear(probe, module.weight, module.bias), rtol=1e-2, atol=1e-2)
    except Exception:  # noqa: BLE001 - a quantized layer can fail in any way
        return False


def _small(module: nn.Linear) -> nn.Linear:
    """The same kind of layer with a few weights, in place of one of a memory plan, which has none."""
    small = copy(module)
    small.in_features = 3
    weight, bias = torch.linspace(-1, 1, 6, device="cpu").view(2, 3), torch.ones(2, device="cpu")
    small._parameters = {"weight": nn.Parameter(weight), "bias": None if module.bias is None else nn.Parameter(bias)}
    return small


def _is_router(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in ("gate", "router", "shared_expert_gate", "wg")


def _kind(name: str) -> str:
    """`mlp` for the feed-forward part of a layer, `attn` for everything that mixes tokens."""
    parts = name.split(".")
    return "mlp" if any(part in _FEED_FORWARD or part.endswith("_mlp") for part in parts) else "attn"
