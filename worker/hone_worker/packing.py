"""Sequences of a training call, and how they share packed rows: prompts that are equal are computed once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from .errors import UserMistake
from .tree import Family, Span


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
    """One row of tokens: families of a prompt and its branches, and the places that give outputs."""

    ids: Tensor
    positions: Tensor
    families: list[Family]
    sources: Tensor
    """`[N]` tokens of the row whose hidden states give the outputs."""
    targets: Tensor
    """`[N]` the token whose output each is."""


@dataclass(frozen=True)
class _Part:
    """What of a sequence has to be computed: up to the last place that gives an output."""

    prompt: bytes
    """Tokens up to the first place that gives an output."""
    prompt_length: int
    branch_length: int


def plan_packed(sequences: Sequences, indices: list[int], budget: int) -> list[list[int]]:
    """Micro-batches of at most `budget` computed tokens (a longer sequence stands alone), sequences with
    equal prompts together. Sequences without outputs are left out."""
    families: dict[bytes, list[int]] = {}
    parts = {s: part for s in indices if (part := _part(sequences, s)) is not None}
    for s, part in parts.items():
        families.setdefault(part.prompt, []).append(s)
    batches: list[list[int]] = []
    room = 0
    for members in families.values():
        prompt = parts[members[0]].prompt_length
        whole = prompt + sum(parts[s].branch_length for s in members)
        open_ = prompt <= room and whole <= room  # a family is cut only if it is larger than a micro-batch
        if open_:
            room -= prompt
        for s in members:
            if not open_ or parts[s].branch_length > room:
                batches.append([])
                room, open_ = budget - prompt, True
            batches[-1].append(s)
            room -= parts[s].branch_length
    return batches


def pack(sequences: Sequences, indices: list[int], device: torch.device) -> PackedRow:
    """One row of these sequences; its outputs are in the order of `indices`, places ascending."""
    families: dict[bytes, list[int]] = {}
    parts = {s: _part(sequences, s) for s in indices}
    for s in indices:
        families.setdefault(parts[s].prompt, []).append(s)
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    sources: dict[int, np.ndarray] = {}
    trees: list[Family] = []
    at = 0
    for members in families.values():
        length = parts[members[0]].prompt_length
        prompt, branches = Span(at, length), []
        ids.append(sequences.ids(members[0])[:length])
        positions.append(np.arange(length))
        at += length
        for s in members:
            span = Span(at, parts[s].branch_length)
            branches.append(span)
            ids.append(sequences.ids(s)[length : length + span.length])
            positions.append(np.arange(length, length + span.length))
            places = sequences.places(s)
            sources[s] = np.where(places < length, prompt.start + places, span.start + places - length)
            at += span.length
        trees.append(Family(prompt, tuple(branches)))
    targets = np.concatenate([sequences.wanted(s) for s in indices])

    def tensor(values: list[np.ndarray] | np.ndarray) -> Tensor:
        joined = values if isinstance(values, np.ndarray) else np.concatenate(values)
        return torch.from_numpy(joined.astype(np.int64)).to(device)

    return PackedRow(
        tensor(ids), tensor(positions), trees, tensor([sources[s] for s in indices]), tensor(targets)
    )


def _part(sequences: Sequences, s: int) -> _Part | None:
    places = sequences.places(s)
    if len(places) == 0:
        return None
    first, last = int(places[0]), int(places[-1])
    return _Part(sequences.ids(s)[: first + 1].tobytes(), first + 1, last - first)
