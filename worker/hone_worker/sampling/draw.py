"""From logits to sampled tokens: temperature, filters, the draw itself, and log-probabilities, also of a prompt's own tokens.

Log-probabilities are those of the model's own distribution (temperature 1, no filters), or, if a row requests
it, those at its temperature without filters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.model import LanguageModel

# Random numbers that depend only on a seed and a position, so the order of drawing does not matter.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection in which each bit affects all."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """f64 `[N]` in [0, 1) with 53 random bits. `seeds` u64 `[N]`, `positions` integers `[N]`."""
    with np.errstate(over="ignore"):
        stream = _mix(seeds.astype(np.uint64) + _GOLDEN)
        bits = _mix(stream + _GOLDEN * (positions.astype(np.uint64) + np.uint64(1)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


# The draw first picks a block and then a token within it: about the square root of a vocabulary.
_BLOCK = 256
# Rows are processed in parts of about this many logits, so that a part stays in the processor's cache.
_PART_ELEMENTS = 1 << 20
_KEPT_CONSTANTS = 64
# Candidates for top_p at first; a flatter distribution gets more.
_NUCLEUS = 512


class NotFinite(Exception):
    """The logits of `rows` contain NaN or infinities."""

    def __init__(self, rows: list[int]):
        super().__init__(
            "the model's logits are not finite: its weights are damaged, or overflow in this dtype"
        )
        self.rows = rows


@dataclass(frozen=True)
class Draw:
    """How one row is drawn. `temperature` 0 is greedy; `top_p` 1, `top_k` <= 0 and `min_p` 0 are off.
    `tempered_logprobs`: log-probabilities at its temperature (at 1 if greedy)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    tempered_logprobs: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def tempered(self) -> bool:
        return self.temperature not in (0, 1)

    @property
    def filtered(self) -> bool:
        return not self.greedy and (self.top_p < 1 or self.top_k > 0 or self.min_p > 0)


@dataclass
class Drawn:
    """Lists have one entry per row. `log_sum` `[N]` is the logsumexp of the logits, which are first divided
    by `temperature` `[N, 1]` if it is not None."""

    tokens: list[int]
    logprobs: list[float]
    log_sum: Tensor
    temperature: Tensor | None = None


@dataclass
class Ahead:
    """Like Drawn, on the device: the host has not waited for them."""

    tokens: Tensor
    logprobs: Tensor
    log_sum: Tensor
    temperature: Tensor | None = None


class Drawer:
    """Keeps its working memory between steps: fresh pages for the logits cost more than the arithmetic."""

    def __init__(self, device: torch.device):
        self._device = device
        self._memory = torch.empty(0, device=device)
        self._kept: dict[tuple, Tensor] = {}
        # On other devices, sorting the whole vocabulary takes less time than the host's question whether a part is enough.
        self._asks = device.type == "cpu"

    def draw(self, logits: Tensor, draws: Sequence[Draw], uniforms: np.ndarray) -> Drawn:
        """`logits` `[N, V]`; `uniforms` in [0, 1), `[N]`. Raises NotFinite."""
        ahead = self.draw_ahead(logits, draws, self.picks(uniforms))
        # Checked before the tokens are used: one drawn from NaN can be any number.
        if not torch.isfinite(ahead.log_sum).all():
            raise NotFinite((~torch.isfinite(ahead.log_sum)).nonzero()[:, 0].tolist())
        return Drawn(ahead.tokens.tolist(), ahead.logprobs.tolist(), ahead.log_sum, ahead.temperature)

    def picks(self, uniforms: np.ndarray) -> Tensor:
        """Random numbers for `draw_ahead`."""
        return torch.from_numpy(uniforms).to(device=self._device, dtype=_wide(self._device))

    def draw_ahead(self, logits: Tensor, draws: Sequence[Draw], picks: Tensor) -> Ahead:
        """Draws without waiting for the device, except for top_p on a CPU. Tokens are in the vocabulary even if the logits are not
        finite."""
        count, vocabulary = logits.shape
        picks = picks[:, None]
        part = max(1, min(count, _PART_ELEMENTS // vocabulary)) if self._device.type == "cpu" else count
        tokens = torch.empty(count, dtype=torch.long, device=self._device)
        log_sum = torch.empty(count, dtype=torch.float32, device=self._device)
        for begin in range(0, count, part):
            rows = slice(begin, min(begin + part, count))
            self._draw_part(logits[rows], draws[rows], picks[rows], tokens[rows], log_sum[rows])
        chosen = logits.gather(1, tokens[:, None])[:, 0].float()
        temperature = None
        tempered = [row for row, draw in enumerate(draws) if draw.tempered and draw.tempered_logprobs]
        if tempered:
            temperature = self._constant(*(each.temperature if each.tempered and each.tempered_logprobs else 1.0 for each in draws))
            temperature = temperature[:, None]
            rows = self.rows(tempered, count)
            log_sum[rows] = (logits[rows].float() / temperature[rows]).logsumexp(-1)
            chosen = chosen / temperature[:, 0]
        return Ahead(tokens, chosen - log_sum, log_sum, temperature)

    def _constant(self, *values: float) -> Tensor:
        """These numbers on the device, which the next steps of the same rows need again."""
        key = (values, type(values[0]))  # True == 1.0
        if key not in self._kept:
            if len(self._kept) >= _KEPT_CONSTANTS:
                self._kept.clear()
            self._kept[key] = torch.tensor(values, device=self._device)
        return self._kept[key]

    def rows(self, rows: list[int], count: int) -> Tensor | slice:
        """The rows as an index, which copies nothing if they are all `count` rows. A list would be copied to the device each time."""
        return self._constant(*rows) if len(rows) < count else slice(None)

    def _draw_part(
        self, logits: Tensor, draws: Sequence[Draw], picks: Tensor, tokens: Tensor, log_sum: Tensor
    ) -> None:
        count, vocabulary = logits.shape
        padded, weights = self._scratch(count, vocabulary)
        weights.copy_(logits)
        peak = weights.amax(-1, keepdim=True)
        greedy = [row for row, draw in enumerate(draws) if draw.greedy]
        if greedy:
            rows = self.rows(greedy, count)
            tokens[rows] = weights[rows].argmax(-1)
        weights.sub_(peak).exp_()
        mass = padded.sum(-1)
        log_sum.copy_((peak[:, 0] + mass.sum(-1, dtype=picks.dtype).log()).float())
        if len(greedy) == count:
            return
        changed = [row for row, draw in enumerate(draws) if draw.tempered or draw.filtered]
        if changed:
            rows = self.rows(changed, count)
            chosen = weights[rows]
            some = [draws[row] for row in changed]
            temperature = self._constant(*(draw.temperature or 1.0 for draw in some)) if any(d.tempered for d in some) else None
            if temperature is not None:
                chosen.copy_(logits[rows]).sub_(peak[rows]).div_(temperature[:, None]).exp_()
            if any(draw.filtered for draw in some):
                self._filter(chosen, some)
            if len(changed) < count:
                weights[rows] = chosen
            mass = padded.sum(-1)
        block, rest = _invert(mass.to(picks.dtype), picks, scale=True)
        inner = padded[torch.arange(count, device=self._device), block[:, 0]].to(picks.dtype)
        drawn = block * _BLOCK + _invert(inner, rest, scale=False)[0]
        drawn = drawn[:, 0].clamp_(max=vocabulary - 1)
        if greedy:
            torch.where(self._constant(*(draw.greedy for draw in draws)), tokens, drawn, out=tokens)
        else:
            tokens.copy_(drawn)

    def _filter(self, weights: Tensor, draws: Sequence[Draw]) -> None:
        """Sets the weights `[n, V]` of tokens that a row's filters drop to 0. top_k comes first; top_p keeps the fewest tokens of
        the rest whose share reaches p; min_p is relative to the most likely token, whose weight is 1. top_k and top_p cut by rank:
        of tokens with equal weights, which are usual in bfloat16, those with lower ids come first, as with temperature 0."""
        sorting = [row for row, draw in enumerate(draws) if draw.top_k > 0 or draw.top_p < 1]
        if sorting:
            self._cut_by_rank(weights, draws, sorting)
        if any(draw.min_p > 0 for draw in draws):
            least = self._constant(*(float(draw.min_p) for draw in draws))
            weights.masked_fill_(weights < least[:, None], 0)

    def _cut_by_rank(self, weights: Tensor, draws: Sequence[Draw], sorting: list[int]) -> None:
        count, vocabulary = weights.shape
        rows = self.rows(sorting, count)
        chosen = weights[rows]
        limits = [min(draws[row].top_k, vocabulary) if draws[row].top_k > 0 else vocabulary for row in sorting]
        width = max(limits)
        sure = width < vocabulary or not self._asks
        if not sure:
            width = min(vocabulary, max(_NUCLEUS if limit == vocabulary else limit for limit in limits))
        limit = self._constant(*limits)[:, None]
        share = self._constant(*(float(draws[row].top_p) for row in sorting))[:, None]
        totals = chosen.sum(-1, keepdim=True)
        while True:
            values = chosen.topk(width, dim=-1).values
            allowed = torch.arange(width, device=weights.device) < limit
            values = torch.where(allowed, values, torch.zeros_like(values))
            running = values.cumsum(-1)
            totals = torch.where(limit <= width, running[:, -1:], totals)
            # If a row needs its last candidate, it may need more.
            enough = (running[:, -1:] >= share * totals) & (share < 1) | (limit <= width)
            if sure or width == vocabulary or bool(enough.all()):
                break
            width = min(vocabulary, width * 8)
        kept = allowed & ((running - values < share * totals) | (share >= 1))
        kept[:, 0] = True
        least = torch.where(kept, values, torch.full_like(values, torch.inf)).amin(-1, keepdim=True)
        equal = chosen == least
        room = kept.sum(-1, keepdim=True) - (values > least).sum(-1, keepdim=True)
        if not self._asks or bool((equal.sum(-1, keepdim=True) > room).any()):
            equal &= equal.cumsum(-1) <= room
        weights[rows] = chosen.masked_fill((chosen <= least) & ~equal, 0)

    def _scratch(self, count: int, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Two views of the working memory: `[count, blocks, block]`, zero behind the vocabulary, and
        `[count, V]`."""
        blocks = -(-vocabulary // _BLOCK)
        size = count * blocks * _BLOCK
        if self._memory.numel() < size:
            self._memory = torch.empty(size, device=self._device)
        flat = self._memory[:size].view(count, blocks * _BLOCK)
        flat[:, vocabulary:] = 0
        return flat.view(count, blocks, _BLOCK), flat[:, :vocabulary]


def draw_many(logits: Tensor, temperature: float, uniforms: np.ndarray) -> tuple[Tensor, Tensor]:
    """`[N, K]` tokens, drawn independently at the temperature without filters, and their log-probabilities at
    temperature 1. `uniforms` `[N, K]`."""
    logits = logits.float()
    if temperature == 0:
        tokens = logits.argmax(-1, keepdim=True).expand(-1, uniforms.shape[1])
    else:
        wide = _wide(logits.device)
        picks = torch.from_numpy(uniforms).to(device=logits.device, dtype=wide)
        weights = ((logits - logits.amax(-1, keepdim=True)).to(wide) / temperature).exp_()
        tokens = _invert(weights, picks, scale=True)[0]
    return tokens, logits.gather(1, tokens) - logits.logsumexp(-1, keepdim=True)


def most_likely(logits: Tensor, log_sum: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most likely tokens of each row, in order, and their log-probabilities: `[N, count]`
    each."""
    values, tokens = logits.float().topk(min(count, logits.shape[-1]), dim=-1)
    return tokens, values - log_sum[:, None]


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _invert(mass: Tensor, picks: Tensor, scale: bool) -> tuple[Tensor, Tensor]:
    """The first index at which the running sum of `mass` `[n, m]` exceeds each pick `[n, k]`, and what is
    left of the pick there. With `scale`, picks are fractions of the total. Never an index without mass."""
    running = mass.cumsum(-1)
    total = running[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))
    picks = torch.minimum(picks * total if scale else picks, below).clamp_(min=0)
    index = torch.searchsorted(running, picks, right=True).clamp_(max=mass.shape[1] - 1)
    before = torch.where(index > 0, running.gather(1, (index - 1).clamp_(min=0)), torch.zeros_like(picks))
    return index, picks - before


# Log-probabilities of a prompt's own tokens, computed without the logits of all of them at once.

_LOGIT_ELEMENTS = 1 << 24


def score_prompt(model: LanguageModel, hidden: Tensor, following: Sequence[int]) -> Tensor:
    """fp32 `[N]`: the log-probability of `following[i]` after the position of `hidden[i]` `[N, D]`."""
    targets = torch.tensor(following, dtype=torch.long, device=hidden.device)
    scores = torch.empty(len(following), dtype=torch.float32, device=hidden.device)
    step = max(1, _LOGIT_ELEMENTS // model.vocabulary_size)
    for begin in range(0, len(following), step):
        part = slice(begin, begin + step)
        logits = model.logits(hidden[part]).float()
        scores[part] = logits.gather(1, targets[part, None])[:, 0] - logits.logsumexp(-1)
    return scores


def with_nan_first(scores: Sequence[Tensor]) -> np.ndarray:
    """The scores end to end, `[P]`. The first token of a prompt has no log-probability."""
    return np.concatenate([np.full(1, np.nan, np.float32), *(part.cpu().numpy() for part in scores)])
