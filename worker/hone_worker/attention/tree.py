"""Attention over packed rows of trees: prompts, and branches that continue them. Divides the row into tiles,
which segments.py computes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .context import AttentionContext, AttentionSpec
from .segments import SegmentAttention, Tile

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
