"""Training rows for models that cannot be packed: rows padded on the right, with transformers' own
attention."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..images.pictures import Piece
from ..models.model import LanguageModel
from .packing import Sequences, after_image


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


def padded_hidden(
    model: LanguageModel, sequences: Sequences, indices: list[int], rows: PaddedRows
) -> tuple[Tensor, Tensor]:
    """The hidden states `[N,D]` and tokens `[N]` of the outputs, in the order of `indices`."""
    mask = (np.arange(rows.ids.shape[1]) < rows.lengths[:, None]).astype(np.int64)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(model.device)

    hidden = model.padded_hidden(tensor(rows.ids), tensor(mask), pieces_of(sequences, indices, rows))
    return hidden.flatten(0, 1)[tensor(rows.sources)], tensor(rows.targets)
