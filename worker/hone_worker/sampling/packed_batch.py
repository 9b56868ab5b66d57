"""Rows of one policy that are sampled together, on models whose attention goes through ours: prompts are read
once, finished rows leave at once, new rows join at any step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..attention.cache import Block
from ..attention.decode import Decode, Lane, Prefill, cache_dtype
from ..memory import available_bytes
from .prompt_scores import score, with_nan_first
from .rows import Row

# How much of the memory that is free the caches may come to fill.
_CACHE_SHARE = 0.7


@dataclass(eq=False)
class _Prompt:
    """A prompt whose keys and values are held: in row `place` of a prefilled `block`, or by a crew."""

    key: tuple[int, bytes, bool]
    tokens: list[int]
    block: Block | None = None
    crew: "_Crew | None" = None
    place: int = 0
    hidden: Tensor | None = None
    logprobs: np.ndarray | None = None
    users: int = 0


@dataclass(eq=False)
class _Crew:
    """A lane with whoever owns its rows and prompts, in the lane's order."""

    lane: Lane
    rows: list[Row] = field(default_factory=list)
    prompts: list[_Prompt] = field(default_factory=list)

    def takes(self, length: int, rows: int, slack: int) -> bool:
        """Whether the rectangles stay well filled with a prompt more. A lane apart costs a fixed effort a
        layer, worth `slack` masked places."""
        lane = self.lane
        turns = max([rows, *Counter(lane.owners).values()])
        column = lane.column
        prompts = (len(self.prompts) + 1) * turns * max([length, *lane.lengths])
        reserved = prompts + (lane.rows + rows) * column
        used = sum(lane.lengths[owner] + column - start for owner, start in zip(lane.owners, lane.starts))
        return reserved <= 1.25 * (used + rows * length) + slack

    def seat(self, prompt: _Prompt, rows: list[Row]) -> None:
        owner = self.prompts.index(prompt)
        if owner == len(self.lane.lengths):
            self.lane.add_prompt(len(prompt.tokens))
        self.lane.add_rows([owner] * len(rows))
        self.rows += rows


class PackedBatch:
    """`rows` is in the order of `logits()`. `counters` are added to."""

    # The tokens of one forward that reads prompts, and so the memory that it takes.
    prefill_tokens = 2048
    # Masked places whose cost is about that of a lane more.
    slack = 2048

    def __init__(self, model: Any, policy: Any, counters: Counter[str]):
        self._model = model
        self._policy = policy
        self._counters = counters
        on_cpu = model.device.type == "cpu"
        self._dtype = cache_dtype(model.device, model.dtype)
        if not on_cpu:
            self.prefill_tokens, self.slack = 16384, 65536
        self._crews: list[_Crew] = []
        self._fresh: list[tuple[Row, _Prompt]] = []
        self._known: dict[tuple[int, bytes, bool], _Prompt] = {}
        self._bytes_per_token = 0.0

    @property
    def rows(self) -> list[Row]:
        return [row for crew in self._crews for row in crew.rows] + [row for row, _ in self._fresh]

    def admit(self, waiting: deque[Row], room: int) -> None:
        """Takes rows from the front: at most `room`, and no more new prompts than one forward reads."""
        new: list[_Prompt] = []
        free = self._free_tokens()
        tokens = 0
        while waiting and len(self._fresh) < room:
            row = waiting[0]
            context = row.context
            need = len(context) + row.request.max_tokens - len(row.tokens)
            if free is not None and need > free and (self._crews or self._fresh):
                break
            wants_logprobs = row.request.prompt_logprobs and row.prompt_logprobs is None
            key = (self._policy.version, np.array(context, np.int32).tobytes(), wants_logprobs)
            prompt = self._known.get(key)
            if prompt is None:
                tokens += len(context)
                longest = max([len(context), *(len(other.tokens) for other in new)])
                if new and (
                    tokens > self.prefill_tokens or longest * (len(new) + 1) > 2 * self.prefill_tokens
                ):
                    break
                prompt = self._known[key] = _Prompt(key, context)
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
            if prompt.logprobs is not None and row.prompt_logprobs is None:
                row.prompt_logprobs = prompt.logprobs

    def logits(self) -> Tensor:
        """Logits of the next token of every row, `[N, V]`: one forward for the rows that have tokens."""
        parts = []
        with self._policy.published():
            if self._crews:
                rows = [row for crew in self._crews for row in crew.rows]
                for crew in self._crews:
                    ends = [start + row.request.max_tokens for start, row in zip(crew.lane.starts, crew.rows)]
                    crew.lane.begin_step(max(ends))
                ids = torch.tensor([row.tokens[-1] for row in rows], device=self._model.device)
                positions = [len(row.request.prompt) + len(row.tokens) - 1 for row in rows]
                context = Decode([crew.lane for crew in self._crews])
                parts.append(
                    self._model.hidden(context, ids, torch.tensor(positions, device=self._model.device))
                )
            if self._fresh:
                parts.append(torch.stack([prompt.hidden for _, prompt in self._fresh]))
            return self._model.logits(parts[0] if len(parts) == 1 else torch.cat(parts))

    def remove(self, gone: list[int]) -> None:
        """Drops rows by their place in `rows`; those that are new find their place among the others."""
        leaving = set(gone)
        begin = 0
        for crew in self._crews:
            here = [row for row in range(len(crew.rows)) if begin + row in leaving]
            begin += len(crew.rows)
            for row in here:
                crew.prompts[crew.lane.owners[row]].users -= 1
            if here:
                _move(crew.rows, crew.lane.remove(here), len(crew.rows) - len(here))
        staying = []
        for offset, (row, prompt) in enumerate(self._fresh):
            if begin + offset in leaving:
                prompt.users -= 1
            else:
                staying.append((row, prompt))
        self._fresh = []
        self._settle(staying)
        self._forget_prompts()

    def _prefill(self, prompts: list[_Prompt]) -> None:
        """Reads prompts: all of them in one forward, or a long one in several."""
        lengths = [len(prompt.tokens) for prompt in prompts]
        context = Prefill(lengths, self._dtype, self._model.device)
        self._counters["prompt_tokens"] += sum(lengths)
        ids = torch.tensor(
            [token for prompt in prompts for token in prompt.tokens], device=self._model.device
        )
        positions = torch.cat([torch.arange(length) for length in lengths]).to(self._model.device)
        with self._policy.published():
            if len(prompts) == 1:
                self._read_alone(prompts[0], context, ids, positions)
            else:
                hidden = self._model.hidden(context, ids, positions)
                for prompt, part in zip(prompts, hidden.split(lengths)):
                    prompt.hidden = part[-1].clone()
                    if prompt.key[2]:
                        prompt.logprobs = with_nan_first([score(self._model, part[:-1], prompt.tokens[1:])])
        for place, prompt in enumerate(prompts):
            prompt.block, prompt.place = context.block, place
        self._bytes_per_token = context.block.bytes / (len(prompts) * max(lengths))

    def _read_alone(self, prompt: _Prompt, context: Prefill, ids: Tensor, positions: Tensor) -> None:
        scores = []
        for begin in range(0, len(ids), self.prefill_tokens):
            end = min(begin + self.prefill_tokens, len(ids))
            context.advance(begin, end)
            hidden = self._model.hidden(context, ids[begin:end], positions[begin:end])
            prompt.hidden = hidden[-1].clone()
            if prompt.key[2]:
                following = prompt.tokens[begin + 1 : end + 1]
                scores.append(score(self._model, hidden[: len(following)], following))
        if prompt.key[2]:
            prompt.logprobs = with_nan_first(scores)

    def _settle(self, fresh: list[tuple[Row, _Prompt]]) -> None:
        """Gives new rows their lanes: their prompt's, the first that stays well filled, or a new one."""
        by_prompt: dict[_Prompt, list[Row]] = {}
        for row, prompt in fresh:
            by_prompt.setdefault(prompt, []).append(row)
        arrivals: dict[_Crew, list[_Prompt]] = {}
        for prompt in sorted(by_prompt, key=lambda prompt: -len(prompt.tokens)):
            rows = by_prompt[prompt]
            if prompt.crew is None:
                crew = self._crew_for(len(prompt.tokens), len(rows))
                arrivals.setdefault(crew, []).append(prompt)
                crew.prompts.append(prompt)
                prompt.crew = crew
            prompt.crew.seat(prompt, rows)
        for crew, prompts in arrivals.items():
            # All new prompts were read together, so they are in one block.
            picks = [prompt.place for prompt in prompts]
            crew.lane.prompts.append(prompts[0].block, picks, max(len(prompt.tokens) for prompt in prompts))
            for prompt in prompts:
                prompt.block = None

    def _crew_for(self, length: int, rows: int) -> _Crew:
        for crew in self._crews:
            if crew.takes(length, rows, self.slack):
                return crew
        self._crews.append(_Crew(Lane(Block(self._dtype, self._model.device), [])))
        return self._crews[-1]

    def _forget_prompts(self) -> None:
        for crew in self._crews:
            gone = [place for place, prompt in enumerate(crew.prompts) if prompt.users == 0]
            if gone and crew.rows:
                moves = crew.lane.remove_prompts(gone)
                _move(crew.prompts, moves, len(crew.prompts) - len(gone))
            if not crew.rows:
                for prompt in crew.prompts:
                    prompt.crew = None  # so that the caches go now, and not at the next garbage collection
        self._crews = [crew for crew in self._crews if crew.rows]
        self._known = {key: prompt for key, prompt in self._known.items() if prompt.users > 0}

    def _free_tokens(self) -> float | None:
        """Tokens that the caches may still take, if all rows under way sample as much as they may."""
        device = self._model.device
        available = available_bytes(device)
        if available is None or self._bytes_per_token == 0:
            return None
        if device.type == "cuda":  # what torch keeps for later is free for the caches
            available += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        promised = sum(row.request.max_tokens - len(row.tokens) for row in self.rows)
        return _CACHE_SHARE * available / self._bytes_per_token - promised


def _move(entries: list[Any], moves: list[tuple[int, int]], count: int) -> None:
    for source, target in moves:
        entries[target] = entries[source]
    del entries[count:]
