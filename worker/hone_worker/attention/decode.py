"""Attention of the sampler: prompts are read once, and new tokens attend to their prompt and their sample.

A bucket is a set of rows with two rectangular caches: one with a row per prompt, shared by all samples of the
prompt, and one with a row per sample. All rows of a bucket write the same column at the same step; a row that
joins late ignores the columns before its first. So joining, leaving and writing never move the data of other
rows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .context import MASKED, AttentionSpec, softmax_with_sinks
from .recurrent import LayerState, Mixer, RecurrentContext, Run

# Keys and values of several sequences, by layer, in memory that grows. A block is a rectangle with a row for each
# sequence and a column for each token. It reserves spare rows and columns, so that a token or a sequence is added
# without copying the others. A layer's first write defines its shape.

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


# Scores held at once by the attention for soft-caps and sinks.
_SCORE_ELEMENTS = 1 << 24


def cache_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """On a CPU a query takes eight times as long with a bf16 cache as with an fp32 cache."""
    return torch.float32 if device.type == "cpu" else dtype


class Prefill(RecurrentContext):
    """Reads prompts of the given lengths, one after the other in the packed row, into `block`.

    A single long prompt can be read in parts: `advance` sets which of its tokens the next forward reads."""

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype, device: torch.device):
        self.block = Block(dtype, device, len(lengths), max(lengths))
        self._device = device
        self._lengths = list(lengths)
        self.advance(0, max(lengths))

    def advance(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        self._masks: dict[int | None, Tensor] = {}
        self._places: Tensor | None = None
        self._since: Tensor | None = None
        width = end - begin
        if any(length != width for length in self._lengths) and len(self._lengths) > 1:
            places = [row * width + torch.arange(length) for row, length in enumerate(self._lengths)]
            self._places = torch.cat(places).to(self._device)

    def see_ahead(self, since: Tensor) -> None:
        """Prompts that are read in parts are not divided within images, so that earlier keys are seen as usual."""
        count, width = len(self._lengths), self._end - self._begin
        if self._places is not None:
            since = since.new_full((count * width,), self._end).index_copy_(0, self._places, since)
        earlier = torch.arange(self._begin, device=self._device).expand(count, -1)
        self._since = torch.cat([earlier, since.view(count, width)], 1)[:, None, None]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        query_rows, key_rows, value_rows = (self._unpack(part) for part in (query, key, value))
        self.block.write(layer, self._begin, key_rows, value_rows)
        keys = self.block.keys(layer)[:, :, : self._end]
        values = self.block.values(layer)[:, :, : self._end]
        window = spec.sliding_window
        if window is not None and window >= self._end:
            window = None
        if spec.softcap is None and spec.sinks is None:
            causal = window is None and self._begin == 0 and self._since is None
            mask = None if causal else self._mask(window)
            grouped = query.shape[1] != key.shape[1]
            out = F.scaled_dot_product_attention(
                query_rows, keys, values, mask, is_causal=causal, scale=spec.scaling, enable_gqa=grouped
            )
        else:
            out = self._explicit_attention(query_rows, keys, values, window, spec)
        return self._pack(out).to(query.dtype)

    def mix(self, mixer: Mixer, run: Run, x: Tensor) -> Tensor:
        """Each prompt by itself: padding would change its state."""
        lengths = [self._end - self._begin] if len(self._lengths) == 1 else self._lengths
        before = self.block.states.get(mixer)
        states = [LayerState() if before is None else before for _ in lengths]
        outputs = [run(part[None], state)[0] for part, state in zip(x.split(lengths), states)]
        self.block.states[mixer] = LayerState.joined(states)
        return torch.cat(outputs)

    def _unpack(self, packed: Tensor) -> Tensor:
        """`[T, H, D]` as `[P, H, L, D]` in the cache's dtype, zero behind each prompt's end."""
        count, width = len(self._lengths), self._end - self._begin
        packed = packed.to(self.block.dtype)
        if self._places is not None:
            packed = packed.new_zeros(count * width, *packed.shape[1:]).index_copy_(0, self._places, packed)
        return packed.view(count, width, *packed.shape[1:]).transpose(1, 2)

    def _pack(self, rows: Tensor) -> Tensor:
        flat = rows.transpose(1, 2).reshape(-1, rows.shape[1], rows.shape[3])
        return flat if self._places is None else flat.index_select(0, self._places)

    def _mask(self, window: int | None) -> Tensor:
        """`[L, K]`, or `[P, 1, L, K]` after `see_ahead`: which keys each query sees."""
        if window not in self._masks:
            positions = torch.arange(self._begin, self._end, device=self._device)
            distance = positions[:, None] - torch.arange(self._end, device=self._device)
            seen = distance >= 0 if self._since is None else positions[:, None] >= self._since
            self._masks[window] = seen if window is None else seen & (distance < window)
        return self._masks[window]

    def _explicit_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, window: int | None, spec: AttentionSpec
    ) -> Tensor:
        rows, heads, width, _ = query.shape
        groups = heads // keys.shape[1]
        keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
        hidden = ~self._mask(window)
        step = max(1, _SCORE_ELEMENTS // (rows * heads * self._end))
        out = []
        for begin in range(0, width, step):
            part = slice(begin, begin + step)
            scores = torch.matmul(query[:, :, part], keys.transpose(2, 3)).float() * spec.scaling
            if spec.softcap is not None:
                scores = torch.tanh(scores / spec.softcap) * spec.softcap
            weights = softmax_with_sinks(scores.masked_fill_(hidden[..., part, :], MASKED), spec.sinks)
            out.append(torch.matmul(weights.to(values.dtype), values))
        return torch.cat(out, 2)


class Bucket:
    """Rows that are decoded together: row `r` belongs to prompt `owners[r]` and has tokens from column
    `starts[r]` on. `prompts` is the block of a Prefill, or an empty one."""

    def __init__(self, prompts: Block, lengths: Sequence[int]):
        self.prompts = prompts
        self.lengths = list(lengths)
        self.owners: list[int] = []
        self.starts: list[int] = []
        self.own = Block(prompts.dtype, prompts.device)
        self._seeded = 0
        """The rows whose layers have the states of their prompts."""
        self._fresh = True

    @property
    def rows(self) -> int:
        return len(self.owners)

    @property
    def column(self) -> int:
        """The column after the last one written."""
        return self.own.columns

    def add_prompt(self, length: int) -> None:
        """Announces the next prompt. The caller appends its keys to `prompts` before the next step."""
        self.lengths.append(length)
        self._fresh = True

    def add_rows(self, owners: Sequence[int]) -> None:
        """Appends rows, whose first token goes to the next column."""
        self.owners += owners
        self.starts += [self.column] * len(owners)
        self.own.resize(self.rows, self.column)
        self._fresh = True

    def remove(self, gone: Sequence[int]) -> list[tuple[int, int]]:
        """Drops rows and moves the last rows into the gaps. Returns the moves `(source, target)`, which the
        caller repeats in its own lists."""
        self._seed()
        moves, count = _fill_gaps(self.rows, gone)
        self.own.keep_rows(moves, count)
        self._seeded = count
        for column in (self.owners, self.starts):
            for source, target in moves:
                column[target] = column[source]
            del column[count:]
        self._fresh = True
        return moves

    def remove_prompts(self, gone: Sequence[int]) -> list[tuple[int, int]]:
        """Drops prompts without rows in the same way."""
        moves, count = _fill_gaps(len(self.lengths), gone)
        self.prompts.keep_rows(moves, count)
        renamed = dict(moves)
        self.owners = [renamed.get(owner, owner) for owner in self.owners]
        for source, target in moves:
            self.lengths[target] = self.lengths[source]
        del self.lengths[count:]
        if self.lengths:
            self.prompts.resize(count, max(self.lengths))
        self._fresh = True
        return moves

    def begin_step(self, most_columns: int) -> None:
        """Makes room for one token per row, and computes what all layers share. The rows never need more than
        `most_columns` columns."""
        unused = min(self.starts)
        if unused >= 64 and unused * 2 > self.column:
            self.own.drop_columns(unused)
            self.starts = [start - unused for start in self.starts]
            most_columns -= unused
        self.own.resize(self.rows, self.column + 1, most_columns)
        self._seed()
        if self._fresh:
            self._arrange()
            self._fresh = False
        self._biases: dict[int | None, Tensor | None] = {}

    def _seed(self) -> None:
        """Recurrent layers of new rows continue the states of their prompts."""
        new = self.owners[self._seeded :]
        if new and self.prompts.states:
            self.own.append_states(self.prompts, torch.tensor(new, device=self.own.device))
        self._seeded = self.rows

    def _arrange(self) -> None:
        """Places rows in a grid `[prompt, turn]`: all samples of a prompt are multiplied with its keys at
        once."""
        device = self.own.device
        turns = [0] * len(self.lengths)
        slots = []
        for owner in self.owners:
            slots.append((owner, turns[owner]))
            turns[owner] += 1
        self._turns = max(turns)
        places = [owner * self._turns + turn for owner, turn in slots]
        full = places == list(range(len(self.lengths) * self._turns))
        self._slots = None if full else torch.tensor(places, device=device)
        lengths = torch.tensor(self.lengths, device=device)
        self._row_lengths = lengths[torch.tensor(self.owners, device=device)]
        self._row_starts = torch.tensor(self.starts, device=device)

    def _to_grid(self, rows: Tensor) -> Tensor:
        """`[N, KH, G, x]` as `[P, KH, turns * G, x]`."""
        prompts, (_, heads, groups, width) = len(self.lengths), rows.shape
        if self._slots is not None:
            grid = rows.new_zeros(prompts * self._turns, heads, groups, width)
            rows = grid.index_copy_(0, self._slots, rows)
        if self._turns == 1:
            return rows
        grid = rows.reshape(prompts, self._turns, heads, groups, width).transpose(1, 2)
        return grid.reshape(prompts, heads, -1, width)

    def _from_grid(self, grid: Tensor, groups: int) -> Tensor:
        prompts, heads, _, width = grid.shape
        if self._turns > 1:
            grid = grid.view(prompts, heads, self._turns, groups, width).transpose(1, 2)
            grid = grid.reshape(-1, heads, groups, width)
        return grid if self._slots is None else grid.index_select(0, self._slots)

    def _bias(self, window: int | None) -> Tensor | None:
        """`[N, 1, 1, prompt + own]`: added to the scores to mask keys; None if no key is masked."""
        if window not in self._biases and not self._hides(window):
            self._biases[window] = None
        if window not in self._biases:
            device, column = self.own.device, self.column - 1
            # The row's own tokens before this one: its distance from the prompt's end.
            behind = column - self._row_starts
            prompt = torch.arange(self.prompts.columns, device=device)
            own = torch.arange(self.column, device=device)
            hidden = torch.cat([prompt >= self._row_lengths[:, None], own < self._row_starts[:, None]], 1)
            if window is not None:
                position = (self._row_lengths + behind)[:, None]
                far = column - own >= window
                hidden |= torch.cat([position - prompt >= window, far.expand(self.rows, -1)], 1)
            bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, MASKED)
            self._biases[window] = bias[:, None, None]
        return self._biases[window]

    def _hides(self, window: int | None) -> bool:
        """Whether a key is masked for some row. Known without reading a tensor, for which the host would wait."""
        if window is not None and window < self.prompts.columns + self.column:
            return True
        return any(self.starts) or any(self.lengths[owner] < self.prompts.columns for owner in set(self.owners))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        """One new token per row: `[N, H, D]` -> `[N, H, Dv]`."""
        count, heads, width = query.shape
        kv_heads = key.shape[1]
        groups = heads // kv_heads
        self.own.write(layer, self.column - 1, key[:, :, None], value[:, :, None])
        own_keys, own_values = self.own.keys(layer), self.own.values(layer)
        prompt_keys, prompt_values = self.prompts.keys(layer), self.prompts.values(layer)
        split = self.prompts.columns

        query = (query.float() * spec.scaling).to(own_keys.dtype).view(count, kv_heads, groups, width)
        scores = torch.empty(count, kv_heads, groups, split + self.column, device=query.device)
        on_prompt = torch.matmul(self._to_grid(query), prompt_keys.transpose(2, 3))
        scores[..., :split] = self._from_grid(on_prompt, groups)
        scores[..., split:] = torch.matmul(query, own_keys.transpose(2, 3))
        if spec.softcap is not None:
            scores = scores.div_(spec.softcap).tanh_().mul_(spec.softcap)
        window = spec.sliding_window
        if window is not None and window >= split + self.column:
            window = None
        if (bias := self._bias(window)) is not None:
            scores += bias
        if spec.sinks is None:
            weights = torch.softmax(scores, -1)
        else:
            weights = softmax_with_sinks(scores.view(count, heads, 1, -1), spec.sinks).view(scores.shape)
        weights = weights.to(own_values.dtype)
        out = torch.matmul(weights[..., split:], own_values)
        out += self._from_grid(torch.matmul(self._to_grid(weights[..., :split]), prompt_values), groups)
        return out.view(count, heads, -1)


def _fill_gaps(count: int, gone: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """The moves `(source, target)` that fill gaps with the last of `count` entries, and the new count."""
    missing = set(gone)
    left = count - len(missing)
    sources = (index for index in range(left, count) if index not in missing)
    return [(next(sources), target) for target in sorted(missing) if target < left], left


class Decode(RecurrentContext):
    """One token of every row of the buckets, in the buckets' order."""

    def __init__(self, buckets: Sequence[Bucket]):
        self._buckets = list(buckets)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        if len(self._buckets) == 1:
            return self._buckets[0].attend(layer, query, key, value, spec).to(query.dtype)
        out = query.new_empty(*query.shape[:2], value.shape[-1])
        begin = 0
        for bucket in self._buckets:
            rows = slice(begin, begin + bucket.rows)
            out[rows] = bucket.attend(layer, query[rows], key[rows], value[rows], spec)
            begin = rows.stop
        return out

    def mix(self, mixer: Mixer, run: Run, x: Tensor) -> Tensor:
        parts = x.split([bucket.rows for bucket in self._buckets])
        states = [bucket.own.states[mixer] for bucket in self._buckets]
        return torch.cat([run(part[:, None], state)[:, 0] for part, state in zip(parts, states)])
