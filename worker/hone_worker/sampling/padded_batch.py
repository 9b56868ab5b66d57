"""Sampling for models whose attention cannot go through ours, or that carry a recurrent state: transformers'
own forward with its own cache. Rows whose contexts are equally long run together, so that nothing needs
padding, which not every such model can mask. Right on every architecture, and slower."""

from __future__ import annotations

import inspect
from collections import Counter, deque
from typing import Any

import torch
from torch import Tensor

from .prompt_scores import score, with_nan_first
from .rows import Row

# Under what name a model's output holds what its next forward wants.
_CACHE_NAMES = ("past_key_values", "cache_params", "state")
_PREFILL_TOKENS = 2048


class _Cohort:
    """Rows in step. Ended rows run on unseen until half are left; those are read anew without them."""

    def __init__(self, rows: list[Row]):
        self.seats: list[Row | None] = list(rows)
        self.cache: dict[str, Any] = {}

    @property
    def rows(self) -> list[Row]:
        return [row for row in self.seats if row is not None]

    def leave(self, gone: set[Row]) -> None:
        self.seats = [None if row in gone else row for row in self.seats]
        if 2 * len(self.rows) <= len(self.seats):
            self.seats = list(self.rows)
            self.cache = {}


class PaddedBatch:
    """The same as a PackedBatch, for models that are not packed."""

    def __init__(self, model: Any, policy: Any, counters: Counter[str]):
        self._model = model
        self._policy = policy
        self._counters = counters
        self._cohorts: list[_Cohort] = []
        takes = inspect.signature(model.module.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    @property
    def rows(self) -> list[Row]:
        return [row for cohort in self._cohorts for row in cohort.rows]

    def admit(self, waiting: deque[Row], room: int) -> None:
        """Takes as many rows as there is room for."""
        by_length: dict[int, list[Row]] = {}
        for _ in range(min(room, len(waiting))):
            row = waiting.popleft()
            by_length.setdefault(len(row.context), []).append(row)
        for length, rows in by_length.items():
            width = max(1, _PREFILL_TOKENS // length)
            self._cohorts += [_Cohort(rows[begin : begin + width]) for begin in range(0, len(rows), width)]
            self._counters["prompt_tokens"] += length * len(rows)
        with self._policy.published():
            self._score_prompts([row for rows in by_length.values() for row in rows])

    def logits(self) -> Tensor:
        """`[N, V]`: one forward a cohort."""
        with self._policy.published():
            return torch.cat([self._advance(cohort) for cohort in self._cohorts])

    def remove(self, gone: list[int]) -> None:
        """Drops rows by their place in `rows`."""
        rows = self.rows
        leaving = {rows[place] for place in gone}
        for cohort in self._cohorts:
            if leaving:
                cohort.leave(leaving)
        self._cohorts = [cohort for cohort in self._cohorts if cohort.seats]

    def _advance(self, cohort: _Cohort) -> Tensor:
        if cohort.cache:
            # An ended row's further tokens do not matter.
            ids = [[0 if row is None else row.tokens[-1]] for row in cohort.seats]
        else:
            cohort.seats = list(cohort.rows)
            ids = [row.context for row in cohort.rows]
        inputs = torch.tensor(ids, device=self._model.device)
        output = self._model.plain(inputs, use_cache=True, **cohort.cache, **self._last_only)
        held = {name: getattr(output, name, None) for name in _CACHE_NAMES}
        cohort.cache = {name: value for name, value in held.items() if value is not None}
        taken = [seat for seat, row in enumerate(cohort.seats) if row is not None]
        return output.logits[taken, -1]

    def _score_prompts(self, rows: list[Row]) -> None:
        for row in rows:
            if row.request.prompt_logprobs and row.prompt_logprobs is None:
                prompt = row.request.prompt
                ids = torch.tensor([prompt], device=self._model.device)
                hidden = self._model.padded_hidden(ids, torch.ones_like(ids))[0]
                row.prompt_logprobs = with_nan_first([score(self._model, hidden[:-1], prompt[1:])])
