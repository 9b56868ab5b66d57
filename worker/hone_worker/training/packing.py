"""Sequences of a training call, and how they share packed rows: what they begin with alike is computed once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..attention.tree import Family, Span
from ..errors import UserMistake


@dataclass(frozen=True)
class Sequences:
    """S sequences, flat. A sequence of L tokens has L - 1 flags: flag i says that token i + 1 is an
    output. With `targets`, flag i is the number of outputs at place i instead, and `targets` says of which
    tokens."""

    tokens: np.ndarray
    """int32, all sequences' tokens."""
    offsets: np.ndarray
    """`[S+1]`; sequence s is `tokens[offsets[s]:offsets[s+1]]`, its flags begin at `offsets[s] - s`."""
    trained: np.ndarray
    """uint8"""
    targets: np.ndarray | None = None
    """int32, one for each output, in order."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, s: int) -> np.ndarray:
        return self.tokens[self.offsets[s] : self.offsets[s + 1]]

    def places(self, s: int) -> np.ndarray:
        """The position of each output, ascending."""
        start, stop = int(self.offsets[s]) - s, int(self.offsets[s + 1]) - s - 1
        flags = self.trained[start:stop]
        places = np.flatnonzero(flags)
        return places if self.targets is None else np.repeat(places, flags[places])

    def wanted(self, s: int) -> np.ndarray:
        """The token of each output."""
        if self.targets is None:
            return self.ids(s)[self.places(s) + 1]
        return self.targets[self._starts[s] : self._starts[s + 1]]

    @cached_property
    def _starts(self) -> np.ndarray:
        """`[S+1]` the first output of each sequence."""
        return np.concatenate([[0], np.cumsum(self.counts())])

    def counts(self) -> np.ndarray:
        """Number of outputs of each sequence."""
        return np.array([len(self.places(s)) for s in range(len(self))], dtype=np.int64)

    def check(self, vocabulary_size: int) -> None:
        """Raises UserMistake for arrays that do not fit together or ids that the model does not know."""
        lengths = np.diff(self.offsets)
        fits = len(self.offsets) > 0 and self.offsets[0] == 0 and self.offsets[-1] == len(self.tokens)
        if not fits or (lengths < 1).any() or len(self.trained) != len(self.tokens) - len(self):
            raise UserMistake(
                "the arrays of the sequences do not fit together",
                "each needs a token and a flag less than tokens",
            )
        if len(self.tokens) and not 0 <= self.tokens.min() <= self.tokens.max() < vocabulary_size:
            raise UserMistake(
                f"a token id lies outside of the vocabulary of {vocabulary_size}",
                "use the tokenizer of this model",
            )
        if self.targets is None:
            return
        if len(self.targets) != int(self.trained.sum(dtype=np.int64)):
            raise UserMistake(
                f"{len(self.targets)} targets for {int(self.trained.sum(dtype=np.int64))} outputs",
                "give each output a target",
            )
        if len(self.targets) and not 0 <= self.targets.min() <= self.targets.max() < vocabulary_size:
            raise UserMistake(
                f"a target lies outside of the vocabulary of {vocabulary_size}",
                "use the tokenizer of this model",
            )


@dataclass(frozen=True)
class PackedRow:
    """One row of tokens: families of a prompt and its branches, and the places that give outputs. What several
    sequences want of the same place is computed once."""

    ids: Tensor
    positions: Tensor
    families: list[Family]
    sources: Tensor
    """`[U]` tokens of the row whose hidden states give outputs."""
    targets: Tensor
    """`[U]` the token whose output each is."""
    outputs: Tensor | None
    """`[N]` which of them is each output of the sequences; None: they are the outputs, in order."""


@dataclass(frozen=True)
class _Part:
    """What of a sequence has to be computed: up to the last place that gives an output."""

    ids: np.ndarray
    first: int
    """The first place that gives an output."""


@dataclass
class _Shared:
    """Sequences that begin alike, and the best way found to compute them: as one family, or as several."""

    prefix: int
    """Tokens that all of them have in common."""
    members: list[int]
    families: list[tuple[int, list[int]]]
    """Prefix and members of each."""
    saved: int
    """Tokens that these families do not compute again."""


def plan_packed(sequences: Sequences, indices: list[int], budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` computed tokens (a longer sequence stands alone), sequences with a
    common beginning together. Sequences without outputs are left out."""
    parts = {s: part for s in indices if (part := _part(sequences, s)) is not None}
    batches: list[list[int]] = []
    room = 0
    for prompt, members in _families(parts):
        branches = {s: len(parts[s].ids) - prompt for s in members}
        open_ = prompt + sum(branches.values()) <= room  # a family is cut only if larger than a micro-batch
        if open_:
            room -= prompt
        for s in members:
            if not open_ or branches[s] > room:
                batches.append([])
                room, open_ = budget - prompt, True
            batches[-1].append(s)
            room -= branches[s]
    return batches


def pack(sequences: Sequences, indices: list[int], device: torch.device) -> PackedRow:
    """One row of these sequences; its outputs are in the order of `indices`, places ascending."""
    parts = {s: _part(sequences, s) for s in indices}
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    sources: dict[int, np.ndarray] = {}
    trees: list[Family] = []
    at = 0
    for length, members in _families(parts):
        prompt, branches = Span(at, length), []
        ids.append(parts[members[0]].ids[:length])
        positions.append(np.arange(length))
        at += length
        for s in members:
            span = Span(at, len(parts[s].ids) - length)
            branches.append(span)
            ids.append(parts[s].ids[length:])
            positions.append(np.arange(length, length + span.length))
            places = sequences.places(s)
            sources[s] = np.where(places < length, prompt.start + places, span.start + places - length)
            at += span.length
        trees.append(Family(prompt, tuple(branches)))

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    wanted = np.stack(
        [
            np.concatenate([sources[s] for s in indices]),
            np.concatenate([sequences.wanted(s) for s in indices]),
        ]
    )
    distinct, outputs = np.unique(wanted, axis=1, return_inverse=True)
    repeats = distinct.shape[1] < wanted.shape[1]
    return PackedRow(
        tensor(np.concatenate(ids)),
        tensor(np.concatenate(positions)),
        trees,
        *map(tensor, distinct if repeats else wanted),
        tensor(outputs.reshape(-1)) if repeats else None,
    )


def _part(sequences: Sequences, s: int) -> _Part | None:
    places = sequences.places(s)
    return _Part(sequences.ids(s)[: places[-1] + 1], int(places[0])) if len(places) > 0 else None


def _families(parts: dict[int, _Part]) -> list[tuple[int, list[int]]]:
    """Prompt length and sequences of each family, so that few tokens are computed more than once, and in the
    order of the sequences. Sorted sequences that begin alike are neighbours: those with a common prefix form a
    tree by its length, in which each node is one family or what its children are."""
    order = sorted(parts, key=lambda s: parts[s].ids.astype(">i4").tobytes())
    open_ = [_Shared(0, [], [], 0)]
    for place, s in enumerate(order):
        following = parts[order[place + 1]].ids if place + 1 < len(order) else parts[s].ids[:0]
        common = _common(parts[s].ids, following)
        closed = _Shared(len(parts[s].ids), [s], [(parts[s].first + 1, [s])], 0)
        while open_[-1].prefix > common:
            closed = _join(open_.pop(), closed)
            saved = closed.prefix * (len(closed.members) - 1)
            if saved > closed.saved:
                closed.families, closed.saved = [(closed.prefix, closed.members)], saved
        if open_[-1].prefix == common:
            _join(open_[-1], closed)
        else:
            open_.append(_join(_Shared(common, [], [], 0), closed))
    families = [(prompt, sorted(members)) for prompt, members in open_[0].families]
    return sorted(families, key=lambda family: family[1][0])


def _join(parent: _Shared, child: _Shared) -> _Shared:
    parent.members += child.members
    parent.families += child.families
    parent.saved += child.saved
    return parent


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """How many tokens both begin with."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) > 0 else length
