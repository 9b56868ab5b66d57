"""Forward and backward over sequences, in micro-batches that fit into memory. The caller computes the loss:
it receives outputs and returns their gradient."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..attention.context import AttentionContext, use
from ..errors import UserMistake, first_line
from ..memory import available_bytes, is_out_of_memory, release_cached, trim_heap
from ..models.model import LanguageModel
from ..models.plain_model import PlainModel
from ..policies.policy import Policy, TrainedPolicy
from ..sampling.draw import draw_many, most_likely, uniforms
from .head import token_outputs
from .sequences import PaddedRows, Sequences, pack, padded_rows, pieces_of, plan_packed, plan_padded

Places = Callable[[int], np.ndarray]
"""Sequence -> the tokens of the row that are its first tokens, in order."""


class Routing:
    """Router replay: as long as a version of the weights is published, a sequence keeps its experts. With R2 these are those that the
    trainer chose when it computed the sequence first; with R3 those of the sampler, as far as they are known."""

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


Exchange = Callable[[list[int], dict[str, Tensor]], dict[str, Tensor]]
"""(sequences of a micro-batch, their outputs: fp32 on the CPU, ragged in that order) -> dL/doutput in the
same shapes."""

Choose = Callable[[Tensor, np.ndarray], tuple[Tensor, Tensor]]
"""(logits `[n, V]`, their outputs' indices `[n]`) -> tokens and log-probabilities `[n, count]`."""

# Logits that tokens are chosen from at once: a few copies in double precision fit into memory.
_CHOICE_LOGITS = 1 << 22
_CPU_TOKENS = 512
_ACCELERATOR_TOKENS = (1024, 65536)


class Trainer:
    """Runs micro-batches, and remembers how large they can be."""

    def __init__(
        self,
        chunk_size: int = 256,
        micro_batch_tokens: int = 0,
        bytes_per_token: int | None = None,
        router_replay: str = "disabled",
        router_aux_loss: float = 0.0,
    ):
        """`chunk_size`: positions whose logits are held at once. `micro_batch_tokens` 0: chosen by memory, of which a token needs
        `bytes_per_token`, if that is known. `router_aux_loss`: the weight of transformers' loss that balances experts, averaged
        over the tokens of a request."""
        self._routing = None if router_replay == "disabled" else Routing()
        self._aux_loss = router_aux_loss
        self._chunk = max(1, chunk_size)
        self._bytes_per_token = bytes_per_token
        self._wanted = micro_batch_tokens
        self._budget: int | None = None
        self.counters: dict[str, float] = {"train/tokens_computed": 0, "train/micro_batches": 0, "train/out_of_memory": 0}
        if router_aux_loss > 0:
            self.counters["train/router_aux_loss"] = 0.0
        if router_replay == "R3":
            self.counters["train/tokens_without_experts"] = 0
        """Counts since the start, for the metrics; the auxiliary loss is that of the last request of a policy."""

    def forward(self, policy: Policy, sequences: Sequences, outputs: list[str]) -> dict[str, Tensor]:
        """Outputs `[N]` (fp32, CPU) of all sequences, in order, under the current weights."""
        sequences.check(policy.model.vocabulary_size)
        found = torch.empty(len(outputs), int(sequences.starts[-1]))

        @torch.no_grad()
        def run(indices: list[int]) -> None:
            values, _ = self._outputs(policy, sequences, indices, outputs)
            found[:, torch.from_numpy(sequences.outputs(indices))] = values.cpu()

        self._each(policy, sequences, run)
        return dict(zip(outputs, found))

    def most_likely(self, policy: Policy, sequences: Sequences, count: int) -> tuple[Tensor, Tensor]:
        """The `count` most likely tokens at each output's place, in order, and their log-probabilities: int32
        and fp32 `[N, count]`."""
        count = min(count, policy.model.vocabulary_size)

        def choose(logits: Tensor, _: np.ndarray) -> tuple[Tensor, Tensor]:
            return most_likely(logits, logits.logsumexp(-1), count)

        return self._tokens_at_each(policy, sequences, count, choose)

    def draws(
        self, policy: Policy, sequences: Sequences, count: int, temperature: float, seed: int
    ) -> tuple[Tensor, Tensor]:
        """`count` tokens drawn at each output's place, and their log-probabilities, like `most_likely`. A
        draw depends only on the seed and its own index."""

        def choose(logits: Tensor, places: np.ndarray) -> tuple[Tensor, Tensor]:
            numbers = places[:, None] * count + np.arange(count)
            seeds = np.full(numbers.size, seed, np.uint64)
            picks = uniforms(seeds, numbers.reshape(-1).astype(np.uint64)).reshape(numbers.shape)
            return draw_many(logits, temperature, picks)

        return self._tokens_at_each(policy, sequences, count, choose)

    def forward_backward(
        self, policy: TrainedPolicy, sequences: Sequences, outputs: list[str], exchange: Exchange
    ) -> None:
        """Adds the gradient to the policy's. If `exchange` raises, the micro-batches before it stay
        counted."""
        sequences.check(policy.model.vocabulary_size)
        policy.require_trainable()
        self._count_unrouted(policy, sequences)
        if "train/router_aux_loss" in self.counters and not policy.is_critic:
            self.counters["train/router_aux_loss"] = 0.0

        def run(indices: list[int]) -> None:
            policy.model.balances = self._aux_loss > 0
            try:
                values, context = self._outputs(policy, sequences, indices, outputs)
            finally:
                policy.model.balances = False
            shipped = dict(zip(outputs, values.detach().cpu()))
            answer = exchange(indices, shipped)
            gradient = torch.stack([answer.get(name, torch.zeros_like(shipped[name])) for name in outputs])
            roots = [(values, gradient.to(values.device))] if bool((gradient != 0).any()) else []  # true for NaN too
            if (balance := policy.model.balance) is not None:
                share = len(sequences.outputs(indices)) / max(1, int(sequences.starts[-1]))
                roots.append((balance, torch.full_like(balance, self._aux_loss * share)))
                policy.model.balance = None
            if roots:
                _backward(policy, roots, context)
            if balance is not None and not policy.is_critic:
                self.counters["train/router_aux_loss"] += share * balance.item()

        self._each(policy, sequences, run)

    @torch.no_grad()
    def _tokens_at_each(
        self, policy: Policy, sequences: Sequences, count: int, choose: Choose
    ) -> tuple[Tensor, Tensor]:
        sequences.check(policy.model.vocabulary_size)
        tokens = torch.empty(int(sequences.starts[-1]), count, dtype=torch.int32)
        logprobs = torch.empty(tokens.shape)
        step = max(1, min(self._chunk, _CHOICE_LOGITS // policy.model.vocabulary_size))

        def run(indices: list[int]) -> None:
            where = sequences.outputs(indices)
            hidden, _, places, _ = self._hidden(policy, sequences, indices)
            model = policy.model
            hidden = hidden if places is None else hidden[places]
            for begin in range(0, len(hidden), step):
                part = where[begin : begin + step]
                ids, values = choose(model.logits(hidden[begin : begin + step]).float(), part)
                tokens[torch.from_numpy(part)] = ids.cpu().int()
                logprobs[torch.from_numpy(part)] = values.cpu()

        self._each(policy, sequences, run)
        return tokens, logprobs

    def _outputs(
        self, policy: Policy, sequences: Sequences, indices: list[int], names: list[str]
    ) -> tuple[Tensor, AttentionContext | None]:
        """`[len(names), N]` of these sequences, and the context of the packed row."""
        hidden, targets, places, context = self._hidden(policy, sequences, indices)
        model = policy.model
        self.counters["train/micro_batches"] += 1
        found: dict[str, Tensor] = {}
        of_tokens = [name for name in names if name != "values"]
        if of_tokens:
            outputs = token_outputs(model, hidden, targets, of_tokens, self._chunk, policy.trains_head)
            found |= dict(zip(of_tokens, outputs))
        if "values" in names:
            found["values"] = policy.value_head(hidden)
        outputs = torch.stack([found[name] for name in names])
        return outputs if places is None else outputs[:, places], context

    def _hidden(
        self, policy: Policy, sequences: Sequences, indices: list[int]
    ) -> tuple[Tensor, Tensor, Tensor | None, AttentionContext | None]:
        """Hidden states `[U,D]` and tokens `[U]` of the distinct outputs, `PackedRow.outputs`, and the
        context."""
        model = policy.use_current()
        if model.attention == "padded":
            rows = padded_rows(sequences, indices)
            at = dict(zip(indices, range(len(indices))))
            with self._routed(policy, sequences, indices, rows.ids.size, lambda s: _padded_places(rows, at[s])):
                return *_padded_hidden(model, sequences, indices, rows), None, None
        row = pack(sequences, indices, model.device)
        context = model.row(row.families, row.positions)
        self.counters["train/tokens_computed"] += len(row.ids)
        with self._routed(policy, sequences, indices, len(row.ids), row.places.__getitem__):
            hidden = model.hidden(context, row.ids, row.positions, row.pieces)
        return hidden[row.sources], row.targets, row.outputs, context

    def _routed(
        self, policy: Policy, sequences: Sequences, indices: list[int], size: int, places: Places
    ) -> AbstractContextManager[None]:
        if self._routing is None or not isinstance(policy, TrainedPolicy):
            return nullcontext()
        return self._routing.replayed(policy, sequences, indices, size, places)

    def _count_unrouted(self, policy: TrainedPolicy, sequences: Sequences) -> None:
        name = "train/tokens_without_experts"
        if name not in self.counters or policy.is_critic:
            return
        experts = sequences.experts
        missing = len(sequences.trained) if experts is None else int((experts < 0).any((1, 2)).sum())
        if missing and not self.counters[name]:
            print(f"router_replay=R3: the sampler has not told the experts of {missing} tokens", file=sys.stderr, flush=True)
        self.counters[name] += missing

    def _each(self, policy: Policy, sequences: Sequences, run: Callable[[list[int]], None]) -> None:
        """Runs all micro-batches. If one runs out of memory, it and all after it become smaller. The heap is
        trimmed before and after, so that the peaks of sampling and training do not add up."""
        trim_heap()
        plan = plan_padded if policy.model.attention == "padded" else plan_packed
        waiting = plan(sequences, list(range(len(sequences))), self._tokens(policy.model))
        while waiting:
            indices = waiting.pop(0)
            failure = _out_of_memory(policy, indices, run)
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
            smaller = plan(sequences, indices + [s for later in waiting for s in later], self._budget)
            half = (len(indices) + 1) // 2
            halves = [indices[:half], indices[half:], *waiting]
            waiting = smaller if len(smaller[0]) < len(indices) else halves
        trim_heap()

    def _tokens(self, model: LanguageModel) -> int:
        """The most tokens of a micro-batch."""
        if self._budget is None:
            self._budget = self._wanted if self._wanted > 0 else tokens_by_memory(model, self._bytes_per_token)
        return self._budget


def _padded_hidden(
    model: LanguageModel, sequences: Sequences, indices: list[int], rows: PaddedRows
) -> tuple[Tensor, Tensor]:
    """The hidden states `[N,D]` and tokens `[N]` of the outputs, in the order of `indices`."""
    mask = (np.arange(rows.ids.shape[1]) < rows.lengths[:, None]).astype(np.int64)

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(model.device)

    hidden = model.padded_hidden(tensor(rows.ids), tensor(mask), pieces_of(sequences, indices, rows))
    return hidden.flatten(0, 1)[tensor(rows.sources)], tensor(rows.targets)


def _padded_places(rows: PaddedRows, row: int) -> np.ndarray:
    return row * rows.ids.shape[1] + np.arange(rows.lengths[row])


def _backward(
    policy: TrainedPolicy, roots: list[tuple[Tensor, Tensor]], context: AttentionContext | None
) -> None:
    """A backward that runs out of memory has added a part of its gradient, which is then undone."""
    before = policy.gradient_backup()
    try:
        policy.use_current()  # the weights of the forward: a sample may have run since
        with use(context) if context else nullcontext(), policy.model.mixtures.again():  # for recomputed checkpoints
            torch.autograd.backward(*zip(*roots))
    except BaseException:
        policy.restore_gradient(before)
        raise
    policy.gradient_added()


def _out_of_memory(policy: Policy, indices: list[int], run: Callable[[list[int]], None]) -> str | None:
    """Runs a micro-batch. Returns how it ran out of memory, without the traceback, which would keep the
    graph."""
    try:
        run(indices)
    except Exception as error:
        policy.model.forget()
        if not is_out_of_memory(error):
            raise
        return first_line(error)
    return None


def least_tokens(device: torch.device) -> int:
    """The most tokens of a micro-batch on a CPU, where larger ones are not faster; the least on an accelerator."""
    return _CPU_TOKENS if device.type == "cpu" else _ACCELERATOR_TOKENS[0]


def tokens_by_memory(model: PlainModel, kept: int | None = None) -> int:
    """The most tokens of a micro-batch. On an accelerator, half of the free memory holds the tensors that the layers keep for the
    backward. `kept`: bytes per token, if they were measured (memory_plan.py)."""
    free = available_bytes(model.device) if model.device.type != "cpu" else None
    if free is None:
        return _CPU_TOKENS
    config = model.config
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    width = config.hidden_size if model.source.gradient_checkpointing else 12 * config.hidden_size + 4 * inner
    each = kept or width * config.num_hidden_layers * model.dtype.itemsize
    least, most = _ACCELERATOR_TOKENS
    return max(least, min(most, free // 2 // each))
