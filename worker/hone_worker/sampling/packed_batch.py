"""Sampling for models with packed attention: prompts are read once, ended rows leave at once, and new rows
join at any step."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention.decode import Block, Bucket, Decode, Prefill, cache_dtype
from ..images.pictures import Pictures, Piece
from ..memory import available_bytes
from ..policies.policy import Policy
from .draw import score_prompt, with_nan_first
from .rows import Row

# The share of free memory that caches may use.
_CACHE_SHARE = 0.7


@dataclass(eq=False)
class _Prompt:
    """A prompt with its keys and values: in row `place` of a prefilled `block`, or in a sub-batch."""

    tokens: list[int]
    pictures: Pictures
    scored: bool
    block: Block | None = None
    sub_batch: "_SubBatch | None" = None
    place: int = 0
    hidden: Tensor | None = None
    logprobs: np.ndarray | None = None
    users: int = 0
    shift: int = 0


@dataclass(eq=False)
class _SubBatch:
    """A bucket with its rows and prompts, in the bucket's order."""

    bucket: Bucket
    rows: list[Row] = field(default_factory=list)
    prompts: list[_Prompt] = field(default_factory=list)

    def takes(self, length: int, rows: int, slack: int) -> bool:
        """Whether the rectangles stay well filled with another prompt. Each bucket has a fixed cost per layer,
        equal to that of `slack` masked places."""
        bucket = self.bucket
        turns = max([rows, *Counter(bucket.owners).values()])
        column = bucket.column
        prompts = (len(self.prompts) + 1) * turns * max([length, *bucket.lengths])
        reserved = prompts + (bucket.rows + rows) * column
        used = sum(bucket.lengths[owner] + column - start for owner, start in zip(bucket.owners, bucket.starts))
        return reserved <= 1.25 * (used + rows * length) + slack

    def add(self, prompt: _Prompt, rows: list[Row]) -> None:
        owner = self.prompts.index(prompt)
        if owner == len(self.bucket.lengths):
            self.bucket.add_prompt(len(prompt.tokens))
        self.bucket.add_rows([owner] * len(rows))
        self.rows += rows


class PackedBatch:
    """A Batch (sampler.py)."""

    # The tokens of one forward that reads prompts, which bounds its memory.
    prefill_tokens = 2048
    # Masked places that cost as much as another bucket.
    slack = 2048

    def __init__(self, policy: Policy, counters: Counter[str]):
        self._model = policy.model
        self._device = policy.model.device
        self._policy = policy
        self._counters = counters
        self._dtype = cache_dtype(self._device, policy.model.dtype)
        if self._device.type != "cpu":
            self.prefill_tokens, self.slack = 16384, 65536
        self._sub_batches: list[_SubBatch] = []
        self._fresh: list[tuple[Row, _Prompt]] = []
        # By version of the weights, tokens, images, and whether the prompt's own tokens are scored.
        self._known: dict[tuple, _Prompt] = {}
        self._bytes_per_token = 0.0

    @property
    def rows(self) -> list[Row]:
        return self._running + [row for row, _ in self._fresh]

    @property
    def _running(self) -> list[Row]:
        return [row for sub_batch in self._sub_batches for row in sub_batch.rows]

    def admit(self, waiting: deque[Row], room: int) -> None:
        """Takes at most `room` rows, and no more new prompts than one forward reads."""
        new: list[_Prompt] = []
        free = self._free_tokens()
        tokens = 0
        while waiting and len(self._fresh) < room:
            row = waiting[0]
            context = row.context
            need = len(context) + row.request.max_tokens - len(row.tokens)
            if free is not None and need > free and (self._sub_batches or self._fresh):
                break
            scored = row.lacks_prompt_logprobs
            pictures = row.request.pictures
            images = tuple((picture.at, picture.image.hash) for picture in pictures)
            key = (self._policy.version, np.array(context, np.int32).tobytes(), images, scored)
            prompt = self._known.get(key)
            if prompt is None:
                tokens += len(context)
                longest = max([len(context), *(len(other.tokens) for other in new)])
                reserved = longest * (len(new) + 1)
                if new and (tokens > self.prefill_tokens or reserved > 2 * self.prefill_tokens):
                    break
                prompt = self._known[key] = _Prompt(context, pictures, scored)
                new.append(prompt)
            else:
                self._counters["prompts_shared"] += 1
                need -= len(context)
            if free is not None:
                free -= need
            prompt.users += 1
            self._fresh.append((waiting.popleft(), prompt))
        if new:
            self._prefill(new)
        for row, prompt in self._fresh:
            row.shift = prompt.shift
            if prompt.logprobs is not None and row.prompt_logprobs is None:
                row.prompt_logprobs = prompt.logprobs

    @property
    def most_ahead(self) -> int:
        """How many tokens can be drawn before the rows get them. New rows get their first one at once."""
        longest = max((len(row.request.prompt) + len(row.tokens) + row.shift for row in self._running), default=0)
        return 0 if self._fresh else self._model.max_length - longest

    def logits(self, drawn: Tensor | None = None) -> Tensor:
        """One forward of the rows that have tokens; a new row's hidden state is its prompt's last. `drawn` `[N]`: the tokens of the
        previous call, if the rows do not have them."""
        parts = []
        self._policy.use_published()
        if self._sub_batches:
            for sub_batch in self._sub_batches:
                ends = [start + row.request.max_tokens for start, row in zip(sub_batch.bucket.starts, sub_batch.rows)]
                sub_batch.bucket.begin_step(max(ends))
            rows = self._running
            if drawn is None:
                ids = torch.tensor([row.tokens[-1] for row in rows], device=self._device)
                positions = [len(row.request.prompt) + len(row.tokens) - 1 + row.shift for row in rows]
                self._positions = torch.tensor(positions, device=self._device)
            else:
                ids, self._positions = drawn, self._positions + 1
            context = Decode([sub_batch.bucket for sub_batch in self._sub_batches])
            parts.append(self._model.hidden(context, ids, self._positions))
        if self._fresh:
            parts.append(torch.stack([prompt.hidden for _, prompt in self._fresh]))
        return self._model.logits(torch.cat(parts))

    def remove(self, gone: list[int]) -> None:
        """Drops rows, and assigns the remaining new rows to buckets."""
        leaving = set(gone)
        begin = 0
        for sub_batch in self._sub_batches:
            here = [row for row in range(len(sub_batch.rows)) if begin + row in leaving]
            begin += len(sub_batch.rows)
            for row in here:
                sub_batch.prompts[sub_batch.bucket.owners[row]].users -= 1
            if here:
                _move(sub_batch.rows, sub_batch.bucket.remove(here), len(sub_batch.rows) - len(here))
        staying = []
        for place, (row, prompt) in enumerate(self._fresh, begin):
            if place in leaving:
                prompt.users -= 1
            else:
                staying.append((row, prompt))
        self._fresh = []
        self._settle(staying)
        self._forget_prompts()

    def _prefill(self, prompts: list[_Prompt]) -> None:
        """Reads prompts: all in one forward, or a single long one in several."""
        lengths = [len(prompt.tokens) for prompt in prompts]
        context = Prefill(lengths, self._dtype, self._device)
        self._counters["prompt_tokens"] += sum(lengths)
        ids = torch.tensor([token for prompt in prompts for token in prompt.tokens], device=self._device)
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self._device)
        pieces = self._pieces(prompts)
        self._policy.use_published()
        if len(prompts) == 1:
            self._read_alone(prompts[0], context, ids, positions, pieces)
        else:
            hidden = self._model.hidden(context, ids, positions, pieces)
            for prompt, part in zip(prompts, hidden.split(lengths)):
                prompt.hidden = part[-1].clone()
                if prompt.scored:
                    prompt.logprobs = with_nan_first([score_prompt(self._model, part[:-1], prompt.tokens[1:])])
        for place, prompt in enumerate(prompts):
            prompt.block, prompt.place = context.block, place
        self._bytes_per_token = context.block.bytes / (len(prompts) * max(lengths))

    def _pieces(self, prompts: list[_Prompt]) -> list[Piece]:
        """The prompts with images, in a row of all."""
        pieces, start = [], 0
        for prompt in prompts:
            if prompt.pictures:
                ids = np.array(prompt.tokens, np.int32)
                prompt.shift = self._model.vision.shift(ids, prompt.pictures)
                pieces.append(Piece(ids, prompt.pictures, 0, len(ids), start))
            start += len(prompt.tokens)
        return pieces

    def _read_alone(
        self, prompt: _Prompt, context: Prefill, ids: Tensor, positions: Tensor, pieces: list[Piece]
    ) -> None:
        scores = []
        step = self.prefill_tokens if all(mixer.continues for mixer in self._model.mixers) else len(ids)
        end = 0
        while end < len(ids):
            begin, end = end, min(end + step, len(ids))
            end = next((picture.end for picture in prompt.pictures if picture.at < end < picture.end), end)
            context.advance(begin, end)
            part = [replace(piece, begin=begin, end=end) for piece in pieces]
            hidden = self._model.hidden(context, ids[begin:end], positions[begin:end], part)
            prompt.hidden = hidden[-1].clone()
            if prompt.scored:
                following = prompt.tokens[begin + 1 : end + 1]
                scores.append(score_prompt(self._model, hidden[: len(following)], following))
        if prompt.scored:
            prompt.logprobs = with_nan_first(scores)

    def _settle(self, fresh: list[tuple[Row, _Prompt]]) -> None:
        """Assigns new rows: with their prompt, in the first bucket that stays well filled, or in a new bucket."""
        by_prompt: dict[_Prompt, list[Row]] = {}
        for row, prompt in fresh:
            by_prompt.setdefault(prompt, []).append(row)
        arrivals: dict[_SubBatch, list[_Prompt]] = {}
        for prompt in sorted(by_prompt, key=lambda prompt: -len(prompt.tokens)):
            rows = by_prompt[prompt]
            if prompt.sub_batch is None:
                sub_batch = self._sub_batch_for(len(prompt.tokens), len(rows))
                arrivals.setdefault(sub_batch, []).append(prompt)
                sub_batch.prompts.append(prompt)
                prompt.sub_batch = sub_batch
            prompt.sub_batch.add(prompt, rows)
        for sub_batch, prompts in arrivals.items():
            # All new prompts were read together, so they share a block.
            picks = [prompt.place for prompt in prompts]
            sub_batch.bucket.prompts.append(prompts[0].block, picks, max(len(prompt.tokens) for prompt in prompts))
            for prompt in prompts:
                prompt.block = None

    def _sub_batch_for(self, length: int, rows: int) -> _SubBatch:
        for sub_batch in self._sub_batches:
            if sub_batch.takes(length, rows, self.slack):
                return sub_batch
        self._sub_batches.append(_SubBatch(Bucket(Block(self._dtype, self._device), [])))
        return self._sub_batches[-1]

    def _forget_prompts(self) -> None:
        for sub_batch in self._sub_batches:
            gone = [place for place, prompt in enumerate(sub_batch.prompts) if prompt.users == 0]
            if gone and sub_batch.rows:
                moves = sub_batch.bucket.remove_prompts(gone)
                _move(sub_batch.prompts, moves, len(sub_batch.prompts) - len(gone))
            if not sub_batch.rows:
                for prompt in sub_batch.prompts:
                    prompt.sub_batch = None  # frees the caches now, not at the next garbage collection
        self._sub_batches = [sub_batch for sub_batch in self._sub_batches if sub_batch.rows]
        self._known = {key: prompt for key, prompt in self._known.items() if prompt.users > 0}

    def _free_tokens(self) -> float | None:
        """Tokens that still fit into the caches if all running rows sample as many as they may."""
        available = available_bytes(self._device)
        if available is None or self._bytes_per_token == 0:
            return None
        if self._device.type == "cuda":  # torch's own cache of memory is free for them too
            available += torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        promised = sum(row.request.max_tokens - len(row.tokens) for row in self.rows)
        return _CACHE_SHARE * available / self._bytes_per_token - promised


def _move(entries: list[Any], moves: list[tuple[int, int]], count: int) -> None:
    for source, target in moves:
        entries[target] = entries[source]
    del entries[count:]
