"""Continuous batching: sample messages become rows, all rows advance by one token at a time, and each
sequence is answered when it ends. The batch runs the model (packed_batch.py, padded_batch.py)."""

import gc
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..errors import UserMistake
from ..memory import is_out_of_memory
from .draw import Ahead, Drawer, Drawn, NotFinite, most_likely, uniforms
from .rows import Request, Row, StopStrings

# Decode steps before another policy's rows get their turn. Switching policies can cost a merge of weights.
_SLICE = 32

Emit = Callable[[dict[str, Any], dict[str, np.ndarray]], None]
Fail = Callable[[int, BaseException], None]
# The most likely tokens of some rows and their log-probabilities, `[n, K]` each.
Likely = tuple[Tensor, Tensor]


class Batch(Protocol):
    """The running rows of one policy."""

    @property
    def rows(self) -> list[Row]: ...

    def admit(self, waiting: deque[Row], room: int) -> None:
        """Takes up to `room` rows from the front of `waiting`; at least one if no row is running."""

    @property
    def most_ahead(self) -> int:
        """How many tokens of each row can be drawn from now on before the rows get them."""

    def logits(self, drawn: Tensor | None = None) -> Tensor:
        """`[N, V]`: logits of the next token of each row, in the order of `rows`. `drawn` `[N]`: the tokens drawn from the previous
        logits, if the rows do not have them."""

    def remove(self, gone: list[int]) -> None:
        """Drops the rows at these indices. Called after each draw, even if `gone` is empty."""


@dataclass
class _Job:
    """One sample message."""

    policy: Any
    stream: bool
    # Sequences that have not ended, by their index in the message.
    open: dict[int, Row]


@dataclass
class _Queue:
    """The rows of one policy."""

    policy: Any
    batch: Batch
    waiting: deque[Row] = field(default_factory=deque)


class Sampler:
    """`emit(header, arrays)` sends a message, `fail(job, error)` answers a sample message with an error.

    `make_batch(policy, counters)` returns an empty Batch. `open_tokenizer` is called for each request with
    stop strings. Policies take turns; rows of a policy that must be published first wait."""

    def __init__(
        self,
        device: torch.device,
        max_rows: int,
        make_batch: Callable[[Any, Counter[str]], Batch],
        open_tokenizer: Callable[[], Any],
        emit: Emit,
        fail: Fail,
        block: int = 1,
    ):
        """`block`: tokens of each row that are drawn before the host looks at them. On a GPU the host would wait for each token; the
        tokens that a row gets after its end are dropped."""
        self._block = block
        self._max_rows = max_rows
        self._make_batch = make_batch
        self._open_tokenizer = open_tokenizer
        self._emit = emit
        self._fail = fail
        self._drawer = Drawer(device)
        self._jobs: dict[int, _Job] = {}
        # `_current` has had `_turn` steps of its turn.
        self._queues: list[_Queue] = []
        self._current: _Queue | None = None
        self._turn = 0
        names = ("prompt_tokens", "prompts_shared", "sampled_tokens", "decode_steps", "memory_retreats")
        self.counters: Counter[str] = Counter({name: 0 for name in names})
        self.seconds = 0.0

    @property
    def busy(self) -> bool:
        """Whether a step has rows to advance."""
        return any(queue.policy.can_sample for queue in self._queues)

    def add(self, job: int, policy: Any, requests: list[Request], stream: bool) -> None:
        """Queues the rows of a sample message; they join the batch when it has room."""
        if not requests:
            self._emit({"id": job, "ok": True}, {})
            return
        rows = [Row(job, index, request, self._stops(request)) for index, request in enumerate(requests)]
        self._jobs[job] = _Job(policy, stream, {row.index: row for row in rows})
        for queue in self._queues:
            if queue.policy is policy:
                queue.waiting.extend(rows)
                return
        self._queues.append(_Queue(policy, self._make_batch(policy, self.counters), deque(rows)))

    def abort(self, job: int, requests: list[int] | None = None) -> None:
        """Ends the running sequences of the message, or those of `requests`, with the tokens they have."""
        self._abort(lambda queue, row: row.job == job and (requests is None or row.index in requests))

    def abort_policy(self, policy: Any) -> None:
        """Ends all sequences of a policy with the tokens they have."""
        self._abort(lambda queue, row: queue.policy is policy)

    def step(self) -> None:
        """Samples one token for every running row. An error ends the sample messages it concerns."""
        begin = time.perf_counter()
        queue = self._next_queue()
        try:
            with torch.no_grad():
                self._advance(queue)
        except NotFinite as error:
            rows = queue.batch.rows
            jobs = {rows[row].job for row in error.rows}
            self._restart(queue)
            self._fail_jobs(jobs, UserMistake(str(error)))
        except Exception as error:
            self._recover(queue, error)
        self._close_idle_queues()
        self.seconds += time.perf_counter() - begin

    def _next_queue(self) -> _Queue:
        """Brings the queue whose turn it is to the front."""
        if self._turn >= _SLICE:
            self._queues.append(self._queues.pop(0))
        while not self._queues[0].policy.can_sample:
            self._queues.append(self._queues.pop(0))
        if self._queues[0] is not self._current:
            self._current, self._turn = self._queues[0], 0
        self._turn += 1
        return self._queues[0]

    def _advance(self, queue: _Queue) -> None:
        batch = queue.batch
        room = self._max_rows - len(batch.rows)
        if queue.waiting and room > 0:
            batch.admit(queue.waiting, room)
        count = self._steps_ahead(batch)
        if count > 1:
            self._draw_block(queue, count)
            return
        logits = batch.logits()
        rows = batch.rows
        seeds = np.array([row.request.seed for row in rows], np.uint64)
        picks = uniforms(seeds, np.array([len(row.tokens) for row in rows], np.uint64))
        drawn = self._drawer.draw(logits, [row.request.draw for row in rows], picks)
        self.counters["decode_steps"] += 1
        self._give(queue, rows, [drawn.tokens], [drawn.logprobs], [self._likely(rows, logits, drawn)])

    def _steps_ahead(self, batch: Batch) -> int:
        """How many tokens of each row are drawn now."""
        if self._block == 1 or (rows := batch.rows) == []:
            return 1
        left = max(row.request.max_tokens - len(row.tokens) for row in rows)
        return max(1, min(self._block, left, batch.most_ahead))

    def _draw_block(self, queue: _Queue, count: int) -> None:
        """Draws `count` tokens of each row without waiting for the device, then waits once.

        Launches are not recorded as CUDA graphs. A graph replays the same addresses and shapes, but each token adds a
        column to a bucket's cache (attention/decode.py), rows leave and join, and the cache moves when it grows. The form
        to try first, if `npm run proof -- gpu` shows that 32 rows take as long as one: columns rounded up to 64 and
        masked, in buffers that do not move. On NVIDIA GPUs vLLM, which has graphs, is the default sampler."""
        rows = queue.batch.rows
        draws = [row.request.draw for row in rows]
        seeds = np.tile(np.array([row.request.seed for row in rows], np.uint64), count)
        places = np.array([len(row.tokens) + step for step in range(count) for row in rows], np.uint64)
        picks = self._drawer.picks(uniforms(seeds, places)).view(count, len(rows))
        found: list[Ahead] = []
        likely: list[Likely | None] = []
        for step in range(count):
            logits = queue.batch.logits(found[-1].tokens if found else None)
            found.append(self._drawer.draw_ahead(logits, draws, picks[step]))
            likely.append(self._likely(rows, logits, found[-1]))
        finite = torch.isfinite(torch.stack([each.log_sum for each in found])).all(0)
        tokens = torch.stack([each.tokens for each in found]).tolist()
        if not all(kept := finite.tolist()):
            raise NotFinite([place for place, fine in enumerate(kept) if not fine])
        self.counters["decode_steps"] += count
        self._turn += count - 1
        self._give(queue, rows, tokens, torch.stack([each.logprobs for each in found]).tolist(), likely)

    def _give(
        self, queue: _Queue, rows: list[Row], tokens: list[list[int]], logprobs: list[list[float]], likely: Sequence[Likely | None]
    ) -> None:
        """Adds the tokens of one or several steps, `[steps][N]`, to the rows, and answers those that end."""
        version = queue.policy.version
        running = dict(enumerate(rows))
        ended: list[int] = []
        for ids, values, most in zip(tokens, logprobs, likely):
            for place, *of_row in zip(_wanting(rows), *(part.tolist() for part in most or ())):
                if place in running:
                    rows[place].add_top(*of_row)
            self.counters["sampled_tokens"] += len(running)
            reasons = {place: row.add(ids[place], values[place], version) for place, row in running.items()}
            self._stream(list(running.values()))
            for place, reason in reasons.items():
                if reason is not None:
                    self._finish(running.pop(place), reason)
                    ended.append(place)
        queue.batch.remove(sorted(ended))

    def _likely(self, rows: list[Row], logits: Tensor, drawn: Drawn | Ahead) -> Likely | None:
        """Tokens and log-probabilities of the rows that want the most likely ones."""
        wanting = _wanting(rows)
        if not wanting:
            return None
        index = self._drawer.rows(wanting, len(rows))
        chosen = logits[index]
        if drawn.temperature is not None:
            chosen = chosen.float() / drawn.temperature[index]
        return most_likely(chosen, drawn.log_sum[index], max(rows[place].request.top_logprobs for place in wanting))

    def _stream(self, rows: list[Row]) -> None:
        by_job: dict[int, list[Row]] = {}
        for row in rows:
            if self._jobs[row.job].stream:
                by_job.setdefault(row.job, []).append(row)
        for job, members in by_job.items():
            arrays = {
                "requests": np.array([row.index for row in members], np.int32),
                "tokens": np.array([row.tokens[-1] for row in members], np.int32),
                "logprobs": np.array([row.logprobs[-1] for row in members], np.float32),
            }
            self._emit({"id": job, "event": "token"}, arrays)

    def _finish(self, row: Row, reason: str) -> None:
        job = self._jobs[row.job]
        version = row.versions[-1][1] if row.versions else job.policy.version
        header = {"event": "sample", "request": row.index, "stop_reason": reason, "policy_version": version}
        self._emit({"id": row.job, **header}, row.arrays())
        del job.open[row.index]
        if not job.open:
            del self._jobs[row.job]
            self._emit({"id": row.job, "ok": True}, {})

    def _abort(self, chosen: Callable[[_Queue, Row], bool]) -> None:
        for row in self._take(chosen):
            self._finish(row, "aborted")
        self._close_idle_queues()

    def _take(self, chosen: Callable[[_Queue, Row], bool]) -> list[Row]:
        """Removes the chosen rows from their queues."""
        taken = []
        for queue in self._queues:
            rows = queue.batch.rows
            places = [place for place, row in enumerate(rows) if chosen(queue, row)]
            if places:
                queue.batch.remove(places)
            taken += [rows[place] for place in places] + [row for row in queue.waiting if chosen(queue, row)]
            queue.waiting = deque(row for row in queue.waiting if not chosen(queue, row))
        return taken

    def _fail_jobs(self, jobs: set[int], error: BaseException) -> None:
        self._take(lambda _, row: row.job in jobs)
        for job in jobs:
            del self._jobs[job]
            self._fail(job, error)

    def _restart(self, queue: _Queue) -> int:
        """After an error nothing in a batch can be trusted: its rows restart with the tokens they have.
        Returns their number."""
        waiting = set(queue.waiting)
        rows = [row for job in self._jobs.values() if job.policy is queue.policy for row in job.open.values()]
        rows = [row for row in rows if row not in waiting]
        queue.batch = self._make_batch(queue.policy, self.counters)
        gc.collect()  # the old batch holds caches, possibly in a reference cycle
        queue.waiting.extendleft(reversed(rows))
        return len(rows)

    def _recover(self, queue: _Queue, error: Exception) -> None:
        """Out of memory: samples fewer rows at a time. Other errors are the answer to their messages."""
        count = self._restart(queue)
        if is_out_of_memory(error) and count > 1:
            self._max_rows = count // 2
            self.counters["memory_retreats"] += 1
        else:
            rows = list(queue.waiting)
            self._fail_jobs({row.job for row in rows[:count] or rows}, error)

    def _close_idle_queues(self) -> None:
        self._queues = [queue for queue in self._queues if queue.batch.rows or queue.waiting]

    def _stops(self, request: Request) -> StopStrings | None:
        return StopStrings(self._open_tokenizer(), request.stop_strings) if request.stop_strings else None


def _wanting(rows: list[Row]) -> list[int]:
    return [place for place, row in enumerate(rows) if row.request.top_logprobs > 0]
