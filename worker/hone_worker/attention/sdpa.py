"""Attention over packed rows of trees by torch's scaled dot-product attention, one span at a time, for Apple's GPUs. Layers with
soft-caps or sinks, and rows with images whose parts attend to each other, use tiles."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .context import AttentionSpec
from .tree import Family, Span, Tree


class SdpaTree:
    """The attention context of one packed row in training, like `Tree`."""

    def __init__(self, families: list[Family], positions: Tensor):
        self._families = families
        self._tiles = Tree(families, positions)
        self._by_tiles = False

    def see_ahead(self, since: Tensor) -> None:
        self._tiles.see_ahead(since)
        self._by_tiles = True

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if spec.softcap is not None or spec.sinks is not None or self._by_tiles:
            return self._tiles.attend(layer, query, key, value, spec)
        found: list[tuple[int, Tensor]] = []
        for family in self._families:
            for span in (family.prompt, *family.branches):
                before = None if span is family.prompt else family.prompt
                if span.length:
                    found.append((span.start, _attend(query, key, value, spec, span, before)))
        return torch.cat([part for _, part in sorted(found, key=lambda pair: pair[0])])


def _attend(query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec, span: Span, prompt: Span | None) -> Tensor:
    """`[L,H,Dv]` of the span's queries, which see the prompt and the span up to themselves."""

    def rows(x: Tensor, *spans: Span) -> Tensor:
        parts = [x[each.start : each.start + each.length] for each in spans]
        return torch.cat(parts).transpose(0, 1)[None] if len(parts) > 1 else parts[0].transpose(0, 1)[None]

    seen = (span,) if prompt is None or prompt.length == 0 else (prompt, span)
    before = sum(each.length for each in seen) - span.length
    window = spec.sliding_window
    causal = before == 0 and (window is None or window >= span.length)
    mask = None
    if not causal:
        at = torch.arange(before, before + span.length, device=query.device)[:, None]
        distance = at - torch.arange(before + span.length, device=query.device)
        mask = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    output = F.scaled_dot_product_attention(
        rows(query, span),
        rows(key, *seen),
        rows(value, *seen),
        mask,
        is_causal=causal,
        scale=spec.scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output[0].transpose(0, 1)
