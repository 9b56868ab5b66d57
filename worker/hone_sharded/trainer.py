"""Forward and backward of all ranks over the sequences of one request."""

from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from hone_worker.memory import trim_heap
from hone_worker.training.sequences import PaddedRows, Sequences, padded_rows, pieces_of, plan_padded
from hone_worker.training.trainer import tokens_by_memory
from torch import Tensor

from . import ulysses
from .policy import ShardedPolicy

Exchange = Callable[[list[int], np.ndarray, dict[str, Tensor]], dict[str, Tensor]]
"""(sequences of this rank's micro-batch, indices of its outputs, outputs) -> gradients of the outputs, same shapes."""

_DUMMY = PaddedRows(np.zeros((1, 1), np.int64), np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))


class Trainer:
    """`micro_batch_tokens`: 0 chooses by memory. `sequence_ranks`: the number of ranks that share each sequence."""

    def __init__(self, micro_batch_tokens: int, sequence_ranks: int):
        self._budget = micro_batch_tokens
        self._sequence_ranks = sequence_ranks
        self.counters = {"train/tokens_computed": 0, "train/micro_batches": 0, "train/out_of_memory": 0}

    @torch.no_grad()
    def forward(self, policy: ShardedPolicy, sequences: Sequences, names: list[str]) -> tuple[np.ndarray, Tensor]:
        """Returns the indices `[n]` of this rank's outputs, and the outputs as fp32 `[len(names), n]` on the CPU."""
        found = [
            (where, outputs.cpu()) for _, where, outputs in self._each(policy, sequences, names)
        ]
        if not found:
            return np.zeros(0, np.int64), torch.zeros(len(names), 0)
        policy.sharding.abandon()
        return np.concatenate([where for where, _ in found]), torch.cat([outputs for _, outputs in found], 1)

    def forward_backward(
        self, policy: ShardedPolicy, sequences: Sequences, names: list[str], exchange: Exchange
    ) -> None:
        """Adds the gradient to the policy's. If `exchange` raises, the gradient of the earlier micro-batches is
        kept."""
        policy.require_trainable()
        for indices, where, outputs in self._each(policy, sequences, names):
            shipped = dict(zip(names, outputs.detach().cpu()))
            try:
                answer = exchange(indices, where, shipped)
            except BaseException:
                policy.sharding.abandon()
                raise
            gradient = torch.stack([answer.get(name, torch.zeros_like(shipped[name])) for name in names])
            policy.sharding.backward(outputs, gradient.to(outputs.device))

    def _each(self, policy: ShardedPolicy, sequences: Sequences, names: list[str]):
        """Yields this rank's sequences, indices and outputs `[len(names), n]` for each round."""
        plain = policy.model.plain
        sequences.check(plain.vocabulary_size)
        policy.use()
        share = self._sequence_ranks
        groups, rank = dist.get_world_size() // share, dist.get_rank()
        for batches in plan(sequences, groups, self._tokens(policy) * share):
            indices = batches[rank // share]
            rows = padded_rows(sequences, indices, share) if indices else _DUMMY
            pieces = pieces_of(sequences, indices, rows) if indices else []
            where = sequences.outputs(indices) if indices else np.zeros(0, np.int64)
            positions = plain.vision.positions(pieces, rows.ids.shape) if pieces else None
            images = plain.vision.features(pieces, plain.device) if pieces else None
            self.counters["train/tokens_computed"] += rows.ids.size // share if indices else 0
            self.counters["train/micro_batches"] += 1
            if share > 1:
                rows, where, positions = ulysses.part(rows, where, rank % share, share)
            count = len(where)
            if count == 0:  # a dummy, because all ranks must call the same collectives
                rows = PaddedRows(rows.ids, rows.lengths, _DUMMY.sources, _DUMMY.targets)
            tensors = [
                None if each is None else torch.from_numpy(each).to(plain.device)
                for each in (rows.ids, positions, rows.sources, rows.targets)
            ]
            yield indices, where, policy.sharding.run(*tensors, names, *(images or ()))[:, :count]
        trim_heap()

    def _tokens(self, policy: ShardedPolicy) -> int:
        """Tokens per micro-batch. All ranks use the budget of the rank with the least memory."""
        if self._budget == 0:
            least = torch.tensor(tokens_by_memory(policy.model.plain), device=policy.model.plain.device)
            dist.all_reduce(least, dist.ReduceOp.MIN)
            self._budget = int(least)
        return self._budget


def plan(sequences: Sequences, groups: int, budget: int) -> list[list[list[int]]]:
    """Returns rounds of micro-batches, one per group of ranks, of at most `budget` tokens with padding. All groups have the
    same number of micro-batches, some of which may be empty. All groups compute about the same number of tokens. The plan is
    a pure function of the request and of numbers that all ranks have agreed on, so all ranks compute the same plan."""
    lengths = {s: int(places[-1]) + 1 for s in range(len(sequences)) if len(places := sequences.places(s))}
    shares: list[list[int]] = [[] for _ in range(groups)]
    totals = [0] * groups
    for s in sorted(lengths, key=lambda s: -lengths[s]):
        group = totals.index(min(totals))
        shares[group].append(s)
        totals[group] += lengths[s]
    batches = [plan_padded(sequences, share, budget) for share in shares]
    rounds = max(map(len, batches))
    return [[mine[i] if i < len(mine) else [] for mine in batches] for i in range(rounds)]
