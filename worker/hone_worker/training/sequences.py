"""Sequences of a training request, and the rows in which they are computed: packed rows, in which their common beginnings are
computed once, and padded rows."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..attention.tree import Family, Span
from ..errors import UserMistake
from ..images.pictures import Pictures, Piece


@dataclass(frozen=True)
class Sequences:
    """S sequences, flat. A sequence of L tokens has L - 1 flags: flag i says that token i + 1 is an output.
    With `targets`, flag i is the number of outputs at place i, and `targets` has their tokens."""

    tokens: np.ndarray
    """int32, all sequences' tokens."""
    offsets: np.ndarray
    """`[S+1]`; sequence s is `tokens[offsets[s]:offsets[s+1]]`, its flags begin at `offsets[s] - s`."""
    trained: np.ndarray
    """uint8"""
    targets: np.ndarray | None = None
    """int32, one for each output, in order."""
    pictures: list[Pictures] | None = None
    """The images of each sequence."""
    experts: np.ndarray | None = None
    """int16 `[N, layers, experts of a token]`: those of the sampler, where trained has its flags; -1: unknown."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def ids(self, s: int) -> np.ndarray:
        return self.tokens[self.offsets[s] : self.offsets[s + 1]]

    def identity(self, s: int) -> np.ndarray:
        """The tokens, with negative numbers where an image is: equal for equal images only."""
        ids = self.ids(s)
        if not self.pictures or not self.pictures[s]:
            return ids
        ids = ids.copy()
        for picture in self.pictures[s]:
            ids[picture.at : picture.end] = -1 - self._image_numbers[picture.image.hash]
        return ids

    def piece(self, s: int, begin: int, end: int, start: int) -> list[Piece]:
        """The part of a row that begins at `start` and has these tokens; none if the sequence has no images."""
        pictures = self.pictures[s] if self.pictures else ()
        return [Piece(self.ids(s), pictures, begin, end, start)] if pictures else []

    @cached_property
    def _image_numbers(self) -> dict[str, int]:
        hashes = (picture.image.hash for pictures in self.pictures or () for picture in pictures)
        return {hash: number for number, hash in enumerate(dict.fromkeys(hashes))}

    def places(self, s: int) -> np.ndarray:
        """The position of each output, ascending."""
        start, stop = int(self.offsets[s]) - s, int(self.offsets[s + 1]) - s - 1
        flags = self.trained[start:stop]
        places = np.flatnonzero(flags)
        return places if self.targets is None else np.repeat(places, flags[places])

    def sampled_experts(self, s: int) -> np.ndarray | None:
        """`[L - 1, layers, experts of a token]`, -1: unknown; None if no sequence has any."""
        return None if self.experts is None else self.experts[int(self.offsets[s]) - s : int(self.offsets[s + 1]) - s - 1]

    def wanted(self, s: int) -> np.ndarray:
        """The token of each output."""
        if self.targets is None:
            return self.ids(s)[self.places(s) + 1]
        return self.targets[self.starts[s] : self.starts[s + 1]]

    @cached_property
    def starts(self) -> np.ndarray:
        """`[S+1]` the first output of each sequence among all outputs."""
        counts = [len(self.places(s)) for s in range(len(self))]
        return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def outputs(self, indices: list[int]) -> np.ndarray:
        """The outputs of these sequences, in their order, as indices among all outputs."""
        return np.concatenate([np.arange(self.starts[s], self.starts[s + 1]) for s in indices])

    def check(self, vocabulary_size: int) -> None:
        """Raises UserMistake for arrays that do not match and for tokens outside of the vocabulary."""
        lengths = np.diff(self.offsets)
        fits = len(self.offsets) > 0 and self.offsets[0] == 0 and self.offsets[-1] == len(self.tokens)
        if not fits or (lengths < 1).any() or len(self.trained) != len(self.tokens) - len(self):
            raise UserMistake(
                "the arrays of the sequences do not match",
                "each sequence needs at least one token, and one flag less than tokens",
            )
        outputs = int(self.trained.sum(dtype=np.int64))
        if self.targets is not None and len(self.targets) != outputs:
            raise UserMistake(
                f"{len(self.targets)} targets for {outputs} outputs", "give each output a target"
            )
        for what, ids in (("token", self.tokens), ("target", self.targets)):
            if ids is not None and len(ids) and not 0 <= ids.min() <= ids.max() < vocabulary_size:
                raise UserMistake(
                    f"a {what} is outside of the vocabulary of {vocabulary_size} tokens",
                    "use the tokenizer of this model",
                )


@dataclass(frozen=True)
class PackedRow:
    """One row of tokens: prompts and their branches, their images, and the places of outputs. Equal outputs of
    several sequences are computed once."""

    ids: Tensor
    positions: Tensor
    families: list[Family]
    sources: Tensor
    """`[U]` tokens of the row whose hidden states give outputs."""
    targets: Tensor
    """`[U]` the token of each output."""
    outputs: Tensor | None
    """`[N]` for each output of the sequences its index among these; None if they are the same."""
    pieces: list[Piece]
    """Those parts of the row that belong to sequences with images."""
    places: dict[int, np.ndarray]
    """Tokens of the row that are each sequence's first ones, in order."""


@dataclass(frozen=True)
class _Part:
    """The part of a sequence that must be computed: up to its last output."""

    ids: np.ndarray
    """`Sequences.identity`"""
    first: int
    """The place after the first output."""


@dataclass
class _Shared:
    """Sequences with a common prefix, and the best way found to compute them: as one family or as several."""

    prefix: int
    """The length of the common prefix."""
    members: list[int]
    families: list[tuple[int, list[int]]]
    """Prefix and members of each."""
    saved: int
    """Tokens that these families do not compute again."""

    def join(self, child: "_Shared") -> None:
        self.members += child.members
        self.families += child.families
        self.saved += child.saved


def plan_packed(sequences: Sequences, indices: list[int], budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` computed tokens (a longer sequence is alone), with common beginnings
    together. Omits sequences without outputs."""
    parts = {s: part for s in indices if (part := _part(sequences, s)) is not None}
    batches: list[list[int]] = []
    room = 0
    for prompt, members in _families(parts):
        branches = {s: len(parts[s].ids) - prompt for s in members}
        open_ = prompt + sum(branches.values()) <= room  # only a family larger than a micro-batch is split
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
    """One row of these sequences. Its outputs are in the order of `indices`, places ascending."""
    parts = {s: _part(sequences, s) for s in indices}
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    sources: dict[int, np.ndarray] = {}
    families: list[Family] = []
    pieces: list[Piece] = []
    where: dict[int, np.ndarray] = {}
    at = 0
    for length, members in _families(parts):
        prompt, branches = Span(at, length), []
        ids.append(sequences.ids(members[0])[:length])
        positions.append(np.arange(length))
        pieces += sequences.piece(members[0], 0, length, at)
        at += length
        for s in members:
            span = Span(at, len(parts[s].ids) - length)
            branches.append(span)
            pieces += sequences.piece(s, length, len(parts[s].ids), at)
            ids.append(sequences.ids(s)[length : len(parts[s].ids)])
            positions.append(np.arange(length, length + span.length))
            where[s] = np.concatenate([np.arange(length) + prompt.start, np.arange(span.length) + span.start])
            places = sequences.places(s)
            sources[s] = np.where(places < length, prompt.start + places, span.start + places - length)
            at += span.length
        families.append(Family(prompt, tuple(branches)))

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
        families,
        *map(tensor, distinct if repeats else wanted),
        tensor(outputs.reshape(-1)) if repeats else None,
        pieces,
        where,
    )


def _part(sequences: Sequences, s: int) -> _Part | None:
    places = sequences.places(s)
    if len(places) == 0:
        return None
    ids = sequences.identity(s)
    return _Part(ids[: after_image(ids, int(places[-1]) + 1)], after_image(ids, int(places[0]) + 1))


def after_image(ids: np.ndarray, cut: int) -> int:
    """`cut`, or the end of the images that it would divide. Their parts may attend to each other. `ids`: `Sequences.identity`."""
    while 0 < cut < len(ids) and ids[cut - 1] < 0 and ids[cut] < 0:
        cut += 1
    return cut


def _families(parts: dict[int, _Part]) -> list[tuple[int, list[int]]]:
    """Prompt length and sequences of each family, in the order of the sequences, chosen so that few tokens
    are computed repeatedly. In sorted order, sequences with a common prefix are neighbors: they form a tree
    by the length of their prefix, in which a node is computed as one family or as its children are."""
    order = sorted(parts, key=lambda s: parts[s].ids.astype(">i4").tobytes())
    open_ = [_Shared(0, [], [], 0)]
    for place, s in enumerate(order):
        following = parts[order[place + 1]].ids if place + 1 < len(order) else parts[s].ids[:0]
        common = _common(parts[s].ids, following)
        closed = _Shared(len(parts[s].ids), [s], [(parts[s].first, [s])], 0)
        while open_[-1].prefix > common:
            parent = open_.pop()
            parent.join(closed)
            closed = parent
            saved = closed.prefix * (len(closed.members) - 1)
            if saved > closed.saved:
                closed.families, closed.saved = [(closed.prefix, closed.members)], saved
        if open_[-1].prefix < common:
            open_.append(_Shared(common, [], [], 0))
        open_[-1].join(closed)
    families = [(prompt, sorted(members)) for prompt, members in open_[0].families]
    return sorted(families, key=lambda family: family[1][0])


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """The length of the common prefix, which does not end within images."""
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    common = int(differing[0]) if len(differing) > 0 else length
    while 0 < common < length and left[common - 1] < 0 and (left[common] < 0 or right[common] < 0):
        common -= 1
    return common


# Rows for models that cannot be packed: padded on the right, with transformers' own attention.


def plan_padded(sequences: Sequences, indices: list[int], budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` tokens including padding, of similar lengths. Omits sequences without
    outputs."""
    lengths = {s: _length(sequences, s) for s in indices if len(sequences.places(s))}
    batches: list[list[int]] = []
    longest = 0
    for s in sorted(lengths, key=lambda s: -lengths[s]):
        if not batches or longest * (len(batches[-1]) + 1) > budget:
            batches.append([])
            longest = lengths[s]
        batches[-1].append(s)
    return batches


@dataclass(frozen=True)
class PaddedRows:
    """int64 arrays, for the outputs of some sequences in their order."""

    ids: np.ndarray
    """`[B,L]`; padding is 0, on the right."""
    lengths: np.ndarray
    """`[B]`"""
    sources: np.ndarray
    """`[N]`: for each output its token's index in `ids`, flat."""
    targets: np.ndarray
    """`[N]` the token of each output."""


def padded_rows(sequences: Sequences, indices: list[int], multiple: int = 1) -> PaddedRows:
    """Rows up to the sequences' last outputs. L is a multiple of `multiple`."""
    places = [sequences.places(s) for s in indices]
    lengths = np.array([_length(sequences, s) for s in indices])
    ids = np.zeros((len(indices), -(-int(lengths.max()) // multiple) * multiple), np.int64)
    for row, (s, length) in enumerate(zip(indices, lengths)):
        ids[row, :length] = sequences.ids(s)[:length]
    sources = np.concatenate([row * ids.shape[1] + at for row, at in enumerate(places)])
    targets = np.concatenate([sequences.wanted(s) for s in indices]).astype(np.int64)
    return PaddedRows(ids, lengths, sources, targets)


def _length(sequences: Sequences, s: int) -> int:
    """What must be computed of a sequence: up to its last output, and the whole image around that."""
    return after_image(sequences.identity(s), int(sequences.places(s)[-1]) + 1)


def pieces_of(sequences: Sequences, indices: list[int], rows: PaddedRows) -> list[Piece]:
    """The parts of the rows that belong to sequences with images."""
    width = rows.ids.shape[1]
    return [
        piece
        for row, (s, length) in enumerate(zip(indices, rows.lengths))
        for piece in sequences.piece(s, 0, int(length), row * width)
    ]
