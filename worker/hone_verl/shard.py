"""The part of a batch that one data-parallel rank computes, and its conversion to verl's format."""

from dataclasses import dataclass

import numpy as np
import torch
from hone_worker.images.pictures import Image, Placed
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu


@dataclass(frozen=True)
class Shard:
    """`tokens` i64 `[T]` of all its sequences, `lengths` i64 `[B]`, and `places` i64 `[N]`: the position
    in `tokens` at which each trained token is predicted, one before the token itself. `longest`: the length of the
    longest sequence on any rank. `positions` i64 `[3,T]`: in time, height and width, for models that have them. `placed`:
    the images, with the positions of their tokens in `tokens`."""

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
