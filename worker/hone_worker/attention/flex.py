"""Attention over packed rows of trees by torch's FlexAttention, which does not keep scores in memory. For CUDA: on a CPU it computes
all scores, and torch refuses its backward. Rows with images whose parts attend to each other use tiles."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import AuxRequest, BlockMask

from .context import AttentionSpec
from .tree import Family, Span, Tree

_BLOCK = 128
"""Tokens of a block. Blocks whose queries see none of their keys are skipped."""


class FlexTree:
    """The attention context of one packed row in training, like `Tree`."""

    def __init__(self, families: list[Family], positions: Tensor):
        self._length = len(positions)
        padding = -self._length % _BLOCK
        numbered = _numbered(families)
        span, prompt = torch.full((2, self._length + padding), len(numbered))
        for number, (own, of_prompt) in enumerate(numbered):
            span[own.start : own.start + own.length] = number
            prompt[own.start : own.start + own.length] = of_prompt
        at = torch.nn.functional.pad(positions.cpu(), (0, padding))
        self._host = span, prompt, at
        self._span, self._prompt, self._at = (x.to(positions.device) for x in self._host)
        self._masks: dict[int | None, BlockMask] = {}
        self._families, self._positions = families, positions
        self._tiles: Tree | None = None

    def see_ahead(self, since: Tensor) -> None:
        self._tiles = Tree(self._families, self._positions)
        self._tiles.see_ahead(since)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if self._tiles is not None:
            return self._tiles.attend(layer, query, key, value, spec)
        output, aux = _flex(query.device.type)(
            *(self._padded(x) for x in (query, key, value)),
            score_mod=None if spec.softcap is None else _soft_cap(spec.softcap, query.device),
            block_mask=self.mask(spec.sliding_window),
            scale=spec.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
            return_aux=AuxRequest(lse=True),
        )
        if spec.sinks is not None:
            # softmax(s) * sum(exp(s)) / (sum(exp(s)) + exp(sink))
            kept = torch.sigmoid(aux.lse - spec.sinks.to(aux.lse.dtype)[:, None])
            output = output * kept[..., None].to(output.dtype)
        return output[0].transpose(0, 1)[: self._length]

    def mask(self, window: int | None) -> BlockMask:
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        return self._masks[window]

    def _make_mask(self, window: int | None) -> BlockMask:
        span, prompt, at = self._span, self._prompt, self._at
        # A tensor: numbers that differ between calls would be compiled again.
        reach = None if window is None else torch.tensor(window, device=at.device)

        def visible(_batch, _head, q, k):
            seen = ((span[q] == span[k]) | (prompt[q] == span[k])) & (at[q] >= at[k])
            return seen if reach is None else seen & (at[q] - at[k] < reach)

        some, full = self._blocks(window)
        partial = _columns(some & ~full)
        return BlockMask.from_kv_blocks(
            *(x.to(at.device) for x in (*partial, *_columns(full))),
            BLOCK_SIZE=_BLOCK,
            mask_mod=visible,
            seq_lengths=(len(at), len(at)),
        )

    def _blocks(self, window: int | None) -> tuple[Tensor, Tensor]:
        """`[blocks of queries, blocks of keys]`: whether a query may see a key, and whether each query sees each key."""
        span, prompt, at = (x.view(-1, _BLOCK) for x in self._host)
        first, last = span.amin(1), span.amax(1)
        oldest, newest = at.amin(1), at.amax(1)
        # Spans are numbered in the row's order, so the numbers of a block's spans are a range.
        overlap = (first[:, None] <= last) & (last[:, None] >= first)
        of_prompt = (prompt.amin(1)[:, None] <= last) & (prompt.amax(1)[:, None] >= first)
        some = (overlap | of_prompt) & (newest[:, None] >= oldest)
        single = first == last
        same = (first[:, None] == first) | (prompt.amin(1)[:, None] == first)
        full = same & single[:, None] & single & (oldest[:, None] >= newest)
        if window is not None:
            some &= oldest[:, None] - newest < window
            full &= newest[:, None] - oldest < window
        return some, full

    def _padded(self, x: Tensor) -> Tensor:
        """`[T,H,D]` -> `[1,H,T',D]` with whole blocks of tokens."""
        return torch.nn.functional.pad(x.transpose(0, 1), (0, 0, 0, len(self._at) - self._length))[None]


def _numbered(families: list[Family]) -> list[tuple[Span, int]]:
    """All spans in the order of the row, each with the number of its family's prompt; its own if that is empty."""
    spans = [(span, family.prompt) for family in families for span in (family.prompt, *family.branches) if span.length]
    spans.sort(key=lambda pair: pair[0].start)
    numbers = {id(span): number for number, (span, _) in enumerate(spans)}
    return [(span, numbers.get(id(prompt), numbers[id(span)])) for span, prompt in spans]


def _columns(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """BlockMask's form of `[Q, K]`: the number of chosen columns `[1,1,Q]`, and all columns, the chosen first, `[1,1,Q,K]`."""
    order = blocks.int().argsort(dim=1, descending=True, stable=True)
    return blocks.sum(1).int()[None, None], order.int()[None, None]


@functools.cache
def _soft_cap(cap: float, device: torch.device) -> Callable[..., Tensor]:
    limit = torch.tensor(cap, device=device)
    return lambda score, _batch, _head, _q, _k: limit * torch.tanh(score / limit)


@functools.cache
def _flex(device: str) -> Callable:
    if device == "cpu":
        return torch_flex.flex_attention
    # Without fullgraph, a call beyond the limit of compilations would silently compute all scores. Kinds of layers, with and without
    # gradients, are compiled apart.
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    return torch.compile(torch_flex.flex_attention, dynamic=True, fullgraph=True)
