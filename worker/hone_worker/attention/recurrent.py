"""Layers that mix tokens by a recurrent or convolutional state. In a packed row, each sequence has a state of its own, and
branches of a prompt begin with the prompt's state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .context import AttentionContext, AttentionSpec, current
from .tree import Family, Span

_MOST_PADDED = 1.5
"""A batch accepts another row only while it has at most this many places per token."""

_STATE_METHODS = {"update_conv_state", "update_recurrent_state", "set_linear_cache"}
_CACHES = ("cache_params", "past_key_values", "cache")
"""Names of the argument that takes the state, in versions of transformers."""
_ROW_ARGUMENTS = ("position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
"""Arguments that describe the packed row, not the sequences that a layer now gets."""


class LayerState:
    """The states of one layer, for a batch of sequences. Has the methods of transformers' cache that such layers call, but never
    changes a tensor that autograd may have kept."""

    def __init__(self, tensors: dict[tuple[str, int], Tensor] | None = None):
        self.tensors = {} if tensors is None else tensors

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def select(self, rows: Tensor) -> LayerState:
        """Copies of the states of these rows."""
        return LayerState({name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()})

    @staticmethod
    def joined(parts: Sequence[LayerState]) -> LayerState:
        names = parts[0].tensors
        return LayerState({name: torch.cat([part.tensors[name] for part in parts]) for name in names})

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.tensors.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.tensors.get(("recurrent", state_idx))

    def get_linear_cache(self, layer_idx: int) -> Tensor | None:
        return self.tensors.get(("recurrent", 0))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return len(self.tensors) > 0

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self, new: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_
    ) -> Tensor:
        """The last inputs of the convolution and the new ones, `[B, D, L]`."""
        before = self.tensors.get(("conv", state_idx))
        if before is not None:
            kept = before.shape[-1]
            seen = torch.cat([before, new], -1)
        else:
            kept = conv_kernel_size or new.shape[-1]
            seen = nn.functional.pad(new, (max(0, kept - new.shape[-1]), 0))
        self.tensors["conv", state_idx] = seen[..., -kept:].clone()
        return seen

    def update_recurrent_state(self, new: Tensor, layer_idx: int, state_idx: int = 0, **_) -> Tensor:
        self.tensors["recurrent", state_idx] = new
        return new

    def set_linear_cache(self, layer_idx: int, new: Tensor) -> None:
        self.tensors["recurrent", 0] = new


Run = Callable[[Tensor, LayerState | None], Tensor]
"""(inputs `[B,L,D]`, states to continue and to update) -> outputs `[B,L,D]`."""


class RecurrentContext(AttentionContext, Protocol):
    def mix(self, mixer: Mixer, run: Run, x: Tensor) -> Tensor:
        """The outputs `[T,D]` of a layer for a packed row of inputs `[T,D]`."""


class Mixer:
    """One such layer. During a forward of a packed row, the context calls it for each sequence."""

    def __init__(self, name: str, module: nn.Module, cache: str):
        """`cache`: the argument of the module's forward that takes its state."""
        self.name = name
        self.continues = True
        """Whether the layer reads several tokens after a state. Otherwise a row repeats the prompt for each branch, in this layer."""
        self._forward = module.forward
        self._cache = cache
        module.forward = self._in_row

    def _in_row(self, *inputs: Any, **arguments: Any) -> Any:
        context = current()
        if context is None:
            return self._forward(*inputs, **arguments)
        if len(inputs) > 1:
            raise NotImplementedError(f"{self.name} is called with {len(inputs)} arguments without names")
        own = {name: value for name, value in arguments.items() if name not in _ROW_ARGUMENTS}
        x = inputs[0] if inputs else own.pop("hidden_states")
        returned: list[Any] = []

        def run(rows: Tensor, state: LayerState | None) -> Tensor:
            output = self._forward(rows, **{**own, self._cache: state})
            returned.append(output)
            return output if isinstance(output, Tensor) else output[0]

        mixed = context.mix(self, run, x[0])[None]
        return mixed if isinstance(returned[0], Tensor) else (mixed, *(None for _ in returned[0][1:]))


def apply_step_limits(body: nn.Module) -> None:
    """Limits the steps of state-space layers as the model's configuration does. Some classes of transformers take the least step of
    initialization as a limit instead, in forwards of whole rows but not in single steps (huggingface/transformers#48989)."""
    for module in body.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(getattr(body.config, "time_step_limit", None) or (0.0, float("inf")))


def find_mixers(body: nn.Module) -> list[Mixer]:
    """The layers of the body that keep a state in transformers' cache."""
    found = []
    for name, module in body.named_modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        called = set(code.co_names) if code else set()
        cache = next((name for name in _CACHES if name in inspect.signature(module.forward).parameters), None)
        if called & _STATE_METHODS and "update" not in called and cache is not None:
            found.append(Mixer(name, module, cache))
    return found


@dataclass(frozen=True)
class _Batch:
    """Rows that a layer computes together."""

    tokens: Tensor
    """`[B,L]`: the packed row's tokens, padded on the right."""
    kept: Tensor
    """Flat places whose outputs are used."""
    prompts: Tensor | None = None
    """`[B]`: the prompts whose states the rows continue."""
    keeps_states: bool = False


class RecurrentRow:
    """The context of a packed row in training. `inner` computes its attention."""

    def __init__(self, inner: AttentionContext, families: Sequence[Family], device: torch.device):
        self._inner, self._families, self._device = inner, families, device
        self._plans: dict[bool, tuple[list[_Batch], Tensor]] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        return self._inner.attend(layer, query, key, value, spec)

    def see_ahead(self, since: Tensor) -> None:
        self._inner.see_ahead(since)

    def mix(self, mixer: Mixer, run: Run, x: Tensor) -> Tensor:
        batches, order = self._plan(mixer.continues)
        outputs, states = [], []
        for batch in batches:
            state = LayerState() if batch.keeps_states else None
            if batch.prompts is not None:
                state = LayerState.joined(states).select(batch.prompts)
            output = run(x[batch.tokens], state)
            outputs.append(output.flatten(0, 1)[batch.kept])
            if batch.keeps_states:
                states.append(state)
        return torch.cat(outputs)[order]

    def _plan(self, continues: bool) -> tuple[list[_Batch], Tensor]:
        if continues not in self._plans:
            batches = list(self._continued() if continues else self._repeated())
            tokens = torch.cat([batch.tokens.flatten()[batch.kept] for batch in batches])
            self._plans[continues] = batches, tokens.argsort()
        return self._plans[continues]

    def _continued(self) -> Iterator[_Batch]:
        """Prompts with branches first, whose states must be those of their last tokens, so that they cannot be padded."""
        lone, shared = [], {}
        for family in self._families:
            branches = [_range(branch) for branch in family.branches if branch.length]
            if not family.prompt.length:
                lone += branches
            elif not branches:
                lone.append(_range(family.prompt))
            else:
                shared.setdefault(family.prompt.length, []).append((_range(family.prompt), branches))
        rows: list[tuple[Tensor, int]] = []
        number = 0
        for same in shared.values():
            yield self._batch([(prompt, 0) for prompt, _ in same], keeps_states=True)
            for _, branches in same:
                rows += [(branch, number) for branch in branches]
                number += 1
        for group in _alike([(row, -1) for row in lone]):
            yield self._batch([(row, 0) for row, _ in group])
        for group in _alike(rows):
            prompts = torch.tensor([prompt for _, prompt in group], device=self._device)
            yield self._batch([(row, 0) for row, _ in group], prompts=prompts)

    def _repeated(self) -> Iterator[_Batch]:
        rows = []
        for family in self._families:
            prompt = _range(family.prompt)
            branches = [_range(branch) for branch in family.branches if branch.length]
            rows += [(torch.cat([prompt, branch]), len(prompt) if i else 0) for i, branch in enumerate(branches)]
            rows += [(prompt, 0)] if len(prompt) and not branches else []
        for group in _alike(rows):
            yield self._batch(group)

    def _batch(self, rows: list[tuple[Tensor, int]], **more: Any) -> _Batch:
        """`rows`: tokens, and how many of them are computed elsewhere."""
        # A layer that gets one token and a state changes the state in place.
        width = max(2 if "prompts" in more else 1, *(len(row) for row, _ in rows), 1)
        tokens = torch.stack([nn.functional.pad(row, (0, width - len(row))) for row, _ in rows])
        kept = torch.cat([i * width + torch.arange(skip, len(row)) for i, (row, skip) in enumerate(rows)])
        return _Batch(tokens.to(self._device), kept.to(self._device), **more)


def _range(span: Span) -> Tensor:
    return torch.arange(span.start, span.start + span.length)


def _alike(rows: list[tuple[Tensor, int]]) -> Iterator[list[tuple[Tensor, int]]]:
    """Groups of rows of like lengths."""
    group: list[tuple[Tensor, int]] = []
    for row in sorted(rows, key=lambda row: -len(row[0])):
        sizes = [len(tokens) for tokens, _ in (*group, row)]
        if group and sizes[0] * len(sizes) > _MOST_PADDED * sum(sizes):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
