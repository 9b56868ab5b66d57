"""Forward and backward over sequences, in micro-batches that fit into memory. Knows no loss: it ships outputs
to whoever asked and pulls the gradient that comes back into the policy's parameters."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..attention.context import use
from ..attention.tree import Tree
from ..errors import UserMistake
from ..memory import available_bytes, is_out_of_memory, release_cached, trim_heap
from ..policies.policy import Policy
from ..sampling.draw import draw_many
from ..sampling.draw import most_likely as likeliest
from ..sampling.randoms import uniforms
from .head import token_outputs
from .packing import Sequences, pack, plan_packed
from .padded import padded_hidden, plan_padded

Exchange = Callable[[list[int], dict[str, Tensor]], dict[str, Tensor]]
"""(sequences of a micro-batch, their outputs: fp32 on the CPU, ragged in that order) -> dL/doutput, shaped
alike."""

Choose = Callable[[Tensor, np.ndarray], tuple[Tensor, Tensor]]
"""(logits `[n, V]`, their outputs' numbers `[n]`) -> tokens and log-probabilities `[n, count]`."""

# Logits that tokens are chosen from at once: a few copies of them in double precision fit into memory.
_CHOICE_LOGITS = 1 << 22
_CPU_TOKENS = 512
_ACCELERATOR_TOKENS = (1024, 65536)


@dataclass
class _Graph:
    """A micro-batch whose backward is still to come."""

    outputs: Tensor
    """`[outputs, N]`"""
    context: Tree | None


@dataclass
class _Places:
    """Where a micro-batch's outputs come from."""

    hidden: Tensor
    """`[U,D]`"""
    targets: Tensor
    """`[U]`"""
    outputs: Tensor | None
    """As PackedRow's."""
    context: Tree | None
    """The packed row's."""

    def of_outputs(self, values: Tensor) -> Tensor:
        """`[N,...]` from `[U,...]`."""
        return values if self.outputs is None else values[self.outputs]


class Trainer:
    """Runs micro-batches; remembers how large they may be."""

    def __init__(self, chunk_size: int = 256, micro_batch_tokens: int = 0):
        """`chunk_size`: positions whose logits are held at once. `micro_batch_tokens` 0: chosen by memory."""
        self._chunk = max(1, chunk_size)
        self._wanted = micro_batch_tokens
        self._budget: int | None = None
        self.counters = {"train/tokens_computed": 0, "train/micro_batches": 0, "train/out_of_memory": 0}
        """Work since the start, for the metrics."""

    def forward(self, policy: Policy, sequences: Sequences, outputs: list[str]) -> dict[str, Tensor]:
        """Outputs `[N]` (fp32, CPU) of all sequences in their order under the current weights."""
        sequences.check(policy.model.vocabulary_size)
        counts = sequences.counts()
        starts = np.concatenate([[0], np.cumsum(counts)])
        found = torch.empty(len(outputs), int(starts[-1]))

        @torch.no_grad()
        def run(indices: list[int]) -> None:
            values = self._outputs(policy, sequences, indices, outputs).outputs.cpu()
            where = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in indices])
            found[:, torch.from_numpy(where)] = values

        self._each(policy, sequences, run)
        return dict(zip(outputs, found))

    def most_likely(self, policy: Policy, sequences: Sequences, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens at each output's place, in order, and their log-probabilities: int32
        and fp32 `[N, count]`."""
        count = min(count, policy.model.vocabulary_size)
        choose = lambda logits, _: likeliest(logits, logits.logsumexp(-1), count)  # noqa: E731
        return self._tokens_at_each(policy, sequences, count, choose)

    def draws(
        self, policy: Policy, sequences: Sequences, count: int, temperature: float, seed: int
    ) -> tuple[Tensor, Tensor]:
        """`count` tokens drawn at each output's place, and their log-probabilities: as `most_likely`. A draw
        depends on the seed and its own number alone."""

        def choose(logits: Tensor, places: np.ndarray) -> tuple[Tensor, Tensor]:
            numbers = places[:, None] * count + np.arange(count)
            seeds = np.full(numbers.size, seed, np.uint64)
            picks = uniforms(seeds, numbers.reshape(-1).astype(np.uint64)).reshape(numbers.shape)
            return draw_many(logits, temperature, picks)

        return self._tokens_at_each(policy, sequences, count, choose)

    @torch.no_grad()
    def _tokens_at_each(
        self, policy: Policy, sequences: Sequences, count: int, choose: Choose
    ) -> tuple[Tensor, Tensor]:
        sequences.check(policy.model.vocabulary_size)
        starts = np.concatenate([[0], np.cumsum(sequences.counts())])
        tokens = torch.empty(int(starts[-1]), count, dtype=torch.int32)
        logprobs = torch.empty(int(starts[-1]), count)
        step = max(1, min(self._chunk, _CHOICE_LOGITS // policy.model.vocabulary_size))

        def run(indices: list[int]) -> None:
            where = np.concatenate([np.arange(starts[s], starts[s + 1]) for s in indices])
            with policy.current() as model:
                places = self._hidden(model, sequences, indices)
                hidden = places.of_outputs(places.hidden)
                for begin in range(0, len(hidden), step):
                    part = where[begin : begin + step]
                    ids, values = choose(model.logits(hidden[begin : begin + step]).float(), part)
                    tokens[torch.from_numpy(part)] = ids.cpu().int()
                    logprobs[torch.from_numpy(part)] = values.cpu()

        self._each(policy, sequences, run)
        return tokens, logprobs

    def forward_backward(
        self, policy: Policy, sequences: Sequences, outputs: list[str], exchange: Exchange
    ) -> None:
        """Adds the gradient to the policy's. If `exchange` raises, the micro-batches before it stay
        counted."""
        sequences.check(policy.model.vocabulary_size)
        policy.require_trainable()

        def run(indices: list[int]) -> None:
            graph = self._outputs(policy, sequences, indices, outputs)
            shipped = dict(zip(outputs, graph.outputs.detach().cpu()))
            answer = exchange(indices, shipped)
            gradient = torch.stack([answer.get(name, torch.zeros_like(shipped[name])) for name in outputs])
            if bool(
                (gradient != 0).any()
            ):  # a micro-batch without a signal costs no backward (NaN is a signal)
                self._backward(policy, graph, gradient.to(graph.outputs.device))

        self._each(policy, sequences, run)

    def _outputs(self, policy: Policy, sequences: Sequences, indices: list[int], names: list[str]) -> _Graph:
        with policy.current() as model:
            places = self._hidden(model, sequences, indices)
            hidden, targets = places.hidden, places.targets
            self.counters["train/micro_batches"] += 1
            found: dict[str, Tensor] = {}
            of_tokens = [name for name in names if name != "values"]
            if of_tokens:
                outputs = token_outputs(model, hidden, targets, of_tokens, self._chunk, policy.trains_head)
                found |= dict(zip(of_tokens, outputs))
            if "values" in names:
                found["values"] = policy.value_head(hidden)
            outputs = torch.stack([places.of_outputs(found[name]) for name in names])
            return _Graph(outputs, places.context)

    def _hidden(self, model, sequences: Sequences, indices: list[int]) -> _Places:
        if model.attention == "padded":
            return _Places(*padded_hidden(model, sequences, indices), None, None)
        row = pack(sequences, indices, model.device)
        context = Tree(row.families, row.positions)
        self.counters["train/tokens_computed"] += len(row.ids)
        hidden = model.hidden(context, row.ids, row.positions)[row.sources]
        return _Places(hidden, row.targets, row.outputs, context)

    @staticmethod
    def _backward(policy: Policy, graph: _Graph, gradient: Tensor) -> None:
        """A backward that runs out of memory has added part of its gradient: what was there before is put
        back."""
        before = policy.gradient_backup()
        try:
            with policy.current():  # the weights of the forward: a sample may have run since
                if graph.context is None:
                    graph.outputs.backward(gradient)
                else:
                    with use(graph.context):  # for what checkpoints compute again
                        graph.outputs.backward(gradient)
        except BaseException:
            policy.restore_gradient(before)
            raise
        policy.gradient_added()

    def _each(self, policy: Policy, sequences: Sequences, run: Callable[[list[int]], None]) -> None:
        """Runs all micro-batches; one that finds no memory is cut in two, and so are all after it. What
        sampling left behind is given back before, and what this leaves after, so that their peaks do not add
        up."""
        trim_heap()
        self._run_all(policy, sequences, run)
        trim_heap()

    def _run_all(self, policy: Policy, sequences: Sequences, run: Callable[[list[int]], None]) -> None:
        plan = plan_padded if policy.model.attention == "padded" else plan_packed
        waiting = plan(sequences, list(range(len(sequences))), self._tokens(policy.model))
        while waiting:
            indices = waiting.pop(0)
            failure = self._attempt(policy, indices, run)
            if failure is None:
                continue
            self.counters["train/out_of_memory"] += 1
            release_cached(policy.model.device)
            tokens = sum(len(sequences.ids(s)) for s in indices)
            self._budget = max(1, min(self._tokens(policy.model), tokens) // 2)
            if len(indices) == 1:
                raise UserMistake(
                    f"a sequence of {tokens} tokens does not fit into memory: {failure}",
                    "switch on gradient checkpointing, lower chunk_size, or use shorter sequences",
                )
            print(
                f"out of memory; micro-batches now have at most {self._budget} tokens",
                file=sys.stderr,
                flush=True,
            )
            rest = indices + [s for later in waiting for s in later]
            smaller = plan(sequences, rest, self._budget)
            half = (len(indices) + 1) // 2
            waiting = (
                smaller if len(smaller[0]) < len(indices) else [indices[:half], indices[half:], *waiting]
            )

    def _attempt(self, policy: Policy, indices: list[int], run: Callable[[list[int]], None]) -> str | None:
        """None, or how it ran out of memory; the traceback, which holds the graph, is gone by then."""
        try:
            run(indices)
        except Exception as error:
            policy.model.forget()
            if not is_out_of_memory(error):
                raise
            return str(error).splitlines()[0] if str(error) else type(error).__name__
        return None

    def _tokens(self, model) -> int:
        """Most tokens of a micro-batch."""
        if self._budget is None:
            self._budget = self._wanted if self._wanted > 0 else _tokens_by_memory(model)
        return self._budget


def _tokens_by_memory(model) -> int:
    """On a CPU larger rows gain nothing. On an accelerator: half of what is free, by the size of what a layer
    keeps."""
    free = available_bytes(model.device) if model.device.type != "cpu" else None
    if free is None:
        return _CPU_TOKENS
    config = model.config
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    kept = config.hidden_size if model.source.gradient_checkpointing else 12 * config.hidden_size + 4 * inner
    each = kept * config.num_hidden_layers * model.dtype.itemsize
    least, most = _ACCELERATOR_TOKENS
    return max(least, min(most, free // 2 // each))
