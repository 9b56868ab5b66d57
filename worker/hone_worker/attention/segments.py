"""Attention of short segments by explicit batched products in fp32 (on accelerators: products in the model's
dtype, softmax in fp32), with a backward that recomputes the scores. At these sizes faster than one masked
attention."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .context import MASKED, AttentionSpec, softmax_with_sinks

_KEPT_BIAS = 2**20
"""Biases up to this size are kept for the other layers; larger ones would need more memory than the
scores."""


@dataclass
class _Rows:
    """Rows of a flat `[T * heads, D]` that a tile uses."""

    query: Tensor
    """`[R * heads * Lq]`"""
    key: Tensor
    """`[R * heads * Lk]`"""
    padding: Tensor | None
    """Entries of `query` that are padding; None if all are real."""
    real: Tensor | None
    """Entries of `query` that are not padding; None if all are real."""
    own: Tensor
    """Entries of `key` after the prefix that are not padding."""
    prefix: Tensor
    """Entries of `[R / share * heads * Lp]`, one prefix per `share` segments, that are not padding."""
    prefix_target: Tensor
    """`[T * heads, D]`'s rows for these."""


class Tile:
    """R segments of at most Lq queries, each of which sees a prefix of at most Lp keys and its own keys
    causally. `share` adjacent segments have the same prefix. Indices are tokens of the packed row; -1 is
    padding. `since`: as in AttentionContext.see_ahead."""

    def __init__(
        self, queries: Tensor, keys: Tensor, prefix: int, share: int, positions: Tensor, since: Tensor | None = None
    ):
        self.queries, self.keys, self.prefix, self.share = queries, keys, prefix, share
        self.segments, self.num_queries, self.num_keys = queries.shape[0], queries.shape[1], keys.shape[1]
        self._at, self._to = positions[queries.clamp(min=0)], positions[keys.clamp(min=0)]
        self._since = self._to if since is None else since[keys.clamp(min=0)]
        distance, visible = self._geometry()
        self._reach = int((distance * visible).max())
        self._biases: dict[int | None, Tensor] = {}
        self._rows: dict[int, _Rows] = {}

    def bias(self, window: int | None) -> Tensor:
        """`[R,1,1,Lq,Lk]`: 0 if the query sees the key, else MASKED."""
        if window is not None and window > self._reach:
            window = None
        if window in self._biases:
            return self._biases[window]
        distance, visible = self._geometry()
        seen = visible if window is None else visible & (distance < window)
        bias = torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, MASKED)[:, None, None]
        if bias.numel() <= _KEPT_BIAS:
            self._biases[window] = bias
        return bias

    def _geometry(self) -> tuple[Tensor, Tensor]:
        """`[R,Lq,Lk]`: the distance from each query to each key, and whether the query sees it."""
        distance = self._at[:, :, None] - self._to[:, None, :]
        real = (self.keys >= 0)[:, None, :] & (self.queries >= 0)[:, :, None]
        return distance, real & (self._at[:, :, None] >= self._since[:, None, :])

    def rows(self, heads: int) -> _Rows:
        """The tile's rows if the packed row has `heads` heads."""
        if heads not in self._rows:
            self._rows[heads] = self._find_rows(heads)
        return self._rows[heads]

    def _find_rows(self, heads: int) -> _Rows:
        head = torch.arange(heads, device=self.queries.device)[None, :, None]

        def flat(index: Tensor) -> Tensor:
            return (index.clamp(min=0)[:, None] * heads + head).flatten()

        def entries(keep: Tensor) -> Tensor:
            return keep[:, None].expand(-1, heads, -1).flatten().nonzero()[:, 0]

        real, key = self.queries >= 0, flat(self.keys)
        whole = bool(real.all())
        own = self.keys >= 0
        own[:, : self.prefix] = False
        own = entries(own)
        first = self.keys[:: self.share, : self.prefix]
        prefix = entries(first >= 0)
        return _Rows(
            flat(self.queries),
            key,
            None if whole else entries(~real),
            None if whole else entries(real),
            own,
            prefix,
            flat(first)[prefix],
        )


class SegmentAttention(torch.autograd.Function):
    """query `[T,H,D]`, key `[T,KH,D]`, value `[T,KH,Dv]`, sinks `[H]` or None -> `[T,H,Dv]`. The tiles
    contain each query once."""

    @staticmethod
    def forward(
        ctx,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        tiles: list[Tile],
        spec: AttentionSpec,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, sinks)
        ctx.tiles, ctx.spec = tiles, spec
        output = query.new_empty(*query.shape[:2], value.shape[-1])
        for tile in tiles:
            q, k, v = _queries(tile, query, key.shape[1]), _keys(tile, key), _keys(tile, value)
            weights, _ = _softmax(tile, q, k, spec, sinks)
            _scatter_queries(output, tile, weights @ v)
        return output

    @staticmethod
    def backward(ctx, gradient: Tensor):
        query, key, value, sinks = ctx.saved_tensors
        spec, heads = ctx.spec, key.shape[1]
        dq = torch.empty_like(query, memory_format=torch.contiguous_format)
        dk = torch.zeros(key.shape, device=key.device)
        dv = torch.zeros(value.shape, device=value.device)
        dsinks = None if sinks is None else torch.zeros(sinks.shape, device=sinks.device)
        for tile in ctx.tiles:
            q, k, v = _queries(tile, query, heads), _keys(tile, key), _keys(tile, value)
            do = _queries(tile, gradient, heads)
            padding = tile.rows(query.shape[1]).padding
            if padding is not None:
                do.view(-1, do.shape[-1]).index_fill_(0, padding, 0)
            weights, bend = _softmax(tile, q, k, spec, sinks)
            _add_keys(dv, tile, weights.mT @ do)
            dweights = (do @ v.mT).float()
            if sinks is None:
                ds = torch._softmax_backward_data(dweights, weights.float(), -1, torch.float32)
            else:
                mean = (dweights * weights).sum(-1, keepdim=True)
                missing = 1 - weights.float().sum(-1, keepdim=True)
                dsinks -= (mean * missing).view(tile.segments, len(sinks), -1).sum((0, 2))
                ds = weights * (dweights - mean)
            if bend is not None:
                ds = ds * bend
            ds = ds.mul_(spec.scaling).to(q.dtype)
            _scatter_queries(dq, tile, ds @ k)
            _add_keys(dk, tile, ds.mT @ q)
        dsinks = None if dsinks is None else dsinks.to(sinks.dtype)
        return dq, dk.to(key.dtype), dv.to(value.dtype), dsinks, None, None


def _softmax(
    tile: Tile, q: Tensor, k: Tensor, spec: AttentionSpec, sinks: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Attention weights `[R, KH, G*Lq, Lk]`, and the derivative of the soft-cap if the layer has one."""
    scores, bend = q @ k.mT, None
    scaling = spec.scaling
    if spec.softcap is not None:
        bent = torch.tanh(scores.float() * (scaling / spec.softcap))
        scores, scaling, bend = bent * spec.softcap, 1.0, 1 - bent * bent
    shape = (tile.segments, k.shape[1], -1, tile.num_queries, tile.num_keys)
    scores = torch.add(tile.bias(spec.sliding_window), scores.view(shape), alpha=scaling)
    weights = softmax_with_sinks(scores.flatten(1, 2), sinks)
    return weights.view(q.shape[0], q.shape[1], q.shape[2], -1).to(q.dtype), bend


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "cpu" else x.dtype


def _queries(tile: Tile, x: Tensor, key_heads: int) -> Tensor:
    """`[T,H,D]` -> `[R, KH, G*Lq, D]`"""
    found = x.reshape(-1, x.shape[-1]).index_select(0, tile.rows(x.shape[1]).query).to(_compute_dtype(x))
    return found.view(tile.segments, key_heads, -1, x.shape[-1])


def _keys(tile: Tile, x: Tensor) -> Tensor:
    """`[T,KH,D]` -> `[R, KH, Lk, D]`"""
    found = x.reshape(-1, x.shape[-1]).index_select(0, tile.rows(x.shape[1]).key).to(_compute_dtype(x))
    return found.view(tile.segments, x.shape[1], tile.num_keys, x.shape[-1])


def _scatter_queries(target: Tensor, tile: Tile, found: Tensor) -> None:
    """Writes `[R, KH, G*Lq, D]` to its places in `[T,H,D]`."""
    rows = tile.rows(target.shape[1])
    flat = found.reshape(-1, found.shape[-1]).to(target.dtype)
    where = rows.query
    if rows.real is not None:
        flat, where = flat[rows.real], where[rows.real]
    target.view(-1, target.shape[-1]).index_copy_(0, where, flat)


def _add_keys(target: Tensor, tile: Tile, found: Tensor) -> None:
    """Adds `[R, KH, Lk, D]` to the fp32 `[T,KH,D]`. Gradients of a shared prefix are summed over its segments
    first."""
    rows, width = tile.rows(target.shape[1]), found.shape[-1]
    flat = target.view(-1, width)
    flat.index_add_(0, rows.key[rows.own], found.reshape(-1, width)[rows.own].to(target.dtype))
    if tile.prefix:
        shared = found[:, :, : tile.prefix].to(target.dtype)
        shared = shared.reshape(-1, tile.share, *shared.shape[1:]).sum(1).reshape(-1, width)
        flat.index_add_(0, rows.prefix_target, shared[rows.prefix])
