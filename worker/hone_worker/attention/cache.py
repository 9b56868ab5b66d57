"""Keys and values of several sequences, by layer, in memory that grows.

A block is a rectangle with a row for each sequence and a column for each token. It reserves spare rows and
columns, so that a token or a sequence is added without copying the others. A layer's first write defines its
shape.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .recurrent import LayerState, Mixer

_GROWTH = 1.5
_LEAST_COLUMNS = 64


class Block:
    """Tensors are `[rows, heads, columns, width]`; `keys(layer)` and `values(layer)` are the part in use."""

    def __init__(self, dtype: torch.dtype, device: torch.device, rows: int = 0, columns: int = 0):
        self.dtype = dtype
        self.device = device
        self.rows = rows
        self.columns = columns
        self.states: dict[Mixer, LayerState] = {}
        """The states of layers that have one instead of keys and values, `[rows, ...]`."""
        self._room = (rows, columns)
        self._layers: dict[int, list[Tensor]] = {}

    @property
    def bytes(self) -> int:
        states = sum(state.bytes for state in self.states.values())
        return states + sum(tensor.nbytes for pair in self._layers.values() for tensor in pair)

    def keys(self, layer: int) -> Tensor:
        return self._layers[layer][0][: self.rows, :, : self.columns]

    def values(self, layer: int) -> Tensor:
        return self._layers[layer][1][: self.rows, :, : self.columns]

    def write(self, layer: int, begin: int, keys: Tensor, values: Tensor) -> None:
        """Fills the columns from `begin` on in all rows; `keys` `[rows, heads, count, width]`."""
        pair = self._layers.get(layer)
        if pair is None:
            pair = self._layers[layer] = [self._new(keys), self._new(values)]
        end = begin + keys.shape[2]
        pair[0][: self.rows, :, begin:end].copy_(keys)
        pair[1][: self.rows, :, begin:end].copy_(values)

    def resize(self, rows: int, columns: int, most_columns: int | None = None) -> None:
        """Enlarges the rectangle, with new places uninitialized. It never needs more than `most_columns`."""
        row_room, column_room = self._room
        if columns > column_room:
            column_room = max(columns, _LEAST_COLUMNS, int(column_room * _GROWTH))
            column_room = max(columns, min(column_room, most_columns or column_room))
        if rows > row_room:
            row_room = max(rows, int(row_room * _GROWTH))
        if (row_room, column_room) != self._room:
            self._room = (row_room, column_room)
            self._rebuild(0)
        self.rows, self.columns = rows, columns

    def drop_columns(self, count: int) -> None:
        """Drops the first columns of all rows."""
        self._rebuild(count)
        self.columns -= count

    def keep_rows(self, moves: Sequence[tuple[int, int]], rows: int) -> None:
        """Copies row `source` over row `target` for each `(source, target)`, then keeps the first `rows`."""
        if moves:
            sources = torch.tensor([source for source, _ in moves], device=self.device)
            targets = torch.tensor([target for _, target in moves], device=self.device)
            for pair in self._layers.values():
                for tensor in pair:
                    used = tensor[:, :, : self.columns]
                    used.index_copy_(0, targets, used.index_select(0, sources))
        if self.states:
            kept = list(range(self.rows))
            for source, target in moves:
                kept[target] = source
            chosen = torch.tensor(kept[:rows], dtype=torch.long, device=self.device)
            self.states = {mixer: state.select(chosen) for mixer, state in self.states.items()}
        self.rows = rows
        if rows * 2 < self._room[0]:
            self._room = (rows, self._room[1])
            self._rebuild(0)

    def append(self, other: "Block", rows: Sequence[int], columns: int) -> None:
        """Adds the first `columns` columns of these rows of another block."""
        before = self.rows
        self.resize(before + len(rows), max(self.columns, columns))
        index = torch.tensor(rows, device=self.device)
        self.append_states(other, index)
        for layer, pair in other._layers.items():
            mine = self._layers.get(layer)
            if mine is None:
                mine = self._layers[layer] = [self._new(pair[0]), self._new(pair[1])]
            for target, source in zip(mine, pair):
                target[before : self.rows, :, :columns].copy_(source[:, :, :columns].index_select(0, index))

    def append_states(self, other: "Block", rows: Tensor) -> None:
        """Adds copies of the states of these rows of another block."""
        for mixer, state in other.states.items():
            mine = [self.states[mixer]] if mixer in self.states else []
            self.states[mixer] = LayerState.joined([*mine, state.select(rows)])

    def _new(self, like: Tensor) -> Tensor:
        rows, columns = self._room
        # Zeros, because 0 * NaN is NaN in a masked place.
        return torch.zeros(rows, like.shape[1], columns, like.shape[3], dtype=self.dtype, device=self.device)

    def _rebuild(self, skip: int) -> None:
        """Copies the part in use, without its first `skip` columns, into tensors of the current room."""
        for pair in self._layers.values():
            for place, old in enumerate(pair):
                used = old[: self.rows, :, skip : self.columns]
                pair[place] = self._new(old)
                rows = min(self.rows, self._room[0])
                pair[place][:rows, :, : used.shape[2]].copy_(used[:rows])
