"""Batches of the protocol: distributed over verl's data-parallel ranks, and the part of one rank in verl's format."""

from dataclasses import dataclass, field

import numpy as np
import ray
import torch
from hone_worker.errors import UserMistake
from hone_worker.images.pictures import Image, Pictures, Piece, Placed, place
from hone_worker.images.vision import Vision
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu


@dataclass(frozen=True)
class Shard:
    """The part of a batch that one rank computes. `tokens` i64 `[T]` of all its sequences, `lengths` i64 `[B]`, and `places` i64
    `[N]`: the position in `tokens` at which each trained token is predicted, one before the token itself. `longest`: the
    length of the longest sequence on any rank. `positions` i64 `[3,T]`: in time, height and width, for models that have
    them. `placed`: the images, with the positions of their tokens in `tokens`."""

    tokens: np.ndarray
    lengths: np.ndarray
    places: np.ndarray
    longest: int
    positions: Tensor | None = None
    placed: Placed | None = None

    @property
    def images(self) -> tuple[Image, ...]:
        return () if self.placed is None else self.placed.images

    def ragged(self, values: Tensor) -> Tensor:
        """Values `[T]` or `[N,T]` as verl's nested tensor, one row per sequence."""
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(self.lengths)]))
        return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=values.dim())

    def spread(self, values: np.ndarray) -> Tensor:
        """Values `[N]` of the trained tokens as a nested tensor, with 0 for all other tokens."""
        flat = torch.zeros(len(self.tokens))
        flat[torch.tensor(self.places)] = torch.tensor(values, dtype=torch.float32)
        return self.ragged(flat)

    def trained_counts(self) -> np.ndarray:
        """`[B]`, the number of trained tokens of each sequence."""
        ends = np.cumsum(self.lengths)
        return np.bincount(np.searchsorted(ends, self.places, side="right"), minlength=len(self.lengths))

    def batch(self, tensors: dict[str, Tensor], **settings: object) -> TensorDict:
        """verl's batch without padding. Log-probabilities are those of the model: temperature 1."""
        positions = torch.cat([torch.arange(length) for length in self.lengths])
        if self.positions is not None:
            positions = torch.cat([positions[None], self.positions])
        return tu.get_tensordict(
            {
                "input_ids": self.ragged(torch.tensor(self.tokens)),
                "position_ids": self.ragged(positions),
                "loss_mask": torch.from_numpy(self.trained_counts())[:, None],
                **self._image_rows(),
                **tensors,
            },
            {"temperature": 1.0, **settings},
        )

    def _image_rows(self) -> dict[str, Tensor]:
        """For each token, the row of the images' features that replaces its embedding, or -1."""
        if self.placed is None:
            return {}
        rows = torch.full((len(self.tokens),), -1)
        rows[self.placed.places] = self.placed.features
        return {"image_rows": self.ragged(rows)}


# Fills up a rank's part; nothing of it is trained.
_FILLER = np.zeros(2, np.int64)


@dataclass
class Batch:
    """`at[r]`: where the outputs of rank r lie among all, i64 `[N_r]`. `size`: the number of all outputs.
    `staged`: the groups that have it."""

    shards: list[ray.ObjectRef]
    at: list[np.ndarray]
    sequences: int
    size: int
    staged: set[str] = field(default_factory=set)
    _outputs: dict[int, tuple[int, dict[str, np.ndarray]]] = field(default_factory=dict)

    def outputs(self, policy: int, revision: int) -> dict[str, np.ndarray]:
        """The outputs that are known of a policy with this number under these weights, by name. The caller adds others."""
        known, _ = self._outputs.get(policy, (None, {}))
        if known != revision:
            self._outputs[policy] = revision, {}
        return self._outputs[policy][1]

    def gather(self, parts: list[dict[str, np.ndarray]], names: list[str]) -> dict[str, np.ndarray]:
        """The ranks' outputs in the order of the batch."""
        found = {name: np.empty(self.size, np.float32) for name in names}
        for part, at in zip(parts, self.at, strict=True):
            for name in names:
                found[name][at] = part[name]
        return found

    def scatter(self, values: dict[str, np.ndarray]) -> list[ray.ObjectRef]:
        return [ray.put({name: array[at] for name, array in values.items()}) for at in self.at]


def distribute(
    arrays: dict[str, np.ndarray],
    ranks: int,
    multiple: int,
    vision: Vision | None = None,
    pictures: list[Pictures] | None = None,
) -> Batch:
    """Distributes the sequences by length, so that every rank has about the same number of tokens. Each rank gets a
    multiple of `multiple` sequences. `pictures`: the images of each sequence, for a model with `vision`."""
    if "targets" in arrays:
        raise UserMistake("verl computes outputs only for a sequence's own tokens", "Request them without targets.")
    tokens, offsets, trained = arrays["tokens"].astype(np.int64), arrays["offsets"].astype(np.int64), arrays["trained"]
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    members: list[list[int]] = [[] for _ in range(ranks)]
    for begin in range(0, len(order), ranks):
        row = order[begin : begin + ranks]
        for rank, sequence in enumerate(row if begin // ranks % 2 == 0 else row[::-1]):
            members[rank].append(int(sequence))
    # `trained` has one entry less than tokens for each sequence; count the outputs before each of them.
    entries = offsets - np.arange(len(offsets))
    before = np.concatenate([[0], np.cumsum(trained != 0)])
    each = -(-max(map(len, members)) // multiple) * multiple
    shards, at = [], []
    for mine in members:
        places, where, pieces, begin = [], [], [], 0
        for sequence in mine:
            flags = np.flatnonzero(trained[entries[sequence] : entries[sequence + 1]])
            places.append(begin + flags)
            where.append(before[entries[sequence]] + np.arange(len(flags)))
            ids = tokens[offsets[sequence] : offsets[sequence + 1]]
            pieces.append(Piece(ids, pictures[sequence] if pictures else (), 0, len(ids), begin))
            begin += len(ids)
        rows = [piece.ids for piece in pieces] + [_FILLER] * (each - len(mine))
        sizes = np.array([len(row) for row in rows], np.int64)
        positions = None
        if vision is not None:
            plain = torch.cat([torch.arange(size) for size in sizes])
            positions = vision.row_positions([piece for piece in pieces if piece.pictures], plain)
        placed = place(pieces, torch.device("cpu"))
        shards.append(
            Shard(np.concatenate(rows), sizes, _joined(places), int(lengths.max()), positions, placed)
        )
        at.append(_joined(where))
    return Batch([ray.put(shard) for shard in shards], at, len(lengths), int(before[-1]))


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
