"""Batches of the protocol, distributed over verl's data-parallel ranks."""

from dataclasses import dataclass, field

import numpy as np
import ray
import torch
from hone_worker.errors import UserMistake
from hone_worker.images.pictures import Pictures, Piece, place
from hone_worker.images.vision import Vision

from .policies import VerlPolicy
from .shard import Shard

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

    def outputs(self, policy: VerlPolicy) -> dict[str, np.ndarray]:
        """The outputs that are known under the policy's current weights, by name. The caller adds others."""
        revision, _ = self._outputs.get(policy.number, (None, {}))
        if revision != policy.revision:
            self._outputs[policy.number] = policy.revision, {}
        return self._outputs[policy.number][1]

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
