"""Attention over packed rows of trees: prompts, and branches that continue them. It is computed by tiles, or for Apple's GPUs one span
at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from .context import MASKED, AttentionContext, AttentionSpec, softmax_with_sinks

# Tiles: attention of short segments by explicit batched products in fp32 (on accelerators: products in the model's
# dtype, softmax in fp32), with a backward that recomputes the scores. At these sizes faster than one masked attention.

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


# Trees, and their division into tiles.

_MIN_FILLED = 0.6
"""A tile accepts another family only while this share of its scores is not padding."""


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of a packed row."""

    start: int
    length: int


@dataclass(frozen=True)
class Family:
    """A prompt and the branches that continue it. A branch sees the prompt and itself."""

    prompt: Span
    branches: tuple[Span, ...]


@dataclass(frozen=True)
class _Query:
    """The tokens of a span from `first` on. Each sees the span up to itself."""

    span: Span
    first: int = 0


@dataclass(frozen=True)
class _Bundle:
    """Queries that share a prefix."""

    prefix: Span
    queries: tuple[_Query, ...]

    @property
    def rows(self) -> int:
        return max(query.span.length - query.first for query in self.queries)

    @property
    def own(self) -> int:
        return max(query.span.length for query in self.queries)

    @property
    def scores(self) -> int:
        """Scores that one head computes."""
        return sum((q.span.length - q.first) * (self.prefix.length + q.span.length) for q in self.queries)


def score_limit(device: str) -> int:
    """The most scores of a tile, of all heads together, on a type of device."""
    return (4 if device == "cpu" else 64) * 2**20


class PackedAttention(Protocol):
    """Makes the attention context of one packed row in training."""

    def __call__(self, families: list[Family], positions: Tensor) -> AttentionContext: ...


class Tree:
    """Attention by tiles, the PackedAttention of CPUs."""

    def __init__(self, families: list[Family], positions: Tensor):
        self._families, self._positions = families, positions
        self._since = positions
        self._tiles: list[Tile] | None = None

    def see_ahead(self, since: Tensor) -> None:
        self._since = since

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if self._tiles is None:
            self._tiles = self._lay_out(query.shape[1])
        return SegmentAttention.apply(query, key, value, spec.sinks, self._tiles, spec)

    def _lay_out(self, heads: int) -> list[Tile]:
        limit = score_limit(self._positions.device.type) // heads
        none = Span(0, 0)
        prompts = [_Bundle(none, (_Query(family.prompt),)) for family in self._families]
        branches = [
            _Bundle(family.prompt, tuple(_Query(branch) for branch in family.branches if branch.length))
            for family in self._families
        ]
        wanted = prompts + [bundle for bundle in branches if bundle.queries]
        inside = (self._since < self._positions).tolist()
        bundles = [part for bundle in wanted for part in _fit(bundle, limit, inside)]
        bundles.sort(
            key=lambda b: (b.prefix.length > 0, len(b.queries), b.own, b.prefix.length), reverse=True
        )
        return [_tile(group, self._positions, self._since) for group in _grouped(bundles, limit)]


def _fit(bundle: _Bundle, limit: int, inside: list[bool]) -> Iterator[_Bundle]:
    """Cuts a bundle, between its queries or within a long one, into parts of at most `limit` scores. `inside`: tokens before which
    a query cannot be cut, because earlier ones see them."""
    keys = bundle.prefix.length + bundle.own
    if bundle.rows * keys * len(bundle.queries) <= limit:
        yield bundle
    elif len(bundle.queries) > 1:
        each = max(1, limit // (bundle.rows * keys))
        for i in range(0, len(bundle.queries), each):
            yield from _fit(_Bundle(bundle.prefix, bundle.queries[i : i + each]), limit, inside)
    else:
        span = bundle.queries[0].span
        step = max(1, limit // keys)
        first = 0
        while first < span.length:
            end = min(first + step, span.length)
            while end < span.length and inside[span.start + end]:
                end += 1
            yield _Bundle(bundle.prefix, (_Query(Span(span.start, end), first),))
            first = end


def _grouped(bundles: list[_Bundle], limit: int) -> Iterator[list[_Bundle]]:
    group: list[_Bundle] = []
    for bundle in bundles:
        if group and not _belongs([*group, bundle], limit):
            yield group
            group = []
        group.append(bundle)
    if group:
        yield group


def _belongs(group: list[_Bundle], limit: int) -> bool:
    share, rows = max(len(b.queries) for b in group), max(b.rows for b in group)
    keys = max(b.prefix.length for b in group) + max(b.own for b in group)
    padded = len(group) * share * rows * keys
    if (group[0].prefix.length == 0) != (group[-1].prefix.length == 0):
        return False
    return padded <= limit and sum(b.scores for b in group) >= _MIN_FILLED * padded


def _tile(group: list[_Bundle], positions: Tensor, since: Tensor) -> Tile:
    share, rows = max(len(b.queries) for b in group), max(b.rows for b in group)
    prefix, own = max(b.prefix.length for b in group), max(b.own for b in group)
    queries = torch.full((len(group), share, rows), -1)
    keys = torch.full((len(group), share, prefix + own), -1)
    for i, bundle in enumerate(group):
        keys[i, :, : bundle.prefix.length] = _range(bundle.prefix.start, bundle.prefix.length)
        for j, query in enumerate(bundle.queries):
            span, length = query.span, query.span.length - query.first
            queries[i, j, :length] = _range(span.start + query.first, length)
            keys[i, j, prefix : prefix + span.length] = _range(span.start, span.length)
    device = positions.device
    return Tile(queries.flatten(0, 1).to(device), keys.flatten(0, 1).to(device), prefix, share, positions, since)


def _range(start: int, length: int) -> Tensor:
    return torch.arange(start, start + length)


class SdpaTree:
    """Attention by torch's scaled dot-product attention, one span at a time, the PackedAttention of Apple's GPUs. Layers with soft-caps
    or sinks, and rows with images whose parts attend to each other, use tiles."""

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
