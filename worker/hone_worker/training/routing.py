"""Router replay: as long as a version of the weights is published, a sequence keeps its experts. With R2 these are those that the
trainer chose when it computed the sequence first; with R3 those of the sampler, as far as they are known."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..errors import UserMistake
from ..models.model import LanguageModel
from ..policies.policy import Policy
from .packing import Sequences

Places = Callable[[int], np.ndarray]
"""Sequence -> the tokens of the row that are its first tokens, in order."""


class Routing:
    """The experts of sequences, by policy."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Policy, tuple[int, dict[bytes, np.ndarray]]] = WeakKeyDictionary()

    @contextmanager
    def replayed(
        self, policy: Policy, sequences: Sequences, indices: list[int], size: int, places: Places
    ) -> Iterator[None]:
        """Forwards of a row of `size` tokens choose the known experts. Then the others are known, too."""
        model, known = policy.model, self._of(policy)
        found = [(places(s), self._first(policy, sequences, s, known)) for s in indices]
        width = next((each.shape[1:] for _, each in found if each is not None), None)
        given = None
        if width is not None:
            rows = np.full((size, *width), -1, np.int64)
            for where, each in found:
                if each is not None:
                    rows[where[: len(each)]] = each[: len(where)]
            given = torch.from_numpy(rows).to(model.device)
        with model.mixtures.routed(given) as chosen:
            yield
        if width is not None and chosen[0] is not None and chosen[0].shape[-1] != width[-1]:
            raise UserMistake("the sampler has another number of experts of a token", "sample with the model of the run")
        self._keep(known, sequences, indices, places, model, chosen)

    @staticmethod
    def _first(policy: Policy, sequences: Sequences, s: int, known: dict[bytes, np.ndarray]) -> np.ndarray | None:
        own = known.get(sequences.identity(s).tobytes())
        sampled = sequences.sampled_experts(s)
        if own is not None or sampled is None or policy.is_critic:  # a critic is another model than the sampler's
            return own
        return policy.model.mixtures.select(sampled)

    def _keep(
        self,
        known: dict[bytes, np.ndarray],
        sequences: Sequences,
        indices: list[int],
        places: Places,
        model: LanguageModel,
        chosen: list[Tensor | None],
    ) -> None:
        if any(layer is None for layer in chosen):
            raise RuntimeError(f"{type(model.module).__name__} does not choose experts by topk")
        rows = torch.stack(chosen, 1).cpu().numpy().astype(np.int16)
        for s in indices:
            known.setdefault(sequences.identity(s).tobytes(), rows[places(s)])

    def _of(self, policy: Policy) -> dict[bytes, np.ndarray]:
        version, known = self._known.get(policy, (policy.version, {}))
        if version != policy.version:
            known = {}
        self._known[policy] = policy.version, known
        return known
