"""Sampling by transformers' own forward and cache, for models whose attention cannot be packed or that have a
recurrent state. Not every such model can mask padding, so rows with contexts of equal length run together."""

import inspect
from collections import Counter, deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..images.pictures import Piece
from ..policies.policy import Policy
from .draw import score_prompt, with_nan_first
from .rows import Row

# Fields of a model's output that its next forward takes.
_CACHE_NAMES = ("past_key_values", "cache_params", "state")
_PREFILL_TOKENS = 2048


class _SubBatch:
    """Rows that run in step. Ended rows keep their slots until half are left; those are then read again."""

    def __init__(self, rows: list[Row]):
        self.slots: list[Row | None] = list(rows)
        self.cache: dict[str, Any] = {}
        # Tokens that were drawn and that the rows do not have.
        self.ahead = 0
        self._taken: Tensor | slice | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for row in self.slots if row is not None]

    def taken(self, device: torch.device) -> Tensor | slice:
        """The slots of `rows`, as an index that is sent to the device once."""
        if self._taken is None:
            places = [slot for slot, row in enumerate(self.slots) if row is not None]
            self._taken = torch.tensor(places, device=device) if len(places) < len(self.slots) else slice(None)
        return self._taken

    def leave(self, gone: set[Row]) -> None:
        self._taken = None
        self.slots = [None if row in gone else row for row in self.slots]
        if 2 * len(self.rows) <= len(self.slots):
            self.cache = {}

    def start(self) -> None:
        """Only the slots of rows, before they are read."""
        self.slots = list(self.rows)
        self._taken = None


class PaddedBatch:
    """A Batch (sampler.py)."""

    def __init__(self, policy: Policy, counters: Counter[str]):
        self._model = policy.model
        self._policy = policy
        self._counters = counters
        self._sub_batches: list[_SubBatch] = []
        accepted = inspect.signature(self._model.module.forward).parameters
        self._takes_state = "state" in accepted
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    @property
    def rows(self) -> list[Row]:
        return [row for sub_batch in self._sub_batches for row in sub_batch.rows]

    def admit(self, waiting: deque[Row], room: int) -> None:
        by_length: dict[int, list[Row]] = {}
        for _ in range(min(room, len(waiting))):
            row = waiting.popleft()
            by_length.setdefault(len(row.context), []).append(row)
        self._policy.use_published()
        for length, rows in by_length.items():
            # transformers' RWKV, which alone takes a `state`, gives wrong steps for several rows.
            width = 1 if self._takes_state else max(1, _PREFILL_TOKENS // length)
            self._sub_batches += [_SubBatch(rows[begin : begin + width]) for begin in range(0, len(rows), width)]
            self._counters["prompt_tokens"] += length * len(rows)
            for row in rows:
                if row.request.pictures:
                    prompt = np.array(row.request.prompt, np.int32)
                    row.shift = self._model.vision.shift(prompt, row.request.pictures)
                if row.lacks_prompt_logprobs:
                    self._score_prompt(row)

    @property
    def most_ahead(self) -> int:
        return self._model.max_length - max((len(row.context) + row.shift for row in self.rows), default=0)

    def logits(self, drawn: Tensor | None = None) -> Tensor:
        self._policy.use_published()
        parts = [None] * len(self._sub_batches) if drawn is None else drawn.split([len(each.rows) for each in self._sub_batches])
        return torch.cat([self._advance(*each) for each in zip(self._sub_batches, parts, strict=True)])

    def remove(self, gone: list[int]) -> None:
        rows = self.rows
        leaving = {rows[place] for place in gone}
        for sub_batch in self._sub_batches:
            if leaving:
                sub_batch.leave(leaving)
        self._sub_batches = [sub_batch for sub_batch in self._sub_batches if sub_batch.rows]

    def _advance(self, sub_batch: _SubBatch, drawn: Tensor | None) -> Tensor:
        device = self._model.device
        if not sub_batch.cache:
            sub_batch.start()
        taken = sub_batch.taken(device)
        sub_batch.ahead = 0 if drawn is None else sub_batch.ahead + 1
        if drawn is not None:
            ids = drawn.new_zeros(len(sub_batch.slots), 1)
            ids[taken] = drawn[:, None]
        elif sub_batch.cache:
            ids = torch.tensor([[0 if row is None else row.tokens[-1]] for row in sub_batch.slots], device=device)
        else:
            ids = torch.tensor([row.context for row in sub_batch.rows], device=device)
        inputs = self._inputs(sub_batch, ids)
        output = self._model.module(**inputs, use_cache=True, **sub_batch.cache, **self._last_only)
        held = {name: getattr(output, name, None) for name in _CACHE_NAMES}
        sub_batch.cache = {name: value for name, value in held.items() if value is not None}
        return output.logits[:, -1][taken]

    def _inputs(self, sub_batch: _SubBatch, ids: Tensor) -> dict[str, Tensor]:
        """What the next forward reads of these ids `[B,L]`. A model that reads only text numbers positions itself."""
        model = self._model
        if model.vision is None:
            return {"input_ids": ids}
        length = max(len(row.context) for row in sub_batch.rows) + sub_batch.ahead
        begin = length - ids.shape[1]
        positions = torch.arange(begin, length, device=model.device).expand(ids.shape)
        if begin == 0:
            rows = enumerate(sub_batch.rows)
            pieces = [piece for i, row in rows for piece in _pieces(row.context, row, i * length)]
            return model.inputs(ids, positions, pieces)
        shifts = [row.shift if row is not None else 0 for row in sub_batch.slots]
        return model.inputs(ids, positions + torch.tensor(shifts, device=model.device)[:, None])

    def _score_prompt(self, row: Row) -> None:
        prompt = row.request.prompt
        ids = torch.tensor([prompt], device=self._model.device)
        hidden = self._model.padded_hidden(ids, torch.ones_like(ids), _pieces(prompt, row, 0))[0]
        row.prompt_logprobs = with_nan_first([score_prompt(self._model, hidden[:-1], prompt[1:])])


def _pieces(tokens: list[int], row: Row, start: int) -> list[Piece]:
    """The tokens of a row from `start` on, if it has images."""
    pictures = row.request.pictures
    return [Piece(np.array(tokens, np.int32), pictures, 0, len(tokens), start)] if pictures else []
