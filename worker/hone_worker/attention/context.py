"""The attention function that transformers' models call. The context in use computes it: for prompts, for a
decode step, or for a packed tree of sequences in training."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

NAME = "hone"
"""The name of the attention implementation. No mask function has this name, so transformers does not build a mask."""

MASKED = -1e30
"""The score of a hidden key. Finite, so that a row of padding does not become NaN."""


@dataclass(frozen=True)
class AttentionSpec:
    """What one layer needs beyond plain causal attention."""

    scaling: float
    softcap: float | None
    """Scores become `softcap * tanh(scores / softcap)` after scaling."""
    sliding_window: int | None
    """A query sees keys at a distance of less than this; None = all earlier keys."""
    sinks: Tensor | None
    """`[H]`: for each head, a score in the softmax's denominator that has no value."""


class AttentionContext(Protocol):
    """Computes attention during one forward of one packed row."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """query `[T,H,D]`, key `[T,KH,D]`, value `[T,KH,Dv]` -> `[T,H,Dv]` in the dtype of the query."""

    def see_ahead(self, since: Tensor) -> None:
        """Called before the first `attend`. since `[T]`: the position from which on queries see each token. That is its own
        position, or for the tokens of an image whose parts attend to each other, the first position of the image."""


_current: AttentionContext | None = None
_UNSET = object()


@contextmanager
def use(context: AttentionContext) -> Iterator[None]:
    """Forwards within the block attend through `context`. Can be nested."""
    global _current
    before, _current = _current, context
    try:
        yield
    finally:
        _current = before


def current() -> AttentionContext | None:
    """The context in use."""
    return _current


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of fp32 scores `[..., H, Q, K]`, with the sinks `[H]` in its
    denominator."""
    if sinks is None:
        return torch.softmax(scores, -1)
    sink = sinks.to(scores.dtype)[:, None, None]
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = (scores - top).exp_()
    return weights / (weights.sum(-1, keepdim=True) + (sink - top).exp_())


def _attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    dropout=0.0,
    softcap=None,
    sliding_window=_UNSET,
    s_aux=None,
    position_bias=None,
    is_causal=None,
    **_,
):
    """transformers' signature: query `[1,H,T,D]`, key and value `[1,KH,T,D]` -> (`[1,T,H,Dv]`, None)."""
    if _current is None:
        raise RuntimeError("a forward ran outside of use(context)")
    if position_bias is not None or is_causal is False or not getattr(module, "is_causal", True):
        raise NotImplementedError("attention with a position bias or without causal order is not supported")
    if sliding_window is _UNSET:  # None means that the layer has no window
        sliding_window = getattr(module, "sliding_window", None)
    spec = AttentionSpec(
        scaling=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=softcap or None,
        sliding_window=sliding_window or None,
        sinks=s_aux,
    )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    return _current.attend(module.layer_idx, q, k, v, spec)[None], None


AttentionInterface.register(NAME, _attention)
